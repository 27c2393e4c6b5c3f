"""The same head number through all layers, in the terminal: thumbnails, and figures below each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from rich.segment import Segment

from attnscope.render.terminal.grid import columns_of, half_lines, legend, rows_of, thumbnails
from attnscope.render.terminal.sheet.strokes import footing, heading
from attnscope.render.terminal.sheet.surface import BOLD, DIM, Line, Surface
from attnscope.render.terminal.sheet.text import cut, fit
from attnscope.views.strip import Series, Strip

NARROWEST, WIDEST = 9, 17
"""Columns of a thumbnail; a figure and a role have room in the first."""

SPARKS, ASCII_SPARKS = "▁▂▃▄▅▆▇█", ".:-=+*#@"


def strip_lines(view: Strip, surface: Surface) -> Iterator[Line]:
    """Layers from left to right, with their figures below; those that do not fit follow in a second row."""
    yield from heading(view.title, view.subtitle, surface)
    label = max([len("change"), *(len(series.name) for series in view.series)]) + 2
    count = len(view.names)
    room = surface.width - label
    beside = min(count, max(1, room // (NARROWEST + 1)))
    beside = -(-count // -(-count // beside))
    width = columns_of(view.thumbnails, min(max(room // beside - 1, 1), WIDEST))
    height = half_lines(view.thumbnails, width)
    small = view.thumbnails.fit(rows_of(height, surface), width)
    palette = surface.palette(signed=False)
    drawn = [thumbnails(layer, small, width, height, surface, palette)[0] for layer in small.layers]
    for start in range(0, count, beside):
        shown = range(start, min(start + beside, count))
        if start:
            yield []
        yield _cells("", [view.names[i] for i in shown], label, width, BOLD)
        for row in range(len(drawn[0])):
            line: Line = [Segment(" " * label)]
            for i in shown:
                line += [*drawn[i][row], Segment(" ")]
            yield line[:-1]
        if any(view.roles):
            yield _cells("role", [view.roles[i] for i in shown], label, width)
        for series in view.series:
            yield _cells(series.name, [_number(series.values[i]) for i in shown], label, width)
    yield []
    yield [Segment("with depth", BOLD)]
    for series in view.series:
        known = [value for value in series.values if value is not None]
        ends = f"{min(known):.2f} to {max(known):.2f} {series.unit}" if known else ""
        sparks = _sparks(series, surface)
        name = Segment(fit(series.name, label), DIM)
        if label + len(sparks) + 2 + len(ends) <= surface.width:
            yield [name, Segment(sparks), Segment(f"  {ends}", DIM)]
            continue
        yield [name, Segment(ends, DIM)]
        for start in range(0, len(sparks), room):
            yield [Segment(" " * label), Segment(sparks[start : start + room])]
    yield []
    yield from legend(view.thumbnails, small, surface, palette)
    yield from footing(view.notes, surface)


def _cells(name: str, texts: Sequence[str], label: int, width: int, style: object = None) -> Line:
    """A name, and a text below each thumbnail."""
    cells = " ".join(fit(cut(text, width), width) for text in texts)
    return [Segment(fit(name, label), DIM), Segment(cells, BOLD if style is BOLD else None)]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _sparks(series: Series, surface: Surface) -> str:
    """One character a layer, the taller the larger, from the smallest value to the largest."""
    marks = ASCII_SPARKS if surface.ascii else SPARKS
    known = np.array([np.nan if value is None else value for value in series.values])
    if np.isnan(known).all():
        return " " * len(known)
    low, high = np.nanmin(known), np.nanmax(known)
    levels = (known - low) / ((high - low) or 1.0)
    return "".join(
        " " if np.isnan(level) else marks[round(level * (len(marks) - 1))] for level in levels.tolist()
    )
