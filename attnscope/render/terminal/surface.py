"""Text and colour on a terminal: tokens in columns, titles, notes, and half-line cells."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise, zip_longest
from typing import TypeAlias

import numpy as np
from rich.cells import cell_len
from rich.color import Color
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.style import Style

from attnscope.axes import Array
from attnscope.render.colour import STEPS, choose_map, is_light, table, terminal_colours
from attnscope.text import balance_lines, clean, fill_lines, is_framed, isolate, isolate_lines, isolate_quotes
from attnscope.views import NamedScore


def clusters(text: str) -> list[str]:
    """The text in units that share a cell: a character with its combining marks and joiners."""
    units: list[str] = []
    for character in text:
        follows = units and (
            cell_len(character) == 0
            or units[-1].endswith("\u200d")  # a joiner
            or (len(units[-1]) == 1 and all(0x1F1E6 <= ord(c) <= 0x1F1FF for c in (units[-1], character)))
        )  # the last: two letters of a flag
        if follows:
            units[-1] += character
        else:
            units.append(character)
    return units


def fit_text(text: str, width: int, *, right: bool = False) -> str:
    """The text in exactly ``width`` cells: cut with ``…`` or padded (on the left if ``right``)."""
    shown = cut(text, width)
    space = " " * (width - cell_len(shown))
    return space + isolate(shown) if right else isolate(shown) + space


def number_label(text: str, number: int, width: int) -> str:
    """A label, cut if long and alone isolated, and its token's number, in exactly ``width`` cells."""
    room = width - len(f" {number}")
    if room < 1:
        return fit_text(f"{number}", width, right=True)
    return f"{fit_text(text, room, right=True)} {number}"


def cut(text: str, width: int) -> str:
    """The text in at most ``width`` cells: ``…`` replaces its end, or the middle of a framed token."""
    if cell_len(text) <= width:
        return text
    return "".join(_shorten(text, width, cell_len)) if width > 0 else ""


