"""An observer that keeps a small map of every head: a picture of N² numbers in cells × cells."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from attnscope.attention import Attention, Axis, Site
from attnscope.axes.folding import edges
from attnscope.memory import require

How: TypeAlias = Literal["share", "mean", "max"]
"""What a cell holds, see ``Pool``."""

BYTES = 5
"""What a cell of a map takes: a float32 and a bool."""

BLOCK = 1 << 24  # numbers computed at a time: 64 MB of float32


@dataclass(frozen=True, eq=False)
class Pooled:
    """The heads of one attention call, each pooled to a small map.

    ``row_edges`` and ``key_edges`` say which positions a cell covers: cell ``c`` holds ``edges[c]`` to
    ``edges[c + 1]``. ``open`` is False where the mask closes every pair of the cell; its value is 0 there.
    """

    site: Site
    values: Tensor  # [batch, head, row cell, key cell]
    open: Tensor  # bool, [batch or 1, head or 1, row cell, key cell]
    row_edges: tuple[int, ...]
    key_edges: tuple[int, ...]
    queries: Axis
    keys: Axis
    offset: int | None


@dataclass(eq=False)
class Pool:
    """Keeps every head of every call in ``maps``, at most ``cells`` × ``cells`` numbers a head.

    A cell's value is the share of its queries' attention that its keys get (weights summed over keys,
    averaged over queries), or the mean or the maximum of the weights of the query-key pairs in it that the
    mask left open. Where there are no more positions than cells, a cell is one pair and the map is the
    weights themselves. Rows are computed in blocks: no more than ``BLOCK`` weights exist at a time, or one
    row of all heads. Raises ``SizeError`` for a map that would not fit the memory that is free.
    """

    cells: int
    how: How = "mean"
    maps: list[Pooled] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.cells < 1:
            raise ValueError("a pooled map has at least one cell")

    def observe(self, attention: Attention) -> None:
        """Compute and keep the pooled heads."""
        queries, keys = len(attention.queries), len(attention.keys)
        row_edges, key_edges = edges(queries, self.cells), edges(keys, self.cells)
        heads, cells = attention.batch * attention.heads, (len(row_edges) - 1) * (len(key_edges) - 1)
        require(
            BYTES * heads * cells,
            f"{heads:,} heads of layer {attention.site.layer} in {cells:,} cells each",
            "choose one layer",
        )
        block = max(1, BLOCK // max(1, attention.batch * attention.heads * keys))
        values, opened = [], []
        for start, stop in pairwise(row_edges):
            value, mask = self._row_of_cells(attention, start, stop, block, key_edges)
            values.append(value)
            opened.append(mask)
        self.maps.append(
            Pooled(
                site=attention.site,
                values=torch.stack(values, 2),
                open=torch.stack(opened, 2),
                row_edges=row_edges,
                key_edges=key_edges,
                queries=attention.queries,
                keys=attention.keys,
                offset=attention.offset,
            )
        )

    def _row_of_cells(
        self, attention: Attention, start: int, stop: int, block: int, key_edges: tuple[int, ...]
    ) -> tuple[Tensor, Tensor]:
        """One row of cells.  -> values [batch, head, key cell], open [batch or 1, head or 1, key cell]"""
        total: Tensor | None = None
        count: Tensor | None = None
        for first in range(start, stop, block):
            last = min(first + block, stop)
            allowed = attention.allowed(first, last)  # [batch or 1, head or 1, row, key]
            rows = attention.rows(first, last).masked_fill(~allowed, 0.0)  # [batch, head, row, key]
            if rows.dtype in (torch.float16, torch.bfloat16):
                rows = rows.float()
            open_pairs = allowed.expand(*allowed.shape[:2], *rows.shape[2:]).sum(2)  # [., ., key]
            pooled = rows.amax(2) if self.how == "max" else rows.sum(2)  # [batch, head, key]
            if total is None or count is None:
                total, count = pooled, open_pairs
            else:
                total = torch.maximum(total, pooled) if self.how == "max" else total + pooled
                count = count + open_pairs
        assert total is not None
        assert count is not None
        cell = _cells(key_edges, total.device)
        shape = (*total.shape[:2], len(key_edges) - 1)
        counts = _summed(count, cell, shape[-1])
        if self.how != "max":
            pairs = counts.clamp(min=1) if self.how == "mean" else stop - start
            return _summed(total, cell, shape[-1]) / pairs, counts > 0
        highest = total.new_zeros(shape).scatter_reduce(-1, cell.expand_as(total), total, "amax")
        return highest, counts > 0


def _cells(key_edges: tuple[int, ...], device: torch.device) -> Tensor:
    """The cell that each key lies in.  -> [key]"""
    sizes = torch.tensor(key_edges, device=device).diff()
    return torch.repeat_interleave(torch.arange(len(sizes), device=device), sizes)


def _summed(numbers: Tensor, cell: Tensor, cells: int) -> Tensor:
    """Sums over the keys of each cell.  [..., key] -> [..., key cell]"""
    return numbers.new_zeros(*numbers.shape[:-1], cells).index_add(-1, cell, numbers)
