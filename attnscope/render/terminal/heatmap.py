"""A head in the terminal: labelled rows and columns, colour or shades, a colour bar, its numbers.

A small map gets wide cells with numbers in them, a larger one square cells, the largest one half-block
cells (two rows per line of text); a map that still does not fit is pooled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment

from attnscope.axes import Array, Place
from attnscope.render.terminal.surface import (
    BOLD,
    DIM,
    MARK,
    PLAIN,
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
    heading,
    number_label,
    quiet,
    readings,
    side_by_side,
    style_on,
    upright,
)
from attnscope.text import isolate
from attnscope.views.heads import HeadMap
from attnscope.views.heatmap import HeadPair, HeadRow, Heatmap

NUMBERED = 4  # columns of a cell with its number

LABEL_WIDTH = 20
HEADER_HEIGHT = 12
TALLEST = 40  # most rows with a line each


@dataclass(frozen=True, slots=True)
class CellLayout:
    """``cell`` columns per cell; ``half``: two rows per line; ``label``: the width of a row's label."""

    cell: int
    half: bool
    label: int


def heatmap_lines(view: Heatmap, surface: Surface, pinned: int | None = None) -> Iterator[Line]:
    """The whole picture, line by line; the ``pinned`` token's row and column are marked."""
    view, layout = _settle(view, surface)
    palette = surface.palette(signed=view.signed)
    yield from _cells_of(view, layout, surface, palette, pinned)
    yield []
    yield from _legend(view, layout, surface, palette)
    yield from readings(view.readings, surface)
    yield from footing(view.notes, surface)


