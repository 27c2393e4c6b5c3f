"""How a measure changes along the text, in the terminal: a line a head, the taller the larger."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from attnscope.render.terminal.bars import EIGHTHS
from attnscope.render.terminal.heatmap import ASCII_SPARKS, SPARKS
from attnscope.render.terminal.surface import (
    BOLD,
    DIM,
    TONES,
    Line,
    Surface,
    cut,
    fit_text,
    footing,
    heading,
    style_on,
    tone,
    wrap_text,
)
from attnscope.text import clean, isolate, round_short
from attnscope.views.charts import Curves, MovedWords, Stack, Term, Terms

WIDEST = 3
"""Columns of a mark, at most."""


def curves_lines(view: Curves, surface: Surface) -> Iterator[Line]:
    """All heads on one scale from 0 on, and what even attention has below."""
    yield from heading(view.title, view.subtitle, surface)
    lines = [(curve.head, curve.values) for curve in view.curves] + [("baseline", view.curves[0].baseline)]
    top = view.top
    label = max(len(name) for name, _ in lines) + 2
    ends = [_ends(values) for _, values in lines]
    room = surface.width - label - max(map(len, ends)) - 2
    merged = -(-(len(view.edges) - 1) // max(room, 1))
    lines = [(name, _merge(values, merged)) for name, values in lines]
    count = len(lines[0][1])
    each = max(1, min(WIDEST, room // count))
    bar = tone(surface.palette(signed=False), TONES * 5 // 8, None) if surface.colour else None
    for (name, values), end in zip(lines, ends, strict=True):
        quiet = DIM if name == "baseline" else None
        marks = "".join(_mark(value, top, surface) * each for value in values)
        yield [
            Segment(fit_text(name, label), quiet or BOLD),
            Segment(fit_text(marks, count * each), quiet or bar),
            Segment(f"  {end}", quiet),
        ]
    first, last = f"row {view.edges[0]:,}", f"{view.edges[-1] - 1:,}"
    yield [Segment(" " * label + first + last.rjust(count * each - len(first)), DIM)]
    yield []
    said = f"a full mark is {round_short(top)} {view.unit}; behind: the first, the last, and the largest"
    yield from footing((said, *view.notes), surface)


def _mark(value: float | None, top: float, surface: Surface) -> str:
    marks = ASCII_SPARKS if surface.ascii else SPARKS
    return " " if value is None else marks[min(round(abs(value) / top * (len(marks) - 1)), len(marks) - 1)]


def _merge(values: Sequence[float | None], count: int) -> tuple[float | None, ...]:
    """So many neighbours as one, their mean, where there is no room for each."""
    groups = (values[start : start + count] for start in range(0, len(values), count))
    known = [[value for value in group if value is not None] for group in groups]
    return tuple(sum(group) / len(group) if group else None for group in known)


def _ends(values: Sequence[float | None]) -> str:
    """The first and the last figure, and the largest."""
    known = [value for value in values if value is not None]
    return f"{known[0]:.2f} to {known[-1]:.2f}, {max(known):.2f}" if known else "–"


LONGEST_LABEL = 16
WIDEST_STACK = 100


def stack_lines(view: Stack, surface: Surface) -> Iterator[Line]:
    """Each label with its bar and its largest part; then which letter is which part."""
    yield from heading(view.title, view.subtitle, surface)
    letters = view.letters
    styles = [_style(tone, surface) for tone in view.tones]
    label = min(max([1, *(cell_len(clean(each)) for each in view.labels)]), LONGEST_LABEL)
    room = min(surface.width - label - 10, WIDEST_STACK)
    for name, shares in zip(view.labels, view.shares.tolist(), strict=True):
        line: Line = [Segment(isolate(fit_text(cut(clean(name), label), label)) + "  ")]
        for part, cells in enumerate(_cells(shares, room)):
            if cells:
                line.append(Segment(letters[part] * cells, styles[part]))
        most = max(range(len(shares)), key=shares.__getitem__)
        rest = " " * (room - sum(_cells(shares, room)))
        line.append(Segment(f"{rest}  {letters[most]} {shares[most]:.2f}"))
        yield line
    yield []
    for words in wrap_text(view.legend, surface.width):
        yield [Segment(isolate(words))]
    yield from footing(view.notes, surface)


def _cells(shares: Sequence[float], room: int) -> list[int]:
    """How many columns each share has: its two ends are rounded, so that all of them make up the whole."""
    ends, sum_ = [0], 0.0
    for share in shares:
        sum_ += share
        ends.append(round(min(sum_, 1.0) * room))
    return [stop - start for start, stop in pairwise(ends)]


def _style(level: float, surface: Surface) -> Style | None:
    """A tone of the colour map; letters alone where there is no colour."""
    if not surface.colour:
        return None
    return style_on(surface.palette(signed=False), round((TONES - 1) * level))


LONGEST = 56
"""Columns of all bars, to both sides of zero."""

LABEL = 28
"""Columns of a label, at most."""


def terms_lines(view: Terms, surface: Surface) -> Iterator[Line]:
    """The groups and their sum, the largest terms, and the words below."""
    yield from heading(view.title, view.subtitle, surface)
    every = [term for block in view.blocks for term in block]
    label = min(LABEL, max(cell_len(term.label) for term in every))
    number = max(len(signed_number(term.value)) for term in every)
    low, high = view.span
    column = (low + high) / max(8, min(LONGEST, surface.width - label - number - 6))  # what one stands for
    widths = label, number, math.ceil(low / column)
    groups, largest = view.blocks
    for term in groups:
        style = BOLD if term is view.total else None
        yield _line(term, column, widths, surface, style)
    yield []
    yield [Segment("one by one", DIM)]
    for term in largest:
        style = DIM if term is view.rest else BOLD if term.label == view.marked else None
        yield _line(term, column, widths, surface, style)
    if view.moved:
        yield []
        yield [Segment("the words whose scores a head's output raises and lowers most", DIM)]
        width = max(cell_len(each.label) for each in view.moved)
        for each in view.moved:
            yield from _words(each, width, surface)
    yield from [[], *footing(view.notes, surface)] if view.notes else []


def signed_number(value: float) -> str:
    """A signed number, three figures behind its point."""
    return f"{value:+.3f}"


def _line(
    term: Term, column: float, widths: tuple[int, int, int], surface: Surface, style: Style | None
) -> Line:
    """A label, a number, and a bar from zero, which has some columns to its left."""
    label, number, room = widths
    eighths = round(abs(term.value) / column * 8)
    text = f"{fit_text(term.label, label)}  {signed_number(term.value).rjust(number)}  "
    line = [Segment(text, style)]
    zero = Segment("|" if surface.ascii else "│", DIM)
    if term.value < 0:
        bar, ink = _to_the_left(eighths, surface), 0
        return [*line, Segment(" " * (room - cell_len(bar))), Segment(bar, _ink(ink, surface)), zero]
    bar = "#" * (eighths // 8) if surface.ascii else "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
    return [*line, Segment(" " * room), zero, Segment(bar, _ink(TONES - 1, surface))]


def _to_the_left(eighths: int, surface: Surface) -> str:
    """A bar that ends at zero; its tip is half a column where it can be no finer."""
    if surface.ascii:
        return "#" * (eighths // 8)
    return ("▐" if eighths % 8 >= 4 else "") + "█" * (eighths // 8)


def _ink(number: int, surface: Surface) -> Style | None:
    """The colour of one end of the diverging map, a little inside of it."""
    if not surface.colour:
        return None
    inside = TONES // 6 if number == 0 else TONES - 1 - TONES // 6
    return tone(surface.palette(signed=True), inside, None)


def _words(moved: MovedWords, width: int, surface: Surface) -> Iterator[Line]:
    """Two lines: what is raised, and what is lowered."""
    for name, words in (("raises", moved.raised), ("lowers", moved.lowered)):
        label = (moved.label if name == "raises" else "").ljust(width)
        line = [Segment(f"{label}  ", BOLD), Segment(f"{name}  ", DIM)]
        left = surface.width - width - 10
        for number, word in enumerate(words):
            text, value = clean(word.label) or "␣", f" {word.value:+.2f}"
            between = "   " if number else ""
            size = len(between) + cell_len(text) + len(value)
            if size > left:
                if not number:
                    line.append(Segment(isolate(fit_text(text, left).rstrip())))
                break
            left -= size
            line += [Segment(between), Segment(isolate(text)), Segment(value, DIM)]
        yield line if words else [*line, Segment("nothing", DIM)]
