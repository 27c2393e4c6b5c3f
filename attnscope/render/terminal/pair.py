"""Two heads in the terminal: beside each other where there is room, then their difference and its causes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rich.cells import cell_len
from rich.segment import Segment

from attnscope.render.terminal.heatmap import heatmap_lines
from attnscope.render.terminal.sheet.strokes import footing, heading
from attnscope.render.terminal.sheet.surface import BOLD, DIM, Line, Surface
from attnscope.render.terminal.sheet.text import cut, fit, number_label
from attnscope.text import isolate
from attnscope.views.pair import HeadPair

BESIDE = 110
"""Columns from which the two heads stand beside each other."""

LABEL = 18


def pair_lines(view: HeadPair, surface: Surface) -> Iterator[Line]:
    """Both heads, the first minus the second, and the tokens where they part most."""
    yield from heading(view.title, view.subtitle, surface)
    if surface.width >= BESIDE:
        half = (surface.width - 4) // 2
        columns = [list(heatmap_lines(each, replace(surface, width=half))) for each in view.maps]
        yield from _beside(columns[0], columns[1], half)
    else:
        for each in view.maps:
            yield from heatmap_lines(each, surface)
            yield []
    yield from heatmap_lines(view.difference, surface)
    yield []
    yield from _partings(view, surface)
    yield from footing(view.notes, surface)


def _beside(left: list[Line], right: list[Line], width: int) -> Iterator[Line]:
    for number in range(max(len(left), len(right))):
        first = left[number] if number < len(left) else []
        space = width - sum(segment.cell_length for segment in first) + 4
        yield [*first, Segment(" " * space), *(right[number] if number < len(right) else [])]
    yield []


def _partings(view: HeadPair, surface: Surface) -> Iterator[Line]:
    """One token a line: how far its rows are apart, and the heaviest key of each."""
    one, other = view.names
    label = min(max((cell_len(f"{each.label} {each.position}") for each in view.partings), default=0), LABEL)
    longest = max((cell_len(key) + 6 for each in view.partings for key in each.keys), default=0)
    longest = max(longest, *(cell_len(f"{name} looks at") for name in view.names)) + 2
    room = min(longest, max((surface.width - label - 8) // 2, 12))
    yield [Segment("where they part most", BOLD)]
    yield [
        Segment(fit("token", label, right=True) + "  nats  ", DIM),
        Segment(fit(f"{one} looks at", room) + fit(f"{other} looks at", room).rstrip(), DIM),
    ]
    for each in view.partings:
        cells = [
            fit(f"{isolate(cut(key, room - 7))} {weight:.2f}", room)
            for key, weight in zip(each.keys, each.weights, strict=True)
        ]
        yield [
            Segment(number_label(each.label, each.position, label, right=True)),
            Segment(f"  {each.distance:.2f}  {cells[0]}{cells[1].rstrip()}"),
        ]