def _cells_of(
    view: Heatmap, layout: CellLayout, surface: Surface, palette: Palette, pinned: int | None = None
) -> Iterator[Line]:
    """The map itself, with labelled rows and columns."""
    row = None if pinned is None else _place_of(view.weights.queries, pinned)
    yield from _header(view, layout)
    if row is not None and view.weights.square:
        yield [Segment(" " * (layout.label + 1 + row * layout.cell + (layout.cell - 1) // 2) + "▼", BOLD)]
    tones = np.round(view.levels() * (TONES - 1)).astype(int)
    if layout.half:
        yield from _half_rows(view, tones, layout, palette, row)
    else:
        yield from _rows(view, tones, layout, surface, palette, row)
    if view.strip is not None:
        yield _loss_line(view, view.strip, layout, surface)


def token_at(view: Heatmap, surface: Surface, pinned: int | None, y: int) -> int | None:
    """The token whose row is at a line of a picture without a title."""
    view, layout = _settle(view, surface)
    marked = (
        pinned is not None and _place_of(view.weights.queries, pinned) is not None and view.weights.square
    )
    line = y - len(list(_header(view, layout))) - bool(marked)
    row = 2 * line if layout.half else line
    return view.weights.queries[row].start if 0 <= row < len(view.weights.queries) else None


def _settle(view: Heatmap, surface: Surface) -> tuple[Heatmap, CellLayout]:
    """The map pooled to fit the surface, and its layout."""
    rows, columns = view.values.shape
    queries = view.weights.queries
    labels = (cell_len(each.label) + (not each.pooled) * len(f" {each.start}") for each in queries)
    label = min(max(labels, default=0), _widest_label(surface))
    room = surface.width - label - 1
    wide = NUMBERED if surface.colour else NUMBERED + 1  # without colour a shade stands beside it
    if rows <= TALLEST and columns * wide <= room:
        return view, CellLayout(wide, False, label)
    if rows <= TALLEST and columns * 2 <= room:
        return view, CellLayout(2, False, label)
    if not surface.colour:
        if rows > TALLEST or columns > room:
            label = _widest_label(surface)
            view = view.fit(TALLEST, surface.width - label - 1)
        cell = 2 if 2 * view.values.shape[1] <= surface.width - label - 1 else 1
        return view, CellLayout(cell, False, label)
    if columns > room:
        label = _widest_label(surface)
        room = surface.width - label - 1
        view = view.fit(2 * room, room)
    return view, CellLayout(1, True, label)


def _widest_label(surface: Surface) -> int:
    return min(LABEL_WIDTH, surface.width // 4)


def _row_label(view: Heatmap, row: int, layout: CellLayout, marked: int | None) -> Segment:
    """A row's token and number. Marked rows are highlighted, generated ones slightly."""
    place, style = view.weights.queries[row], PLAIN
    if row == marked:
        style = MARK
    elif view.written is not None and place.start >= view.written:
        style = BOLD
    if place.pooled:
        return Segment(fit_text(place.label, layout.label, right=True), style)
    return Segment(number_label(place.label, place.start, layout.label), style)


def _header(view: Heatmap, layout: CellLayout) -> Iterator[Line]:
    """Column labels from top to bottom if cells are wide enough, otherwise numbers."""
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
    """The numbers or moments of columns above them: each, or every 2nd, 5th, 10th ... that fits."""
    widest = max((len(number) for number in numbers), default=0) + 1
    every = next(step for step in (1, 2, 5, 10, 20, 50) if step * cell >= widest)
    line = ""
    for i in range(0, len(numbers), every):
        line = line.ljust(i * cell) + numbers[i]
    return line


def _place_of(axis: tuple[Place, ...], token: int) -> int | None:
    """The place that a token belongs to."""
    return next((i for i, place in enumerate(axis) if place.start <= token < place.stop), None)


def _rows(
    view: Heatmap, tones: Array, layout: CellLayout, surface: Surface, palette: Palette, marked: int | None
) -> Iterator[Line]:
    """One row per line."""
    shown = np.abs(2 * view.levels() - 1) if view.signed else view.levels()  # a shade has no sign
    masked, hidden = view.masked, view.hidden
    for row in range(len(view.weights.queries)):
        line = [_row_label(view, row, layout, marked), Segment(" ")]
        for column in range(len(view.weights.keys)):
            if masked[row, column]:
                line.append(Segment(centre("·", layout.cell), DIM))
                continue
            if hidden[row, column]:
                line.append(Segment(" " * layout.cell))
                continue
            text = _number(view.values[row, column], layout.cell)
            if surface.colour:
                faint = abs(view.values[row, column]) < 0.05
                line.append(Segment(text, style_on(palette, int(tones[row, column]), faint)))
            else:
                shade = surface.shade(float(shown[row, column]))
                line.append(Segment(shade + text[1:] if layout.cell >= NUMBERED else shade * layout.cell))
        yield list(Segment.simplify(line))


def _number(value: float, cell: int) -> str:
    """Per cent, if it fits the cell and is at least half a per cent."""
    shown = cell >= NUMBERED and abs(value) >= 0.005 and -0.995 < value < 9.995
    return f"{round(100 * value) if shown else '':>{cell - 1}} " if cell > 1 else " "


def _half_rows(
    view: Heatmap, tones: Array, layout: CellLayout, palette: Palette, marked: int | None
) -> Iterator[Line]:
    """Two rows per line; the upper one is labelled, or the marked one."""
    numbers = np.where(view.masked | view.hidden, -1, tones)
    for line, cells in enumerate(half_block_lines(numbers, palette)):
        row = marked if marked == 2 * line + 1 else 2 * line
        yield [_row_label(view, row, layout, marked), Segment(" "), *cells]


def _loss_line(view: Heatmap, strip: Sequence[float | None], layout: CellLayout, surface: Surface) -> Line:
    """The loss of each column's tokens: taller marks for larger losses."""
    line = [Segment(fit_text("loss", layout.label, right=True), DIM), Segment(" ")]
    for loss in strip:
        if loss is None:
            line.append(Segment(centre("·", layout.cell), DIM))
            continue
        mark = surface.spark(loss / view.most)
        number = f"{loss:.{int(loss < 9.95)}f}"
        text = (mark + number).ljust(layout.cell) if layout.cell >= NUMBERED else mark * layout.cell
        line.append(Segment(text, surface.bar_style()))
    return list(Segment.simplify(line))


def _legend(view: Heatmap, layout: CellLayout, surface: Surface, palette: Palette) -> Iterator[Line]:
    """The colour bar, how to read the map, and the columns' texts if nothing else shows them."""
    bar = colour_bar(*view.scale_ends(".2g"), surface, palette)
    beside = surface.width - sum(segment.cell_length for segment in bar) - 3
    text = view.legend("blank: masked" if layout.half else "· masked", per_cent=layout.cell >= NUMBERED)
    if layout.half:
        text += "; two rows a line, the upper one labelled"
    if cell_len(text) <= beside:
        yield [*bar, Segment(f"   {text}", DIM)]
    else:
        yield bar
        yield from quiet(text, surface)
    if layout.cell == 1 and not view.weights.square and not all(key.heard for key in view.weights.keys):
        keys = view.weights.keys
        labels = [key.label if key.pooled else f"{key.start} {key.label}" for key in keys]
        columns = map(isolate, labels)
        yield []
        yield from ([Segment(line, DIM)] for line in flow_items(["columns:", *columns], surface.width, "   "))


GAP = 3  # columns between heads that stand beside each other
BESIDE = 110  # from this width on, the two heads stand side by side

LABEL = 18


def pair_lines(view: HeadPair, surface: Surface) -> Iterator[Line]:
    """Both heads, the first minus the second, and the tokens where they differ most."""
    if surface.width >= BESIDE:
        half = (surface.width - 4) // 2
        blocks = [list(_titled(each, replace(surface, width=half))) for each in view.maps]
        yield from side_by_side(blocks, half + 4)
        yield []
    else:
        for each in view.maps:
            yield from _titled(each, surface)
            yield []
    yield from _titled(view.difference, surface)
    yield []
    yield from _partings(view, surface)


def row_lines(view: HeadRow, surface: Surface) -> Iterator[Line]:
    """As many heads side by side as get cells two columns wide; at least one."""
    first = view.maps[0].weights
    label = max(cell_len(f"{each.label} {each.start}") for each in first.queries)
    least = min(label, _widest_label(surface)) + 1 + 2 * len(first.keys) + GAP
    beside = min(max((surface.width + GAP) // least, 1), len(view.maps))
    width = (surface.width + GAP) // beside
    own, palette = replace(surface, width=width - GAP), surface.palette(signed=view.maps[0].signed)
    settled, layout = _settle(view.maps[0], own)
    for start in range(0, len(view.maps), beside):
        blocks = []
        for each in view.maps[start : start + beside]:
            role = Segment(f" {each.subtitle}", DIM)
            cells = _cells_of(_settle(each, own)[0], layout, own, palette)
            blocks.append([[Segment(each.title, BOLD), role], *cells])
        yield from side_by_side(blocks, width)
        yield []
    yield from _legend(settled, layout, surface, palette)


def _titled(view: Heatmap, surface: Surface) -> Iterator[Line]:
    """A head with its title, as a part of a picture."""
    yield from heading(view.title, view.subtitle, surface)
    yield from heatmap_lines(view, surface)


def _partings(view: HeadPair, surface: Surface) -> Iterator[Line]:
    """One token per line: how far its rows are apart, and the heaviest key of each."""
    one, other = view.names
    label = min(max((cell_len(f"{each.label} {each.position}") for each in view.partings), default=0), LABEL)
    longest = max((cell_len(key) + 6 for each in view.partings for key in each.keys), default=0)
    longest = max(longest, *(cell_len(f"{name} looks at") for name in view.names)) + 2
    room = min(longest, max((surface.width - label - 8) // 2, 12))
    yield [Segment("where they part most", BOLD)]
    yield [
        Segment(fit_text("token", label, right=True) + "  nats  ", DIM),
        Segment(fit_text(f"{one} looks at", room) + fit_text(f"{other} looks at", room).rstrip(), DIM),
    ]
    for each in view.partings:
        cells = [
            fit_text(f"{isolate(cut(key, room - 7))} {weight:.2f}", room)
            for key, weight in zip(each.keys, each.weights, strict=True)
        ]
        yield [
            Segment(number_label(each.label, each.position, label)),
            Segment(f"  {each.distance:.2f}  {cells[0]}{cells[1].rstrip()}"),
        ]


MEAN = 5  # columns of a layer's mean


def head_map_lines(view: HeadMap, surface: Surface) -> Iterator[Line]:
    """The whole table; if it is too wide, further heads follow below in a second one."""
    palette = surface.palette(signed=view.signed)
    texts = view.texts
    rows, columns = view.rows, view.columns
    column = replace(view, values=view.means[:, None])
    means = [text for (text,) in column.texts] if view.by_layer else []
    label, heads = max(map(len, rows), default=0) + 1, len(columns)
    cell = max(
        [4, *(len(text) + 2 for row in texts for text in row), *(len(name) + 1 for name in columns[-1:])]
    )
    beside = max(1, (surface.width - label) // cell)
    beside = -(-heads // -(-heads // beside)) if heads else 1  # equal halves rather than a remainder
    tones = np.round(np.nan_to_num(view.levels()) * (TONES - 1)).astype(int)
    for start in range(0, heads, beside):
        shown = range(start, min(start + beside, heads))
        if start:
            yield []
        names = "".join(f"{columns[head]} ".rjust(cell) for head in shown)
        beside_them = shown.stop == heads and label + cell * len(shown) + MEAN <= surface.width
        names += "mean".rjust(MEAN) * bool(means and beside_them)
        yield [Segment(" " * label + names.rstrip(), DIM)]
        for row, name in enumerate(rows):
            line = [Segment(name.ljust(label), DIM)]
            for head in shown:
                text = texts[row][head]
                style = style_on(palette, int(tones[row, head])) if text and surface.colour else None
                line.append(Segment(f"{text or '·'} ".rjust(cell), style or (None if text else DIM)))
            if means and beside_them:
                line.append(Segment(means[row].rjust(MEAN)))
            yield line
    yield []
    unit = f" {view.unit}" if view.unit else ""
    low, high = f"{view.limits[0]:.3g}", f"{view.limits[1]:.3g}{unit}"
    if surface.colour:
        yield colour_bar(low, high, surface, palette)
    else:
        yield [Segment(f"{view.name}: {low} to {high}", DIM)]
