"""Fonts that have the characters of a picture, or a sentence about the scripts that no font has."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from attnscope.errors import SelectionError

BASE = "DejaVu Sans"  # comes with matplotlib, and is the same everywhere
SHAPING = (3, 11)
"""The matplotlib that joins letters and sets text from right to left."""

FONTS = {
    **dict.fromkeys(("CJK", "Hiragana", "Katakana", "Ideographic", "Hangul"), "Noto Sans CJK"),
    "emoji and symbols": "Noto Emoji",
}
OTHERS = "the Noto Sans of its script"
"""Free fonts to name where one is lacking."""

INVISIBLE = "\u200c\u200d\ufe0e\ufe0f"


def families(texts: Iterable[str], font: str | None = None) -> tuple[list[str], list[str]]:
    """Font families that together have every character of ``texts``, and a warning for each lack.

    ``font`` names a family to prefer. Raises ``SelectionError`` where it is not installed.
    """
    from matplotlib.font_manager import findfont

    wanted = set("".join(texts)) - set(INVISIBLE)
    chosen = [BASE]
    missing = wanted - _characters(findfont(BASE))
    if font is not None:
        if font not in _font_files():
            raise SelectionError(f"no font {font!r} is installed: name a family, such as {BASE!r}")
        chosen.insert(0, font)
        missing -= _characters(_font_files()[font])
    if missing:
        for family, path in sorted(_font_files().items(), key=_preference):
            found = missing & _characters(path)
            if found:
                chosen.append(family)
                missing -= found
            if not missing:
                break
    return chosen, [*_lacks(missing), *_note_unjoined_letters(wanted)]


def _preference(entry: tuple[str, str]) -> tuple[bool, str]:
    """Sans faces first; the order is the same on every run."""
    return ("sans" not in entry[0].lower(), entry[0])


@cache
def _font_files() -> dict[str, str]:
    """The upright, regular file of each family that matplotlib can draw with."""
    from matplotlib import font_manager

    manager = font_manager.fontManager
    known = {entry.fname for entry in manager.ttflist}
    for path in sorted(set(font_manager.findSystemFonts()) - known):
        try:
            manager.addfont(path)
        except (OSError, RuntimeError, ValueError):
            continue  # a bitmap or broken font, which matplotlib cannot load
    found: dict[str, str] = {}
    regular = [e for e in manager.ttflist if e.style == "normal" and e.weight in (400, "normal", "regular")]
    for entry in sorted(regular, key=lambda entry: str(entry.fname)):
        found.setdefault(entry.name, entry.fname)
    return found


@cache
def _characters(path: str) -> frozenset[str]:
    """What a font file has outlines for; nothing where it holds colour bitmaps only."""
    from matplotlib.ft2font import FT2Font

    try:
        face = FT2Font(path)
    except (OSError, RuntimeError):
        return frozenset()
    if "lastresort" in Path(path).stem.lower():
        return frozenset()  # a font of boxes
    return frozenset(map(chr, face.get_charmap()))


def _lacks(missing: set[str]) -> list[str]:
    by_script: dict[str, list[str]] = {}
    for character in sorted(missing):
        by_script.setdefault(script(character), []).append(character)
    if not missing:
        return []
    named = [
        f"{name} ({''.join(found[:5])}{' and more' if len(found) > 5 else ''})"
        for name, found in sorted(by_script.items())
    ]
    wanted = sorted({FONTS.get(name, OTHERS) for name in by_script})
    return [
        f"no installed font can draw {' and '.join(named)}, so boxes stand there: install "
        f"{' and '.join(wanted)}, which is then found by itself, or name another as the font (--font)"
    ]


def sets_letters() -> bool:
    """Whether matplotlib joins letters and sets text from right to left."""
    import matplotlib

    return matplotlib.__version_info__ >= SHAPING


def _note_unjoined_letters(wanted: set[str]) -> list[str]:
    """What matplotlib before 3.11 cannot do: it sets every letter by itself, from left to right."""
    import matplotlib

    if sets_letters():
        return []
    turned = sorted({script(c) for c in wanted if unicodedata.bidirectional(c) in ("R", "AL")})
    version = ".".join(map(str, SHAPING))
    return [
        f"{name} letters stand unjoined and from left to right: matplotlib {matplotlib.__version__} "
        f"cannot set them; install matplotlib {version} or later"
        for name in turned
    ]


def script(character: str) -> str:
    """The script of a character in words, as far as its Unicode name tells: Arabic, CJK, emoji, ..."""
    code = ord(character)
    if 0x1F000 <= code <= 0x1FAFF or unicodedata.category(character) in ("So", "Sk"):
        return "emoji and symbols"
    first = unicodedata.name(character, "unnamed characters").split()[0]
    return first if first == "CJK" else first.capitalize()
