"""How an axis is folded before a map is computed: special tokens aside, words together, blocks pooled.

The same definition as in ``attnscope.axes.weights``, as matrices: keys of a group are summed, queries
averaged. A map of any size can then be folded while its rows are computed, and never exists whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from attnscope.attention import Axis
from attnscope.axes.places import Place, joined, places
from attnscope.axes.weights import Array, Weights
from attnscope.errors import SelectionError


@dataclass(frozen=True, eq=False)
class AxisFolding:
    """The places that remain of an axis, and the tokens that each stands for.

    ``parts`` holds, for each place, its words, each as the numbers of its tokens. ``aside`` are the
    tokens that were left out.
    """

    places: tuple[Place, ...]
    parts: tuple[tuple[tuple[int, ...], ...], ...]
    aside: tuple[int, ...]
    size: int

    @property
    def trivial(self) -> bool:
        """Whether every token is a place of its own."""
        return len(self.places) == self.size

    def averaging(self) -> Array | None:
        """What averages queries; ``None`` if there is nothing to do.  -> [place, query]"""
        if self.trivial:
            return None
        matrix = np.zeros((len(self.places), self.size), np.float32)
        for row, words in enumerate(self.parts):
            for word in words:
                matrix[row, list(word)] = 1 / (len(words) * len(word))
        return matrix

    def summing(self) -> Array | None:
        """What adds up keys, with what was left out as one more place; ``None`` if there is nothing to do.

        -> [place, key], or [place + 1, key] if anything was left out
        """
        if self.trivial:
            return None
        matrix = np.zeros((len(self.places) + bool(self.aside), self.size), np.float32)
        for row, words in enumerate((*self.parts, (self.aside,)) if self.aside else self.parts):
            matrix[row, [token for word in words for token in word]] = 1
        return matrix

    def counts(self) -> Array:
        """How many tokens each place stands for.  -> [place]"""
        return np.array([sum(len(word) for word in words) for words in self.parts])


def fold_axis(
    axis: Axis, *, words: bool = False, hide_special: bool = False, most: int | None = None
) -> AxisFolding:
    """Fold an axis: special tokens aside, pieces of a word together, then blocks, ``most`` places at most.

    Raises ``SelectionError`` where nothing but special tokens exists.
    """
    every = list(enumerate(places(axis)))
    kept = [(at, place) for at, place in every if not (hide_special and place.special)]
    if not kept:
        raise SelectionError("special tokens cannot be hidden: this text has no other tokens")
    groups = _words(kept) if words else [[one] for one in kept]
    size = 1 if most is None else -(-len(groups) // most)
    blocks = [groups[start : start + size] for start in range(0, len(groups), size)]
    return AxisFolding(
        places=tuple(_joined(block, pooled=size > 1) for block in blocks),
        parts=tuple(tuple(tuple(at for at, _ in word) for word in block) for block in blocks),
        aside=tuple(at for at, place in every if hide_special and place.special),
        size=len(every),
    )


def edges(length: int, cells: int) -> tuple[int, ...]:
    """Where up to ``cells`` cells of nearly equal size begin and end along an axis of ``length``."""
    count = min(cells, length)
    return tuple(cell * length // count for cell in range(count + 1)) if count else (0,)


def unfolded(values: Array, allowed: Array, queries: AxisFolding, keys: AxisFolding) -> tuple[Weights, float]:
    """A folded map with its labels, and the share of the attention that went to what was left out.

    ``values`` and ``allowed`` are ``[..., query place, key place]`` as ``averaging`` and ``summing`` made
    them; rows count by the tokens that they stand for.
    """
    shown = len(keys.places)
    counts = queries.counts()[:, None]
    total = float((values * counts).sum(dtype=np.float64))
    hidden = float((values[..., shown:] * counts).sum(dtype=np.float64))
    labelled = Weights(values[..., :shown], allowed[..., :shown], queries.places, keys.places)
    return labelled, hidden / total if total else 0.0


def _words(kept: Sequence[tuple[int, Place]]) -> list[list[tuple[int, Place]]]:
    """Pieces of a word together, each with its place on the axis."""
    runs = groupby(kept, key=lambda one: (one[0],) if one[1].word is None else (-1, *one[1].word))
    return [list(run) for _, run in runs]


def _joined(block: list[list[tuple[int, Place]]], *, pooled: bool) -> Place:
    if not pooled and len(block[0]) == 1:
        return block[0][0][1]
    return joined([place for word in block for _, place in word], pooled=pooled)
