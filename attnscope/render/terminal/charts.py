"""Lists and numbers in the terminal: a token's bars and pictures, rankings, texts, curves, terms, tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np
from rich.cells import cell_len
from rich.color import Color
from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.table import Table as RichTable
from rich.text import Text

from attnscope.axes import Array
from attnscope.render.colour import blend, resize
from attnscope.render.terminal import surface as screen
from attnscope.render.terminal.surface import BOLD, DIM, MARK, PLAIN, TONES, Line, Palette, Surface
from attnscope.text import clean, isolate, round_short, visible
from attnscope.views import WEIGHT, AlignedTexts, Bars, Overlay, Ranking, Step, Table, TokenView, mean_known
from attnscope.views.charts import BREAK, SPACE, Cell, Curves, MovedWords, Stack, Term, Terms, full_light
from attnscope.views.heads import number as format_number

LABEL_COLUMNS = 24


def token_lines(view: TokenView, surface: Surface) -> Iterator[Line]:
    """Both lists of a token, side by side if there is room; they share one scale."""
    if view.overlays:
        yield from overlay_lines(view.overlays, view.label, surface)
        yield []
    name = f"{view.label} (token {view.position})"
    lists = [(f"{name} {verb}", bars) for verb, bars in view.lists]
    full = view.full_bar
    beside = surface.width >= 100 and len(lists) == 2
    width = (surface.width - 4) // 2 if beside else surface.width
    parts = [each.where for _, bars in lists for each in bars.bars if each.where]
    where = max((cell_len(part) + 2 for part in parts), default=0)
    if where + LABEL_COLUMNS + 9 + 8 > width:  # no room for a bar of eight columns
        where = 0
    drawn = [list(_bars(title, bars, full, width, where, surface)) for title, bars in lists]
    for block in [screen.side_by_side(drawn, width + 4)] if beside else drawn:
        yield from block
        yield []
    yield [Segment(f"full bar: {full:.3g} {view.bar}", DIM)]


def _bars(title: str, bars: Bars, full: float, width: int, where: int, surface: Surface) -> Iterator[Line]:
    """The list of one side; ``where`` of its columns are for parts of pictures."""
    yield [Segment(screen.fit_text(title, width), BOLD)]
    if not bars.bars:
        yield [Segment(screen.fit_text("nothing: every key is masked", width), DIM)]
        return
    longest = max(cell_len(f"{each.label} {each.position}") for each in bars.bars)
    weights = [format_number(each.weight, min(full, 1.0)) for each in bars.bars]
    numbers = 3 + max(map(len, weights))  # columns with the spaces around them
    label = min(longest, LABEL_COLUMNS, width // 3)
    room = min(width - label - numbers - where, 48)
    style = surface.bar_style()
    for each, weight in zip(bars.bars, weights, strict=True):
        drawn = surface.bar(each.weight / full * room)
        yield [
            Segment(f"{screen.number_label(each.label, each.position, label)}  {weight} "),
            *([Segment(each.where.ljust(where), DIM)] if where else []),
            Segment(screen.fit_text(drawn, width - label - numbers - where), style),
        ]
    if bars.more:
        yield [Segment(screen.fit_text(" " * (label + 2) + bars.rest, width), DIM)]


def ranking_lines(view: Ranking, surface: Surface) -> Iterator[Line]:
    """One head per line: its name, why it is worth a look, and below it the command that opens it."""
    label = max((len(head.head) for head in view.heads), default=0) + 2
    widest = max((cell_len(head.command) for head in view.heads), default=0)
    indent = min(label, surface.width - widest) if surface.width - widest >= 2 else label
    commands = _commands([head.command for head in view.heads], surface.width - indent)
    for ranked, command in zip(view.heads, commands, strict=True):
        for i, line in enumerate(screen.wrap_text(ranked.reason, surface.width - label)):
            name = ranked.head if i == 0 else ""
            yield [Segment(name.ljust(label), BOLD), Segment(isolate(line))]
        if command:
            yield [Segment(" " * indent + command, DIM)]


NEXT = "Next: "  # before the command that opens a head


def brief_lines(view: Ranking, surface: Surface) -> Iterator[Line]:
    """The same in the remaining lines of a screen: one line per head, or the names alone; one command."""
    notes = list(surface.footing(view.notes))
    if len(notes) + 2 > (surface.height or 0):
        notes = list(surface.footing(screen.cut(note, surface.width - 2) for note in view.notes))
    full = [*surface.heading(view.title, view.subtitle), *ranking_lines(view, surface), *notes]
    left = (surface.height or 0) - len(notes)
    if not view.heads or len(full) <= (surface.height or 0):
        yield from full if view.heads else notes
        return
    command = view.heads[0].command and f"{NEXT}{view.heads[0].command}"
    fitting = left - 1 - -(-cell_len(command) // surface.width)  # under the title, and over the command
    if fitting < 2:
        yield from _names_alone(view, surface, left)
    else:
        label = max(len(each.head) for each in view.heads) + 2
        yield [Segment(view.title, BOLD)]
        first = view.heads if len(view.heads) <= fitting else view.heads[: fitting - 1]
        for each in first:
            reason = screen.cut(each.reason, surface.width - label)
            yield [Segment(each.head.ljust(label), BOLD), Segment(isolate(reason))]
        if others := " ".join(each.head for each in view.heads[len(first) :]):
            yield [Segment(screen.cut(f"also {others}", surface.width), BOLD)]
        if command:
            yield [Segment(command, DIM)]
    yield from notes


def _names_alone(view: Ranking, surface: Surface, left: int) -> Iterator[Line]:
    """The names of all heads, why in a word, and a command if so many lines have room for it."""
    command = view.heads[0].command and f"{NEXT}{view.heads[0].command}"
    names = f"{view.title}: {' '.join(each.head for each in view.heads)}"
    worded = f"{view.title}: {' · '.join(f'{each.head} {each.word}'.strip() for each in view.heads)}"
    if cell_len(worded) <= surface.width and -(-cell_len(command) // surface.width) < left:
        yield from ([Segment(worded, BOLD)], *([[Segment(command, DIM)]] if command else []))
        return
    for shown in (command, f"--head {view.heads[0].head.split()[0]} opens one"):
        if command and cell_len(names) + 3 + cell_len(shown) <= surface.width:
            yield [Segment(names, BOLD), Segment(f"   {shown}", DIM)]
            return
        if command and -(-cell_len(shown) // surface.width) < left:
            yield from ([Segment(names, BOLD)], [Segment(shown, DIM)])
            return
    others = [each.head for each in view.heads[1:]]
    while len(others) > 1 and cell_len(f"{command}   also {' '.join(others)}") > surface.width:
        others.pop()
    one = f"{command}   also {' '.join(others)}"
    yield [Segment(one if command and cell_len(one) <= surface.width else names, BOLD)]


def _commands(commands: list[str], room: int) -> list[str]:
    """Whole commands, to be copied; if one is too long, those after the first have its differences alone."""
    if len(commands) < 2 or max(cell_len(command) for command in commands) <= room:
        return commands
    words = [command.split(" ") for command in commands]
    alike = [len(set(column)) == 1 for column in zip(*words, strict=False)]
    shared = alike.index(False) if False in alike else len(alike)
    while shared and words[0][shared - 1].startswith("-"):
        shared -= 1  # an option stays with its value
    if not shared:
        return commands
    return [commands[0], *(f"… {' '.join(rest[shared:])}" for rest in words[1:])]


REPLACED, DELETED, INSERTED = "~", "−", "+"


def aligned_lines(view: AlignedTexts, surface: Surface) -> Iterator[Line]:
    """Three lines at a time: the first text, the second, and marks below their differences."""
    for steps in _fill_lines(view.steps, surface.width):
        lines: tuple[Line, Line, Line] = ([], [], [])
        for one, other, mark, width in steps:
            style = MARK if mark.strip() and surface.colour else PLAIN
            for line, text in zip(lines, (one, other), strict=False):
                line += [Segment(screen.fit_text(text, width), style if text else PLAIN), Segment(" ")]
            marks = mark * (width if mark == REPLACED else 1)
            lines[2].append(Segment(screen.fit_text(marks, width + 1), DIM))
        yield from lines if any(segment.text.strip() for segment in lines[2]) else lines[:2]
        yield []
    yield [Segment(f"{REPLACED} replaced   {DELETED} deleted   {INSERTED} inserted", DIM)]


def _fill_lines(steps: tuple[Step, ...], width: int) -> Iterator[list[tuple[str, str, str, int]]]:
    """Steps as (first text, second text, mark, columns), as many as a line holds."""
    line: list[tuple[str, str, str, int]] = []
    for one, other in steps:
        first, second = ("" if place is None else screen.cut(place.label, 24) for place in (one, other))
        if one is None or other is None:
            mark = DELETED if other is None else INSERTED
        else:
            mark = " " if one.text == other.text else REPLACED
        wide = max(cell_len(first), cell_len(second))
        if line and sum(step[-1] + 1 for step in line) + wide + 1 > width:
            yield line
            line = []
        line.append((first, second, mark, wide))
    if line:
        yield line


def curves_lines(view: Curves, surface: Surface) -> Iterator[Line]:
    """All heads on one scale from 0, each above its baseline."""
    lines = [(curve.head, curve.values) for curve in view.curves] + [("baseline", view.curves[0].baseline)]
    top = view.top
    label = max(len(name) for name, _ in lines) + 2
    ends = [_ends(values) for _, values in lines]
    room = surface.width - label - max(map(len, ends)) - 2
    merged = -(-(len(view.edges) - 1) // max(room, 1))
    starts = range(0, len(view.edges) - 1, merged)
    lines = [(name, tuple(mean_known(values[at : at + merged]) for at in starts)) for name, values in lines]
    count = len(lines[0][1])
    each = max(1, min(3, room // count))
    style = surface.bar_style()
    for (name, values), end in zip(lines, ends, strict=True):
        faint = DIM if name == "baseline" else None
        marks = [" " if value is None else surface.spark(abs(value) / top) for value in values]
        yield [
            Segment(screen.fit_text(name, label), faint or BOLD),
            Segment(screen.fit_text("".join(mark * each for mark in marks), count * each), faint or style),
            Segment(f"  {end}", faint),
        ]
    first, last = view.ends
    yield [Segment(" " * label + first + last.rjust(max(count * each - len(first), len(last) + 1)), DIM)]
    yield []
    note = f"full mark = {round_short(top)} {view.unit}; at the right: the first, last and largest value"
    yield from surface.footing((note,))


def _ends(values: Sequence[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    if not numbers:
        return "–"
    largest = min(max(map(abs, numbers)), 1.0)
    first, last, most = (format_number(each, largest) for each in (numbers[0], numbers[-1], max(numbers)))
    return f"{first} to {last}, {most}"


def stack_lines(view: Stack, surface: Surface) -> Iterator[Line]:
    """Each label with its bar and its largest part; then the legend of letters."""
    letters, palette = view.letters, surface.palette(signed=False)
    tones = (round((TONES - 1) * level) for level in view.tones)
    styles = [screen.style_on(palette, each) if surface.colour else None for each in tones]
    label = min(max([1, *(cell_len(clean(each)) for each in view.labels)]), 16)
    room = min(surface.width - label - 10, 100)
    for name, shares in zip(view.labels, view.shares.tolist(), strict=True):
        line: Line = [Segment(isolate(screen.fit_text(clean(name), label)) + "  ")]
        ends = [round(min(end, 1.0) * room) for end in accumulate(shares, initial=0.0)]
        cells = [stop - start for start, stop in pairwise(ends)]
        line += [Segment(letters[part] * wide, styles[part]) for part, wide in enumerate(cells) if wide]
        most = max(range(len(shares)), key=shares.__getitem__)
        rest = " " * (room - ends[-1])
        yield [*line, Segment(f"{rest}  {letters[most]} {shares[most]:.2f}")]
    yield []
    for words in screen.wrap_text(view.legend, surface.width):
        yield [Segment(isolate(words))]


def terms_lines(view: Terms, surface: Surface) -> Iterator[Line]:
    """The groups and their sum, the largest terms, and the words below."""
    every = [term for block in view.blocks for term in block]
    label = min(28, max(cell_len(term.label) for term in every))
    number = max(len(f"{term.value:+.3f}") for term in every)
    low, high = view.span
    column = (low + high) / max(8, min(56, surface.width - label - number - 6))
    widths = label, number, math.ceil(low / column)
    groups, largest = view.blocks
    for term in groups:
        style = BOLD if term is view.total else None
        yield _line(term, column, widths, surface, style)
    yield []
    yield [Segment("largest terms", DIM)]
    for term in largest:
        style = DIM if term is view.rest else BOLD if term.label == view.marked else None
        yield _line(term, column, widths, surface, style)
    if view.moved:
        yield []
        yield [Segment("words whose logits each head's output raises and lowers most", DIM)]
        width = max(cell_len(each.label) for each in view.moved)
        for each in view.moved:
            yield from _words(each, width, surface)
    if view.notes:
        yield []


def _line(
    term: Term, column: float, widths: tuple[int, int, int], surface: Surface, style: Style | None
) -> Line:
    """A label, a number, and a bar from zero."""
    label, number, room = widths
    eighths = round(abs(term.value) / column * 8)
    text = f"{screen.fit_text(term.label, label)}  {f'{term.value:+.3f}':>{number}}  "
    zero = Segment("|" if surface.ascii else "│", DIM)
    ink, end = None, TONES // 6  # both ends of the diverging map, slightly inside
    if surface.colour:
        ink = screen.tone(surface.palette(signed=True), end if term.value < 0 else TONES - 1 - end, None)
    if term.value >= 0:
        bar = Segment(surface.bar(term.value / column), ink)
        return [Segment(text, style), Segment(" " * room), zero, bar]
    drawn = "#" * (eighths // 8) if surface.ascii else "▐" * (eighths % 8 >= 4) + "█" * (eighths // 8)
    return [Segment(text, style), Segment(" " * (room - cell_len(drawn))), Segment(drawn, ink), zero]


def _words(moved: MovedWords, width: int, surface: Surface) -> Iterator[Line]:
    for label, name, words in ((moved.label, "raises", moved.raised), ("", "lowers", moved.lowered)):
        line = [Segment(f"{label:{width}}  ", BOLD), Segment(f"{name}  ", DIM)]
        left = surface.width - width - 10
        for number, word in enumerate(words):
            text, value = clean(word.label) or "␣", f" {word.value:+.2f}"
            between = "   " if number else ""
            size = len(between) + cell_len(text) + len(value)
            if size > left:
                if not number:
                    line.append(Segment(isolate(screen.fit_text(text, left).rstrip())))
                break
            left -= size
            line += [Segment(between), Segment(isolate(text)), Segment(value, DIM)]
        yield line if words else [*line, Segment("nothing", DIM)]


MOST_ROWS = 2000  # most rows that are printed: laying out tens of thousands takes minutes


def table_parts(view: Table, console: Console) -> Iterator[RenderableType]:
    """The printed parts of a table: its titles, its rows, its notes."""
    if view.narrow is not None and console.width < 100:
        view = view.narrow
    titles = (view.title, "bold"), (view.subtitle, "dim")
    surface = Surface.from_console(console, console.options, None, False)
    for text, style in titles:
        if text:
            yield Text("\n".join(surface.title_lines(visible(text))), style=style)
    palette = surface.palette(signed=False) if surface.colour else None
    if view.rows:
        table = RichTable(box=None, padding=(0, view.gap, 0, 0), pad_edge=view.edge, header_style="bold")
        table.show_header = any(column.name for column in view.columns)
        table.expand = any(column.long == "rest" for column in view.columns)
        for column in view.columns:
            table.add_column(
                column.name,
                justify="right" if column.right else "left",
                no_wrap=column.long not in ("wrap", "fold"),
                overflow="fold" if column.long in ("keep", "fold") else "ellipsis",
                ratio=1 if column.long == "rest" else None,
            )
        for number, row in enumerate(view.rows[:MOST_ROWS]):
            texts = (_cell_text(cell, palette) for cell in row)
            table.add_row(*texts, style="dim" if number in view.dim else "")
        yield table
    if len(view.rows) > MOST_ROWS:
        yield Text(f"· the first {MOST_ROWS:,} of {len(view.rows):,} rows; --csv and --json have all", "dim")
    for note in view.notes:
        yield Text(f"· {visible(note)}", style="dim")
    for command in view.commands:
        yield Text(f"· {visible(command)}", style="dim", no_wrap=True, overflow="ignore")


def _cell_text(cell: Cell, palette: Palette | None) -> Text:
    text = Text()
    for piece in ((cell, ""),) if isinstance(cell, str) else cell:
        words, look = piece
        style: Style | str = look if isinstance(look, str) else ""
        if palette is not None and not isinstance(look, str):
            style = screen.style_on(palette, round(look * (TONES - 1)))
        text.append(visible(words) if words and piece not in (BREAK, SPACE) else words, style)
    return text


OVERLAY_GAP = 3  # columns
ITSELF = "×"  # marks the patch itself


def overlay_lines(views: Sequence[Overlay], label: str, surface: Surface) -> Iterator[Line]:
    """Each map over its picture, side by side if there is room; full brightness is one weight for all."""
    top = full_light(views)
    beside, room = _columns(views, surface)
    blocks = []
    for view in views:
        which = f"{view.name}: " if len(views) > 1 else ""
        for verb, weights in view.maps:
            title = [Segment(screen.fit_text(f"{which}{label} {verb}", room), BOLD)]
            blocks.append([title, *_picture(view, weights, top, room, surface)])
    for first in range(0, len(blocks), beside):
        yield from screen.side_by_side(blocks[first : first + beside], room + OVERLAY_GAP)
    if any(view.patch is not None for view in views):
        yield [Segment(f"{ITSELF} marks the patch itself", DIM)]


def patch_under(
    views: Sequence[Overlay], surface: Surface, x: int, y: int
) -> tuple[Overlay, int, int] | None:
    """The picture and the patch's row and column at a column and a line of the whole."""
    beside, room = _columns(views, surface)
    blocks = [(view, weights.shape, *_size(view, room)) for view in views for _, weights in view.maps]
    for first in range(0, len(blocks), beside):
        for number, (view, shape, columns, lines) in enumerate(blocks[first : first + beside]):
            at, line = x - number * (room + OVERLAY_GAP), y - 1
            if 0 <= at < columns and 0 <= line < lines:
                return view, int(line / lines * shape[0]), int(at / columns * shape[1])
        y -= max(lines for _, _, _, lines in blocks[first : first + beside]) + 2
    return None


