"""JSON lines: ``{"text": "The cat sat.", "pairs": [[2, 1, "subject"]]}``."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from attnscope.storage.gold.texts import (
    MOST_PAIRS,
    GoldFile,
    GoldText,
    Pair,
    Span,
    clean_label,
    require_short,
    words_of,
)
from attnscope.storage.lines import Line, read_lines

EXAMPLE = '{"text": "The cat sat.", "pairs": [[2, 1, "subject"]]}'

LONGEST = 400
"""Characters of one side of a pair: a phrase, no text."""

_Words: TypeAlias = tuple[str, tuple[Span, ...]]
"""A text, and where its words stand."""

UNNAMED = "all"
"""The label of a pair that has none."""


class JsonLines(GoldFile):
    """An object a line: ``text``, ``pairs`` of from, to and a label, and for translations a ``target``.

    From and to are each the number of a word (what stands between spaces, from 0) or the characters
    ``[first, behind the last]``.
    """

    def texts(self) -> Iterator[GoldText]:
        """A text a line."""
        for line in read_lines(self.path):
            where = f"line {line.number:,}"
            if line.fault or line.text.strip():
                try:
                    yield _read(line, where)
                except ValueError as error:
                    yield GoldText(where, "", done=line.done, fault=str(error))


def _read(line: Line, where: str) -> GoldText:
    """The text of one line. Raises ``ValueError`` with what is wrong."""
    if line.fault:
        raise ValueError(line.fault)
    try:
        fields = json.loads(line.text)
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("pairs"), list):
        raise ValueError(f"write {EXAMPLE}")
    text = _text(fields.get("text"))
    target = None if fields.get("target") is None else _text(fields["target"])
    if len(fields["pairs"]) > MOST_PAIRS:
        raise ValueError(f"it has {len(fields['pairs']):,} pairs, and a text may have {MOST_PAIRS:,}")
    places = (text, words_of(text))
    left_places = places if target is None else (target, words_of(target))
    asked = [_pair(pair, left_places, places) for pair in fields["pairs"]]
    rights = [right for _, right, _ in asked]
    lefts = [left for left, _, _ in asked]
    words = _cut(text, rights if target is not None else [*lefts, *rights])
    target_words = words if target is None else _cut(target, lefts)
    pairs = tuple(
        Pair(_inside(left, target_words), _inside(right, words), label) for left, right, label in asked
    )
    return GoldText(where, text, words, pairs, line.done, target, () if target is None else target_words)


def _text(given: Any) -> str:
    """A text as JSON holds it. Raises ``ValueError`` for what is none."""
    if not isinstance(given, str) or not given.strip():
        raise ValueError("a text is missing or empty")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half a character (a lone surrogate)") from None
    require_short(given)
    return given


def _pair(pair: Any, left: _Words, right: _Words) -> tuple[Span, Span, str]:
    if not isinstance(pair, list) or len(pair) not in (2, 3):
        raise ValueError("a pair is [from, to] or [from, to, label]")
    label = pair[2] if len(pair) == 3 else UNNAMED
    if not isinstance(label, str):
        raise ValueError("the label of a pair is a text")
    return _span(pair[0], left), _span(pair[1], right), clean_label(label)


def _span(given: Any, words: _Words) -> Span:
    """The characters that are meant by the number of a word, or by two numbers."""
    text, spans = words
    if type(given) is int and 0 <= given < len(spans):
        return spans[given]
    if isinstance(given, list) and len(given) == 2 and all(type(number) is int for number in given):
        start, stop = given
        if 0 <= start < stop <= min(len(text), start + LONGEST) and text[start:stop].strip():
            return start, stop
    raise ValueError(
        f"{json.dumps(given)[:40]} is no place in its text: name one of the words 0 to {len(spans) - 1}, or "
        f"up to {LONGEST} characters [first, behind the last] of its {len(text):,}"
    )


def _cut(text: str, spans: Sequence[Span]) -> tuple[Span, ...]:
    """The words of a text, cut also where a span begins or ends."""
    edges = sorted({edge for span in spans for edge in span})
    words = []
    for start, stop in words_of(text):
        inside = edges[bisect_left(edges, start + 1) : bisect_left(edges, stop)]
        words += list(pairwise((start, *inside, stop)))
    return tuple(words)


def _inside(span: Span, words: Sequence[Span]) -> tuple[int, ...]:
    """The words of a span; none of them reaches over its edges."""
    first = bisect_left(words, span[0], key=lambda word: word[0])
    last = bisect_left(words, span[1], key=lambda word: word[0])
    return tuple(range(first, last))
