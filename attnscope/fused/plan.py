"""How an attention map is cut into tiles that stay in a core's own cache, and what is masked in each.

Torch's interpreter reads ``Tile`` and ``Block`` (see ``weigh.py``): their annotations must be types.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.fused.runs import Runs

ROWS = 256
"""Rows of a block, whose tiles are merged."""

KEYS = 512
"""Keys of a tile: with 256 rows its scores are half a megabyte in float32."""


class Tile(NamedTuple):
    """The rows of a block times the keys ``start`` to ``stop``.

    ``mask`` is 1 where a pair is closed and 0 elsewhere, [row, key]; it covers the keys from ``masked`` on,
    so many as it has. ``None`` if all is open.
    """

    start: int
    stop: int
    mask: Tensor | None
    masked: int


class Block(NamedTuple):
    """The rows ``start`` to ``stop`` and the tiles that cover their open keys.

    The tiles have one width, but for the last. ``row_cells`` is the first cell that the rows touch, and
    ``row_begins`` says where in the block each of its cells begins; so for the keys of all tiles.
    """

    start: int
    stop: int
    tiles: list[Tile]
    row_cells: int
    row_begins: Tensor
    key_cells: int
    key_begins: Tensor


@lru_cache(4)  # the layers of a model share their runs, which nobody writes into
def plan(runs: Runs, text: int, row_edges: tuple[int, ...], key_edges: tuple[int, ...]) -> list[Block]:
    """Cut one text's map into blocks of rows."""
    low, high = (ends[text % len(ends)] for ends in (runs.low, runs.high))
    masks: dict[bytes, Tensor] = {}
    blocks = []
    for start in range(0, len(low), ROWS):
        stop = min(start + ROWS, len(low))
        ends = low[start:stop], high[start:stop]
        first, last = int(ends[0].min()), int(ends[1].max())
        cuts = range(first, last, KEYS)
        tiles = [_tile(cut, min(cut + KEYS, last), *ends, masks) for cut in cuts]
        cells = *_cells(row_edges, start, stop), *_cells(key_edges, first, last)
        blocks.append(Block(start, stop, tiles, *cells))
    return blocks


def _tile(start: int, stop: int, low: Tensor, high: Tensor, masks: dict[bytes, Tensor]) -> Tile:
    """Some keys of a block whose rows see ``low`` to ``high``; equal masks are kept once."""
    first = start if int(low.max()) > start else max(start, int(high.min()))
    last = stop if int(high.min()) < stop else min(stop, int(low.max()))
    if first >= last:
        return Tile(start, stop, None, start)
    low, high = ((each[:, None] - first).clamp(0, last - first) for each in (low, high))
    name = torch.cat([low, high]).numpy().tobytes() + bytes(last - first)
    if name not in masks:
        key = torch.arange(last - first)
        masks[name] = ((key < low) | (key >= high)).float()  # to add it is five times faster than to fill
    return Tile(start, stop, masks[name], first)


def _cells(edges: Sequence[int], start: int, stop: int) -> tuple[int, Tensor]:
    """The first cell that a span touches, and where in the span its cells begin."""
    first, last = bisect_right(edges, start) - 1, bisect_left(edges, stop)
    return first, torch.tensor([max(0, edge - start) for edge in edges[first:last]])
