"""A picture with attention laid over it, in the terminal: half blocks of colour, or one shade per patch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from rich.color import Color
from rich.segment import Segment
from rich.style import Style

from attnscope.axes import Array
from attnscope.render.overlay import blend, full_light, resize
from attnscope.render.terminal.surface import BOLD, DIM, Line, Surface, fit_text, side_by_side
from attnscope.views.token import Overlay

WIDEST = 64  # most columns of a picture
NARROWEST = 34  # least columns of pictures side by side
TALLEST = 28  # lines of a picture

BETWEEN = 3
ITSELF = "×"  # marks the patch that looks or is looked at


def overlay_lines(views: Sequence[Overlay], label: str, surface: Surface) -> Iterator[Line]:
    """Each map over its picture, side by side if there is room; full brightness is one weight for all."""
    top = full_light(views)
    beside, room = _columns(views, surface)
    blocks = []
    for view in views:
        which = f"{view.name}: " if len(views) > 1 else ""
        for verb, weights in view.maps:
            title = [Segment(fit_text(f"{which}{label} {verb}", room), BOLD)]
            blocks.append([title, *_picture(view, weights, top, room, surface)])
    for first in range(0, len(blocks), beside):
        yield from side_by_side(blocks[first : first + beside], room + BETWEEN)
    if any(view.patch is not None for view in views):
        yield [Segment(f"{ITSELF} is the patch itself", DIM)]


def patch_under(
    views: Sequence[Overlay], surface: Surface, x: int, y: int
) -> tuple[Overlay, int, int] | None:
    """The picture and the patch's row and column at a column and a line of the whole."""
    beside, room = _columns(views, surface)
    blocks = [(view, weights.shape, *_size(view, room)) for view in views for _, weights in view.maps]
    for first in range(0, len(blocks), beside):
        for number, (view, shape, columns, lines) in enumerate(blocks[first : first + beside]):
            at, line = x - number * (room + BETWEEN), y - 1
            if 0 <= at < columns and 0 <= line < lines:
                return view, int(line / lines * shape[0]), int(at / columns * shape[1])
        y -= max(lines for _, _, _, lines in blocks[first : first + beside]) + 2
    return None


def _columns(views: Sequence[Overlay], surface: Surface) -> tuple[int, int]:
    """How many maps stand side by side, and the columns of each."""
    count = sum(len(view.maps) for view in views)
    beside = max(1, min(count, (surface.width + BETWEEN) // (NARROWEST + BETWEEN)))
    return beside, min(WIDEST, (surface.width - BETWEEN * (beside - 1)) // beside)


def _size(view: Overlay, room: int) -> tuple[int, int]:
    tall, wide = view.pixels.shape[:2]
    columns = max(1, min(room, 2 * TALLEST * wide // tall))
    return columns, _half_rows(view, columns) // 2


def _picture(view: Overlay, weights: Array, top: float, room: int, surface: Surface) -> Iterator[Line]:
    """One map over its picture, with what full brightness stands for."""
    palette = surface.palette(signed=False)
    room, _ = _size(view, room)
    levels = np.clip(weights / (top or 1.0), 0, 1)
    if surface.colour:
        yield from _blocks(view, levels, palette.cmap, room)
        yield [Segment(f"full light is {top:.2g}", DIM)]
    else:
        yield from _shades(view, levels, room, surface)
        yield surface.colour_bar("0", f"{top:.2g}", palette)


def _half_rows(view: Overlay, room: int) -> int:
    tall, wide = view.pixels.shape[:2]
    return int(max(2 * round(room * tall / wide / 2), 2))


def _blocks(view: Overlay, levels: Array, cmap: str, room: int) -> Iterator[Line]:
    rows = _half_rows(view, room)
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
    """A patch is two characters, or one where space is short; a frame marks the edge."""
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
    """The middle cell of the patch itself, on a field of ``rows`` × ``columns``."""
    if view.patch is None:
        return None
    grid = np.array(view.maps[0][1].shape)
    row, column = ((np.array(view.patch) + 0.5) / grid * (rows, columns)).astype(int)
    return int(row), int(column)
