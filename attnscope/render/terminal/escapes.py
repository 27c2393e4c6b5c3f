"""Rows of cells as the escape sequences that a terminal is sent: for pictures that are only printed."""

from __future__ import annotations

from functools import cache

import numpy as np
from rich.color import ColorSystem
from rich.segment import Segment

from attnscope.axes.weights import Array
from attnscope.render.terminal.sheet.surface import RAW, TONES, Line, Palette, tone

RESET = "\x1b[0m"
OWN = 0
"""What stands for the terminal's own background; the tones follow."""


def escaped_lines(tones: Array, palette: Palette) -> list[Line]:
    """Lines of cells, two tones each, from twice as many rows.  [row, column] -> a line for every two rows

    -1 is the terminal's own background. A cell says what changes from its neighbour, ink or background, which
    is less than half of what a style for each would say. All cells are looked up at once, because a frame has
    ten thousand of them.
    """
    above, below = tones[0::2] + 1, tones[1::2] + 1  # [line, column]
    ink = np.where(above == OWN, below, above)  # of ▀, or of ▄ where the upper half is the terminal's own
    ground = np.where(above == OWN, OWN, below)
    shape = np.where(above == below, 0, np.where(above == OWN, 2, 1))
    ground = np.where(shape == 0, above, ground)
    inked, grounded = np.ones(tones[0::2].shape, bool), np.ones(tones[0::2].shape, bool)
    inked[:, 1:] = (ink[:, 1:] != ink[:, :-1]) | (shape[:, :-1] == 0)  # a blank leaves the ink as it was
    grounded[:, 1:] = ground[:, 1:] != ground[:, :-1]
    inks = ink * (inked & (shape != 0))
    grounds = (ground + 1) * grounded
    cells = _texts(palette)[shape, inks, grounds].tolist()
    return [[Segment("".join(line) + RESET, None, RAW)] for line in cells]


@cache
def _texts(palette: Palette) -> Array:
    """What a cell is written as, by shape, new ink and new background; 0 leaves what there is.

    -> [shape, ink, background]
    """
    system = ColorSystem.EIGHT_BIT if palette.indexed else ColorSystem.TRUECOLOR
    inks, grounds = [""], ["", "\x1b[49m"]
    for number in range(TONES):
        inks.append(_sequence(palette, system, number, None))
        grounds.append(_sequence(palette, system, None, number))
    texts = np.empty((3, len(inks), len(grounds)), object)
    for shape, character in enumerate(" ▀▄"):
        texts[shape] = np.array(inks, object)[:, None] + np.array(grounds, object) + character
    return texts


def _sequence(palette: Palette, system: ColorSystem, ink: int | None, ground: int | None) -> str:
    """The escape sequence of an ink or a background alone."""
    return tone(palette, ink, ground).render(" ", color_system=system).partition("m")[0] + "m"
