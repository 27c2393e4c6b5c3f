"""Where in a picture each number comes from that a processor makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import Tensor

from attnscope.axes.weights import Array

OUTSIDE = 0.5
"""A number that moves by less than this share of the most, from black to white, is padding."""

Prepare = Callable[[Array], Tensor]
"""What a processor makes of a picture, [row, column, 3] in uint8."""


class Coordinates(NamedTuple):
    """Where each prepared number lies in the picture, in its pixels; ``nan`` for padding."""

    x: Array
    y: Array


def find_coordinates(prepare: Prepare, rows: int, columns: int) -> Coordinates | None:
    """Let a processor prepare pictures that grow brighter to the right, and downwards.

    However it scales, cuts and turns a picture, a number between what it makes of black and of white tells
    how far to the right, or how far down, it comes from. ``None`` if pictures of one size are prepared in
    different sizes.
    """
    shape = rows, columns
    black, white = (_prepared(prepare, np.full((1, 1), value), shape) for value in (0, 255))
    across, down = (
        _prepared(prepare, np.rint((np.arange(count) + 0.5) / count * 255).reshape(form), shape)
        for count, form in ((columns, (1, -1)), (rows, (-1, 1)))
    )
    if not black.shape == white.shape == across.shape == down.shape:
        return None
    with np.errstate(invalid="ignore"):
        span = white - black
    inside = np.abs(span) > OUTSIDE * np.abs(span).max(initial=0)
    span = np.where(inside, span, np.nan)
    with np.errstate(invalid="ignore", over="ignore"):  # a processor may divide by what it likes
        return Coordinates((across - black) / span * columns, (down - black) / span * rows)


def _prepared(prepare: Prepare, grey: Array, shape: tuple[int, int]) -> Array:
    """What becomes of a picture in shades of grey, that are given for its rows, its columns, or all."""
    pixels = np.broadcast_to(grey[..., None], (*shape, 3)).astype(np.uint8)
    numbers: Array = prepare(pixels).double().cpu().numpy()
    return numbers
