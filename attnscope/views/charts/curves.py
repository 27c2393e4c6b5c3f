"""How a measure changes along the text: a curve a head."""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.views.focus import FULL_BARS


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

    @property
    def top(self) -> float:
        """What a mark of full height stands for: a round share that holds all, or the largest figure."""
        known = [abs(value) for value in self._known]
        most = max(known, default=0.0) or 1.0
        return next((step for step in FULL_BARS if self.unit == "share" and most <= step), most)

    @property
    def least(self) -> float:
        """The smallest figure."""
        return min(self._known, default=0.0)

    @property
    def _known(self) -> list[float]:
        lines = [curve.values for curve in self.curves] + [self.curves[0].baseline]
        return [value for line in lines for value in line if value is not None]
