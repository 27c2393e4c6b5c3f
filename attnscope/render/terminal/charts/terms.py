"""Terms of a sum in the terminal: bars to both sides of zero, and the words that heads move."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from attnscope.render.terminal.bars import EIGHTHS
from attnscope.render.terminal.sheet.strokes import footing, heading
from attnscope.render.terminal.sheet.surface import BOLD, DIM, TONES, Line, Surface, tone
from attnscope.render.terminal.sheet.text import fit
from attnscope.text import clean, isolate
from attnscope.views.charts.terms import Moved, Term, Terms

LONGEST = 56
"""Columns of all bars, to both sides of zero."""

LABEL = 28
"""Columns of a label, at most."""


def terms_lines(view: Terms, surface: Surface) -> Iterator[Line]:
    """The groups and their sum, the largest terms, and the words below."""
    yield from heading(view.title, view.subtitle, surface)
    every = [term for block in view.blocks for term in block]
    label = min(LABEL, max(cell_len(term.label) for term in every))
    number = max(len(spell(term.value)) for term in every)
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


def spell(value: float) -> str:
    """A signed number, three figures behind its point."""
    return f"{value:+.3f}"


def _line(
    term: Term, column: float, widths: tuple[int, int, int], surface: Surface, style: Style | None
) -> Line:
    """A label, a number, and a bar from zero, which has some columns to its left."""
    label, number, room = widths
    eighths = round(abs(term.value) / column * 8)
    text = f"{fit(term.label, label)}  {spell(term.value).rjust(number)}  "
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


def _words(moved: Moved, width: int, surface: Surface) -> Iterator[Line]:
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
                    line.append(Segment(isolate(fit(text, left).rstrip())))
                break
            left -= size
            line += [Segment(between), Segment(isolate(text)), Segment(value, DIM)]
        yield line if words else [*line, Segment("nothing", DIM)]
