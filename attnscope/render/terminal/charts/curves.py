"""How a measure changes along the text, in the terminal: a line a head, the taller the larger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.segment import Segment

from attnscope.render.terminal.sheet.strokes import footing, heading
from attnscope.render.terminal.sheet.surface import BOLD, DIM, TONES, Line, Surface, tone
from attnscope.render.terminal.sheet.text import fit
from attnscope.render.terminal.strip import ASCII_SPARKS, SPARKS
from attnscope.text import round_short
from attnscope.views.charts.curves import Curves

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
            Segment(fit(name, label), quiet or BOLD),
            Segment(fit(marks, count * each), quiet or bar),
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
