"""A head in the terminal: labelled rows and columns, colour or shades, a colour bar, its numbers.

A small map gets wide cells with numbers in them, a larger one square cells, the largest one half-block
cells (two rows a line of text); what still does not fit is pooled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from attnscope.axes.places import Place
from attnscope.axes.weights import Array
from attnscope.render.terminal.sheet.strokes import colour_bar, footing, half_block_lines, heading, readings
from attnscope.render.terminal.sheet.surface import (
    BOLD,
    DIM,
    MARK,
    PLAIN,
    TONES,
    Line,
    Palette,
    Surface,
    style_on,
)
from attnscope.render.terminal.sheet.text import centre, fit, flow, number_label, upright, wrap
from attnscope.text import isolate
from attnscope.views.heatmap import EACH_ROW, Heatmap

NUMBERED = 4
"""Columns of a cell that has its number in it."""

LABEL_WIDTH = 20
HEADER_HEIGHT = 12
TALLEST = 40
"""Rows up to which each one gets a line of its own."""


@dataclass(frozen=True, slots=True)
class Layout:
    """``cell`` columns a cell; ``half``: two rows a line; ``label``: the width of a row's label."""

    cell: int
    half: bool
    label: int


def heatmap_lines(view: Heatmap, surface: Surface, pinned: int | None = None) -> Iterator[Line]:
    """The whole picture, line by line; the ``pinned`` token's row and column are marked."""
    view, layout = _settle(view, surface)
    row = None if pinned is None else _place_of(view.weights.queries, pinned)
    palette = surface.palette(signed=view.signed)
    yield from heading(view.title, view.subtitle, surface)
    yield from _header(view, layout)
    if row is not None and view.weights.square:
        yield [Segment(" " * (layout.label + 1 + row * layout.cell + (layout.cell - 1) // 2) + "▼", BOLD)]
    tones = np.round(view.levels() * (TONES - 1)).astype(int)
    if layout.half:
        yield from _half_rows(view, tones, layout, palette, row)
    else:
        yield from _rows(view, tones, layout, surface, palette, row)
    yield []
    yield from _legend(view, layout, surface, palette)
    yield from readings(view.readings, surface)
    yield from footing(view.notes, surface)


def token_at(view: Heatmap, surface: Surface, pinned: int | None, x: int, y: int) -> int | None:
    """The token whose row stands at a column and a line of a picture without a title."""
    view, layout = _settle(view, surface)
    marked = (
        pinned is not None and _place_of(view.weights.queries, pinned) is not None and view.weights.square
    )
    line = y - len(list(_header(view, layout))) - bool(marked)
    row = 2 * line + (x > layout.label + view.values.shape[1]) if layout.half else line
    return view.weights.queries[row].start if 0 <= row < len(view.weights.queries) and line >= 0 else None


def _settle(view: Heatmap, surface: Surface) -> tuple[Heatmap, Layout]:
    """The map as large as the surface shows it, and how."""
    rows, columns = view.values.shape
    label = _label_width(view.weights.queries, surface)
    room = surface.width - label - 1
    wide = NUMBERED if surface.colour else NUMBERED + 1  # without colour a shade stands beside it
    if rows <= TALLEST and columns * wide <= room:
        return view, Layout(wide, False, label)
    if rows <= TALLEST and columns * 2 <= room:
        return view, Layout(2, False, label)
    if not surface.colour:
        if rows > TALLEST or columns > room:
            label = _widest_label(surface)
            view = view.fit(TALLEST, surface.width - label - 1)
        cell = 2 if 2 * view.values.shape[1] <= surface.width - label - 1 else 1
        return view, Layout(cell, False, label)
    if columns > room - label - 1:  # odd rows are labelled on the right
        label = _widest_label(surface)
        room = surface.width - 2 * (label + 1)
        view = view.fit(2 * room, room)
    return view, Layout(1, True, label)


def _widest_label(surface: Surface) -> int:
    return min(LABEL_WIDTH, surface.width // 4)


def _label_width(axis: tuple[Place, ...], surface: Surface) -> int:
    longest = max(
        (cell_len(place.label) + (0 if place.pooled else _digits(place)) for place in axis), default=0
    )
    return min(longest, _widest_label(surface))


def _digits(place: Place) -> int:
    return len(f" {place.start}")


def _row_label(place: Place, layout: Layout, *, right: bool = False) -> str:
    if place.pooled:
        return fit(place.label, layout.label, right=right)
    return number_label(place.label, place.start, layout.label, right=right)


def _header(view: Heatmap, layout: Layout) -> Iterator[Line]:
    """Column labels from top to bottom where cells are wide enough to tell them apart, else numbers."""
    space = " " * (layout.label + 1)
    keys = view.weights.keys
    lines = None
    if view.block == (1, 1) and layout.cell > 1:
        lines = upright([place.label for place in keys], layout.cell, HEADER_HEIGHT)
    if lines is None:
        lines = [_ticks([place.moment if place.heard else str(place.start) for place in keys], layout.cell)]
    for line in lines:
        yield [Segment(space + line.rstrip(), PLAIN)]


def _ticks(numbers: list[str], cell: int) -> str:
    """The numbers or moments of columns above them, each, or every 2nd, 5th, 10th ... where there is room."""
    widest = max((len(number) for number in numbers), default=0) + 1
    every = next(step for step in (1, 2, 5, 10, 20, 50) if step * cell >= widest)
    line = ""
    for i in range(0, len(numbers), every):
        line = line.ljust(i * cell) + numbers[i]
    return line


def _place_of(axis: tuple[Place, ...], token: int) -> int | None:
    """The place that a token is part of."""
    return next((i for i, place in enumerate(axis) if place.start <= token < place.stop), None)


def _rows(
    view: Heatmap, tones: Array, layout: Layout, surface: Surface, palette: Palette, marked: int | None
) -> Iterator[Line]:
    """One row a line."""
    shown = np.abs(2 * view.levels() - 1) if view.signed else view.levels()  # a shade has no sign
    for row, place in enumerate(view.weights.queries):
        line = [
            Segment(_row_label(place, layout, right=True), _row_style(view, row, marked)),
            Segment(" "),
        ]
        for column in range(len(view.weights.keys)):
            if view.masked[row, column]:
                line.append(Segment(centre("·", layout.cell), DIM))
                continue
            text = _number(view.values[row, column], layout.cell)
            if surface.colour:
                faint = abs(view.values[row, column]) < 0.05
                line.append(Segment(text, style_on(palette, int(tones[row, column]), faint)))
            else:
                line.append(Segment(_shade(text, float(shown[row, column]), layout.cell, surface)))
        yield list(Segment.simplify(line))


def _row_style(view: Heatmap, row: int, marked: int | None) -> Style:
    """Names stand out that are marked, and a little those of tokens that the model wrote."""
    if row == marked:
        return MARK
    own = view.written is not None and view.weights.queries[row].start >= view.written
    return BOLD if own else PLAIN


def _number(value: float, cell: int) -> str:
    """Per cent, where the cell has room and there is half a per cent to show."""
    shown = cell >= NUMBERED and abs(value) >= 0.005 and -0.995 < value < 9.995
    return f"{round(100 * value) if shown else '':>{cell - 1}} " if cell > 1 else " "


def _shade(text: str, level: float, cell: int, surface: Surface) -> str:
    shade = surface.shade(level)
    return shade + text[1:] if cell >= NUMBERED else shade * cell


def _half_rows(
    view: Heatmap, tones: Array, layout: Layout, palette: Palette, marked: int | None
) -> Iterator[Line]:
    """Two rows a line: the upper one labelled on the left, the lower one on the right."""
    queries = view.weights.queries
    numbers = np.where(view.masked, -1, tones)
    if len(queries) % 2:
        numbers = np.vstack([numbers, np.full_like(numbers[:1], -1)])
    for row, cells in zip(range(0, len(queries), 2), half_block_lines(numbers, palette), strict=True):
        line = [Segment(_row_label(queries[row], layout, right=True), _row_style(view, row, marked))]
        line += [Segment(" "), *cells]
        if row + 1 < len(queries):
            line.append(Segment(" "))
            line.append(Segment(_row_label(queries[row + 1], layout), _row_style(view, row + 1, marked)))
        yield line


def _legend(view: Heatmap, layout: Layout, surface: Surface, palette: Palette) -> Iterator[Line]:
    """The colour bar, how to read the map, and the columns' texts where nothing else shows them."""
    low, high = f"{view.limits[0]:.2g}", f"{view.limits[1]:.2g}"
    if view.scale == "row":
        low, high = ("-largest" if view.signed else "0"), EACH_ROW
    bar = colour_bar(low, high, surface, palette)
    said = ["rows look at columns"]
    if view.written is not None:
        said.append(f"bold, from token {view.written} on: written by the model")
    if layout.cell >= NUMBERED:
        said.append("numbers are per cent")
    if view.masked.any():
        said.append("blank: masked" if layout.half else "· masked")
    beside = surface.width - sum(segment.cell_length for segment in bar) - 3
    text = "; ".join(said)
    if cell_len(text) <= beside:
        yield [*bar, Segment(f"   {text}", DIM)]
    else:
        yield bar
        yield from ([Segment(line, DIM)] for line in wrap(text, surface.width))
    if layout.cell == 1 and not view.weights.square and not all(key.heard for key in view.weights.keys):
        columns = [isolate(_column_label(place)) for place in view.weights.keys]
        yield []
        yield from ([Segment(line, DIM)] for line in flow(["columns:", *columns], surface.width, "   "))


def _column_label(place: Place) -> str:
    return place.label if place.pooled else f"{place.start} {place.label}"
