"""Where in a text its tokens stand."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attnscope.attention import Token

SPACE = re.compile(r"\s*")

NEAR = 16
"""Characters that may stand between a token and the next, for each that was not found."""


def locate_tokens(tokens: Sequence[Token], text: str) -> list[tuple[int, int] | None]:
    """The characters that each token stands for: ``None`` for a special one, no characters where not found.

    Tokens are looked for in the text one after the other, near where the last one ended, and the farther the
    more were not found since: a tokenizer leaves out spaces, writes some letters otherwise, and marks words
    that it lacks behind their text.
    """
    places: list[tuple[int, int] | None] = []
    at = near = 0
    for token in tokens:
        if token.special:
            places.append(None)
            continue
        spelled = token.text.strip()
        at = SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
        near += NEAR + len(spelled)
        for piece in dict.fromkeys((spelled, spelled.partition(" ")[0])):
            place = text.find(piece, at, at + near) if piece else -1
            if place >= 0:
                break
        if place < 0:
            places.append((at, at))
            continue
        at, near = place + len(piece), 0
        places.append((place, at))
    return places
