"""Titles in lines of even width, on paper and in a terminal; the caller chooses the unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from attnscope.text import title_words

Measure = Callable[[str], float]  # how wide a text is

FINEST = 0.5  # how much narrower a line must become to be tried: half a column, or half a letter


def fill_lines(items: Sequence[str], room: float, gap: str, measure: Measure) -> list[str]:
    """Items side by side in lines, as many as fit; an item longer than a line has one to itself."""
    space = measure(gap)
    lines: list[list[str]] = []
    left = -1.0
    for item in items:
        wide = measure(item)
        if lines and space + wide <= left:
            lines[-1].append(item)
            left -= space + wide
        else:
            lines.append([item])
            left = room - wide
    return [gap.join(line) for line in lines]


def balance_lines(text: str, room: float, measure: Measure, words: Sequence[str] | None = None) -> list[str]:
    """A text in as few even lines as possible, broken between parts if that costs no line, or words."""
    measure = cache(measure)
    items, gap = title_words(text) if words is None else words, " "
    lines = fill_lines(items, room, gap, measure)
    parts = text.split(" · ")
    if max(map(measure, parts)) <= room:
        in_parts = fill_lines(parts, room, " · ", measure)
        if len(in_parts) <= len(lines):
            items, gap, lines = parts, " · ", in_parts
    low, high = max(map(measure, items), default=0.0), room
    while len(lines) > 1 and high - low > FINEST:
        middle = (low + high) / 2
        narrower = fill_lines(items, middle, gap, measure)
        if len(narrower) == len(lines):
            lines, high = narrower, middle
        else:
            low = middle
    return [line.removesuffix(" ·") for line in lines]