def cut_middle(text: str, width: int) -> str:
    """The text in at most ``width`` cells: ``…`` replaces its middle."""
    if cell_len(text) <= width:
        return text
    pieces = clusters(text)
    tail = "".join(_fill(pieces[::-1], width // 3, cell_len)[::-1])
    return f"{cut(text, width - cell_len(tail))}{tail}"


def _shorten(text: str, room: int, size: Callable[[str], int]) -> list[str]:
    """The clusters of a text that is too long, as many as fit, with ``…`` for the others."""
    pieces = clusters(text)
    end = _fill(pieces[::-1], 2 * (room - 1) // 3, size) if is_framed(text) else []
    begin = _fill(pieces, room - 1 - sum(map(size, end)), size)
    return [*begin, "…", *end[::-1]]


def _fill(pieces: Sequence[str], room: int, size: Callable[[str], int]) -> list[str]:
    ends = itertools.accumulate(map(size, pieces))
    return [piece for piece, end in zip(pieces, ends, strict=True) if end <= room]


def upright(labels: Sequence[str], width: int, height: int) -> list[str] | None:
    """At most ``height`` lines, each label upright in its column; ``None`` if a character is too wide."""
    columns = [clusters(label) for label in labels]
    if any(cell_len(cluster) > width for column in columns for cluster in column):
        return None
    tall = min(max((len(column) for column in columns), default=0), height)
    for at, label in enumerate(labels):
        column = columns[at] if len(columns[at]) <= tall else _shorten(label, tall, lambda _: 1)
        columns[at] = [" "] * (tall - len(column)) + column
    return ["".join(centre(column[line], width) for column in columns) for line in range(tall)]


def centre(text: str, width: int) -> str:
    """The text in the middle of ``width`` cells; it must fit."""
    space = width - cell_len(text)
    return " " * (space // 2) + isolate(text) + " " * (space - space // 2)


def strip_end(line: Line) -> Line:
    """A line without trailing spaces, which are invisible but show in diffs; coloured ones stay."""
    while line and not line[-1].text.strip(" ") and not (line[-1].style and line[-1].style.bgcolor):
        line = line[:-1]
    if line and not (line[-1].style and line[-1].style.bgcolor):
        line = [*line[:-1], Segment(line[-1].text.rstrip(" "), line[-1].style)]
    return line


def wrap_text(text: str, width: int) -> list[str]:
    """The text in lines of at most ``width`` cells, broken between words, but not inside ``5 × 5``."""
    return flow_items(re.findall(r"\S+(?: × \S+)*", text), width, " ")


def flow_items(items: Sequence[str], width: int, gap: str) -> list[str]:
    """Items side by side in lines of at most ``width`` cells; an item longer than a line is cut."""
    return [cut(line, width) for line in fill_lines(items, width, gap, cell_len)]


Line: TypeAlias = "list[Segment]"

TONES = 64  # colours of a map in a terminal; fewer than a table has, so that styles can be cached
FAINT_SHARE = 0.65  # the share of its own colour in faint text; the rest is the colour of its cell

BOLD, DIM, PLAIN = Style(bold=True), Style(dim=True), Style()
MARK = Style(bold=True, reverse=True)  # of the names of the chosen head

SHADE_LEVELS = (0.05, 0.25, 0.5, 0.75)  # where shades 1, 2, 3 and 4 begin

CONTROLS = {code: chr(0x2400 + code) for code in range(32)} | {127: "␡"}
CONTROLS |= {code: f"‹{code:04X}›" for code in (*range(128, 160), *range(0x202A, 0x202F), 0x2066, 0x2067)}
"""Replacements for characters that would control a terminal."""

ASCII = str.maketrans("…·×–—━▀▄█⏎␣⇥∅◌‹›≤≥◂", ".|x---^_#/_>0o<><><")


@dataclass(frozen=True, slots=True)
class Palette:
    """A colour map as a terminal shows it: ``indexed`` if it has 256 colours."""

    cmap: str
    indexed: bool = False


@dataclass(frozen=True, slots=True)
class Surface:
    """What a picture is drawn on."""

    width: int  # columns
    colour: bool  # not for pipes, NO_COLOR and terminals of 16 colours or fewer
    ascii: bool = False
    cmap: str | None = None
    indexed: bool = False  # a terminal of 256 colours, as opposed to true colour
    height: int | None = None  # most lines of a picture, if it must fit a screen

    @classmethod
    def from_console(
        cls, console: Console, options: ConsoleOptions, cmap: str | None, plain: bool
    ) -> Surface:
        """The surface of a console."""
        colour = console.color_system in ("256", "truecolor") and not console.no_color and not plain
        return cls(options.max_width, colour, options.ascii_only, cmap, console.color_system == "256")

    def bar_style(self) -> Style | None:
        """The colour of a bar, visible on any map; none without colour."""
        return tone(self.palette(signed=False), TONES * 5 // 8, None) if self.colour else None

    def palette(self, *, signed: bool) -> Palette:
        """The colours to draw with; raises for an unknown map."""
        return Palette(choose_map(self.cmap, signed=signed), self.indexed)

    def spark(self, level: float) -> str:
        """The mark of a curve for a level from 0 to 1."""
        marks = ".:-=+*#@" if self.ascii else "▁▂▃▄▅▆▇█"
        return marks[min(round(level * (len(marks) - 1)), len(marks) - 1)]

    def shade(self, level: float) -> str:
        """The character for a level from 0 to 1."""
        return (" .oO#" if self.ascii else " ░▒▓█")[sum(level >= start for start in SHADE_LEVELS)]

    def heading(self, title: str, subtitle: str, *, tight: bool = False) -> Iterator[Line]:
        """The title, and the subtitle beside or below it; in ``tight`` space one line, with what fits."""
        title, subtitle = (isolate_quotes(clean(text)) for text in (title, subtitle))
        beside = title and subtitle and cell_len(title) + 3 + cell_len(subtitle) <= self.width
        if title:
            shown = [cut_middle(title, self.width)] if tight else self.title_lines(title)
            bold: list[Line] = [[Segment(isolate(line), BOLD)] for line in shown]
            if beside:
                bold[-1] += [Segment("   "), Segment(isolate(subtitle), DIM)]
            yield from bold
        if tight:
            return
        for line in self.title_lines(subtitle) if subtitle and not beside else ():
            yield [Segment(isolate(line), DIM)]
        if title or subtitle:
            yield []

    def title_lines(self, text: str) -> list[str]:
        """A title in as few even lines as fit."""
        return isolate_lines(cut(line, self.width) for line in balance_lines(text, self.width, cell_len))

    def footing(self, notes: Iterable[str]) -> Iterator[Line]:
        """Each note as a faint sentence."""
        for note in notes:
            for i, line in enumerate(wrap_text(clean(note), self.width - 2)):
                yield [Segment("  " if i else "· ", DIM), Segment(isolate(line), DIM)]

    def quiet(self, text: str) -> Iterator[Line]:
        """A text in as many faint lines as it needs."""
        yield from ([Segment(line, DIM)] for line in wrap_text(text, self.width))

    def bar(self, columns: float) -> str:
        """A bar whose end is exact to an eighth of a column."""
        whole, eighth = divmod(round(max(columns, 0) * 8), 8)
        return "#" * whole if self.ascii else "█" * whole + " ▏▎▍▌▋▊▉"[eighth].strip()

    def colour_bar(self, low: str, high: str, palette: Palette, name: str, words: str = "") -> Iterator[Line]:
        """The colour map with its ends and its name; without colour, where each shade begins.

        ``words`` stand beside it, or below where there is less room than it takes.
        """
        bar = self._ramp(low, high, palette)
        wide = sum(segment.cell_length for segment in bar)
        if wide + 1 + cell_len(name) > self.width:
            words = "; ".join(filter(None, (name, words)))
        else:
            bar.append(Segment(f" {name}", DIM))
            wide += 1 + cell_len(name)
        room = self.width - wide - 3
        lines = wrap_text(words, room) if room > wide or cell_len(words) <= room else []
        yield [*bar, Segment(f"   {lines[0]}", DIM)] if lines else bar
        yield from ([Segment(" " * (wide + 3)), Segment(line, DIM)] for line in lines[1:])
        yield from self.quiet(words) if not lines else ()

    def _ramp(self, low: str, high: str, palette: Palette) -> Line:
        if not self.colour:
            shades = (f"{self.shade(start)} {start:.0%}" for start in SHADE_LEVELS)
            most = high.removeprefix("≥")
            symmetric = low.strip("≤-") in (most, "largest")
            of = most if low == "0" else f"±{most}" if symmetric else f"{low} to {high}"
            bar = f"{'  '.join(shades)}  of {of}"
            return [Segment(bar if cell_len(bar) <= self.width else " ".join(bar.split()))]
        ramp = (Segment("▌", tone(palette, pair, pair + 2)) for pair in range(0, TONES, 4))
        return [Segment(f"{low} ", DIM), *ramp, Segment(f" {high}", DIM)]

    def readings(self, numbers: Sequence[NamedScore]) -> Iterator[Line]:
        """Measured numbers with their baselines, in as many columns as fit."""
        if not numbers:
            return
        yield []
        cells = [(each.name, each.texts[0], each.unit, each.texts[1]) for each in numbers]
        name, value, unit, baseline = (max(map(cell_len, column)) for column in zip(*cells, strict=True))
        beside = max(1, (self.width + 4) // (name + value + unit + baseline + 9))
        for start in range(0, len(cells), beside):
            line: Line = []
            for named, number, counted, even in cells[start : start + beside]:
                line += [
                    Segment(fit_text(named, name) + "  ", DIM),
                    Segment(fit_text(number, value, right=True)),
                    Segment(f" {fit_text(counted, unit)}  {fit_text(even, baseline)}    ", DIM),
                ]
            yield [*line[:-1], Segment(line[-1].text.rstrip(), DIM)]


@lru_cache(maxsize=4 * TONES * TONES)
def tone(palette: Palette, above: int | None, below: int | None) -> Style:
    """Foreground ``above`` on background ``below``, tones of a colour map; ``None`` is the terminal's own."""
    front, back = (None if number is None else _colours(palette)[number] for number in (above, below))
    return Style.from_color(front, back)


@lru_cache(maxsize=4 * TONES)
def style_on(palette: Palette, below: int, faint: bool = False) -> Style:
    """Black or white, whichever reads better, on a tone of a colour map; ``faint`` is closer to it."""
    ground = table(palette.cmap)[TONE_ENTRIES[below]] / 255.0
    ink = np.zeros(3) if is_light(ground) else np.full(3, 255.0)
    if faint:
        ink = FAINT_SHARE * ink + (1 - FAINT_SHARE) * 255 * ground
    return Style.from_color(Color.from_rgb(*ink.astype(int).tolist()), _colours(palette)[below])


TONE_ENTRIES = np.round(np.arange(TONES) * (STEPS - 1) / (TONES - 1)).astype(int)  # in a map's table


@cache
def _colours(palette: Palette) -> list[Color]:
    if palette.indexed:
        return [Color.from_ansi(number) for number in terminal_colours(palette.cmap)[TONE_ENTRIES].tolist()]
    return [Color.from_rgb(*rgb) for rgb in table(palette.cmap)[TONE_ENTRIES].tolist()]


def side_by_side(blocks: Sequence[Sequence[Line]], width: int) -> Iterator[Line]:
    """Blocks of lines side by side, each beginning ``width`` columns after the one before."""
    for lines in zip_longest(*blocks, fillvalue=[]):
        whole: Line = []
        for number, line in enumerate(lines):
            at = sum(segment.cell_length for segment in whole)
            whole += [Segment(" " * (number * width - at)), *line] if number else line
        yield whole


def half_block_lines(tones: Array, palette: Palette) -> list[Line]:
    """Lines of cells, two tones each (an odd last row has one).  [row, column] -> a line for every two rows

    -1 leaves the terminal's own background. Neighbours with the same pair of tones share a segment. All
    lines are processed at once, because a frame has thousands of cells, and segments are cached, because
    it has few pairs of tones.
    """
    tones = np.pad(tones, ((0, len(tones) % 2), (0, 0)), constant_values=-1)
    pairs = (tones[0::2] + 1) * (TONES + 1) + tones[1::2] + 1  # [line, column]
    count, columns = pairs.shape
    begins = np.ones(pairs.shape, bool)
    begins[:, 1:] = pairs[:, 1:] != pairs[:, :-1]  # where the pair of tones changes
    starts = np.flatnonzero(begins)
    runs = np.empty_like(starts)
    runs[:-1], runs[-1:] = starts[1:] - starts[:-1], pairs.size - starts[-1:]
    keys = (pairs.ravel()[starts] * (columns + 1) + runs).tolist()  # pair and length in one number
    ready = _half_block_segments(palette, columns)
    for key in set(keys).difference(ready):
        pair, run = divmod(key, columns + 1)
        above, below = (number - 1 for number in divmod(pair, TONES + 1))
        if above == below:
            ready[key] = Segment(" " * run, tone(palette, None, above) if above >= 0 else None)
        elif above < 0:
            ready[key] = Segment("▄" * run, tone(palette, below, None))
        else:
            ready[key] = Segment("▀" * run, tone(palette, above, below if below >= 0 else None))
    segments = [ready[key] for key in keys]
    edges = np.searchsorted(starts, np.arange(count + 1) * columns).tolist()
    return [segments[start:stop] for start, stop in pairwise(edges)]


@cache
def _half_block_segments(palette: Palette, columns: int) -> dict[int, Segment]:
    """Cached segments, by pair of tones and length, for pictures of a given width."""
    return {}
