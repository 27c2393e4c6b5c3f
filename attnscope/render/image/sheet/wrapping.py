"""Titles and notes in lines as long as a sheet has room for, of nearly one length."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from attnscope.render.image.sheet.fonts import sets_letters
from attnscope.text import clean, isolate, isolate_lines, isolate_quotes, title_words

POINT = 1 / 72  # inches
LINES = 3
"""Lines of a title, at most."""

BOLD = 1.15
"""How much wider bold letters are."""

MARGIN = 0.17
"""Inches beside a text, a little more than a sheet has."""

KNOWN = 0x250
"""The first character whose width is not looked up: another font may draw it."""

CLOSING = "”’…·.,;:!?)]。、」』） \u2069"
"""What stands with the letters before it."""

MARKS = "“”‘’…–·→×"
"""Other characters that the fonts of pictures have."""


def fence(text: str) -> str:
    """A label, fenced in where it runs from right to left; not for a matplotlib that would draw the fence."""
    return isolate(text) if sets_letters() else text


def em(character: str) -> float:
    """How wide a character is, of the size of its letters, generously."""
    if unicodedata.combining(character) or unicodedata.category(character) == "Cf":
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


def wrap_title(text: str, size: float, width: float, *, bold: bool = False, label: str = "") -> str:
    """A title in as many lines as a sheet of some inches needs, at most ``LINES``.

    ``size`` is that of its letters, in points; ``width`` has the margins of a sheet in it. The ``label`` that
    begins it, and what it quotes, may run from right to left.
    """
    text = clean(text)
    if sets_letters():
        text = isolate(text[: len(label)]) + isolate_quotes(text[len(label) :])
    lines = wrap(text, size, width, bold=bold)
    if len(lines) <= LINES:
        return "\n".join(isolate_lines(lines))
    room = _room(size, width, bold)
    kept = _fill(_words(text, room), room)[:LINES]
    while kept[-1] and _width(f"{kept[-1]} …") > room:
        kept[-1] = kept[-1][:-1]
    return "\n".join(isolate_lines([*kept[:-1], f"{kept[-1].rstrip()} …"]))


def wrap(text: str, size: float, width: float, *, bold: bool = False) -> list[str]:
    """A text in as few lines as a sheet of some inches needs, the widest as narrow as can be.

    Lines are broken between the parts of a title where that takes no line more, else between words.
    """
    room = _room(size, width, bold)
    items, gap = _words(text, room), " "
    lines = _fill(items, room)
    parts = [(part, _width(part)) for part in text.split(" · ")]
    if all(wide <= room for _, wide in parts) and len(_fill(parts, room, " · ")) <= len(lines):
        items, gap = parts, " · "
        lines = _fill(items, room, gap)
    low, high = max((wide for _, wide in items), default=0.0), room
    while len(lines) > 1 and high - low > 0.5:
        middle = (low + high) / 2
        narrower = _fill(items, middle, gap)
        if len(narrower) == len(lines):
            lines, high = narrower, middle
        else:
            low = middle
    return [line.removesuffix(" ·") for line in lines]


def _room(size: float, width: float, bold: bool) -> float:
    """The widths of letters that a line has room for, between the margins of a sheet."""
    return (width - 2 * MARGIN) / (size * POINT * (BOLD if bold else 1))


def _width(text: str) -> float:
    font = _font()
    return sum(_advance(one, font) if ord(one) < KNOWN or one in MARKS else em(one) for one in text)


def _words(text: str, room: float) -> list[tuple[str, float]]:
    """The words and their widths, a dot between parts with the one before it; long ones are cut in pieces."""
    pieces = []
    for word in title_words(text):
        wide = _width(word)
        while wide > room and len(word) > 1:
            last = len(word.rstrip(CLOSING)) - 1  # what closes a text does not begin a line
            end = next((end for end in range(last, 0, -1) if _width(word[:end]) <= room), 1)
            pieces.append((word[:end], _width(word[:end])))
            word = word[end:]
            wide = _width(word)
        pieces.append((word, wide))
    return pieces


def _fill(words: list[tuple[str, float]], room: float, gap: str = " ") -> list[str]:
    """Words side by side in lines, as many as fit."""
    space = _width(gap)
    lines: list[list[str]] = []
    left = -1.0
    for word, wide in words:
        if lines and space + wide <= left:
            lines[-1].append(word)
            left -= space + wide
        else:
            lines.append([word])
            left = room - wide
    return [gap.join(line) for line in lines]
