"""Which picture or sound each token of what was read belongs to, by the tokens' own names."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from attnscope.axes.places import HEARD, SEPARATOR

if TYPE_CHECKING:
    from attnscope.attention import Token


def find_senses(tokens: Sequence[Token]) -> list[str | None]:
    """ "image 1", "frame 2" or "sound" for each token of one, ``None`` for words.

    Special tokens between two of one picture belong to it: they tell its tiles and rows apart. A picture that
    is alone has no number.
    """
    names = [_name(token) for token in tokens]
    at = [position for position, name in enumerate(names) if name is not None]
    for one, two in pairwise(at):
        if names[one] == names[two] and all(token.special for token in tokens[one + 1 : two]):
            names[one:two] = [names[one]] * (two - one)
    alone = len({name for name in names if name is not None and name.startswith("image")}) == 1
    return ["image" if alone and name and name.startswith("image") else name for name in names]


def _name(token: Token) -> str | None:
    """The picture of a token, of which "thumbnail 1 · 0,0" is one of image 1, or the sound."""
    if token.id < SEPARATOR:
        return None
    if token.id >= HEARD:
        return "sound"
    word, _, number = token.text.partition(" · ")[0].rpartition(" ")
    return f"image {number}" if word in ("image", "thumbnail") else f"{word} {number}" if word else "image"
