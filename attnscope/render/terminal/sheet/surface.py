"""What terminal pictures are drawn on: its width, whether it has colour, and the strokes it offers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from rich.color import Color
from rich.console import Console, ConsoleOptions
from rich.segment import ControlType, Segment
from rich.style import Style

from attnscope.render.colour import STEPS, choose_map, table, terminal_colours

Line: TypeAlias = "list[Segment]"

TONES = 64
"""Colours of a map that the terminal uses; fewer than a table has, so that styles are found ready."""

FAINT = 0.65
"""How much of its ink faint text has; the rest is the colour of its cell."""

RAW = [(ControlType.CARRIAGE_RETURN,)]
"""Marks a segment that is written as it stands, escape sequences and all: rich looks whether there is any."""

BOLD, DIM, PLAIN = Style(bold=True), Style(dim=True), Style()
MARK, BRACKET = Style(bold=True, reverse=True), Style(bold=True)
"""What stands out because it is chosen: names, and the brackets around a thumbnail."""

SHADES = (" ", "░", "▒", "▓", "█")
ASCII_SHADES = (" ", ".", "o", "O", "#")
SHADE_FROM = (0.05, 0.25, 0.5, 0.75)
"""Shade 1 begins at the level 0.05, shade 2 at 0.25, ..."""

CONTROLS = {code: chr(0x2400 + code) for code in range(32)} | {127: "␡"}
CONTROLS |= {code: f"‹{code:04X}›" for code in (*range(128, 160), *range(0x202A, 0x202F), 0x2066, 0x2067)}
"""What reaches a terminal in place of characters that would steer it."""

ASCII = str.maketrans("…·×–—━▀▄█⏎␣⇥∅◌‹›▾", ".|x---^_#/_>0o<>v")


@dataclass(frozen=True, slots=True)
class Palette:
    """A colour map as a terminal shows it: ``indexed`` where it has 256 colours."""

    cmap: str
    indexed: bool = False


@dataclass(frozen=True, slots=True)
class Surface:
    """``width`` in columns; ``colour`` false for pipes, NO_COLOR and terminals of 16 colours or fewer.

    ``indexed`` tells a terminal of 256 colours from one of true colour. Lines of a ``direct`` one are
    printed and nothing else: then a row of cells may be one segment.
    """

    width: int
    colour: bool
    ascii: bool = False
    cmap: str | None = None
    indexed: bool = False
    direct: bool = False

    @classmethod
    def of(
        cls, console: Console, options: ConsoleOptions, cmap: str | None, plain: bool, printed: bool = False
    ) -> Surface:
        """The surface that a console offers; ``printed`` if what it is given goes to a terminal as it is."""
        rich_colour = console.color_system in ("256", "truecolor") and not console.no_color
        of_256 = console.color_system == "256"
        colour = rich_colour and not plain
        direct = printed and colour and not (console.record or console.legacy_windows or options.ascii_only)
        return cls(options.max_width, colour, options.ascii_only, cmap, of_256, direct)

    def palette(self, *, signed: bool) -> Palette:
        """The colours to draw with; refuses a map that does not exist."""
        return Palette(choose_map(self.cmap, signed=signed), self.indexed)

    def shade(self, level: float) -> str:
        """The character for a level from 0 to 1."""
        shades = ASCII_SHADES if self.ascii else SHADES
        return shades[sum(level >= start for start in SHADE_FROM)]


@lru_cache(maxsize=4 * TONES * TONES)
def tone(palette: Palette, above: int | None, below: int | None) -> Style:
    """Foreground ``above`` on background ``below``, tones of a colour map; ``None`` is the terminal's own."""
    return Style.from_color(_colour(palette, above), _colour(palette, below))


@lru_cache(maxsize=4 * TONES)
def style_on(palette: Palette, below: int, faint: bool = False) -> Style:
    """Black or white, whichever reads better, on a tone of a colour map; ``faint`` is nearer to it."""
    red, green, blue = table(palette.cmap)[_entry(below)] / 255.0
    light = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    ink = np.zeros(3) if light > 0.18 else np.full(3, 255.0)
    if faint:
        ink = FAINT * ink + (1 - FAINT) * 255 * np.array([red, green, blue])
    front = Color.from_rgb(*(int(part) for part in ink))
    return Style.from_color(front, _colour(palette, below))


@lru_cache(maxsize=4 * TONES)
def _colour(palette: Palette, number: int | None) -> Color | None:
    if number is None:
        return None
    if palette.indexed:
        return Color.from_ansi(int(terminal_colours(palette.cmap)[_entry(number)]))
    red, green, blue = (int(part) for part in table(palette.cmap)[_entry(number)])
    return Color.from_rgb(red, green, blue)


def _entry(number: int) -> int:
    return round(number * (STEPS - 1) / (TONES - 1))
