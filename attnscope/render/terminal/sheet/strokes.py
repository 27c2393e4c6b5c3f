"""Strokes that all terminal pictures share: titles, notes, numbers, the colour bar, half-block cells."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment

from attnscope.axes.weights import Array
from attnscope.render.terminal.sheet.surface import (
    ASCII_SHADES,
    BOLD,
    DIM,
    SHADE_FROM,
    SHADES,
    TONES,
    Line,
    Palette,
    Surface,
    tone,
)
from attnscope.render.terminal.sheet.text import balance, fit, wrap
from attnscope.text import clean, isolate, isolate_lines, isolate_quotes, round_short
from attnscope.views.heatmap import Reading


def heading(title: str, subtitle: str, surface: Surface) -> Iterator[Line]:
    """The title, with what it is about beside or below it, and a line of air."""
    title, subtitle = (isolate_quotes(clean(text)) for text in (title, subtitle))
    if title:
        beside = subtitle and cell_len(title) + 3 + cell_len(subtitle) <= surface.width
        bold: list[Line] = [[Segment(isolate(line), BOLD)] for line in _title_lines(title, surface.width)]
        if beside:
            bold[-1] += [Segment("   "), Segment(isolate(subtitle), DIM)]
            subtitle = ""
        yield from bold
    for line in _title_lines(subtitle, surface.width) if subtitle else ():
        yield [Segment(isolate(line), DIM)]
    if title or subtitle:
        yield []


def _title_lines(text: str, width: int) -> list[str]:
    return isolate_lines(balance(text, width))


def footing(notes: tuple[str, ...], surface: Surface) -> Iterator[Line]:
    """Each note as a quiet sentence."""
    for note in notes:
        for i, line in enumerate(wrap(clean(note), surface.width - 2)):
            yield [Segment("  " if i else "· ", DIM), Segment(isolate(line), DIM)]


def colour_bar(low: str, high: str, surface: Surface, palette: Palette) -> Line:
    """The colour map from end to end, with what its ends stand for.

    Without colour: each shade with the share of the full scale at which it begins.
    """
    if not surface.colour:
        shades = ASCII_SHADES if surface.ascii else SHADES
        steps = "  ".join(f"{shade} {start:.0%}" for shade, start in zip(shades[1:], SHADE_FROM, strict=True))
        return [Segment(f"{steps}  of {high}")]
    line = [Segment(f"{low} ", DIM)]
    line += [Segment("▌", tone(palette, pair, pair + 2)) for pair in range(0, TONES, 4)]
    return [*line, Segment(f" {high}", DIM)]


def readings(numbers: tuple[Reading, ...], surface: Surface) -> Iterator[Line]:
    """Measured numbers beside their baselines, in as many columns as fit."""
    if not numbers:
        return
    yield []
    cells = [_reading(reading) for reading in numbers]
    widths = [max(cell_len(cell[part]) for cell in cells) for part in range(4)]
    beside = max(1, (surface.width + 4) // (sum(widths) + 9))
    for start in range(0, len(cells), beside):
        line: Line = []
        for name, value, unit, baseline in cells[start : start + beside]:
            line += [
                Segment(fit(name, widths[0]) + "  ", DIM),
                Segment(fit(value, widths[1], right=True)),
                Segment(" " + fit(unit, widths[2]) + "  " + fit(baseline, widths[3]) + "    ", DIM),
            ]
        yield [*line[:-1], Segment(line[-1].text.rstrip(), DIM)]


def _reading(reading: Reading) -> tuple[str, str, str, str]:
    baseline = "" if reading.baseline is None else f"(baseline {round_short(reading.baseline)})"
    return reading.name, f"{reading.value:.2f}", reading.unit, baseline


def half_blocks(above: list[int], below: list[int], palette: Palette) -> Line:
    """One line of cells, two tones each; -1 leaves the terminal's own background."""
    return half_block_lines(np.array([above, below]), palette)[0]


def half_block_lines(tones: Array, palette: Palette) -> list[Line]:
    """Lines of cells, two tones each, from twice as many rows.  [row, column] -> a line for every two rows

    Neighbours of one pair of tones are one segment. All lines are looked through at once, because a frame has
    thousands of cells, and segments are kept, because it has few pairs of tones.
    """
    pairs = (tones[0::2] + 1) * (TONES + 1) + tones[1::2] + 1  # [line, column]
    count, columns = pairs.shape
    begins = np.ones(pairs.shape, bool)
    begins[:, 1:] = pairs[:, 1:] != pairs[:, :-1]
    starts = np.flatnonzero(begins)
    runs = np.empty_like(starts)
    runs[:-1], runs[-1:] = starts[1:] - starts[:-1], pairs.size - starts[-1:]
    keys = (pairs.ravel()[starts] * (columns + 1) + runs).tolist()
    ready = _half_block_segments(palette, columns)
    for key in set(keys).difference(ready):
        pair, run = divmod(key, columns + 1)
        above, below = divmod(pair, TONES + 1)
        ready[key] = _half_block(above - 1, below - 1, run, palette)
    segments = [ready[key] for key in keys]
    edges = np.searchsorted(starts, np.arange(count + 1) * columns).tolist()
    return [segments[start:stop] for start, stop in pairwise(edges)]


@cache
def _half_block_segments(palette: Palette, columns: int) -> dict[int, Segment]:
    """Segments that were drawn before, by pair of tones and length, in pictures so many columns wide."""
    return {}


def _half_block(above: int, below: int, run: int, palette: Palette) -> Segment:
    if above == below:
        return Segment(" " * run, tone(palette, None, above)) if above >= 0 else Segment(" " * run)
    if below < 0:
        return Segment("▀" * run, tone(palette, above, None))
    if above < 0:
        return Segment("▄" * run, tone(palette, below, None))
    return Segment("▀" * run, tone(palette, above, below))