def _columns(views: Sequence[Overlay], surface: Surface) -> tuple[int, int]:
    """How many maps stand side by side, and the columns of each."""
    count = sum(len(view.maps) for view in views)
    beside = max(1, min(count, (surface.width + OVERLAY_GAP) // (34 + OVERLAY_GAP)))
    return beside, min(64, (surface.width - OVERLAY_GAP * (beside - 1)) // beside)


def _size(view: Overlay, room: int) -> tuple[int, int]:
    """Columns and lines of a picture, 28 lines at most."""
    tall, wide = view.pixels.shape[:2]
    columns = max(1, min(room, 2 * 28 * wide // tall))
    return columns, max(round(columns * tall / wide / 2), 1)


def _picture(view: Overlay, weights: Array, top: float, room: int, surface: Surface) -> Iterator[Line]:
    """One map over its picture, with what full brightness stands for."""
    palette = surface.palette(signed=False)
    columns, count = _size(view, room)
    levels = np.clip(weights / (top or 1.0), 0, 1)
    if not surface.colour:
        yield from _shades(view, levels, columns, surface)
        yield from surface.colour_bar("0", f"{top:.2g}", palette, WEIGHT)
        return
    size = 2 * count, columns
    picture = blend(resize(view.pixels, *size), resize(levels, *size), palette.cmap)
    itself = _middle(view, count, columns)
    for line, (above, below) in enumerate(zip(picture[0::2], picture[1::2], strict=True)):
        blocks = []
        for column in range(columns):
            under = Color.from_rgb(*below[column])
            if (line, column) == itself:
                blocks.append(Segment(ITSELF, Style(color="white", bgcolor=under, bold=True)))
            else:
                blocks.append(Segment("▀", Style.from_color(Color.from_rgb(*above[column]), under)))
        yield blocks
    yield [Segment(f"full brightness: {top:.2g} {WEIGHT}", DIM)]


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
        marks = (ITSELF if (row, at) == itself else surface.shade(level) for at, level in enumerate(values))
        yield [Segment(side + "".join(mark * wide for mark in marks) + side)]
    yield edge


def _middle(view: Overlay, rows: int, columns: int) -> tuple[int, int] | None:
    """The middle cell of the patch itself, on a field of ``rows`` × ``columns``."""
    if view.patch is None:
        return None
    grid = np.array(view.maps[0][1].shape)
    row, column = ((np.array(view.patch) + 0.5) / grid * (rows, columns)).astype(int)
    return int(row), int(column)
