"""The one way to say a map with fewer rows and columns: keys of a group are summed, queries averaged.

A cell then says which share of the attention of these queries goes to these keys, and rows still sum to what
they summed to before. A ``Coarsening`` of an axis has its groups: special tokens aside, the pieces of
words together, neighbours in blocks. As matrices, it makes a map coarser while its rows are computed, or
after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import DTypeLike

from attnscope.axes.places import Array, Place, join_places, places
from attnscope.errors import SelectionError

if TYPE_CHECKING:
    from attnscope.attention import Axis


@dataclass(frozen=True, eq=False)
class Coarsening:
    """The places that remain of an axis, and the places that each of them stands for.

    ``parts`` holds, for each place, its words, each as numbers along the axis. ``aside`` are those that were
    left out, ``counts`` how many rows each of the axis is the mean of, 1 unless it was pooled before.
    """

    places: tuple[Place, ...]
    parts: tuple[tuple[tuple[int, ...], ...], ...]
    aside: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def size(self) -> int:
        """How long the axis is."""
        return len(self.counts)

    def averaging(self, dtype: DTypeLike = np.float32) -> Array | None:
        """What averages queries; ``None`` if there is nothing to do.  -> [place, query]"""
        if len(self.places) == self.size:
            return None
        matrix = np.zeros((len(self.places), self.size), dtype)
        for row, words in enumerate(self.parts):
            total = sum(self.counts[word[0]] for word in words)
            for word in words:
                matrix[row, list(word)] = self.counts[word[0]] / (total * len(word))
        return matrix

    def summing(self, dtype: DTypeLike = np.float32) -> Array | None:
        """What adds up keys, with what was left out as one more place; ``None`` if there is nothing to do.

        -> [place, key], or [place + 1, key] if anything was left out
        """
        if len(self.places) == self.size:
            return None
        matrix = np.zeros((len(self.places) + bool(self.aside), self.size), dtype)
        for row in range(len(self.places)):
            matrix[row, self.tokens(row)] = 1
        if self.aside:
            matrix[-1, list(self.aside)] = 1
        return matrix

    @cached_property
    def partial(self) -> bool:
        """Whether some of the axis belongs to no place."""
        return sum(len(word) for words in self.parts for word in words) < self.size

    @cached_property
    def edges(self) -> tuple[int, ...]:
        """Where each place begins and ends on the axis; empty where words were joined or some left out."""
        if self.partial or any(len(word) > 1 for words in self.parts for word in words):
            return ()
        return (0, *np.cumsum([len(words) for words in self.parts]).tolist())

    def tokens(self, *rows: int) -> list[int]:
        """What some places stand for, as numbers along the axis."""
        return [token for row in rows for word in self.parts[row] for token in word]

    def only(self, row: int) -> Coarsening:
        """One place alone, and nothing of the others."""
        return Coarsening((self.places[row],), (self.parts[row],), (), self.counts)


def group_places(
    every: Sequence[Place],
    *,
    words: bool = False,
    hide_special: bool = False,
    most: int | None = None,
    even: bool = False,
) -> Coarsening:
    """How to coarsen an axis: special tokens aside, pieces of words together, then ``most`` places at most.

    Neighbours come in blocks of one size, of which the last may be smaller, so that labels are easy to read;
    or ``even``, in as many cells as may be, whose sizes differ by one at most. Neighbouring tokens of one
    segment with one word number are one word. Raises ``SelectionError`` where nothing but special tokens
    exists.
    """
    shown = [(at, place) for at, place in enumerate(every) if not (hide_special and place.special)]
    if not shown:
        raise SelectionError("special tokens cannot be hidden: this text has no other tokens")
    runs = groupby(shown, key=lambda one: (one[0],) if one[1].word is None else (-1, *one[1].word))
    groups = [list(run) for _, run in runs] if words else [[one] for one in shown]
    most = min(most or len(groups), len(groups))
    size = -(-len(groups) // most)
    cut = edges(len(groups), most) if even else (*range(0, len(groups), size), len(groups))
    blocks = [groups[start:stop] for start, stop in pairwise(cut)]
    return Coarsening(
        places=tuple(_join_block(block, pooled=size > 1) for block in blocks),
        parts=tuple(tuple(tuple(at for at, _ in word) for word in block) for block in blocks),
        aside=tuple(at for at, place in enumerate(every) if hide_special and place.special),
        counts=tuple(place.count for place in every),
    )


@lru_cache(8)  # the layers of a model share their axes
def coarsen_axis(
    axis: Axis,
    *,
    words: bool = False,
    hide_special: bool = False,
    most: int | None = None,
    even: bool = False,
) -> Coarsening:
    """How to coarsen an axis of tokens or bare positions; see ``group_places``."""
    return group_places(places(axis), words=words, hide_special=hide_special, most=most, even=even)


def edges(length: int, cells: int) -> tuple[int, ...]:
    """Where up to ``cells`` cells of nearly equal size begin and end along an axis of ``length``."""
    count = min(cells, length)
    return tuple(cell * length // count for cell in range(count + 1)) if count else (0,)


def _join_block(block: list[list[tuple[int, Place]]], *, pooled: bool) -> Place:
    if not pooled and len(block[0]) == 1:
        return block[0][0][1]
    count = sum(word[0][1].count for word in block)
    return join_places([place for word in block for _, place in word], pooled=pooled, count=count)
