"""An observer that keeps, of every head, the weights on the keys next to each row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from attnscope.attention import Attention, Site
from attnscope.axes import Array, edges
from attnscope.capture.observers.coarsen import Reading, SharedRows, rows_at_a_time

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 1 << 23
"""Weights computed at a time: 32 MB of float32."""


@dataclass(eq=False)
class Near:
    """Keeps in ``maps`` the mean weights on the keys up to ``reach`` back and ahead, by groups of rows.

    Rows come in at most ``cells`` groups; what is masked counts for nothing, and is not a number where
    nothing is open. Calls whose rows have no place among their keys have no map.
    """

    reach: int
    cells: int
    maps: dict[Site, Array] = field(default_factory=dict)  # float32, [head, row group, offset]

    def observe(self, attention: Attention) -> None:
        """Read one call."""
        SharedRows([self]).observe(attention)

    def begin(self, attention: Attention) -> Reading | None:
        """Begin to read a call."""
        return None if attention.offset is None else _Reading(self, attention, attention.offset)


class _Reading:
    """One call, its rows added up as they come: tensors, or arrays where the attention has those."""

    wanted = None

    def __init__(self, observer: Near, attention: Attention, offset: int) -> None:
        self.observer, self.attention, self.offset = observer, attention, offset
        self.step = rows_at_a_time(attention, BLOCK)
        borders = np.array(edges(len(attention.queries), observer.cells))
        query = np.arange(len(attention.queries))
        self.group = (query >= borders[:-1, None]) & (query < borders[1:, None])  # [row group, query]
        shape = attention.heads, len(borders) - 1, 2 * observer.reach + 1
        self.total, self.count = np.zeros(shape, np.float32), np.zeros(shape, np.float32)

    def add(self, rows: Tensor | Array, allowed: Tensor | Array, start: int) -> None:
        """Add a block of rows."""
        ahead = np.arange(-self.observer.reach, self.observer.reach + 1)
        stop = start + rows.shape[2]
        keys = np.arange(start, stop)[:, None] + self.offset + ahead  # [row, offset]
        inside = (keys >= 0) & (keys < rows.shape[-1])
        keys = keys.clip(0, rows.shape[-1] - 1)[None, None]
        near = _take(rows, keys)
        open_ = _take(allowed, keys) & inside & np.isfinite(near)  # [batch, head, row, offset]
        group = self.group[:, start:stop].astype(np.float32)
        self.total += group @ np.where(open_, near, 0).sum(0, dtype=np.float32)
        self.count += group @ open_.sum(0, dtype=np.float32)

    @np.errstate(invalid="ignore")  # 0 / 0 is not a number
    def end(self) -> None:
        """Keep the map."""
        self.observer.maps[self.attention.site] = self.total / self.count


def _take(values: Tensor | Array, keys: Array) -> Array:
    """The values at some keys of each row.  [batch, head, row, key] -> [batch, head, row, offset]"""
    if isinstance(values, np.ndarray):
        return np.take_along_axis(values, keys, -1)
    import torch

    places = torch.from_numpy(keys).to(values.device)
    taken = values.take_along_dim(places, -1)
    return np.asarray((taken.float() if taken.is_floating_point() else taken).cpu())
