"""What is known about one head after measuring: plain numbers, each beside its baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from attnscope.attention import Head, Site

Weigh: TypeAlias = Literal["raw", "norm", "norm-residual", "zeroing", "gradient"]
"""What weights are weighed by, so that they say more; ``raw``: nothing."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A measure of one head, averaged over the rows that count.

    ``baseline`` is the same average on even attention over the open keys, ``rows`` the number of rows that
    counted, ``texts`` the number of texts that had such rows. ``error`` is the standard error of the value
    over texts, ``None`` with fewer than two of them: rows of one text are too alike to count as samples.
    """

    value: float
    baseline: float
    rows: int
    texts: int
    error: float | None = None

    @property
    def lift(self) -> float:
        """How far the value stands above its baseline: ``value - baseline``."""
        return self.value - self.baseline


WEAK = "weak "
"""How the name of a role begins that stands out among the model's heads, and not by itself."""


@dataclass(frozen=True, slots=True)
class Role:
    """What a head does, by the strongest pattern that passes its threshold.

    ``score``, ``baseline`` and ``rows`` belong to that pattern (for ``broad`` and ``none`` see
    ``attnscope.measures.roles.role``); ``sentence`` says it in plain words. A role that passes no
    threshold, while hardly another head of the model is like it, has a name that begins with ``WEAK``.
    """

    name: str
    score: float
    baseline: float
    rows: int
    sentence: str

    @property
    def lift(self) -> float:
        """How far the score stands above its baseline: ``score - baseline``."""
        return self.score - self.baseline

    @property
    def pattern(self) -> str:
        """The name without the word for weak ones."""
        return self.name.removeprefix(WEAK)


@dataclass(frozen=True, slots=True)
class HeadFigures:
    """All figures of one head of one site.

    ``absent`` names every measure that was asked for and does not exist here, with the reason.
    ``role`` is ``None`` where the measures that make up roles were not asked for, or no row counted.
    """

    site: Site
    head: int
    figures: Mapping[str, Figure]
    absent: Mapping[str, str]
    role: Role | None

    @property
    def address(self) -> Head:
        """Layer, head and kind of attention."""
        return Head(self.site.layer, self.head, self.site.kind)

    @property
    def name(self) -> str:
        """The head as users write it, ``L5H3``."""
        return self.address.name
