"""Shares of a whole in the terminal: a line a label, every part with a letter and a colour of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from attnscope.render.terminal.strokes import footing, heading
from attnscope.render.terminal.surface import TONES, Line, Surface, style_on
from attnscope.render.terminal.text import cut, fit, isolate, wrap
from attnscope.text import clean
from attnscope.views.stack import Stack

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
LONGEST_LABEL = 16
WIDEST = 100


def stack_lines(view: Stack, surface: Surface) -> Iterator[Line]:
    """Each label with its bar and its largest part; then which letter is which part."""
    yield from heading(view.title, view.subtitle, surface)
    letters = [LETTERS[part % len(LETTERS)] for part in range(len(view.parts))]
    styles = [_style(part, len(view.parts), surface) for part in range(len(view.parts))]
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
    means = view.shares.mean(0).tolist()
    names = zip(letters, view.parts, means, strict=True)
    said = " · ".join(f"{letter} {clean(name)} {mean:.2f}" for letter, name, mean in names)
    for words in wrap(said, surface.width):
        yield [Segment(isolate(words))]
    yield from footing(view.notes, surface)


def _cells(shares: Sequence[float], room: int) -> list[int]:
    """How many columns each share has: its two ends are rounded, so that all of them make up the whole."""
    ends, sum_ = [0], 0.0
    for share in shares:
        sum_ += share
        ends.append(round(min(sum_, 1.0) * room))
    return [stop - start for start, stop in pairwise(ends)]


def _style(part: int, parts: int, surface: Surface) -> Style | None:
    """Tones of the colour map, neighbours far apart; letters alone where there is no colour."""
    if not surface.colour:
        return None
    step = (TONES - 1) * (0.15 + 0.75 * ((part * 5) % parts if parts % 5 else part) / max(1, parts - 1))
    return style_on(surface.palette(signed=False), round(step))
