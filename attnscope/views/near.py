"""The weights on the keys next to each row: what tells heads apart where a cell holds many tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnscope.axes.weights import Array, Weights, averaging

NEAR = 4
"""How many keys before a row, and behind it, are shown one by one."""


def near_weights(weights: Weights, cells: int) -> Array | None:
    """Mean weights of at most ``cells`` groups of rows on the keys ``NEAR`` back to ``NEAR`` ahead.

    Not a number where none is open. ``None`` where rows and columns are different places, or were pooled.
    -> [head, row, offset]
    """
    if not weights.square or any(place.pooled for place in weights.queries):
        return None
    size = len(weights.queries)
    keys = np.arange(size)[:, None] + np.arange(-NEAR, NEAR + 1)  # [query, offset]
    rows, inside = np.arange(size)[:, None], (keys >= 0) & (keys < size)
    keys = keys.clip(0, max(size - 1, 0))
    values = weights.values[..., rows, keys]
    open_ = np.broadcast_to(weights.allowed, weights.values.shape)[..., rows, keys]
    near = np.where(open_ & inside & np.isfinite(values), values, np.nan)
    return pool_near(near, [1] * size, cells)


def pool_near(near: Array, sizes: Sequence[int], rows: int) -> Array:
    """The mean of those that are open, rows brought together.  [head, row, offset] -> [head, part, offset]"""
    open_ = np.isfinite(near)
    averaged = averaging(sizes, rows)  # [part, row]
    share = averaged @ open_.astype(np.float32)
    total = averaged @ np.where(open_, near, 0).astype(np.float32)
    mean: Array = np.where(share > 1e-6, total / np.where(share > 1e-6, share, 1), np.nan)
    return mean
