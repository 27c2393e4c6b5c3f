"""How a prediction falls as tokens are taken away in several orders, and rises as they come back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ranked:
    """One order of the tokens: the probability of the prediction after each step, and the means of it.

    ``first`` are the tokens that stand first, none of a mean of several orders; the errors are those of such
    a mean.
    """

    name: str
    first: tuple[str, ...]
    deletion: tuple[float, ...]
    insertion: tuple[float, ...]
    deletion_area: float
    insertion_area: float
    deletion_error: float = 0.0
    insertion_error: float = 0.0


@dataclass(frozen=True, slots=True)
class Faithful:
    """Orders by several methods, the best first; ``taken`` is how many tokens each step has taken away."""

    taken: tuple[int, ...]
    ranked: tuple[Ranked, ...]
    random: Ranked
    alone: Ranked
    title: str = ""
    subtitle: str = ""
    notes: tuple[str, ...] = ()

    @property
    def whole(self) -> float:
        """The probability with all tokens, of which areas are shown as shares."""
        return self.random.deletion[0] or 1.0
