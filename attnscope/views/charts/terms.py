"""Signed terms that sum to one number, and the words that some of them move."""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.views.heads import HeadMap


@dataclass(frozen=True, slots=True)
class Term:
    """One of the numbers that are added."""

    label: str
    value: float


@dataclass(frozen=True, slots=True)
class Moved:
    """The words that a head's output raises and lowers most, each with how far."""

    label: str
    raised: tuple[Term, ...]
    lowered: tuple[Term, ...]


@dataclass(frozen=True, eq=False)
class Terms:
    """What a number is the sum of: in a few groups, and the largest terms one by one.

    ``groups`` sum to ``total``, and so do ``largest`` and ``rest``. ``marked`` is the label of the term that
    was asked for. ``heads`` is the map of all heads, which a picture has beside the bars.
    """

    groups: tuple[Term, ...]
    total: Term
    largest: tuple[Term, ...]
    rest: Term | None = None
    moved: tuple[Moved, ...] = ()
    marked: str | None = None
    heads: HeadMap | None = None
    title: str = ""
    subtitle: str = ""
    notes: tuple[str, ...] = ()

    @property
    def blocks(self) -> tuple[tuple[Term, ...], ...]:
        """The groups with their sum, and the largest terms with the rest."""
        return (*self.groups, self.total), (*self.largest, *(() if self.rest is None else (self.rest,)))

    @property
    def span(self) -> tuple[float, float]:
        """How far the bars go below zero, and above it; 1 in all where there is none."""
        values = [term.value for block in self.blocks for term in block]
        low, high = max(0.0, -min(values, default=0.0)), max(0.0, max(values, default=0.0))
        return (low, high) if low + high else (0.0, 1.0)
