"""Heads in the terminal: one, two and their difference, several, their numbers, and their distances.

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
from attnscope.render.terminal import surface as screen
from attnscope.render.terminal.grid import compact_lines
from attnscope.render.terminal.surface import BOLD, DIM, MARK, PLAIN, TONES, Line, Palette, Surface
from attnscope.text import isolate
from attnscope.views import DistanceMap, HeadMap, HeadPair, HeadRow, Heatmap, share_scale

NUMBER_COLUMNS = 4  # columns of a cell with its number
MOST_FULL_LINES = 40  # most rows with a line each
CELL_MARK = "◂"  # in the last column of a marked cell


@dataclass(frozen=True, slots=True)
class CellLayout:
    """How a map fits a surface."""

    cell: int  # columns of a cell
    half: bool  # two rows a line
    label: int  # columns of a row's label
    gap: int = 0  # columns between groups of heads


def heatmap_lines(view: Heatmap, surface: Surface, pinned: int | None = None) -> Iterator[Line]:
    """The whole picture, line by line; the ``pinned`` token's row and column are marked."""
    view, layout = _fit_layout(view, surface)
    palette = surface.palette(signed=view.signed)
    yield from _cells_of(view, layout, surface, palette, pinned)
    yield []
    yield from _legend(view, layout, surface, palette)
    yield from surface.readings(view.readings)
    yield from surface.footing(view.notes)


