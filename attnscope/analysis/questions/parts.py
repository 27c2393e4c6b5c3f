"""Parts of a text, and questions about two of them: ``it -> cat``. Parsed, never run as code."""

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

HELP = (
    "write a word (cat), one of several (cat#2), a token's number (5), a quoted phrase ('the mat'), [CLS], "
    "special, punctuation, image, image 2, sound, /regex/, "
    "or *; behind the arrow also a number of tokens from here (-2, +1)"
)

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

    ``tokens`` finds it on an axis; ``step`` is set instead where it is as many tokens from each row.
    """

    text: str
    step: int | None = None

    @property
    def everything(self) -> bool:
        """Whether all tokens are meant."""
        return self.text == "*"

    def tokens(self, axis: Axis) -> tuple[Group, ...]:
        """The places on an axis that are meant, each as its tokens; none where there is none."""
        words = word_groups(axis)
        if self.everything:
            return tuple(group for _, group in words)
        number = read_number(self.text)
        if number is not None:
            return ((number,),) if number < len(axis) else ()
        if len(self.text) > 1 and self.text[0] == self.text[-1] and self.text[0] in "\"'":
            return tuple(_phrase(self.text[1:-1], axis))
        if len(self.text) > 2 and self.text[0] == self.text[-1] == "/":
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
            return _written(name, words, axis)[number - 1 : number] if number else ()
        return _written(self.text, words, axis)

    @property
    def place(self) -> tuple[str, int | None]:
        """Of one of several words, cat#2, the word and which of them it is."""
        name, _, place = self.text.rpartition("#")
        return (name, read_number(place)) if name else (self.text, None)

    def _names(self, place: Place) -> bool:
        """Whether the picture is named that a token is part of: image 2, frame 1."""
        return place.text.partition(" · ")[0] == self.text


@dataclass(frozen=True, slots=True)
class Question:
    """How much of the attention of one part goes to another."""

    left: Part
    right: Part

    def __str__(self) -> str:
        return f"{self.left.text} -> {self.right.text}"


def parse_questions(text: str) -> tuple[Question, ...]:
    """``it -> cat``, or both ways: ``it <-> cat``. Raises ``SelectionError`` for what is no question."""
    left, arrow, right = (
        (part.strip() for part in re.split(r"(<?->)", text, maxsplit=1)) if "->" in text else ("",) * 3
    )
    if not left or not right or "->" in right:
        raise SelectionError(f"{text!r} is no question: write FROM -> TO, like 'it -> cat'; {HELP}")
    ways = [(left, right)] if arrow == "->" else [(left, right), (right, left)]
    return tuple(Question(_part(one, row=True), _part(other, row=False)) for one, other in ways)


def is_question(text: str) -> bool:
    """Whether an argument is a question, and no text."""
    return "->" in text


def word_groups(axis: Axis) -> tuple[tuple[Place, Group], ...]:
    """Every word of an axis, and every token that is in none, with its tokens."""
    coarsening = coarsen_axis(axis, words=True)
    groups = (tuple(coarsening.tokens(number)) for number in range(len(coarsening.places)))
    return tuple(zip(coarsening.places, groups, strict=True))


def _part(text: str, *, row: bool) -> Part:
    if text[0] in "+-" and read_number(text[1:]) is not None:
        if row:
            raise SelectionError(
                f"{text} counts tokens from each row, so it stands behind the arrow: '* -> {text}'"
            )
        return Part(text, int(text))
    if len(text) > 2 and text[0] == text[-1] == "/":
        _pattern(text)
    return Part(text)


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
