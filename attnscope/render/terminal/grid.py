"""Every head as a thumbnail: layers down, heads across, as many side by side as the width allows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.segment import Segment

from attnscope.axes import Array
from attnscope.render.terminal.surface import (
    BRACKET,
    DIM,
    MARK,
    TONES,
    Line,
    Palette,
    Surface,
    colour_bar,
    half_block_lines,
    quiet,
)
from attnscope.views.grid import CELLS, Grid, GridLayer, thumbnail_levels

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

MAP = 5
"""Columns of the map of a long text, at least, beside those of the keys next to a row."""


def grid_lines(view: Grid, surface: Surface, chosen: tuple[int, int] | None = None) -> Iterator[Line]:
    """The whole picture, line by line; heads that do not fit side by side follow below.

    The ``chosen`` (layer, head) stands in brackets, and its names are reversed; thumbnails are small then, so
    that a screen shows as many as it can.
    """
    palette = surface.palette(signed=view.signed)
    label = len(f"L{view.layers[-1].layer} ") if view.layers else 0
    width, beside, gap = _layout(view, surface, label, compact=chosen is not None)
    height = half_lines(view, width)
    small = view.fit(thumbnail_rows(height, surface), width)
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
        for number in small.numbers:
            inside = bool(chosen and chosen[0] == number and chosen[1] in heads)
            name = f"L{number}"
            led: Line = [Segment(name, MARK if inside else DIM), Segment(" " * (label - len(name) - 1))]
            if number not in drawn:
                yield [*led, Segment(" no attention of this kind", DIM)]
                continue
            rows = _bracketed(drawn[number], heads, gap, chosen[1] if chosen and inside else None)
            for i, row in enumerate(rows):
                yield [*([Segment(" " * (label - 1))] if i else led), *row]
    yield []
    yield from legend(view, small, surface, palette)


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


def thumbnail_rows(height: int, surface: Surface) -> int:
    """Rows of a thumbnail of so many half-lines: without colour a row takes a line."""
    return height if surface.colour else (height + 1) // 2


def thumbnails(
    layer: GridLayer, view: Grid, width: int, height: int, surface: Surface, palette: Palette
) -> list[list[Line]]:
    """The lines of each head of a layer."""
    if not surface.colour:
        return _shaded(layer, view, thumbnail_rows(height, surface), width, surface)
    tones = tones_of(layer, view, width, height)
    lines = half_block_lines(tones.reshape(-1, width), palette)
    tall = tones.shape[1] // 2
    return [lines[start : start + tall] for start in range(0, len(lines), tall)]


def tones_of(layer: GridLayer, view: Grid, width: int, height: int) -> Array:
    """The tones of each head's cells, with air below; -1 is none.  -> [head, half-line, column]"""
    levels = thumbnail_levels(layer, view.shown_scale, view.signed)  # [head, row, column]
    tones = np.where(layer.masked, -1, np.round(levels * (TONES - 1))).astype(int)
    air = 1 if height % 2 else 2  # half-lines
    cells = np.full((len(tones), height + air, width), -1)  # np.pad takes ten times as long
    cells[:, :height] = _stretch(tones, height, width)
    return cells


def _shaded(layer: GridLayer, view: Grid, rows: int, width: int, surface: Surface) -> list[list[Line]]:
    levels = thumbnail_levels(layer, view.shown_scale, view.signed)  # [head, row, column]
    if view.signed:
        levels = np.abs(2 * levels - 1)  # a shade has no sign
    levels = np.where(layer.masked, -1, levels)
    levels[..., view.gap] = -2
    blank: Line = [Segment(" " * width)]
    stretched = _stretch(levels, rows, width)
    return [[*([Segment(_shades(row, surface))] for row in head), blank] for head in stretched]


def _stretch(cells: Array, height: int, width: int) -> Array:
    """Cells repeated to a size that is no smaller than theirs."""
    rows = np.arange(height) * cells.shape[-2] // height
    columns = np.arange(width) * cells.shape[-1] // width
    return cells[:, rows][:, :, columns]


def _shades(row: Array, surface: Surface) -> str:
    return "".join(" ·"[level == -1] if level < 0 else surface.shade(level) for level in row.tolist())


def _bracketed(drawn: list[list[Line]], heads: range, gap: int, chosen: int | None) -> list[Line]:
    """Thumbnails side by side, the chosen one in brackets."""
    shown = [head for head in heads if head < len(drawn)]
    bare = [Segment(" " if head == shown[0] else " " * gap) for head in shown]
    for at, head in enumerate(shown):
        if chosen is not None and head in (chosen, chosen + 1):
            between = list(bare[at].text)
            if head == chosen:
                between[-1] = "▐"
            elif at:
                between[0] = "▌"
            bare[at] = Segment("".join(between), BRACKET)
    last = [Segment("▌", BRACKET)] if shown and shown[-1] == chosen else []
    lines = []
    for i in range(len(drawn[shown[0]]) if shown else 0):
        line: Line = []
        for between_, head in zip(bare, shown, strict=True):
            line.append(between_)
            line += drawn[head][i]
        lines.append(line + last)
    return lines


def legend(view: Grid, small: Grid, surface: Surface, palette: Palette) -> Iterator[Line]:
    """The colour bar, and what a thumbnail is; ``small`` is the view as it was drawn."""
    masked = any(layer.masked.any() for layer in view.layers)
    shown = "blank: masked" if surface.colour else "·: masked"
    said = small.legend(masked=shown if masked else "", mark=ITSELF, line=WRITTEN)
    yield colour_bar(*small.scale_ends(), surface, palette)
    yield from quiet("; ".join(said), surface)
