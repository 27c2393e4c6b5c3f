"""How a measure changes along the text: a curve a head."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Curve:
    """A head's averages over one run of rows after the other; ``None`` where no row of a run counts."""

    head: str
    values: tuple[float | None, ...]
    baseline: tuple[float | None, ...]

    @property
    def mean(self) -> float:
        """The mean over the runs that have one."""
        known = [value for value in self.values if value is not None]
        return sum(known) / len(known)


@dataclass(frozen=True, slots=True)
class Curves:
    """One measure of several heads, best first; run ``i`` begins at row ``edges[i]``."""

    measure: str
    unit: str
    edges: tuple[int, ...]
    curves: tuple[Curve, ...]
    title: str = ""
    subtitle: str = ""
    notes: tuple[str, ...] = ()
