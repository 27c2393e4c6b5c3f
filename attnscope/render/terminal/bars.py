"""Ranked lists in the terminal: what a token looks at, and the heads most worth a look."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from attnscope.render.terminal.overlay import overlay_lines
from attnscope.render.terminal.surface import (
    BOLD,
    DIM,
    PLAIN,
    TONES,
    Line,
    Surface,
    cut,
    fit_text,
    footing,
    heading,
    number_label,
    tone,
    wrap_text,
)
from attnscope.text import isolate
from attnscope.views.heads import AlignedTexts, Ranking, Step
from attnscope.views.token import Bars, TokenView

INDENT = 2
"""Columns before a command, at least; as far in as a head's reason where there is room."""

EIGHTHS = " ▏▎▍▌▋▊▉█"
LABEL_WIDTH = 24
LONGEST_BAR = 48
SHORTEST_BAR = 8
"""Columns of a full bar, beside which the part of a picture is written."""

SIDE_BY_SIDE = 100
"""Columns from which the two lists of a focus stand beside each other."""


def focus_lines(view: TokenView, surface: Surface) -> Iterator[Line]:
    """Both lists of a focus, side by side where there is room; they share one scale."""
    yield from heading(view.title, view.subtitle, surface)
    if view.overlays:
        yield from overlay_lines(view.overlays, view.label, surface)
        yield []
    name = f"{view.label} (token {view.position})"
    lists = []
    if view.looks_at is not None:
        lists.append((f"{name} {view.verbs[0]}", view.looks_at))
    if view.looked_at_by is not None:
        lists.append((f"{name} {view.verbs[1]}", view.looked_at_by))
    full = view.full_bar
    beside = surface.width >= SIDE_BY_SIDE and len(lists) == 2
    width = (surface.width - 4) // 2 if beside else surface.width
    where = max((cell_len(bar.where) + 2 for _, bars in lists for bar in bars.bars if bar.where), default=0)
    if where + LABEL_WIDTH + 9 + SHORTEST_BAR > width:
        where = 0
    drawn = [list(_bars(title, bars, full, width, where, surface)) for title, bars in lists]
    if beside:
        yield from _side_by_side(drawn[0], drawn[1], width)
    else:
        for i, block in enumerate(drawn):
            yield from [[], *block] if i else block
    yield []
    yield [Segment(f"a full bar is {full:.3g}", DIM)]
    yield from footing(view.notes, surface)


def _bars(title: str, bars: Bars, full: float, width: int, where: int, surface: Surface) -> Iterator[Line]:
    """The list of one side; ``where`` columns of it are for parts of pictures."""
    yield [Segment(fit_text(title, width), BOLD)]
    if not bars.bars:
        yield [Segment(fit_text("nothing: the mask closes every key", width), DIM)]
        return
    longest = max(cell_len(f"{bar.label} {bar.position}") for bar in bars.bars)
    label = min(longest, LABEL_WIDTH, width // 3)
    room = min(width - label - 7 - where, LONGEST_BAR)
    style = tone(surface.palette(signed=False), TONES * 5 // 8, None) if surface.colour else None
    for bar in bars.bars:
        yield [
            Segment(f"{number_label(bar.label, bar.position, label, right=True)}  {bar.weight:.2f} "),
            *([Segment(bar.where.ljust(where), DIM)] if where else []),
            Segment(fit_text(_bar(bar.weight / full, room, surface), width - label - 7 - where), style),
        ]
    if bars.more:
        yield [Segment(fit_text(" " * (label + 2) + bars.rest, width), DIM)]


def _bar(share: float, room: int, surface: Surface) -> str:
    """A bar whose end is exact to an eighth of a column."""
    eighths = round(max(share, 0) * room * 8)
    if surface.ascii:
        return "#" * (eighths // 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def _side_by_side(left: list[Line], right: list[Line], width: int) -> Iterator[Line]:
    for i in range(max(len(left), len(right))):
        first = left[i] if i < len(left) else [Segment(" " * width)]
        yield [*first, Segment("    "), *(right[i] if i < len(right) else [])]


def ranking_lines(view: Ranking, surface: Surface) -> Iterator[Line]:
    """One head a line: its name, why it is worth a look, and below it the command that opens it.

    Commands are printed whole, so that they can be copied; where they are too long for a line, those
    after the first show only what differs from it, after ``…``.
    """
    yield from heading(view.title, "", surface)
    label = max((len(head.head) for head in view.heads), default=0) + 2
    widest = max((cell_len(head.command) for head in view.heads), default=0)
    indent = min(label, surface.width - widest) if surface.width - widest >= INDENT else label
    commands = _commands([head.command for head in view.heads], surface.width - indent)
    for ranked, command in zip(view.heads, commands, strict=True):
        for i, line in enumerate(wrap_text(ranked.reason, surface.width - label)):
            name = ranked.head if i == 0 else ""
            yield [Segment(name.ljust(label), BOLD), Segment(isolate(line))]
        if command:
            yield [Segment(" " * indent + command, DIM)]
    yield from footing(view.notes, surface)


def _commands(commands: list[str], room: int) -> list[str]:
    """Commands as they are, or shortened to what they do not share, if one is wider than ``room``."""
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
                line += [Segment(fit_text(text, width), style if text else PLAIN), Segment(" ")]
            lines[2].append(Segment(fit_text(mark * (width if mark == REPLACED else 1), width + 1), DIM))
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