def _cells_of(
    view: Heatmap, layout: CellLayout, surface: Surface, palette: Palette, pinned: int | None = None
) -> Iterator[Line]:
    row = None if pinned is None else _place_of(view.weights.queries, pinned)
    yield from _header(view, layout)
    if row is not None and view.weights.square:
        yield [Segment(" " * (layout.label + 1 + row * layout.cell + (layout.cell - 1) // 2) + "▼", BOLD)]
    tones = np.round(view.levels() * (TONES - 1)).astype(int)
    if not layout.half:
        yield from _rows(view, tones, layout, surface, palette, row)
    else:  # the upper row of each line is labelled, or the marked one
        drawn = np.where(view.masked | view.hidden, -1, tones)
        for at, cells in enumerate(screen.half_block_lines(drawn, palette)):
            shown = row if row == 2 * at + 1 else 2 * at
            yield [_row_label(view, shown, layout, row), Segment(" "), *cells]
    if view.column_losses is not None:
        yield _loss_line(view, view.column_losses, layout, surface)


def token_at(view: Heatmap, surface: Surface, pinned: int | None, y: int) -> int | None:
    """The token whose row is at a line of a picture without a title."""
    view, layout = _fit_layout(view, surface)
    queries = view.weights.queries
    marked = pinned is not None and view.weights.square and _place_of(queries, pinned) is not None
    line = y - len(list(_header(view, layout))) - marked
    row = 2 * line if layout.half else line
    return queries[row].start if 0 <= row < len(queries) else None


def _fit_layout(view: Heatmap, surface: Surface) -> tuple[Heatmap, CellLayout]:
    """The map pooled to fit the surface, and its layout."""
    rows, columns = view.values.shape
    queries = view.weights.queries
    labels = (cell_len(each.label) + (not each.pooled) * len(f" {each.start}") for each in queries)
    label = min(max(labels, default=0), _widest_label(surface))
    room = surface.width - label - 1
    # without colour a shade stands beside the number; a value has a sign and a digit behind its point
    wide = NUMBER_COLUMNS + (not surface.colour) + (not view.per_cent)
    for cell in (wide, 2):
        if rows <= MOST_FULL_LINES and columns * cell <= room:
            return view, CellLayout(cell, False, label)
    if columns > room or (rows > MOST_FULL_LINES and not surface.colour):
        label = _widest_label(surface)
        room = surface.width - label - 1
        view = view.fit(2 * room if surface.colour else MOST_FULL_LINES, room)
    square = not surface.colour and 2 * view.values.shape[1] <= room
    return view, CellLayout(2 if square else 1, surface.colour, label)


def _widest_label(surface: Surface) -> int:
    return min(20, surface.width // 4)


def _row_label(view: Heatmap, row: int, layout: CellLayout, marked: int | None) -> Segment:
    """A row's token and number. Marked rows are highlighted, generated ones slightly."""
    place, style = view.weights.queries[row], PLAIN
    if row == marked:
        style = MARK
    elif view.written is not None and place.start >= view.written:
        style = BOLD
    if place.pooled:
        return Segment(screen.fit_text(place.label, layout.label, right=True), style)
    return Segment(screen.number_label(place.label, place.start, layout.label), style)


def _header(view: Heatmap, layout: CellLayout) -> Iterator[Line]:
    """Column labels from top to bottom if cells are wide enough, otherwise numbers or moments that fit."""
    keys = view.weights.keys
    lines = None
    if view.block == (1, 1) and layout.cell > 1:
        lines = screen.upright([place.label for place in keys], layout.cell, 12)
    if lines is None:
        numbers = [place.moment if place.heard else str(place.start) for place in keys]
        widest = max(map(len, numbers), default=0) + 1
        every = next(step for step in (1, 2, 5, 10, 20, 50) if step * layout.cell >= widest)
        lines = [""]
        for i in range(0, len(numbers), every):
            lines[0] = lines[0].ljust(i * layout.cell) + numbers[i]
    yield from ([Segment(" " * (layout.label + 1) + line.rstrip(), PLAIN)] for line in lines)


def _place_of(axis: tuple[Place, ...], token: int) -> int | None:
    return next((i for i, place in enumerate(axis) if place.start <= token < place.stop), None)


def _rows(
    view: Heatmap, tones: Array, layout: CellLayout, surface: Surface, palette: Palette, marked: int | None
) -> Iterator[Line]:
    shown = np.abs(2 * view.levels() - 1) if view.signed else view.levels()  # a shade has no sign
    masked, hidden, outlined = view.masked, view.hidden, view.marked
    for row, values in enumerate(view.values):
        line = [_row_label(view, row, layout, marked), Segment(" ")]
        for column, value in enumerate(values):
            if masked[row, column]:
                line.append(Segment(screen.centre("·", layout.cell), DIM))
            elif hidden[row, column]:
                line.append(Segment(" " * layout.cell))
            elif surface.colour:
                style = screen.style_on(palette, int(tones[row, column]), abs(value) < 0.05)
                line.append(Segment(_number(value, layout.cell, view.per_cent), style))
            else:
                shade = surface.shade(float(shown[row, column]))
                number = _number(value, layout.cell, view.per_cent)[1:]
                line.append(Segment(shade + number if layout.cell >= NUMBER_COLUMNS else shade * layout.cell))
            if outlined[row, column]:
                cell = line.pop()
                line.append(Segment(cell.text[:-1] + CELL_MARK, cell.style))
        yield list(Segment.simplify(line))


def _number(value: float, cell: int, per_cent: bool) -> str:
    """Per cent, if it fits the cell and is at least half a per cent; or the value with one digit."""
    if not per_cent:
        text = f"{value:.1f}" if cell > NUMBER_COLUMNS else ""
        return f"{text:>{cell - 1}} " if cell > 1 else " "
    shown = cell >= NUMBER_COLUMNS and abs(value) >= 0.005 and -0.995 < value < 9.995
    return f"{round(100 * value) if shown else '':>{cell - 1}} " if cell > 1 else " "


def _loss_line(view: Heatmap, strip: Sequence[float | None], layout: CellLayout, surface: Surface) -> Line:
    line = [Segment(screen.fit_text("loss", layout.label, right=True), DIM), Segment(" ")]
    for loss in strip:
        if loss is None:
            line.append(Segment(screen.centre("·", layout.cell), DIM))
        else:
            mark, number = surface.spark(loss / view.largest_loss), f"{loss:.{int(loss < 9.95)}f}"
            text = (mark + number).ljust(layout.cell) if layout.cell >= NUMBER_COLUMNS else mark * layout.cell
            line.append(Segment(text, surface.bar_style()))
    return list(Segment.simplify(line))


def _legend(view: Heatmap, layout: CellLayout, surface: Surface, palette: Palette) -> Iterator[Line]:
    """The colour bar, how to read the map, and the columns' texts if nothing else shows them."""
    text = view.legend("blank: masked" if layout.half else "· masked", per_cent=layout.cell >= NUMBER_COLUMNS)
    text += "; two rows per line, the upper one labelled" * layout.half
    if view.marks:
        text += "; marks need larger cells, or -o FILE.png" if layout.half else f"; {CELL_MARK} marked"
    yield from surface.colour_bar(*view.scale_ends(".2g"), palette, view.bar, text)
    if layout.cell == 1 and not view.weights.square and not all(key.heard for key in view.weights.keys):
        labels = (key.label if key.pooled else f"{key.start} {key.label}" for key in view.weights.keys)
        lines = screen.flow_items(["columns:", *map(isolate, labels)], surface.width, "   ")
        yield from ([], *([Segment(line, DIM)] for line in lines))


HEAD_GAP = 3  # columns between heads that stand beside each other


def pair_lines(view: HeadPair, surface: Surface) -> Iterator[Line]:
    """Both heads, the first minus the second, and the tokens where they differ most."""
    maps, half = [*view.maps, view.difference], (surface.width - 4) // 2
    if surface.width >= 110:
        blocks = [list(_titled(each, replace(surface, width=half))) for each in view.maps]
        yield from screen.side_by_side(blocks, half + 4)
        yield []
        maps = [view.difference]
    for each in maps:
        yield from _titled(each, surface)
        yield []
    yield from _partings(view, surface)


def row_lines(view: HeadRow, surface: Surface) -> Iterator[Line]:
    """As many heads side by side as get cells two columns wide; at least one."""
    first = view.maps[0].weights
    label = max(cell_len(f"{each.label} {each.start}") for each in first.queries)
    least = min(label, _widest_label(surface)) + 1 + 2 * len(first.keys) + HEAD_GAP
    beside = min(max((surface.width + HEAD_GAP) // least, 1), len(view.maps))
    width = (surface.width + HEAD_GAP) // beside
    own, palette = replace(surface, width=width - HEAD_GAP), surface.palette(signed=view.maps[0].signed)
    layout = _fit_layout(view.maps[0], own)[1]
    maps = share_scale([_fit_layout(each, own)[0] for each in view.maps])
    for start in range(0, len(view.maps), beside):
        blocks = []
        for each in maps[start : start + beside]:
            role = Segment(f" {each.subtitle}", DIM)
            cells = _cells_of(each, layout, own, palette)
            blocks.append([[Segment(each.title, BOLD), role], *cells])
        yield from screen.side_by_side(blocks, width)
        yield []
    yield from _legend(HeadRow(maps).key, layout, surface, palette)


def _titled(view: Heatmap, surface: Surface) -> Iterator[Line]:
    yield from surface.heading(view.title, view.subtitle)
    yield from heatmap_lines(view, surface)


def _partings(view: HeadPair, surface: Surface) -> Iterator[Line]:
    """One token per line: how far its rows are apart, and the heaviest key of each."""
    label = min(max((cell_len(f"{each.label} {each.position}") for each in view.partings), default=0), 18)
    longest = max((cell_len(key) + 6 for each in view.partings for key in each.keys), default=0)
    longest = max(longest, *(cell_len(f"{name} attends to") for name in view.names)) + 2
    room = min(longest, max((surface.width - label - 8) // 2, 12))
    yield [Segment("largest differences", BOLD)]
    token = Segment(screen.fit_text("token", label, right=True) + "  nats  ", DIM)
    heads = "".join(screen.fit_text(f"{name} attends to", room) for name in view.names)
    yield [token, Segment(heads.rstrip(), DIM)]
    for each in view.partings:
        pairs = zip(each.keys, each.weights, strict=True)
        cells = [screen.fit_text(f"{isolate(screen.cut(key, room - 7))} {w:.2f}", room) for key, w in pairs]
        apart = Segment(f"  {each.distance:.2f}  {cells[0]}{cells[1].rstrip()}")
        yield [Segment(screen.number_label(each.label, each.position, label)), apart]


def head_map_lines(view: HeadMap, surface: Surface) -> Iterator[Line]:
    """The whole table; if it is too wide, further heads follow below in a second one."""
    if view.compact:
        yield from compact_lines(view, surface)
        return
    palette = surface.palette(signed=view.signed)
    texts, rows, columns = view.texts, view.rows, view.columns
    column = replace(view, values=view.means[:, None])
    means = [text for (text,) in column.texts] if view.by_layer else []
    label, heads = max(map(len, rows), default=0) + 1, len(columns)
    named = (len(name) + 1 for name in columns[-1:])
    cell = max(4, *(len(text) + 2 for row in texts for text in row), *named)
    beside = max(1, (surface.width - label) // cell)
    beside = -(-heads // -(-heads // beside)) if heads else 1  # equal halves rather than a remainder
    tones = np.round(np.nan_to_num(view.levels()) * (TONES - 1)).astype(int)

    def number_cell(text: str, tone: int) -> Segment:
        if not text:
            return Segment("· ".rjust(cell), DIM)
        return Segment(f"{text} ".rjust(cell), screen.style_on(palette, tone) if surface.colour else None)

    for start in range(0, heads, beside):
        shown = range(start, min(start + beside, heads))
        if start:
            yield []
        names = "".join(f"{columns[head]} ".rjust(cell) for head in shown)
        beside_them = bool(means) and shown.stop == heads and label + cell * len(shown) + 5 <= surface.width
        yield [Segment(" " * label + (names + " mean" * beside_them).rstrip(), DIM)]
        for row, name in enumerate(rows):
            numbers = [number_cell(texts[row][head], int(tones[row, head])) for head in shown]
            mean = [Segment(f"{means[row]:>5}")] if beside_them else []
            yield [Segment(name.ljust(label), DIM), *numbers, *mean]
    yield []
    if surface.colour:
        yield from surface.colour_bar(*view.scale_ends, palette, view.bar)
    else:
        yield [Segment(f"{view.bar}: {' to '.join(view.scale_ends)}", DIM)]


DISTANCE, SQUARE_COLUMNS = 6, 2
"""Columns of a cell with its distance, and of one without whose row still has its own line."""

MOST_NAMED_ROWS = 32  # most rows with a line each, in colour


def distance_lines(view: DistanceMap, surface: Surface) -> Iterator[Line]:
    """The whole table; if it is larger than the surface, cells average several heads."""
    layout = _distance_layout(view, surface)
    if view.matched and (layout is None or layout.cell != DISTANCE):  # the rows with names and numbers
        label = max(len(name) for name in view.rows)
        count = max((surface.width - label - 1) // DISTANCE, 1)
        view = view.fit(min(count, MOST_NAMED_ROWS), min(count, MOST_NAMED_ROWS))
        layout = _distance_layout(view, surface)
    if layout is None:
        room = surface.width - max(len(name) for name in view.rows) - 1
        view = view.fit(room if surface.colour else MOST_FULL_LINES, room)
        layout = _distance_layout(view, surface) or CellLayout(1, surface.colour, 5)
    yield from _group_header(view, layout)
    yield from _distance_rows(view, layout, surface)
    yield []
    if surface.colour:
        palette = surface.palette(signed=False)
        yield from surface.colour_bar(view.far_end, view.near_end, palette, view.bar)
    elif layout.cell == DISTANCE:  # cells with numbers have no shades
        yield from surface.quiet(view.bar)
    else:
        ends = [view.top - (view.top - view.low) * level for level in screen.SHADE_LEVELS]
        steps = [f"{surface.shade(at)} {end:.2g}" for at, end in zip(screen.SHADE_LEVELS, ends, strict=True)]
        lines = screen.flow_items([*steps, "nats apart or less"], surface.width, "  ")
        yield from ([Segment(line)] for line in lines)
    if view.groups and layout.cell == DISTANCE:
        yield from surface.quiet("gaps separate clusters of similar heads") if layout.gap else ()
    elif view.groups:
        rows = "two heads per text row (the first is labelled)" if layout.half else "one head per text row"
        yield from surface.quiet(f"{rows}; columns in the same order; numbers mark clusters")
    yield from surface.footing(view.notes)


def _distance_layout(view: DistanceMap, surface: Surface) -> CellLayout | None:
    """The largest cells that fit, with space between groups if possible."""
    rows, columns = len(view.rows), len(view.columns)
    label = max(len(name) for name in view.rows)
    gaps = max(len(view.groups) - 1, 0)
    for cell, half in ((DISTANCE, False), (SQUARE_COLUMNS, False), (1, surface.colour)):
        if not half and rows > (MOST_NAMED_ROWS if cell == DISTANCE or surface.colour else MOST_FULL_LINES):
            continue
        for gap in (1, 0):
            if label + 1 + cell * columns + gap * gaps <= surface.width:
                return CellLayout(cell, half, label, gap)
    return None


def _edges(view: DistanceMap, layout: CellLayout) -> set[int]:
    return set(view.starts[1:]) if layout.gap else set()


def _group_header(view: DistanceMap, layout: CellLayout) -> Iterator[Line]:
    """The number of each group above its first head; without groups, the names that have room."""
    edges = _edges(view, layout)
    numbers = dict(zip(view.starts, map(str, range(1, len(view.groups) + 1)), strict=True))
    if not view.groups:
        every = -(-(max(map(len, view.columns)) + 1) // layout.cell)
        numbers = dict(list(enumerate(view.columns))[::every])
    width = layout.cell * len(view.columns) + len(edges)
    line, at = "", 0
    for column, name in enumerate(view.columns):
        at += column in edges
        if layout.cell == DISTANCE:
            line = line.ljust(at) + screen.centre(screen.cut(name, DISTANCE), DISTANCE)
        elif column in numbers and (len(line) < at or not line) and at + len(numbers[column]) <= width:
            line = line.ljust(at) + numbers[column]
        at += layout.cell
    if line.strip():
        yield [Segment(" " * (layout.label + 1) + line, DIM)]


def _distance_rows(view: DistanceMap, layout: CellLayout, surface: Surface) -> Iterator[Line]:
    """One head per line, or two in half blocks, the first one named."""
    palette, near = surface.palette(signed=False), view.nearness()
    tones = np.round(near * (TONES - 1)).astype(int)
    edges = sorted(_edges(view, layout))
    if layout.half:
        tones = np.insert(np.insert(tones, edges, -1, 0), edges, -1, 1)
        names = [*np.insert(np.array(view.rows, object), edges, ""), ""]
        for at, cells in enumerate(screen.half_block_lines(tones, palette)):
            name = names[2 * at] or names[2 * at + 1]
            yield [Segment(screen.fit_text(name, layout.label) + " ", DIM), *cells]
        return
    for row, name in enumerate(view.rows):
        if row in edges:
            yield []
        line = [Segment(screen.fit_text(name, layout.label) + " ", DIM)]
        for column, value in enumerate(view.values[row]):
            if column in edges:
                line.append(Segment(" "))
            blank = " " if surface.colour else surface.shade(near[row, column])
            text = f" {value:.2f} ".rjust(layout.cell) if layout.cell == DISTANCE else blank * layout.cell
            style = screen.style_on(palette, int(tones[row, column])) if surface.colour else None
            line.append(Segment(text, style))
        yield list(Segment.simplify(line))
