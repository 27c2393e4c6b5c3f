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
        if attention.offset is None:
            return None
        return (_ArrayReading if attention.arrays else _Reading)(self, attention, attention.offset)


class _Reading:
    """One call, its rows added up as they come."""

    wanted = None

    def __init__(self, observer: Near, attention: Attention, offset: int) -> None:
        import torch

        self.observer, self.attention, self.offset = observer, attention, offset
        self.step = rows_at_a_time(attention, BLOCK)
        borders = torch.tensor(edges(len(attention.queries), observer.cells))
        self.group = torch.arange(len(borders) - 1).repeat_interleave(borders.diff())  # [query]
        shape = attention.heads, len(borders) - 1, 2 * observer.reach + 1
        self.total, self.count = torch.zeros(shape), torch.zeros(shape)

    def add(self, rows: Tensor, allowed: Tensor, start: int) -> None:
        """Add a block of rows."""
        import torch

        ahead = torch.arange(-self.observer.reach, self.observer.reach + 1, device=rows.device)
        stop = start + rows.shape[2]
        keys = torch.arange(start, stop, device=rows.device)[:, None] + self.offset + ahead  # [row, offset]
        inside = (keys >= 0) & (keys < rows.shape[-1])
        keys = keys.clamp(0, rows.shape[-1] - 1)
        near = rows.gather(-1, keys.expand(*rows.shape[:2], -1, -1)).float()
        open_ = allowed.to(rows.device).gather(-1, keys.expand(*allowed.shape[:2], -1, -1)) & inside
        open_ = open_ & near.isfinite()
        near = near.where(open_, 0).sum(0).cpu()  # [head, row, offset]
        count = open_.expand(rows.shape[:2] + open_.shape[2:]).sum(0).float().cpu()
        self.total.index_add_(1, self.group[start:stop], near)
        self.count.index_add_(1, self.group[start:stop], count)

    def end(self) -> None:
        """Keep the map."""
        self.observer.maps[self.attention.site] = (self.total / self.count).numpy()  # 0 / 0 is not a number


class _ArrayReading:
    """The same of rows that come as arrays."""

    wanted = None

    def __init__(self, observer: Near, attention: Attention, offset: int) -> None:
        self.observer, self.attention, self.offset = observer, attention, offset
        self.step = rows_at_a_time(attention, BLOCK)
        borders = np.array(edges(len(attention.queries), observer.cells))
        query = np.arange(len(attention.queries))
        self.group = (query >= borders[:-1, None]) & (query < borders[1:, None])  # [row group, query]
        shape = attention.heads, len(borders) - 1, 2 * observer.reach + 1
        self.total, self.count = np.zeros(shape, np.float32), np.zeros(shape, np.float32)

    def add(self, rows: Array, allowed: Array, start: int) -> None:
        """Add a block of rows."""
        ahead = np.arange(-self.observer.reach, self.observer.reach + 1)
        stop = start + rows.shape[2]
        keys = np.arange(start, stop)[:, None] + self.offset + ahead  # [row, offset]
        inside = (keys >= 0) & (keys < rows.shape[-1])
        keys = keys.clip(0, rows.shape[-1] - 1)[None, None]
        near = np.take_along_axis(rows, keys, -1)
        open_ = np.take_along_axis(allowed, keys, -1) & inside & np.isfinite(near)
        group = self.group[:, start:stop].astype(np.float32)
        self.total += group @ np.where(open_, near, 0).sum(0, dtype=np.float32)
        self.count += group @ open_.sum(0, dtype=np.float32)

    @np.errstate(invalid="ignore")  # 0 / 0 is not a number
    def end(self) -> None:
        """Keep the map."""
        self.observer.maps[self.attention.site] = self.total / self.count
