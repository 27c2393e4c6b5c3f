"""Every head as a thumbnail: layers down, heads across, as many side by side as the width allows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.segment import Segment

from attnscope.axes.weights import Array
from attnscope.render.terminal.strokes import colour_bar, footing, half_block_lines, heading
from attnscope.render.terminal.surface import BRACKET, DIM, MARK, TONES, Line, Palette, Surface
from attnscope.render.terminal.text import wrap
from attnscope.views.grid import CELLS, SCALE_ENDS, Grid, GridLayer, describe, thumbnail_levels

SMALLEST, SMALLEST_SHADED = 5, 9
"""Columns of a compact thumbnail: below, nothing is seen in it."""

LARGEST = 17
"""Columns of a thumbnail whose keys do not have one each; above, one screen holds too few."""

WHOLE = 24
"""Up to so many keys, each has a column of its own: heads that do not fit side by side follow below."""

ITSELF = "▾"
"""Stands above the column of the token itself, between those of the ones before and behind it."""

WRITTEN = "━"
"""Stands above the columns of what the model wrote."""

LONG = 0.75
"""The height of a long text's thumbnail, of its width."""

MAP = 7
"""Columns of the map of a long text, beside those of the keys next to a row."""


def grid_lines(view: Grid, surface: Surface, chosen: tuple[int, int] | None = None) -> Iterator[Line]:
    """The whole picture, line by line; heads that do not fit side by side follow below.

    The ``chosen`` (layer, head) stands in brackets, and its names are reversed; thumbnails are small then, so
    that a screen shows as many as it can.
    """
    palette = surface.palette(signed=view.signed)
    yield from heading(view.title, view.subtitle, surface)
    label = len(f"L{view.layers[-1].layer} ") if view.layers else 0
    width, beside, gap = _layout(view, surface, label, compact=chosen is not None)
    height = half_lines(view, width)
    small = view.fit(rows_of(height, surface), width)
    drawn = {layer.layer: thumbnails(layer, small, width, height, surface, palette) for layer in small.layers}
    for start in range(0, view.heads, beside):
        heads = range(start, min(start + beside, view.heads))
        if start:
            yield []
        names: Line = [Segment(" " * label, DIM)]
        for head in heads:
            name = f"H{head}"
            names.append(Segment(name, MARK if chosen and chosen[1] == head else DIM))
            names.append(Segment(_above(small, len(name), width).ljust(width + gap - len(name)), DIM))
        yield names
        for number in sorted({*drawn, *view.without_attention}):
            inside = chosen[1] if chosen and chosen[0] == number and chosen[1] in heads else None
            yield from _layer(number, drawn.get(number), heads, " " * (gap - 1), label, inside)
    yield []
    yield from legend(view, small, surface, palette)
    yield from footing(view.notes, surface)


def _above(view: Grid, start: int, width: int) -> str:
    """What stands above a thumbnail from column ``start`` on, behind the head's name."""
    marks = [" "] * width
    if 0 in view.beside:
        marks[view.beside.index(0)] = ITSELF
    for column in range(view.written_from(width), width):
        marks[column] = WRITTEN
    return "".join(marks[start:]).rstrip()


