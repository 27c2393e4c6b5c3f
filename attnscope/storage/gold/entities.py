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
    first one counts. Raises ``ValueError`` for a mention that lacks its beginning or its end.
    """
    opened: dict[str, list[int]] = {}
    spans: list[tuple[str, int, int]] = []
    for word, marks in enumerate(column):
        if MARK.sub("", marks):
            raise ValueError(
                f"the Entity of word {word + 1} is {marks[:20]!r}: write (e1-person, e1) or (e1)"
            )
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
    endless = next((name for name, words in opened.items() if words), None)
    if endless is not None:
        raise ValueError(f"entity {endless[:20]!r} begins at word {opened[endless][0] + 1} and ends nowhere")
    mentions = []
    for name, start, stop in spans:
        entity, _, piece = name.partition("[")
        if entity and (not piece or piece.startswith("1/")):
            outside = (word for word in range(start, stop + 1) if not start <= heads[word] <= stop)
            mentions.append(Mention(entity, next(outside, stop)))
    return sorted(mentions, key=lambda mention: mention.word)
