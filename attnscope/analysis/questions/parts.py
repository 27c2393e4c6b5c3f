"""Parts of a text, as one writes them: a word, a phrase, a class of tokens, a regular expression."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import punctuation
from typing import TypeAlias

from attnscope.attention import Axis
from attnscope.axes import Place, coarsen_axis
from attnscope.deadline import OutOfTime, time_limited
from attnscope.errors import SelectionError
from attnscope.text import read_number

Group: TypeAlias = tuple[int, ...]
"""Tokens that count as one: the pieces of a word, or a phrase."""

QUOTE = re.compile(r"\\([\"'])")
"""A quote inside of a quoted phrase."""

CLASSES = ("special", "punctuation")

PICTURES = ("image", "video")
"""All that stands for a part of a picture; without a picture, a word like others."""

SOUND = "sound"
"""All that stands for a moment of a sound; the same."""

UNKNOWN = re.compile(r"(?<=\S) (\[\w+\]|<\w+>)$")
"""How a token ends that the vocabulary lacks: the text's own letters, and ``[UNK]`` or ``<unk>`` behind."""

SECONDS = 3
"""Processor seconds that a regular expression may take: some try every way to match."""


@dataclass(frozen=True, slots=True)
class Part:
    """One side of a question, as it was written.

    ``tokens`` finds it on an axis; ``step`` is set instead where it is as many tokens from each of the other
    side.
    """

    text: str
    step: int | None = None

    @property
    def everything(self) -> bool:
        """Whether all tokens are meant."""
        return self.text == "*"

    def tokens(self, axis: Axis) -> tuple[Group, ...]:
        """The places on an axis that are meant, each as its tokens; none where there is none, or a step."""
        if self.step is not None:
            return ()
        words = word_groups(axis)
        if self.everything:
            return tuple(group for _, group in words)
        number = read_number(self.text)
        if number is not None:
            return ((number,),) if number < len(axis) else ()
        if self.quoted is not None:
            return tuple(_phrase(self.quoted, axis))
        if _between(self.text, "/"):
            return _matching(self.text, words)
        if self.text in CLASSES:
            return tuple(group for place, group in words if _belongs(place, self.text))
        pictured = tuple(group for place, group in words if place.pictured)
        if self.text in PICTURES and pictured:
            return pictured
        heard = tuple(group for place, group in words if place.heard)
        if self.text == SOUND and heard:
            return heard
        one = tuple(group for place, group in words if place.pictured and self._names(place))
        if one:
            return one
        name, number = self.place
        if number is not None:
            several = name in CLASSES or _between(name, "\"'/")
            places = Part(name).tokens(axis) if several else _written(name, words, axis)
            return places[number - 1 : number] if number else ()
        return _written(self.text, words, axis)

    @property
    def quoted(self) -> str | None:
        """What stands between the quotes of a phrase; a quote in it is written with a stroke before it."""
        return QUOTE.sub(r"\1", self.text[1:-1]) if _between(self.text, "\"'") else None

    @property
    def place(self) -> tuple[str, int | None]:
        """Of one of several words, cat#2, the word and which of them it is."""
        name, _, place = self.text.rpartition("#")
        return (name, read_number(place)) if name else (self.text, None)

    def _names(self, place: Place) -> bool:
        """Whether the picture is named that a token is part of: image 2, frame 1."""
        return place.text.partition(" · ")[0] == self.text


def word_groups(axis: Axis) -> tuple[tuple[Place, Group], ...]:
    """Every word of an axis, and every token that is in none, with its tokens."""
    coarsening = coarsen_axis(axis, words=True)
    groups = (tuple(coarsening.tokens(number)) for number in range(len(coarsening.places)))
    return tuple(zip(coarsening.places, groups, strict=True))


def part_of(text: str) -> Part:
    """A part as it is written. Raises ``SelectionError`` for a regular expression that is none."""
    if text[0] in "+-" and read_number(text[1:]) is not None:
        return Part(text, int(text))
    part = Part(text)
    for name in (text, part.place[0]):
        if _between(name, "/"):
            _pattern(name)
    return part


def _between(text: str, marks: str) -> bool:
    """Whether something stands between two of these marks."""
    return len(text) > 2 and text[0] == text[-1] and text[0] in marks


def _pattern(text: str) -> re.Pattern[str]:
    """The regular expression between two strokes."""
    try:
        with time_limited(SECONDS):
            return re.compile(text[1:-1])
    except RecursionError:
        raise SelectionError(f"{text[:60]} is nested too deep for a regular expression") from None
    except (re.error, OverflowError, MemoryError) as error:
        raise SelectionError(f"{text[:60]} is no regular expression: {error}") from error
    except OutOfTime:
        raise _too_slow(text) from None


def _matching(text: str, words: Sequence[tuple[Place, Group]]) -> tuple[Group, ...]:
    """The words in which a regular expression is found."""
    pattern = _pattern(text)
    try:
        with time_limited(SECONDS):
            return tuple(group for place, group in words if pattern.search(place.text.strip()))
    except OutOfTime:
        raise _too_slow(text) from None


def _too_slow(text: str) -> SelectionError:
    return SelectionError(
        f"{text[:60]} takes longer than {SECONDS} seconds, and was stopped: write it without repeats of "
        "repeats, like (a+)+"
    )


def _written(name: str, words: Sequence[tuple[Place, Group]], axis: Axis) -> tuple[Group, ...]:
    """The places of a word, or of what a tokenizer cuts at its marks: don't, U.S., 1,995."""
    return _word(name, words) or tuple(_phrase(name, axis))


def _word(name: str, words: Sequence[tuple[Place, Group]]) -> tuple[Group, ...]:
    """The places of a word: as it is written, or else in any case and without marks: ``mat.``, ``[CLS]``."""
    exact = tuple(group for place, group in words if name in (_known(place.text), place.label))
    folded = name.casefold()
    return exact or tuple(group for place, group in words if folded in _names(place))


def _names(place: Place) -> tuple[str, ...]:
    name = _known(place.text).casefold()
    if place.heard:
        return name, place.moment, place.letters.casefold() or name
    return name, name.strip(punctuation), name.removeprefix("patch "), name.removeprefix("image 1 · ")


def _phrase(phrase: str, axis: Axis) -> Iterator[Group]:
    """Where the tokens of a phrase stand; those of a longer word are no place of it."""
    if isinstance(axis, range):
        return
    text, spans, before = "", [], None
    for token in axis:
        word = None if token.special else (token.segment, token.word)
        text += "" if word is not None and token.word is not None and word == before else " "
        begin = len(text)
        text += _known(token.text)
        spans.append((begin, len(text)))
        before = word
    pieces = re.findall(r"\w+|[^\w\s]", phrase)
    letters = [letter for letter in phrase if not letter.isspace()]  # where nobody writes spaces
    for each in (pieces, letters):
        pattern = r"\s*".join(map(re.escape, each))
        matches = [*re.finditer(rf"(?<!\w){pattern}(?!\w)", text, re.IGNORECASE)] if pattern else []
        if matches:
            break
    for match in matches:
        yield tuple(
            number
            for number, (begin, end) in enumerate(spans)
            if begin < match.end() and end > match.start() and not axis[number].special
        )


def _known(text: str) -> str:
    """What the text itself has of a token: without the vocabulary's sign for what it lacks."""
    return UNKNOWN.sub("", text.strip())


def _belongs(place: Place, name: str) -> bool:
    if name == "special":
        return place.special
    text = place.text.strip()
    return not place.special and bool(text) and all(unicodedata.category(char)[0] == "P" for char in text)
