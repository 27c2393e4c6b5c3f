"""A way forward through a matrix: dynamic time warping, and how much weight such a way can collect."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

LEFT, ABOVE, BOTH = range(3)


def first_columns(cost: Array) -> Array:
    """The column in which the cheapest way enters each row.  [..., row, column] -> [..., row]

    The way goes from the first cell to the last, and every step right, down, or both. Sums and ties are those
    of Whisper's own alignment, so that its times come out: they are kept in float32, and where no other
    direction is the one best, the way came from the left.
    """
    *outer, rows, columns = cost.shape
    cost = cost.reshape(-1, rows, columns)
    total = np.full((len(cost), rows + 1, columns + 1), np.inf, np.float32)
    total[:, 0, 0] = 0
    step = np.full(total.shape, LEFT, np.int8)
    for diagonal in range(2, rows + columns + 1):
        down = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        right = diagonal - down
        both, above, left = (
            total[:, down - 1, right - 1],
            total[:, down - 1, right],
            total[:, down, right - 1],
        )
        is_both, is_above = (both < above) & (both < left), (above < both) & (above < left)
        before = np.where(is_both, both, np.where(is_above, above, left))
        total[:, down, right] = cost[:, down - 1, right - 1].astype(np.float64) + before
        step[:, down, right] = np.where(is_both, BOTH, np.where(is_above, ABOVE, LEFT))
    first = np.zeros((len(cost), rows), np.int64)
    each, row, column = np.arange(len(cost)), np.full(len(cost), rows), np.full(len(cost), columns)
    while (on := row > 0).any():
        first[each[on], row[on] - 1] = column[on] - 1
        taken = step[each, row, column]
        row = np.where(on, row - (taken != LEFT), row)
        column = np.where(on, column - (taken != ABOVE), column)
    return first.reshape(*outer, rows)


def most_on_way(weights: Array) -> Array:
    """The most that a way forward through all rows collects.  [..., row, column] -> [...]"""
    best = np.cumsum(weights[..., 0, :], -1, dtype=np.float64)
    for row in range(1, weights.shape[-2]):
        enter = best.copy()  # from above, or from above and left
        enter[..., 1:] = np.maximum(enter[..., 1:], best[..., :-1])
        along = np.cumsum(weights[..., row, :], -1, dtype=np.float64)
        before = np.concatenate([np.zeros_like(along[..., :1]), along[..., :-1]], -1)
        best = along + np.maximum.accumulate(enter - before, -1)
    last: Array = best[..., -1]
    return last
