"""Every head as a thumbnail, or as one cell: layers down, heads across.

All heads fit on one screen, one plain map each, as large as its lines and columns allow; if these are too
small for maps, one letter each. A large grid has a column for each key if the width allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from rich.color import Color
from rich.segment import Segment
from rich.style import Style

from attnscope.axes import Array
from attnscope.render.colour import is_light, role_colour
from attnscope.render.terminal import surface as screen
from attnscope.render.terminal.surface import BOLD, DIM, MARK, TONES, Line, Palette, Surface
from attnscope.views import (
    CLEAR_CELLS,
    THUMBNAIL_CELLS,
    Grid,
    HeadMap,
    RoleMap,
    letter_of,
    thumbnail_levels,
)

CLEAR_COLUMNS = 5  # columns and half-lines at which a thumbnail shows most of its detail
TIGHT_LINES, LOOSE_LINES = 4, 7  # lines of title, names and legend, and with the subtitle and lines of air
WIDEST_GAP = 4  # columns between thumbnails
LARGE_COLUMNS = 17  # columns of a large thumbnail with several keys per column
WRITTEN_MARK = "━"  # marks the columns of generated tokens

Chosen: TypeAlias = "tuple[int, int] | None"  # a layer and a head


@dataclass(frozen=True, slots=True)
class GridLayout:
    """The size of a thumbnail, and what stands around it."""

    width: int  # columns
    height: int  # rows
    gap: int  # columns after it
    air: int  # rows below it
    beside: int  # heads in a band
    tight: bool = False  # whether the title has one line, and no line of air is below the maps


def layout_of(view: Grid, surface: Surface, chosen: bool = False) -> GridLayout:
    """The largest thumbnails that fit; a grid with a ``chosen`` head has one size for all."""
    room = surface.width - _label(view) - 1
    if chosen:
        width = min(columns_of(view, CLEAR_COLUMNS if surface.colour else 9), room - 1)
        return in_bands(view, surface, width, half_lines(view, width), 1)
    if view.large:
        keys = max(view.size[1], 1)
        each = keys <= 24 or keys <= min(room // max(view.heads, 1) - 1, THUMBNAIL_CELLS)
        width = min(keys if each else LARGE_COLUMNS, room - 1)
        bands = -(-view.heads // max(room // (width + 1), 1))
        most = room // max(-(-view.heads // bands), 1) - 1
        width = columns_of(view, max(min(most, max(LARGE_COLUMNS, width)), 1))
        return in_bands(view, surface, width, half_lines(view, width), 1)
    shapes = (_fill_screen(view, surface, bands) for bands in range(1, 1 + view.heads // 4))
    whole = _fill_screen(view, surface, 1)
    return next((shape for shape in shapes if is_clear(view, shape)), whole)


def is_clear(view: Grid, shape: GridLayout) -> bool:
    """Whether its thumbnails are pictures."""
    return view.is_clear(shape.height, shape.width)


def _fill_screen(view: Grid, surface: Surface, bands: int) -> GridLayout:
    """The largest thumbnails in so many bands of heads that a screen holds."""
    room = surface.width - _label(view) - 1
    step = max(room // max(-(-view.heads // bands), 1), 2)  # columns from one head to the next
    layers = max(len(view.numbers), 1) * bands
    pitch, tight = 0, True
    for tight in (False, True):
        around = (TIGHT_LINES if tight else LOOSE_LINES) + 2 * (bands - 1)
        pitch = 2 * ((surface.height or 48) - around) // layers  # half-lines from one layer to the next
        if pitch - pitch % 2 > CLEAR_CELLS:
            pitch -= pitch % 2  # each layer begins a line
            break
    height, gap = max(pitch - 1, 2), int(step > 2)
    width = columns_of(view, min(step - gap, max(height, CLEAR_COLUMNS)))
    height = half_lines(view, min(width, height) if height >= CLEAR_COLUMNS else height)
    gap = max(gap, min(step - width, WIDEST_GAP))  # as wide as the terminal
    return in_bands(view, surface, width, height, gap, max(pitch - height, 0), tight)


def in_bands(
    view: Grid, surface: Surface, width: int, height: int, gap: int, air: int = 2, tight: bool = False
) -> GridLayout:
    """Thumbnails in as few bands of nearly equal length as the width allows."""
    bands = -(-view.heads // max((surface.width - _label(view) - 1) // (width + gap), 1))
    beside = max(1, -(-view.heads // max(bands, 1)))
    if surface.colour:
        return GridLayout(width, height, gap, min(air, 2 - height % 2), beside, tight)
    lines = max((height + 1) // 2, min(height, 2))
    if surface.height is None and lines < CLEAR_CELLS:  # a pipe has as many lines as it takes
        lines = height
    lines -= lines % max(view.size[0], 1) if lines > view.size[0] else 0  # each row has as many
    return GridLayout(width, lines, gap, 1, beside, tight)


def _label(view: Grid) -> int:
    return len(f"L{view.numbers[-1]}") if view.numbers else 0


def columns_of(view: Grid, most: int) -> int:
    """Columns of a thumbnail: a whole number per key, or of keys per column."""
    keys = max(view.size[1], 1)
    if keys <= most:
        return most - most % keys
    return most if keys > THUMBNAIL_CELLS else -(-keys // -(-keys // most))


def half_lines(view: Grid, width: int) -> int:
    """Half-lines of a thumbnail: a whole number per row, or of rows per half-line, where that is square."""
    queries, keys = view.size
    tall = int(np.clip(round(width * queries / max(keys, 1)), 1, 2 * width + 1))
    return tall if tall <= queries else max(tall - tall % max(queries, 1), 1)


def grid_lines(view: Grid, surface: Surface, chosen: Chosen = None) -> Iterator[Line]:
    """The whole picture, line by line; the ``chosen`` (layer, head) gets brackets and reversed names."""
    shape = layout_of(view, surface, chosen is not None)
    if view.roles is not None and chosen is None and not is_clear(view, shape):
        yield from role_lines(view.roles, surface, _remedy(view, surface))
        return
    small, count = view.fit(shape.height, shape.width), 0
    for start in range(0, view.heads, shape.beside):
        heads = range(start, min(start + shape.beside, view.heads))
        if start:
            yield []
        if any(small.columns):
            yield _names(small, shape, heads, chosen)
        lines = _band(small, shape, heads, surface, surface.palette(signed=view.signed), chosen)
        count += len(lines)
        yield from lines
    if not shape.tight:
        yield []
    if surface.height and not view.large and count + TIGHT_LINES > surface.height:
        large = "" if view.roles is None else " or --large"  # which only an overview of heads has
        yield [Segment(f"taller than the screen: scroll up; --layer 0-5{large} shows more per head", DIM)]
    yield from legend(view, small, surface)


def _names(small: Grid, shape: GridLayout, heads: range, chosen: Chosen) -> Line:
    """The name of each head above its thumbnail, if there is room, and marks of its columns."""
    plain = small.written_from(shape.width)
    marks = " " * plain + WRITTEN_MARK * (shape.width - plain)
    line: Line = [Segment(" " * (_label(small) + 1))]
    used, step = 0, shape.gap + shape.width  # generated columns
    for start, head in zip(range(0, step * len(heads), step), heads, strict=True):
        name = small.columns[head] if used < start or not used else ""
        rest = marks[max(used - start, 0) + len(name) :].rstrip()
        line += [Segment(" " * (start - used)), Segment(name, MARK if chosen and chosen[1] == head else DIM)]
        line.append(Segment(rest, DIM))
        used = max(used, start) + len(name + rest)
    return line


def _band(
    small: Grid, shape: GridLayout, heads: range, surface: Surface, palette: Palette, chosen: Chosen
) -> list[Line]:
    """The thumbnails of some heads of all layers, each layer's name at its first line."""
    cells = thumbnail_cells(small, shape, heads)
    if small.signed and not surface.colour:
        cells = np.where(cells < 0, cells, np.abs(2 * cells - 1))  # a shade has no sign
    drawn = cell_lines(cells, surface, palette)
    pitch, rows = shape.height + shape.air, 2 if surface.colour else 1
    names = {at * pitch // rows: number for at, number in enumerate(small.numbers)}
    inside = range(0)
    if chosen and chosen[1] in heads:
        first = small.numbers.index(chosen[0]) * pitch // rows
        inside = range(first, first + -(-shape.height // rows))
        left = heads.index(chosen[1]) * (shape.width + shape.gap)
        right = left + shape.width + 1
        parts = (cells[:, :left], cells[:, left + 1 : right], cells[:, right + 1 :])
        before, between, after = (cell_lines(part, surface, palette) for part in parts)
        for at in inside:
            drawn[at] = [*before[at], Segment("▐", BOLD), *between[at], Segment("▌", BOLD), *after[at]]
    label = _label(small)
    for at, line in enumerate(drawn):
        name = f"L{names[at]}" if at in names else ""
        marked = bool(chosen and names.get(at) == chosen[0] and inside)
        drawn[at] = [Segment(name, MARK if marked else DIM), Segment(" " * (label - len(name))), *line]
    return drawn


def thumbnail_cells(small: Grid, shape: GridLayout, heads: range) -> Array:
    """All levels; masked -1, empty -2.  -> [layer · (height + air) - air, 1 + head · (width + gap)]"""
    numbers = small.numbers
    step = shape.gap + shape.width
    field = np.full((len(numbers), shape.height + shape.air, len(heads), step), -2.0)
    for layer in small.layers:
        levels = thumbnail_levels(layer, small)[heads.start : heads.stop]  # [head, row, column]
        levels = np.where(layer.masked[heads.start : heads.stop], -1, levels)
        rows = np.arange(shape.height) * levels.shape[1] // shape.height
        columns = np.arange(shape.width) * levels.shape[2] // shape.width
        shown = levels[:, rows][:, :, columns].transpose(1, 0, 2)  # [row, head, column]
        field[numbers.index(layer.layer), : shape.height, : len(levels), : shape.width] = shown
    field = field.reshape(-1, len(heads) * step)[: len(field) * (shape.height + shape.air) - shape.air]
    return np.pad(field, ((0, 0), (1, 0)), constant_values=-2)


def cell_lines(cells: Array, surface: Surface, palette: Palette) -> list[Line]:
    """Levels as lines: two rows per line in colour, otherwise a row of shades.  [row, column]"""
    if surface.colour:
        tones = np.where(cells < 0, -1, np.round(cells * (TONES - 1))).astype(int)
        return screen.half_block_lines(tones, palette)
    blank = {-1: "·", -2: " "}
    rows = ([blank.get(level) or surface.shade(level) for level in row] for row in cells.tolist())
    return [[Segment("".join(row))] for row in rows]


def legend(view: Grid, small: Grid, surface: Surface) -> Iterator[Line]:
    """The colour bar, and beside it what a thumbnail is; ``small`` is the view as drawn."""
    masked = any(layer.masked.any() for layer in view.layers)
    shown = "blank: masked" if surface.colour else "·: masked"
    words = "; ".join(small.legend(masked=shown if masked else "", line=WRITTEN_MARK))
    words += "; shades have no sign" * (view.signed and not surface.colour)
    palette = surface.palette(signed=view.signed)
    yield from surface.colour_bar(*small.scale_ends(), palette, view.bar, words)


SHORT_REMEDY = "maps: --head NAME"


def _remedy(view: Grid, surface: Surface) -> str:
    """How to see maps: of as many layers as have room, or over several screens."""
    for count in (16, 8, 4, 2, 1):
        part = replace(view, layers=view.layers[:count], whole=False)
        if count < len(view.layers) and is_clear(view, layout_of(part, surface)):
            layers = "-".join(dict.fromkeys(str(part.layers[at].layer) for at in (0, -1)))
            return f"maps: --head NAME, --layer {layers}, or --large"
    return "maps: --head NAME, or --large"


WIDEST_LETTER = 3  # columns of a cell without a number
BLOCK_GAP = 2  # columns between blocks of layers


def role_lines(view: RoleMap, surface: Surface, remedy: str = "") -> Iterator[Line]:
    """The letter of each head's role on its colour, and what the letters mean."""

    def cell(row: int, head: int, width: int) -> Segment:
        roles = view.roles[row]
        return _letter(roles[head], width, surface) if head < len(roles) else Segment(" " * width)

    yield from _cell_blocks([f"L{layer}" for layer in view.layers], view.heads, WIDEST_LETTER, cell, surface)
    line: Line = []
    for role, words in view.legend.items():
        entry = [_letter(role, 1, surface), Segment(f" {words}")]
        if line and Segment.get_line_length([*line, *entry]) + 2 > surface.width:
            yield line
            line = []
        line = [*line, Segment("  "), *entry] if line else entry
    room = surface.width - Segment.get_line_length(line) - 3
    if len(remedy) > room >= len(SHORT_REMEDY):
        remedy = SHORT_REMEDY
    elif remedy and len(remedy) > room:
        yield line
        line = []
    yield [*line, Segment("   " * bool(line and remedy) + remedy, DIM)]


def _letter(role: str, width: int, surface: Surface) -> Segment:
    """The letter of a role in a cell of its colour."""
    ground, text = role_colour(role), letter_of(role).center(width)
    if ground is None or not surface.colour:
        return Segment(text, DIM if ground is None else None)
    ink = Color.from_rgb(*([0] * 3 if is_light(np.array(ground) / 255) else [255] * 3))
    return Segment(text, Style.from_color(ink, Color.from_rgb(*ground)))


def compact_lines(view: HeadMap, surface: Surface) -> Iterator[Line]:
    """The number of each head as a colour, and as text where all have room."""
    palette, texts, levels = surface.palette(signed=view.signed), view.texts, view.levels()
    numbered = max((len(text) for row in texts for text in row), default=0) + 2

    def cell(row: int, head: int, width: int) -> Segment:
        level = levels[row, head]
        if not np.isfinite(level):
            return Segment("·".center(width), DIM)
        blank = " " if surface.colour or width >= numbered else surface.shade(level)
        text = f"{texts[row][head]} ".rjust(width) if width >= numbered else blank * width
        return Segment(text, screen.style_on(palette, round(level * (TONES - 1))) if surface.colour else None)

    yield from _cell_blocks(view.rows, len(view.columns), numbered, cell, surface)
    yield from surface.colour_bar(*view.scale_ends, palette, view.bar)


def _cell_blocks(
    names: Sequence[str],
    heads: int,
    widest: int,
    cell: Callable[[int, int, int], Segment],
    surface: Surface,
) -> Iterator[Line]:
    """A cell for each head: layers in as few blocks side by side as the height allows, then wide cells.

    ``cell`` draws one of a row and head in so many columns; cells narrower than ``widest``, which has a
    number, have at most the columns of a letter.
    """
    label = max(map(len, names), default=0) + 1
    lines = (surface.height or len(names) + TIGHT_LINES) - TIGHT_LINES
    beside = min(heads, surface.width - label)  # heads of a block
    blocks, width = 1, 1
    for count in range(1, max(len(names), 1) + 1):
        room = (surface.width - BLOCK_GAP * (count - 1)) // count - label
        if room < beside:
            break
        blocks, width = count, min(room // max(beside, 1), widest)
        if -(-len(names) // count) <= lines:
            break
    width = width if width == widest else min(width, WIDEST_LETTER)
    rows = -(-len(names) // blocks)
    for start in range(0, heads, max(beside, 1)):
        shown = range(start, min(start + beside, heads))
        step = BLOCK_GAP + label + len(shown) * width
        parts = []
        for first in range(0, len(names), rows):
            block: list[Line] = [[Segment(" " * label + _head_names(shown, width), DIM)]]
            for row in range(first, min(first + rows, len(names))):
                line = [Segment(names[row].ljust(label), DIM), *(cell(row, head, width) for head in shown)]
                block.append(list(Segment.simplify(line)))
            parts.append(block)
        yield from screen.side_by_side(parts, step)


def _head_names(heads: range, width: int) -> str:
    """The names of as many heads as there is room for, each over its cell."""
    every = next(step for step in (1, 2, 4, 8, 16) if step * width > len(f"H{heads[-1]}"))
    names = (f"H{head}".ljust(every * width) for head in heads[::every])
    return "".join(names)[: len(heads) * width].rstrip()
