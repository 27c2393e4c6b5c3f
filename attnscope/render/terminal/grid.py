"""Every head as a thumbnail: layers down, heads across, as many side by side as the width allows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.segment import Segment

from attnscope.axes.weights import Array
from attnscope.render.terminal.strokes import colour_bar, footing, half_block_lines, heading
from attnscope.render.terminal.surface import BRACKET, DIM, MARK, TONES, Line, Palette, Surface
from attnscope.render.terminal.text import wrap
from attnscope.views.grid import Grid, GridLayer, thumbnail_levels

SMALLEST, SMALLEST_SHADED, LARGEST = 5, 9, 17
"""Columns of a thumbnail: below, patterns cannot be told apart; above, one screen holds too few."""


def grid_lines(view: Grid, surface: Surface, chosen: tuple[int, int] | None = None) -> Iterator[Line]:
    """The whole picture, line by line; heads that do not fit side by side follow below.

    The ``chosen`` (layer, head) stands in brackets, and its names are reversed.
    """
    palette = surface.palette(signed=view.signed)
    yield from heading(view.title, view.subtitle, surface)
    label = len(f"L{view.layers[-1].layer} ") if view.layers else 0
    width, beside = _layout(view, surface, label)
    height = half_lines(view, width)
    small = view.fit(height if surface.colour else (height + 1) // 2, width)
    drawn = {layer.layer: thumbnails(layer, small, width, height, surface, palette) for layer in small.layers}
    for start in range(0, view.heads, beside):
        heads = range(start, min(start + beside, view.heads))
        if start:
            yield []
        names: Line = [Segment(" " * label, DIM)]
        for head in heads:
            name = f"H{head}"
            names += [
                Segment(name, MARK if chosen and chosen[1] == head else DIM),
                Segment(" " * (width + 1 - len(name))),
            ]
        yield names[:-1]
        for number in sorted({*drawn, *view.without_attention}):
            inside = chosen[1] if chosen and chosen[0] == number and chosen[1] in heads else None
            yield from _layer(number, drawn.get(number), heads, label, inside)
    yield []
    yield from legend(view, small, surface, palette)
    yield from footing(view.notes, surface)


def _layout(view: Grid, surface: Surface, label: int) -> tuple[int, int]:
    """Columns of a thumbnail, and thumbnails side by side."""
    room = surface.width - label
    smallest = SMALLEST if surface.colour else SMALLEST_SHADED
    wraps = -(-view.heads * (smallest + 1) // room)
    beside = max(1, -(-view.heads // max(wraps, 1)))
    width = min(room // beside - 1, LARGEST)
    cells = max(min(view.size[1], 48), 1)
    if width > cells:  # a whole number of columns for each key
        width -= width % cells
    return max(width, 1), beside


def half_lines(view: Grid, width: int) -> int:
    """Half-lines of a thumbnail: odd, so that half a line of air stays below it."""
    queries, keys = view.size
    tall = round(width * queries / max(keys, 1))
    return int(np.clip(tall - (tall + 1) % 2, 3, 2 * width + 1))


def thumbnails(
    layer: GridLayer, view: Grid, width: int, height: int, surface: Surface, palette: Palette
) -> list[list[Line]]:
    """The lines of each head of a layer."""
    levels = thumbnail_levels(layer, view.scale, view.signed)  # [head, row, column]
    if not surface.colour and view.signed:
        levels = np.abs(2 * levels - 1)  # a shade has no sign
    levels = np.where(layer.masked, -1, levels)
    if not surface.colour:
        levels = _stretch(levels, (height + 1) // 2, width)
        blank: Line = [Segment(" " * width)]
        return [[*([Segment(_shades(row, surface))] for row in head), blank] for head in levels]
    tones = np.where(levels < 0, -1, np.round(levels * (TONES - 1))).astype(int)
    tones = _stretch(tones, height, width)
    tones = np.pad(tones, ((0, 0), (0, 1), (0, 0)), constant_values=-1)  # the half line of air
    lines = half_block_lines(tones.reshape(-1, width), palette)
    tall = (height + 1) // 2
    return [lines[start : start + tall] for start in range(0, len(lines), tall)]


def _stretch(cells: Array, height: int, width: int) -> Array:
    """Cells repeated to a size that is no smaller than theirs."""
    rows = np.arange(height) * cells.shape[-2] // height
    columns = np.arange(width) * cells.shape[-1] // width
    return cells[:, rows][:, :, columns]


def _shades(row: Array, surface: Surface) -> str:
    return "".join("·" if level < 0 else surface.shade(level) for level in row.tolist())


def _layer(
    number: int, drawn: list[list[Line]] | None, heads: range, label: int, chosen: int | None
) -> Iterator[Line]:
    name = f"L{number}"
    led: Line = [Segment(name, DIM if chosen is None else MARK), Segment(" " * (label - len(name) - 1))]
    if drawn is None:
        yield [*led, Segment(" no attention of this kind", DIM)]
        return
    shown = [head for head in heads if head < len(drawn)]
    for i in range(len(drawn[shown[0]]) if shown else 0):
        line: Line = [*led] if i == 0 else [Segment(" " * (label - 1))]
        for head in shown:
            bracket = "▐" if head == chosen else "▌" if head - 1 == chosen else " "
            line += [Segment(bracket, BRACKET if bracket != " " else None), *drawn[head][i]]
        yield [*line, Segment("▌", BRACKET)] if shown[-1] == chosen else line


def legend(view: Grid, small: Grid, surface: Surface, palette: Palette) -> Iterator[Line]:
    """The colour bar, and what a thumbnail is; ``small`` is the view as it was drawn."""
    high = {"fixed": "1", "row": "largest of the row", "head": "largest of the head"}[view.scale]
    queries, keys = view.size
    said = [f"each square is a head: {queries} rows look at {keys} columns"]
    rows, columns = max((layer.values.shape[1:] for layer in small.layers), default=(0, 0))
    if (rows, columns) != (queries, keys):
        said.append(f"pooled to {rows} × {columns} cells, keys summed and queries averaged")
    if any(layer.masked.any() for layer in view.layers):
        said.append("blank: masked" if surface.colour else "·: masked")
    yield colour_bar(f"-{high}" if view.signed else "0", high, surface, palette)
    yield from ([Segment(line, DIM)] for line in wrap("; ".join(said), surface.width))
