"""A picture with attention laid over it, in the terminal: half blocks of colour, or a patch as a shade."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from rich.color import Color
from rich.segment import Segment
from rich.style import Style

from attnscope.axes.weights import Array
from attnscope.render.overlay import blend, levels_of, resize
from attnscope.render.terminal.strokes import colour_bar
from attnscope.render.terminal.surface import BOLD, DIM, Line, Surface
from attnscope.render.terminal.text import fit
from attnscope.views.overlay import Overlay

WIDEST = 64
"""Columns of a picture, where there is room for more."""

NARROWEST = 34
"""Columns from which a picture stands beside another one."""

BETWEEN = 3
ITSELF = "×"
"""What stands in the middle of the patch that looks or is looked at."""


def overlay_lines(view: Overlay, label: str, surface: Surface) -> Iterator[Line]:
    """Each map over the picture, beside each other, with what full light stands for."""
    palette = surface.palette(signed=False)
    count = len(view.maps)
    room = (surface.width - BETWEEN * (count - 1)) // count
    beside = room >= NARROWEST
    room = min(WIDEST, room if beside else surface.width)
    blocks = []
    for verb, weights in view.maps:
        levels, top = levels_of(weights)
        if surface.colour:
            body = list(_blocks(view, levels, palette.cmap, room))
            scale = [Segment(f"full light is {top:.2g}", DIM)]
        else:
            body = list(_shades(view, levels, room, surface))
            scale = colour_bar("0", f"{top:.2g}", surface, palette)
        blocks.append([[Segment(fit(f"{label} {verb}", room), BOLD)], *body, scale])
    if beside:
        for lines in zip(*blocks, strict=True):
            yield _in_columns(lines, room + BETWEEN)
    else:
        for block in blocks:
            yield from block
    if view.patch is not None:
        yield [Segment(f"{ITSELF} is the patch itself", DIM)]


def _in_columns(lines: Sequence[Line], width: int) -> Line:
    """Lines beside each other, each of them in ``width`` columns."""
    whole: Line = []
    for number, line in enumerate(lines):
        at = sum(segment.cell_length for segment in whole)
        whole += [Segment(" " * (number * width - at)), *line] if number else line
    return whole


def _blocks(view: Overlay, levels: Array, cmap: str, room: int) -> Iterator[Line]:
    """Two pixels a character, one above the other."""
    tall, wide = view.pixels.shape[:2]
    rows = max(2 * round(room * tall / wide / 2), 2)
    picture = blend(resize(view.pixels, rows, room), resize(levels, rows, room), cmap)
    itself = _middle(view, rows // 2, room)
    for line in range(rows // 2):
        yield [
            _block(picture[2 * line, column], picture[2 * line + 1, column], (line, column) == itself)
            for column in range(room)
        ]


def _block(above: Array, below: Array, itself: bool) -> Segment:
    under = Color.from_rgb(*(int(part) for part in below))
    if itself:
        return Segment(ITSELF, Style(color="white", bgcolor=under, bold=True))
    return Segment("▀", Style.from_color(Color.from_rgb(*(int(part) for part in above)), under))


def _shades(view: Overlay, levels: Array, room: int, surface: Surface) -> Iterator[Line]:
    """A patch is two characters, or one where there is room for no more; a frame says where they end."""
    rows, columns = levels.shape
    wide = 2 if 2 * columns + 2 <= room else 1
    shown = resize(levels, min(rows, 2 * room), min(columns, room - 2)) if columns > room - 2 else levels
    side, line = ("|", "-") if surface.ascii else ("│", "─")
    edge = [Segment(f" {line * (wide * shown.shape[1])} ")]
    yield edge
    itself = _middle(view, *shown.shape)
    for row, values in enumerate(shown):
        cells = [
            ITSELF * wide if (row, column) == itself else surface.shade(float(level)) * wide
            for column, level in enumerate(values)
        ]
        yield [Segment(side + "".join(cells) + side)]
    yield edge


def _middle(view: Overlay, rows: int, columns: int) -> tuple[int, int] | None:
    """The cell in the middle of the patch itself, on a field of ``rows`` × ``columns``."""
    if view.patch is None:
        return None
    grid = np.array(view.maps[0][1].shape)
    row, column = ((np.array(view.patch) + 0.5) / grid * (rows, columns)).astype(int)
    return int(row), int(column)
