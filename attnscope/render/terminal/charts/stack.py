"""Shares of a whole in the terminal: a line a label, every part with a letter and a colour of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from attnscope.render.terminal.sheet.strokes import footing, heading
from attnscope.render.terminal.sheet.surface import TONES, Line, Surface, style_on
from attnscope.render.terminal.sheet.text import cut, fit, wrap
from attnscope.text import clean, isolate
from attnscope.views.charts.stack import Stack

LONGEST_LABEL = 16
WIDEST = 100


def stack_lines(view: Stack, surface: Surface) -> Iterator[Line]:
    """Each label with its bar and its largest part; then which letter is which part."""
    yield from heading(view.title, view.subtitle, surface)
    letters = view.letters
    styles = [_style(tone, surface) for tone in view.tones]
    label = min(max([1, *(cell_len(clean(each)) for each in view.labels)]), LONGEST_LABEL)
    room = min(surface.width - label - 10, WIDEST)
    for name, shares in zip(view.labels, view.shares.tolist(), strict=True):
        line: Line = [Segment(isolate(fit(cut(clean(name), label), label)) + "  ")]
        for part, cells in enumerate(_cells(shares, room)):
            if cells:
                line.append(Segment(letters[part] * cells, styles[part]))
        most = max(range(len(shares)), key=shares.__getitem__)
        rest = " " * (room - sum(_cells(shares, room)))
        line.append(Segment(f"{rest}  {letters[most]} {shares[most]:.2f}"))
        yield line
    yield []
    for words in wrap(view.legend, surface.width):
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
