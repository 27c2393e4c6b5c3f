"""Dimmed pictures, bright where attention goes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnscope.axes import Array
from attnscope.render.colour import STEPS, table
from attnscope.views import Overlay

DIMMED = 0.3  # the share of a picture's brightness that a patch without attention keeps
GLOW = 0.3  # the share of the colour map's brightness that full attention adds, to show on dark patches


def blend(pixels: Array, levels: Array, cmap: str) -> Array:
    """A picture under levels from 0 to 1.  [row, column, 3], [row, column] -> [row, column, 3], uint8"""
    glow = table(cmap)[np.rint(levels * (STEPS - 1)).astype(int)]  # [row, column, 3]
    level = levels[..., None]
    own = pixels * (DIMMED + (1 - DIMMED) * level)
    shown: Array = np.clip(np.rint(own * (1 - GLOW * level) + glow * GLOW * level), 0, 255).astype(np.uint8)
    return shown


def full_light(shown: Sequence[Overlay]) -> float:
    """The largest weight of all maps over all pictures, so that they can be compared."""
    return max((float(weights.max(initial=0)) for each in shown for _, weights in each.maps), default=0.0)


def resize(field: Array, rows: int, columns: int) -> Array:
    """A picture or map at another size: averaged or repeated.  [row, column, ...] -> [rows, columns, ...]"""
    for axis, size in enumerate((rows, columns)):
        edges = np.linspace(0, field.shape[axis], size + 1)
        starts = np.minimum(edges[:-1].astype(int), field.shape[axis] - 1)
        stops = np.maximum(np.ceil(edges[1:] - 1e-9).astype(int), starts + 1)
        if size >= field.shape[axis]:
            middles = np.minimum(((edges[:-1] + edges[1:]) / 2).astype(int), field.shape[axis] - 1)
            field = np.take(field, middles, axis)
        else:
            sums = np.cumsum(np.insert(field.astype(np.float64), 0, 0, axis), axis)
            counts = (stops - starts).reshape([-1 if axis == i else 1 for i in range(field.ndim)])
            field = (np.take(sums, stops, axis) - np.take(sums, starts, axis)) / counts
    return field
