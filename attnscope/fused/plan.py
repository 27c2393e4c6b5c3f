"""How an attention map is cut into tiles that stay in a core's own cache, and what is masked in each."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from attnscope.fused.runs import Runs

ROWS = 512
"""Rows of a block, whose tiles are merged."""

KEYS = 1024
"""Keys of a tile that is open to all rows: with 512 rows its scores are 2 MiB in float32."""

EDGE = 256
"""Keys of a tile where the open keys of some row begin or end: little is computed in vain."""


@dataclass(frozen=True, eq=False)
class Tile:
    """Some rows and neighbouring keys, with the part of them in which some pair is masked.

    ``mask`` is [row, key] of the rows ``masked``, counted from the tile's first; ``None`` if all is open.
    ``cells`` are the row cells that the tile touches, ``begins`` where in it they begin.
    """

    rows: slice
    keys: slice
    masked: slice
    mask: Tensor | None
    cells: slice
    begins: Tensor


@dataclass(frozen=True, eq=False)
class Block:
    """Neighbouring rows and the tiles that cover their open keys; cells as in ``Tile``."""

    rows: slice
    keys: slice
    tiles: Sequence[Tile]
    row_cells: slice
    key_cells: slice
    key_begins: Tensor


@lru_cache(4)  # the layers of a model share their runs, which nobody writes into
def plan(runs: Runs, text: int, row_edges: tuple[int, ...], key_edges: tuple[int, ...]) -> list[Block]:
    """Cut one text's map into blocks of rows."""
    low, high = (ends[text % len(ends)] for ends in (runs.low, runs.high))
    masks: dict[bytes, Tensor] = {}
    blocks = []
    for start in range(0, len(low), ROWS):
        rows = slice(start, min(start + ROWS, len(low)))
        ends = low[rows], high[rows]
        made = (_tile(rows, keys, *ends, row_edges, masks) for keys in _cuts(*ends))
        tiles = [tile for tile in made if tile is not None]
        keys = slice(tiles[0].keys.start, tiles[-1].keys.stop)
        row_cells, _ = _cells(row_edges, rows)
        blocks.append(Block(rows, keys, tiles, row_cells, *_cells(key_edges, keys)))
    return blocks


def _cuts(low: Tensor, high: Tensor) -> Iterator[slice]:
    """The keys that are open to some row, cut wide where they are open to all, and narrow elsewhere."""
    start, stop = int(low.min()), int(high.max())
    first, last = -(-int(low.max()) // EDGE) * EDGE, int(high.min()) // EDGE * EDGE  # open to all between
    ends = (start, first, last, stop) if start <= first < last else (start, start, start, stop)
    for (begin, end), step in zip(pairwise(ends), (EDGE, KEYS, EDGE), strict=True):
        for cut in range(begin, end, step):
            yield slice(cut, min(cut + step, end))


def _tile(
    rows: slice, keys: slice, low: Tensor, high: Tensor, edges: Sequence[int], masks: dict[bytes, Tensor]
) -> Tile | None:
    """The rows of a block that look at some of the keys, and where they do not; equal masks are kept once."""
    some = ((low < keys.stop) & (high > keys.start)).nonzero()
    if not len(some):
        return None
    first, last = int(some[0]), int(some[-1]) + 1
    width = keys.stop - keys.start
    low, high = ((each[first:last] - keys.start).clamp(0, width) for each in (low, high))
    part = ((low > 0) | (high < width)).nonzero()
    masked = slice(int(part[0]), int(part[-1]) + 1) if len(part) else slice(0, 0)
    mask = None
    if len(part):
        low, high = low[masked, None], high[masked, None]
        key = torch.arange(width)
        name = torch.cat([low, high]).numpy().tobytes() + bytes(width)
        mask = masks.setdefault(name, (key < low) | (key >= high))
    span = slice(rows.start + first, rows.start + last)
    return Tile(span, keys, masked, mask, *_cells(edges, span))


def _cells(edges: Sequence[int], span: slice) -> tuple[slice, Tensor]:
    """The cells that a span touches, and where in it they begin."""
    first, last = bisect_right(edges, span.start) - 1, bisect_left(edges, span.stop)
    begins = [max(0, edge - span.start) for edge in edges[first:last]]
    return slice(first, last), torch.tensor(begins)
