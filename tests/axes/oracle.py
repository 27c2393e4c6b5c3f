"""Coarser maps by sums over slices, an oracle for those by matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from attnscope.axes import Place, Weights, join_places
from attnscope.errors import SelectionError


def merge_words(field: Weights) -> Weights:
    """The same attention between words.  [..., query, key] -> [..., word, word]

    Neighbouring tokens of one segment with one word number are one word; tokens without a word number
    (special tokens, bare positions) stay alone. Columns of a word are summed, rows averaged; a cell is
    open where any of its cells was.
    """
    return _coarser(field, _words(field.queries), _words(field.keys), pooled=False)


def hide_special(field: Weights) -> tuple[Weights, float]:
    """The same attention without special tokens, and the share of the mass that this hides.

    Rows and columns of special tokens are dropped, nothing is renormalised. The share is the mass that
    the rows which stay give to the columns which go, over all their mass, in all heads. Raises
    ``SelectionError`` where nothing but special tokens exists.
    """
    rows = np.array([not place.special for place in field.queries])
    columns = np.array([not place.special for place in field.keys])
    if not rows.any() or not columns.any():
        raise SelectionError("special tokens cannot be hidden: this text has no other tokens")
    kept = field.values[..., rows, :]
    total = float(kept.sum(dtype=np.float64))
    hidden = float(kept[..., ~columns].sum(dtype=np.float64))
    shown = Weights(
        kept[..., columns],
        field.allowed[..., rows, :][..., columns],
        tuple(place for place in field.queries if not place.special),
        tuple(place for place in field.keys if not place.special),
    )
    return shown, hidden / total if total else 0.0


def pool(field: Weights, rows: int, columns: int) -> Weights:
    """Blocks of ``rows`` × ``columns`` cells as one cell; the last block may be smaller.

    Columns of a block are summed, rows averaged; a cell is open where any of its cells was.
    """
    if rows < 1 or columns < 1:
        raise ValueError(f"a block of {rows} × {columns} cells holds nothing")
    if rows == columns == 1:
        return field
    return _coarser(field, _blocks(field.queries, rows), _blocks(field.keys, columns), pooled=True)


def _words(axis: Sequence[Place]) -> list[list[Place]]:
    numbered = enumerate(axis)
    return [[place for _, place in run] for _, run in groupby(numbered, key=_word_key)]


def _word_key(numbered: tuple[int, Place]) -> tuple[int, ...]:
    number, place = numbered
    return (-1, number) if place.word is None else (0, *place.word)


def _blocks(axis: Sequence[Place], size: int) -> list[list[Place]]:
    return [list(axis[start : start + size]) for start in range(0, len(axis), size)]


def _coarser(field: Weights, queries: list[list[Place]], keys: list[list[Place]], *, pooled: bool) -> Weights:
    rows, columns = _starts(queries), _starts(keys)
    sizes = np.array([len(group) for group in queries], field.values.dtype)
    summed = np.add.reduceat(np.add.reduceat(field.values, columns, axis=-1), rows, axis=-2)
    opened = np.logical_or.reduceat(np.logical_or.reduceat(field.allowed, columns, axis=-1), rows, axis=-2)
    return replace(
        field,
        values=summed / sizes[:, None],
        allowed=opened,
        queries=tuple(
            group[0] if len(group) == 1 else join_places(group, pooled=pooled) for group in queries
        ),
        keys=tuple(group[0] if len(group) == 1 else join_places(group, pooled=pooled) for group in keys),
    )


def _starts(groups: list[list[Place]]) -> list[int]:
    starts = np.cumsum([0, *(len(group) for group in groups)])
    return [int(start) for start in starts[:-1]]
