"""The Entity column of CoNLL-U: which words mention the same, as in ``(e1-person`` ... ``e1)``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

MARK = re.compile(r"\((?P<opened>[^()]*)(?P<alone>\))?|(?P<closed>[^()]+)\)")
NAMES = ("eid", "GRP")
"""What ``# global.Entity`` calls the field that says which entity it is."""


class Mention(NamedTuple):
    """A mention of an entity, by its head word: the one whose own head stands outside of it."""

    entity: str
    word: int


def entity_place(fields: str) -> int:
    """Which of the fields between dashes names the entity; the first where nothing is said."""
    names = fields.split("-")
    return next((names.index(name) for name in NAMES if name in names), 0)


def read_mentions(column: Sequence[str], heads: Sequence[int], place: int) -> list[Mention]:
    """The mentions of a sentence, in the order of their head words.

    ``column`` is the Entity of each word, ``heads`` the head of each word. Of a mention in several pieces the
    first one counts. Raises ``ValueError`` for a mention that ends without a beginning.
    """
    opened: dict[str, list[int]] = {}
    spans: list[tuple[str, int, int]] = []
    for word, marks in enumerate(column):
        for match in MARK.finditer(marks):
            if match["closed"] is None:
                parts = match["opened"].split("-")
                name = parts[place] if place < len(parts) else ""
                if match["alone"]:
                    spans.append((name, word, word))
                else:
                    opened.setdefault(name, []).append(word)
            else:
                name = match["closed"]
                if not opened.get(name):
                    raise ValueError(f"entity {name[:20]!r} ends at word {word + 1} and begins nowhere")
                spans.append((name, opened[name].pop(), word))
    mentions = []
    for name, start, stop in spans:
        entity, _, piece = name.partition("[")
        if entity and (not piece or piece.startswith("1/")):
            outside = (word for word in range(start, stop + 1) if not start <= heads[word] <= stop)
            mentions.append(Mention(entity, next(outside, stop)))
    return sorted(mentions, key=lambda mention: mention.word)
