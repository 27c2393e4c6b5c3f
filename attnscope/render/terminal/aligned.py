"""Two texts above each other in the terminal: what was replaced, left out or put in stands out."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from attnscope.render.terminal.sheet.strokes import footing, heading
from attnscope.render.terminal.sheet.surface import DIM, PLAIN, Line, Surface
from attnscope.render.terminal.sheet.text import cut, fit
from attnscope.views.aligned import AlignedTexts, Step

LONGEST = 24
REPLACED, LEFT_OUT, PUT_IN = "~", "−", "+"
MARKED = Style(bold=True, reverse=True)


def aligned_lines(view: AlignedTexts, surface: Surface) -> Iterator[Line]:
    """Three lines at a time: the first text, the second, and marks below where they differ."""
    yield from heading(view.title, "", surface)
    for steps in _fill_lines(view.steps, surface.width):
        lines: tuple[Line, Line, Line] = ([], [], [])
        for one, other, mark, width in steps:
            style = MARKED if mark.strip() and surface.colour else PLAIN
            for line, text in zip(lines, (one, other), strict=False):
                line += [Segment(fit(text, width), style if text else PLAIN), Segment(" ")]
            lines[2].append(Segment(fit(mark * (width if mark == REPLACED else 1), width + 1), DIM))
        yield from lines if any(segment.text.strip() for segment in lines[2]) else lines[:2]
        yield []
    yield [Segment(f"{REPLACED} replaced   {LEFT_OUT} left out   {PUT_IN} put in", DIM)]
    yield from footing(view.notes, surface)


def _fill_lines(steps: tuple[Step, ...], width: int) -> Iterator[list[tuple[str, str, str, int]]]:
    """Steps as (first text, second text, mark, columns), as many as a line holds."""
    line: list[tuple[str, str, str, int]] = []
    used = 0
    for one, other in steps:
        texts = ["" if place is None else cut(place.label, LONGEST) for place in (one, other)]
        mark = " "
        if one is None or other is None:
            mark = LEFT_OUT if other is None else PUT_IN
        elif one.text != other.text:
            mark = REPLACED
        wide = max(cell_len(text) for text in texts)
        if line and used + wide + 1 > width:
            yield line
            line, used = [], 0
        line.append((texts[0], texts[1], mark, wide))
        used += wide + 1
    if line:
        yield line
