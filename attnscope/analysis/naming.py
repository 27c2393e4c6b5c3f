"""Tokens by the names that people call them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attnscope.axes import Place
from attnscope.errors import SelectionError
from attnscope.text import read_number

NUMBERED = re.compile(r"(image|frame)s? [0-9-]+ · ")
"""Which picture a token stands for: its row and column alone mean the first."""


def find_place(places: Sequence[Place], wanted: str) -> int:
    """The first place that a name or a number fits. Raises ``SelectionError``."""
    found = fit_exactly(places, wanted.strip()) or fit_loosely(places, wanted.strip())
    if not found:
        known = ", ".join(dict.fromkeys(place.label for place in places[:12]))
        raise SelectionError(f"no token {wanted!r}: the text has {known}{', ...' * (len(places) > 12)}")
    return found[0]


def fit_exactly(places: Sequence[Place], wanted: str) -> list[int]:
    """The places with a number, or with just that text or label."""
    number = read_number(wanted)
    if number is not None:
        return [i for i, place in enumerate(places) if place.start <= number < place.stop]
    return [i for i, place in enumerate(places) if wanted in (place.text.strip(), place.label)]


def fit_loosely(places: Sequence[Place], wanted: str) -> list[int]:
    """The places with that text in other letters, special tokens also without their brackets."""
    folded = wanted.casefold().removeprefix("patch ")
    return [i for i, place in enumerate(places) if folded in _names(place)]


def _names(place: Place) -> tuple[str, ...]:
    """What a place may be called: its text, and a special token also without its brackets."""
    name = place.text.strip().casefold()
    if place.pictured:
        return name, NUMBERED.sub("", name)
    if place.heard:
        return name, place.moment, place.letters.casefold() or name
    return (name, name.strip("[]<>|")) if place.special else (name,)
