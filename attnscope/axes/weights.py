"""Attention with labelled axes, and the same with fewer rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from attnscope.axes.coarsening import Coarsening, group_places
from attnscope.axes.places import Array as Array
from attnscope.axes.places import Place, places

if TYPE_CHECKING:
    from attnscope.attention import Axis


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


def coarsen(field: Weights, queries: Coarsening, keys: Coarsening) -> tuple[Weights, float]:
    """The same attention between fewer places, and the share of it that went to what was left out.

    [..., query, key] -> [..., query place, key place]. A cell is open where any part of it was.
    """
    values, opened = field.values, field.allowed.astype(np.float32)
    across, down = keys.summing(values.dtype), queries.averaging(values.dtype)
    if across is not None:
        values, opened = values @ across.T, opened @ across.T
    if down is not None:
        values, opened = down @ values, down @ opened
    return label_map(values, opened > 0, queries, keys)


def fit(field: Weights, rows: int, columns: int, *, even: bool = False) -> Weights:
    """The same attention on at most so many rows and columns, in blocks, or in ``even`` cells.

    Blocks are as many on both axes where these are the same places, so that a diagonal stays one.
    """
    if field.square:
        rows = columns = min(rows, columns)
    if len(field.queries) <= rows and len(field.keys) <= columns:
        return field
    queries = group_places(field.queries, most=max(rows, 1), even=even)
    keys = group_places(field.keys, most=max(columns, 1), even=even)
    return coarsen(field, queries, keys)[0]


def label_map(values: Array, allowed: Array, queries: Coarsening, keys: Coarsening) -> tuple[Weights, float]:
    """A coarse map with its labels, and the share of the attention that went to what was left out.

    ``values`` and ``allowed`` are ``[..., query place, key place]`` as ``averaging`` and ``summing`` made
    them; rows count by the tokens that they stand for.
    """
    shown = len(keys.places)
    counts = np.array(
        [sum(queries.counts[at] for at in queries.tokens(row)) for row in range(len(queries.places))]
    )
    total = float((values * counts[:, None]).sum(dtype=np.float64))
    hidden = float((values[..., shown:] * counts[:, None]).sum(dtype=np.float64))
    field = Weights(values[..., :shown], allowed[..., :shown], queries.places, keys.places)
    return field, hidden / total if total else 0.0


def shrink(
    values: Array,
    allowed: Array,
    rows: int,
    columns: int,
    sizes: tuple[Sequence[int], Sequence[int]] | None = None,
) -> tuple[Array, Array]:
    """Values and mask on at most ``rows`` × ``columns`` equal cells, without labels, for thumbnails.

    [..., query, key] -> [..., row, column]. Cells that a border cuts count with the share that lies
    on either side; keys are summed, queries averaged; a cell is open where any part of it was. ``sizes`` are
    the counts of tokens that rows and columns stand for, one each if not given.
    """
    queries, keys = sizes or ([1] * values.shape[-2], [1] * values.shape[-1])
    down = averaging(queries, rows)  # [row, query]
    across = _overlap(tuple(keys), columns)  # [column, key]
    small = down @ values.astype(np.float32, copy=False) @ across.T
    return small, down @ allowed.astype(np.float32) @ across.T > 1e-6


def averaging(sizes: Sequence[int], wanted: int) -> Array:
    """What averages rows, that stand for so many tokens each, in at most ``wanted`` parts.  -> [part, row]"""
    averaged = _overlap(tuple(sizes), wanted) * np.asarray(sizes, np.float32)
    averaged /= averaged.sum(1, keepdims=True)
    return averaged


@lru_cache(maxsize=8)
def _overlap(sizes: tuple[int, ...], wanted: int) -> Array:
    """The share of each cell that lies in each of ``wanted`` equal parts.  -> [part, cell]

    The layers of a model ask for the same one after the other; nothing may be written into it.
    """
    ends = np.cumsum(sizes)
    cut = np.linspace(0, ends[-1], max(min(len(sizes), wanted), 1) + 1)
    shared = np.minimum(cut[1:, None], ends) - np.maximum(cut[:-1, None], ends - sizes)
    share: Array = np.clip(shared / sizes, 0, 1).astype(np.float32)
    share.flags.writeable = False
    return share
