"""Distances between heads in the terminal: the table of all pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.segment import Segment

from attnscope.render.terminal.surface import (
    DIM,
    SHADE_FROM,
    TONES,
    Line,
    Palette,
    Surface,
    centre,
    colour_bar,
    cut,
    fit_text,
    flow_items,
    footing,
    half_block_lines,
    quiet,
    style_on,
)
from attnscope.views.distances import DistanceMap

NUMBERED, SQUARE = 6, 2
"""Columns of a cell with its number, and of one without whose row still has its own line."""

NAMED, TALLEST = 24, 40  # most rows with a line each, in colour and without


@dataclass(frozen=True, slots=True)
class _Layout:
    """``cell`` columns per cell; ``half``: two rows per line; ``gap`` between groups; ``label`` width."""

    cell: int
    half: bool
    gap: int
    label: int


def distance_lines(view: DistanceMap, surface: Surface) -> Iterator[Line]:
    """The whole table; if it is larger than the surface, cells average several heads."""
    layout = _layout(view, surface)
    if view.matched and (layout is None or layout.cell != NUMBERED):  # the rows with names and numbers
        label = max(len(name) for name in view.rows)
        kept = max((surface.width - label - 1) // NUMBERED, 1)
        view = view.fit(min(kept, NAMED), min(kept, NAMED))
        layout = _layout(view, surface)
    if layout is None:
        room = surface.width - max(len(name) for name in view.rows) - 1
        view = view.fit(room if surface.colour else TALLEST, room)
        layout = _layout(view, surface) or _Layout(1, surface.colour, 0, 5)
    palette = surface.palette(signed=False)
    yield from _header(view, layout)
    yield from _half_rows(view, layout, palette) if layout.half else _rows(view, layout, surface, palette)
    yield []
    if surface.colour:
        yield colour_bar(f"{view.top:.2f} nats", "0 alike", surface, palette)
    else:
        steps = [f"{surface.shade(level)} {view.top * (1 - level):.2f}" for level in SHADE_FROM]
        yield from (
            [Segment(line)] for line in flow_items([*steps, "nats apart, or nearer"], surface.width, "  ")
        )
    if view.groups and layout.cell == NUMBERED and layout.gap:
        yield from quiet("groups of alike heads stand apart", surface)
    elif view.groups and layout.cell != NUMBERED:
        told = "each line is two heads, the first one named" if layout.half else "each line is a head"
        more = "columns are in the same order, numbers above them name groups of alike heads"
        yield from quiet(f"{told}; {more}", surface)
    yield from footing(view.notes, surface)


def _layout(view: DistanceMap, surface: Surface) -> _Layout | None:
    """The largest cells that fit, with space between groups if possible."""
    rows, columns = len(view.rows), len(view.columns)
    label = max(len(name) for name in view.rows)
    gaps = max(len(view.groups) - 1, 0)
    shapes = [(NUMBERED, False), (SQUARE, False), (1, surface.colour)]
    for cell, half in shapes:
        if not half and rows > (NAMED if cell == NUMBERED or surface.colour else TALLEST):
            continue
        for gap in (1, 0):
            if label + 1 + cell * columns + gap * gaps <= surface.width:
                return _Layout(cell, half, gap, label)
    return None


def _edges(view: DistanceMap, layout: _Layout) -> set[int]:
    """The columns, and rows, that follow a gap."""
    return set(view.starts[1:]) if layout.gap else set()


def _header(view: DistanceMap, layout: _Layout) -> Iterator[Line]:
    """The number of each group above its first head; names of heads if cells are wide enough."""
    space = " " * (layout.label + 1)
    edges = _edges(view, layout)
    if layout.cell == NUMBERED:
        names = "".join(
            (" " if i in edges else "") + centre(cut(name, NUMBERED), NUMBERED)
            for i, name in enumerate(view.columns)
        )
        yield [Segment(space + names, DIM)]
        return
    line = ""
    at = 0
    numbers = dict(zip(view.starts, range(1, len(view.groups) + 1), strict=True))
    for column in range(len(view.columns)):
        at += column in edges
        if column in numbers and len(line) <= at and (len(line) < at or not line):
            line = line.ljust(at) + str(numbers[column])
        at += layout.cell
    if line.strip():
        yield [Segment(space + line, DIM)]


def _rows(view: DistanceMap, layout: _Layout, surface: Surface, palette: Palette) -> Iterator[Line]:
    """One head per line."""
    near = view.nearness()
    tones = np.round(near * (TONES - 1)).astype(int)
    edges = _edges(view, layout)
    for row, name in enumerate(view.rows):
        if row in edges:
            yield []
        line = [Segment(fit_text(cut(name, layout.label), layout.label) + " ", DIM)]
        for column in range(len(view.columns)):
            if column in edges:
                line.append(Segment(" "))
            number = f" {view.values[row, column]:.2f} " if layout.cell == NUMBERED else ""
            text = number.rjust(layout.cell)
            if surface.colour:
                line.append(Segment(text, style_on(palette, int(tones[row, column]))))
            else:
                line.append(Segment(text if number else surface.shade(near[row, column]) * layout.cell))
        yield list(Segment.simplify(line))


def _half_rows(view: DistanceMap, layout: _Layout, palette: Palette) -> Iterator[Line]:
    """Two heads per line, the first one named, groups one cell apart."""
    tones = np.round(view.nearness() * (TONES - 1)).astype(int)
    edges = sorted(_edges(view, layout))
    tones = np.insert(np.insert(tones, edges, -1, 0), edges, -1, 1)
    names = [*np.insert(np.array(view.rows, object), edges, ""), ""]
    for line, cells in enumerate(half_block_lines(tones, palette)):
        name = names[2 * line] or names[2 * line + 1]
        yield [Segment(fit_text(name, layout.label) + " ", DIM), *cells]
