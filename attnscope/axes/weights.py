"""Attention with labelled axes, and the three ways to say the same with fewer rows and columns.

Merging words, pooling and shrinking share one definition of a coarser map: the weights of the keys in
a group are *summed*, those of the queries in a group *averaged*. A cell then says which share of the
attention of these queries goes to these keys, and rows still sum to what they summed to before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnscope.axes.places import Place, joined, places
from attnscope.errors import SelectionError

if TYPE_CHECKING:
    from attnscope.attention import Axis

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights of one head or several, between queries and keys that have labels.

    ``values`` is ``[..., query, key]``, ``allowed`` (bool, the keys that mask and causality left open)
    has the same two last axes and broadcasts over the others.
    """

    values: Array  # [..., query, key]
    allowed: Array  # [..., query, key]
    queries: tuple[Place, ...]
    keys: tuple[Place, ...]

    def __post_init__(self) -> None:
        size = (len(self.queries), len(self.keys))
        whole = self.values.shape[-2:] == self.allowed.shape[-2:] == size
        if not whole or not _spreads(self.allowed.shape, self.values.shape):
            raise ValueError(
                f"weights {self.values.shape} and mask {self.allowed.shape} do not fit "
                f"{size[0]} queries × {size[1]} keys"
            )

    @property
    def square(self) -> bool:
        """Whether rows and columns are the same places, so that the diagonal means something."""
        return self.queries == self.keys


def _spreads(shape: tuple[int, ...], over: tuple[int, ...]) -> bool:
    """Whether an array of one shape broadcasts to another."""
    return len(shape) <= len(over) and all(
        mine in (1, other) for mine, other in zip(shape[::-1], over[::-1], strict=False)
    )


def weights(values: Array, queries: Axis, keys: Axis, allowed: Array | None = None) -> Weights:
    """Label ``values`` ``[..., query, key]`` with tokens or bare positions.

    Without ``allowed`` every key counts as open. Raises ``ValueError`` where sizes disagree.
    """
    values = np.asarray(values)
    open_keys = np.ones(values.shape[-2:], bool) if allowed is None else np.asarray(allowed, bool)
    open_keys = np.broadcast_to(open_keys, (*open_keys.shape[:-2], *values.shape[-2:]))
    return Weights(values, open_keys, places(queries), places(keys))


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


def blocks_to_fit(field: Weights, rows: int, columns: int) -> tuple[int, int]:
    """How many rows and columns a block needs, for at most so many blocks on each axis.

    Both are the same where rows and columns are the same places, so that a diagonal stays one.
    """
    down = -(-len(field.queries) // max(rows, 1))
    across = -(-len(field.keys) // max(columns, 1))
    return (max(down, across),) * 2 if field.square else (max(down, 1), max(across, 1))


def shrink(values: Array, allowed: Array, rows: int, columns: int) -> tuple[Array, Array]:
    """Values and mask on at most ``rows`` × ``columns`` equal cells, without labels, for thumbnails.

    [..., query, key] -> [..., row, column]. Cells that a border cuts count with the share that lies
    on either side; keys are summed, queries averaged; a cell is open where any part of it was.
    """
    down = _overlap(values.shape[-2], rows)  # [row, query]
    across = _overlap(values.shape[-1], columns)  # [column, key]
    averaged = down / down.sum(1, keepdims=True)
    small = averaged @ values.astype(np.float32, copy=False) @ across.T
    return small, down @ allowed.astype(np.float32) @ across.T > 1e-6


def _overlap(cells: int, wanted: int) -> Array:
    """The share of each cell that lies in each of ``wanted`` equal parts.  -> [part, cell]"""
    wanted = max(min(cells, wanted), 1)
    edges = np.linspace(0, cells, wanted + 1)
    left, right = np.arange(cells), np.arange(1, cells + 1)
    shared = np.minimum(edges[1:, None], right) - np.maximum(edges[:-1, None], left)
    share: Array = np.clip(shared, 0, 1).astype(np.float32)
    return share


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
        queries=tuple(group[0] if len(group) == 1 else joined(group, pooled=pooled) for group in queries),
        keys=tuple(group[0] if len(group) == 1 else joined(group, pooled=pooled) for group in keys),
    )


def _starts(groups: list[list[Place]]) -> list[int]:
    starts = np.cumsum([0, *(len(group) for group in groups)])
    return [int(start) for start in starts[:-1]]
