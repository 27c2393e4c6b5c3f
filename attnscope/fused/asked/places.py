"""Where the weights of a block's pairs are, which lie tile by tile one after another."""

from __future__ import annotations

from torch import Tensor

Places = tuple[Tensor, Tensor]
"""Places in [tile, row] and among the weights of all tiles, both [pair]."""


def find_places(row: Tensor, key: Tensor, rows: slice, keys: slice, width: int) -> Places:
    """The places of pairs, counted from the first row and the first key, in tiles of ``width`` keys."""
    count, size = rows.stop - rows.start, keys.stop - keys.start
    tile = key // width
    first = tile * width
    wide = (size - first).clamp(max=width)  # keys of the pair's tile
    return tile * count + row, first * count + row * wide + key - first
