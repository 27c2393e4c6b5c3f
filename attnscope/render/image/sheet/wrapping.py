"""Titles and notes in lines as long as a sheet has room for, of nearly one length."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from attnscope.text import clean

POINT = 1 / 72  # inches
LINES = 3
"""Lines of a title, at most."""

BOLD = 1.15
"""How much wider bold letters are."""

MARGIN = 0.17
"""Inches beside a text, a little more than a sheet has."""

KNOWN = 0x250
"""The first character whose width is not looked up: another font may draw it."""

MARKS = "“”‘’…–·→×"
"""Other characters that the fonts of pictures have."""


def em(character: str) -> float:
    """How wide a character is, of the size of its letters, generously."""
    if unicodedata.combining(character):
        return 0.0
    return 1.25 if is_wide(character) else 0.64


def is_wide(character: str) -> bool:
    """Whether a character is as wide as it is tall, and stands upright in a column of text."""
    return unicodedata.east_asian_width(character) in "WF"


def _font() -> str:
    """The file of the font that texts are drawn with."""
    from matplotlib.font_manager import FontProperties, findfont

    return findfont(FontProperties())


@lru_cache(maxsize=4096)
def _advance(character: str, font: str) -> float:
    from matplotlib.font_manager import get_font

    glyphs = get_font(font)
    glyphs.set_size(100, 72)
    return float(glyphs.load_char(ord(character)).linearHoriAdvance / 65536 / 100)


def wrap_title(text: str, size: float, width: float, *, bold: bool = False) -> str:
    """A title in as many lines as a sheet of some inches needs, at most ``LINES``.

    ``size`` is that of its letters, in points; ``width`` has the margins of a sheet in it.
    """
    lines = wrap(clean(text), size, width, bold=bold)
    if len(lines) <= LINES:
        return "\n".join(lines)
    room = _room(size, width, bold)
    kept = _fill(_words(clean(text), room), room)[:LINES]
    while kept[-1] and _width(f"{kept[-1]} …") > room:
        kept[-1] = kept[-1][:-1]
    return "\n".join([*kept[:-1], f"{kept[-1].rstrip()} …"])


def wrap(text: str, size: float, width: float, *, bold: bool = False) -> list[str]:
    """A text in as few lines as a sheet of some inches needs, the widest as narrow as can be."""
    room = _room(size, width, bold)
    words = _words(text, room)
    lines = _fill(words, room)
    low, high = max((wide for _, wide in words), default=0.0), room
    while len(lines) > 1 and high - low > 0.5:
        middle = (low + high) / 2
        narrower = _fill(words, middle)
        if len(narrower) == len(lines):
            lines, high = narrower, middle
        else:
            low = middle
    return lines


def _room(size: float, width: float, bold: bool) -> float:
    """The widths of letters that a line has room for, between the margins of a sheet."""
    return (width - 2 * MARGIN) / (size * POINT * (BOLD if bold else 1))


def _width(text: str) -> float:
    font = _font()
    return sum(_advance(one, font) if ord(one) < KNOWN or one in MARKS else em(one) for one in text)


def _words(text: str, room: float) -> list[tuple[str, float]]:
    """The words and their widths, a dot between parts with the one before it; long ones are cut in pieces."""
    words: list[str] = []
    for word in text.split():
        if word == "·" and words:
            words[-1] += " ·"
        else:
            words.append(word)
    pieces = []
    for word in words:
        wide = _width(word)
        while wide > room and len(word) > 1:
            end = next(end for end in range(len(word) - 1, 0, -1) if end == 1 or _width(word[:end]) <= room)
            pieces.append((word[:end], _width(word[:end])))
            word = word[end:]
            wide = _width(word)
        pieces.append((word, wide))
    return pieces


def _fill(words: list[tuple[str, float]], room: float) -> list[str]:
    """Words side by side in lines, as many as fit."""
    space = _width(" ")
    lines: list[list[str]] = []
    left = -1.0
    for word, wide in words:
        if lines and space + wide <= left:
            lines[-1].append(word)
            left -= space + wide
        else:
            lines.append([word])
            left = room - wide
    return [" ".join(line) for line in lines]
