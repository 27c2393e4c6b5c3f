"""Places on an axis, and token text made visible: what a label says, before anybody draws it."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from attnscope.attention import Axis, Token

NAMED = {"\n": "⏎", "\t": "⇥", "\x7f": "␡", " ": "␣"}
Array = NDArray[Any]
JOINERS = "\u200c\u200d"  # they shape letters and emoji, and are harmless inside a text


@dataclass(frozen=True, slots=True)
class Place:
    """One row or column: its text and the tokens ``start`` to ``stop - 1`` that it stands for.

    ``word`` is the (segment, word) that the token is a piece of, ``None`` where it is no piece of any.
    ``pooled`` tells a range of tokens from a token or a word. ``id`` is a single token's number in the
    vocabulary, ``count`` how many tokens or words a row is the mean of.
    """

    text: str
    start: int
    stop: int
    special: bool = False
    word: tuple[int, int] | None = None
    pooled: bool = False
    id: int | None = None
    count: int = 1

    @property
    def label(self) -> str:
        """The text with nothing invisible in it; a range is led by its tokens' numbers."""
        if not self.pooled:
            return visible(self.text)
        numbers = f"{self.start}-{self.stop - 1}" if self.stop > self.start + 1 else f"{self.start}"
        return f"{numbers} {visible(self.text)}" if self.text else numbers


def places(axis: Axis) -> tuple[Place, ...]:
    """The places of an axis of tokens, or of bare positions, one for each."""
    if isinstance(axis, range):
        return tuple(Place(str(position), i, i + 1) for i, position in enumerate(axis))
    return tuple(_place(token, i) for i, token in enumerate(axis))


def _place(token: Token, position: int) -> Place:
    if token.span is not None:
        start, stop = token.span
        return Place(token.text, start, stop, special=token.special, pooled=True, count=stop - start)
    word = None if token.special or token.word is None else (token.segment, token.word)
    return Place(token.text, position, position + 1, special=token.special, word=word, id=token.id)


def join_places(group: Sequence[Place], *, pooled: bool, count: int = 1) -> Place:
    """One place for neighbours; pieces of one word are written together, everything else apart."""
    text = ""
    for before, place in zip((None, *group), group, strict=False):
        glued = before is None or (place.word is not None and place.word == before.word)
        text += place.text if glued else " " + place.text.removeprefix(" ")
    first = group[0]
    return Place(
        text,
        first.start,
        group[-1].stop,
        special=all(place.special for place in group),
        word=first.word if not pooled else None,
        pooled=pooled,
        count=count,
    )


def visible(text: str) -> str:
    """Token text in which everything can be seen and nothing steers a terminal.

    The one space that leads a word is dropped. A newline reads ``⏎``, a tab ``⇥``, a token of nothing
    but spaces ``␣``; other control characters have their Unicode pictures (``␛``) or numbers
    (``‹202E›``); an empty text reads ``∅``; a combining mark that begins a text sits on ``◌``.
    """
    if not text:
        return "∅"
    if not text.strip(" "):
        return "␣" * len(text)
    text = text.removeprefix(" ")
    shown = "".join(_visible(character, text[:i]) for i, character in enumerate(text))
    return "◌" + shown if unicodedata.category(shown[0]).startswith("M") else shown


def _visible(character: str, before: str) -> str:
    if character in NAMED:
        return character if character == " " else NAMED[character]
    code = ord(character)
    if code < 32:
        return chr(0x2400 + code)
    if character in JOINERS and before:
        return character
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return f"‹{code:04X}›"
    return character
