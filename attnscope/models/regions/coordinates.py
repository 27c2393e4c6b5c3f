"""Where in which picture each number comes from that a processor makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from attnscope.axes.weights import Array

OUTSIDE = 0.5
"""A number that moves by less than this share of the most, from black to white, is padding."""

Prepare = Callable[[Sequence[Array]], Tensor]
"""What a processor makes of pictures, each [row, column, 3] in uint8."""


class Coordinates(NamedTuple):
    """Where each prepared number lies in one picture, in its pixels; ``nan`` for what is no part of it."""

    x: Array
    y: Array


def find_coordinates(prepare: Prepare, shapes: Sequence[tuple[int, int]]) -> list[Coordinates] | None:
    """Let a processor prepare pictures that grow brighter to the right, and downwards.

    However it scales, cuts and turns a picture, a number between what it makes of black and of white tells
    how far to the right, or how far down, it comes from; and of several pictures, those whose numbers move
    when one alone turns white tell what is that one's. ``shapes`` are their rows and columns. ``None`` if
    pictures of one size are prepared in different sizes.
    """
    dark = [np.zeros((1, 1)) for _ in shapes]
    lit = [[np.full((1, 1), 255) if other == one else black for other, black in enumerate(dark)]
           for one in range(len(shapes))]  # fmt: skip
    across = [np.rint((np.arange(columns) + 0.5) / columns * 255)[None] for _, columns in shapes]
    down = [np.rint((np.arange(rows) + 0.5) / rows * 255)[:, None] for rows, _ in shapes]
    black, right, low, *white = (_prepared(prepare, greys, shapes) for greys in (dark, across, down, *lit))
    if not all(made.shape == black.shape for made in (right, low, *white)):
        return None
    return [
        _place(black, one, right, low, rows, columns)
        for one, (rows, columns) in zip(white, shapes, strict=True)
    ]


def _place(black: Array, white: Array, right: Array, low: Array, rows: int, columns: int) -> Coordinates:
    """Where the numbers lie that move when one picture turns from black to white."""
    with np.errstate(invalid="ignore", over="ignore"):  # a processor may divide by what it likes
        span = white - black
        inside = np.abs(span) > OUTSIDE * np.abs(span).max(initial=0)
        span = np.where(inside, span, np.nan)
        return Coordinates((right - black) / span * columns, (low - black) / span * rows)


def _prepared(prepare: Prepare, greys: Sequence[Array], shapes: Sequence[tuple[int, int]]) -> Array:
    """What becomes of pictures in shades of grey, that are given for their rows, their columns, or all."""
    pictures = [
        np.broadcast_to(grey[..., None], (*shape, 3)).astype(np.uint8)
        for grey, shape in zip(greys, shapes, strict=True)
    ]
    numbers: Array = prepare(pictures).double().cpu().numpy()
    return numbers
