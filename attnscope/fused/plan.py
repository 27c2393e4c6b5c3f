"""How an attention map is cut into blocks of rows and chunks of keys, and what is masked in each."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.fused.runs import Runs

ROWS = 128
"""Rows of a tile for each key head, those of all query heads that share it."""

KEYS = 4096
"""Keys of a chunk; up to so many are one chunk, and nothing needs merging."""

MASKED = -1e30
"""The score of a masked key: its weight is 0, and no sum of it overflows."""


@dataclass(frozen=True, eq=False)
class Chunk:
    """Neighbouring keys.

    ``masking`` holds parts of the chunk, as a slice of its keys, with what to add to their scores,
    ``[row, key]``. ``cells`` are the key cells that the chunk touches, ``begins`` where they begin in it.
    """

    keys: slice
    masking: Sequence[tuple[slice, Tensor]]
    cells: slice
    begins: Tensor

    @property
    def width(self) -> int:
        """How many keys."""
        return int(self.keys.stop - self.keys.start)


@dataclass(frozen=True, eq=False)
class Rows:
    """Neighbouring rows with the chunks of keys that some of them may look at; cells as in ``Chunk``."""

    span: slice
    chunks: Sequence[Chunk]
    cells: slice
    begins: Tensor

    @property
    def count(self) -> int:
        """How many rows."""
        return int(self.span.stop - self.span.start)


def plan(
    runs: Runs, text: int, row_edges: Sequence[int], key_edges: Sequence[int], rows: int, dtype: torch.dtype
) -> list[Rows]:
    """Cut one text's map into blocks of up to ``rows`` rows: whole cells if they fit, else a part of one."""
    low, high = (ends[text if ends.shape[0] > 1 else 0] for ends in (runs.low, runs.high))
    blocks, start = [], 0
    while start < len(low):
        edge = row_edges[bisect_right(row_edges, start + rows) - 1]
        stop = edge if edge > start else start + rows
        ends = low[start:stop], high[start:stop]
        chunks = [
            Chunk(keys, list(_masking(keys, *ends, dtype)), *_cells(key_edges, keys))
            for keys in _chunks(int(ends[0].min()), int(ends[1].max()))
        ]
        span = slice(start, stop)
        blocks.append(Rows(span, chunks, *_cells(row_edges, span)))
        start = stop
    return blocks


def _chunks(low: int, high: int) -> Iterator[slice]:
    """The keys ``low`` to ``high``, cut along a grid of ``KEYS``."""
    while low < high:
        stop = min(high, (low // KEYS + 1) * KEYS)
        yield slice(low, stop)
        low = stop


def _cells(edges: Sequence[int], span: slice) -> tuple[slice, Tensor]:
    """The cells that a span touches, and where in it they begin."""
    first, last = bisect_right(edges, span.start) - 1, bisect_left(edges, span.stop)
    begins = [max(0, edge - span.start) for edge in edges[first:last]]
    return slice(first, last), torch.tensor(begins)


def _masking(keys: slice, low: Tensor, high: Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor]]:
    """What masks the keys outside of each row's run: at the left end of the chunk, and at the right."""
    width = keys.stop - keys.start
    position = torch.arange(keys.start, keys.stop)
    left, right = int(low.max()) - keys.start, int(high.min()) - keys.start
    if left > 0:
        part = slice(0, min(left, width))
        yield part, (position[part] < low[:, None]).to(dtype) * MASKED
    if right < width:
        part = slice(max(right, 0), width)
        yield part, (position[part] >= high[:, None]).to(dtype) * MASKED