def _layout(view: Grid, surface: Surface, label: int, compact: bool) -> tuple[int, int, int]:
    """Columns of a thumbnail, thumbnails side by side, as many as fit in rows of nearly one length, and
    columns between them."""
    room = surface.width - label
    keys, gap = max(view.size[1], 1), 1
    if keys <= WHOLE or keys <= min(room // max(view.heads, 1) - 1, CELLS):
        smallest = min(keys, room - 1)
    elif view.near:
        smallest, gap = min(len(view.near) + 1 + MAP, room - 1), 2  # wider than the one inside of a thumbnail
    else:
        smallest = min(LARGEST, room - 1)
    if compact:
        smallest, gap = min(smallest, SMALLEST if surface.colour else SMALLEST_SHADED), 1
    rows = -(-view.heads // max(room // (smallest + gap), 1))
    beside = max(1, -(-view.heads // max(rows, 1)))
    return columns_of(view, max(min(room // beside - gap, max(LARGEST, smallest)), 1)), beside, gap


def columns_of(view: Grid, most: int) -> int:
    """Columns of a thumbnail: a whole number for each key, or of keys for each column."""
    keys = max(view.size[1], 1)
    if keys <= most:
        return most - most % keys
    return most if view.near_in(most) or keys > CELLS else -(-keys // -(-keys // most))


def half_lines(view: Grid, width: int) -> int:
    """Half-lines of a thumbnail: a whole number for each row, or of rows for each, where that is square."""
    queries, keys = view.size
    if view.near_in(width):
        return int(np.clip(round(LONG * width), 3, queries))
    tall = int(np.clip(round(width * queries / max(keys, 1)), 3, 2 * width + 1))
    return tall if tall <= queries else max(tall - tall % max(queries, 1), 1)


def rows_of(height: int, surface: Surface) -> int:
    """Rows of a thumbnail of so many half-lines: without colour a row takes a line."""
    return height if surface.colour else (height + 1) // 2


def thumbnails(
    layer: GridLayer, view: Grid, width: int, height: int, surface: Surface, palette: Palette
) -> list[list[Line]]:
    """The lines of each head of a layer."""
    levels = thumbnail_levels(layer, view.shown_scale, view.signed)  # [head, row, column]
    if not surface.colour and view.signed:
        levels = np.abs(2 * levels - 1)  # a shade has no sign
    levels = np.where(layer.masked, -1, levels)
    if not surface.colour:
        levels[..., view.gap] = -2
        levels = _stretch(levels, rows_of(height, surface), width)
        blank: Line = [Segment(" " * width)]
        return [[*([Segment(_shades(row, surface))] for row in head), blank] for head in levels]
    tones = np.where(levels < 0, -1, np.round(levels * (TONES - 1))).astype(int)
    tones = _stretch(tones, height, width)
    air = 1 if height % 2 else 2  # half-lines
    tones = np.pad(tones, ((0, 0), (0, air), (0, 0)), constant_values=-1)
    lines = half_block_lines(tones.reshape(-1, width), palette)
    tall = (height + air) // 2
    return [lines[start : start + tall] for start in range(0, len(lines), tall)]


def _stretch(cells: Array, height: int, width: int) -> Array:
    """Cells repeated to a size that is no smaller than theirs."""
    rows = np.arange(height) * cells.shape[-2] // height
    columns = np.arange(width) * cells.shape[-1] // width
    return cells[:, rows][:, :, columns]


def _shades(row: Array, surface: Surface) -> str:
    return "".join(" ·"[level == -1] if level < 0 else surface.shade(level) for level in row.tolist())


def _layer(
    number: int, drawn: list[list[Line]] | None, heads: range, air: str, label: int, chosen: int | None
) -> Iterator[Line]:
    """A layer's thumbnails side by side, with ``air`` and a column for a bracket between them."""
    name = f"L{number}"
    led: Line = [Segment(name, DIM if chosen is None else MARK), Segment(" " * (label - len(name) - 1))]
    if drawn is None:
        yield [*led, Segment(" no attention of this kind", DIM)]
        return
    shown = [head for head in heads if head < len(drawn)]
    for i in range(len(drawn[shown[0]]) if shown else 0):
        line: Line = [*led] if i == 0 else [Segment(" " * (label - 1))]
        for head in shown:
            between = list(" " if head == shown[0] else " " + air)
            if head - 1 == chosen and head != shown[0]:
                between[0] = "▌"
            if head == chosen:
                between[-1] = "▐"
            bracket = "".join(between)
            line += [Segment(bracket, BRACKET if bracket.strip() else None), *drawn[head][i]]
        yield [*line, Segment("▌", BRACKET)] if shown[-1] == chosen else line


def legend(view: Grid, small: Grid, surface: Surface, palette: Palette) -> Iterator[Line]:
    """The colour bar, and what a thumbnail is; ``small`` is the view as it was drawn."""
    high = SCALE_ENDS[small.shown_scale]
    said = describe(
        small, max((layer.values.shape[1:] for layer in small.layers), default=(0, 0)), ITSELF, WRITTEN
    )
    if any(layer.masked.any() for layer in view.layers):
        said.append("blank: masked" if surface.colour else "·: masked")
    yield colour_bar(f"-{high}" if view.signed else "0", high, surface, palette)
    yield from ([Segment(line, DIM)] for line in wrap("; ".join(said), surface.width))
