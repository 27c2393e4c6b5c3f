"""Tokens of two texts, or of one text read by two models, that belong together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from attnscope.analysis.comparison.head_rows import CELLS, Choosing, evenly
from attnscope.analysis.selection import Selection
from attnscope.analysis.sentences import kind_title
from attnscope.attention import Attention, Axis, Kind
from attnscope.axes import Coarsening, coarsen_axis
from attnscope.capture.observers.sample import Rows
from attnscope.comparison import align, find_shared_words
from attnscope.errors import InputError
from attnscope.models import ModelInput

Pairs = Sequence["tuple[Sequence[int], Sequence[int]]"]
"""Tokens of one axis, and the tokens of the other that they belong to."""

Pairing = Callable[[Kind], "tuple[Pairs, Pairs]"]
"""The pairs of queries, and those of keys, of a kind of attention."""


def pairing(one: ModelInput, other: ModelInput, pair: Callable[[Axis, Axis], Pairs]) -> Pairing:
    """Pair the queries and the keys of every kind of attention that is asked for, each once."""

    @cache
    def pairs(kind: Kind) -> tuple[Pairs, Pairs]:
        mine, theirs = one.axes.get(kind), other.axes.get(kind)
        if mine is None or theirs is None:
            raise InputError(f"nobody knows which tokens the {kind_title(kind)} sees: it cannot be aligned")
        return pair(mine[0], theirs[0]), pair(mine[1], theirs[1])

    return pairs


def paired_rows(pairs: Pairing, side: int, cells: int = CELLS) -> Choosing:
    """The rows and keys that have a partner, on one side (0 or 1); rows sampled evenly if they are many."""

    def choose(attention: Attention) -> Rows:
        queries, keys = ([pair[side] for pair in axis] for axis in pairs(attention.site.kind))
        across = np.zeros((len(keys), len(attention.keys)), np.float32)
        for row, tokens in enumerate(keys):
            across[row, list(tokens)] = 1
        return Rows([queries[row] for row in evenly(len(queries), len(keys), cells)], across)

    return choose


def by_place(selection: Selection) -> Callable[[Axis, Axis], Pairs]:
    """Pair the places of two texts, tokens or words, also those that replace each other.

    Raises ``InputError`` where the texts have no token in common but special ones.
    """

    def pair(one: Axis, other: Axis) -> Pairs:
        mine, theirs = selection.coarsening(one), selection.coarsening(other)
        pairs = align(texts(mine), texts(theirs)).pairs
        alike = [(i, j) for i, j in pairs if mine.places[i].text == theirs.places[j].text]
        if all(mine.places[i].special for i, _ in alike):
            raise InputError(
                f"the two texts have no token in common: one begins {_beginning(mine)}, "
                f"the other {_beginning(theirs)}"
            )
        return [(mine.tokens(i), theirs.tokens(j)) for i, j in pairs]

    return pair


def by_word(one: Axis, other: Axis) -> Pairs:
    """Pair the words of one text as two tokenizers cut it.

    Raises ``InputError`` where they have no word in common.
    """
    mine, theirs = (coarsen_axis(axis, words=True, hide_special=True) for axis in (one, other))
    pairs = find_shared_words(texts(mine), texts(theirs))
    if not pairs:
        raise InputError(
            f"the two models read no word alike: one reads {_beginning(mine)}, the other {_beginning(theirs)}"
        )
    return [(mine.tokens(*my_words), theirs.tokens(*their_words)) for my_words, their_words in pairs]


def texts(axis: Coarsening) -> list[str]:
    """The texts of an axis, without the spaces around them."""
    return [place.text.strip() or place.text for place in axis.places]


def _beginning(axis: Coarsening) -> str:
    return repr(" ".join(place.label for place in axis.places if not place.special)[:40])
