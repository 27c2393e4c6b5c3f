"""The questions of a batch of texts, in the tokens of a model."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from attnscope.analysis.places.locate import locate_tokens
from attnscope.attention import Token
from attnscope.errors import InputError
from attnscope.storage.gold import Pair
from attnscope.storage.gold.texts import Span

MOST_LABELS = 1000
"""Labels that a file may have; there are figures of every head for each."""

Slot: TypeAlias = "tuple[str, int] | None"
"""A label and a direction (0: left to right); ``None`` is the agreement with a whole alignment."""


@dataclass
class Slots:
    """A number for each label and direction, and within it for each half of the corpus."""

    numbers: dict[Slot, int] = field(default_factory=dict)

    def number(self, slot: Slot, half: int) -> int:
        """The place of the sums. Raises ``InputError`` where there are too many labels."""
        if len(self.numbers) > 2 * MOST_LABELS:
            raise InputError(f"there are more than {MOST_LABELS:,} labels: ask for some with --relation")
        return 2 * self.numbers.setdefault(slot, len(self.numbers)) + half

    @property
    def count(self) -> int:
        """How many numbers there are."""
        return 2 * len(self.numbers)


@dataclass(frozen=True, eq=False)
class Grouping:
    """The tokens of one axis in groups: a group for each word that has tokens, and each token in none.

    ``of_token`` is the group of each token, numbered by their first tokens; ``of_word`` those of the words.
    ``special`` groups are no candidates.
    """

    of_token: tuple[int, ...]
    of_word: Mapping[int, int]
    special: frozenset[int]

    @property
    def count(self) -> int:
        """How many groups there are."""
        return max(self.of_token, default=-1) + 1


def group_tokens(tokens: Sequence[Token], text: str, words: Sequence[Span]) -> Grouping:
    """Which tokens make up each word of a text: those that have most of their characters in it.

    A piece without characters, which the text spells otherwise or not at all, goes with the piece of its word
    that stands before it, or else behind.
    """
    starts = [start for start, _ in words]
    places = locate_tokens(tokens, text)
    found = [None if place is None else _word(place, words, starts) for place in places]
    for near in (-1, 1):
        order = range(len(tokens)) if near < 0 else reversed(range(len(tokens)))
        for number in order:
            other = number + near
            if found[number] is None and 0 <= other < len(tokens):
                found[number] = found[other] if _one_word(tokens[number], tokens[other]) else None
    groups: list[int] = []
    of_word: dict[int, int] = {}
    special = set()
    count = 0
    for token, word in zip(tokens, found, strict=True):
        if word is not None and word in of_word:
            groups.append(of_word[word])
            continue
        if word is not None:
            of_word[word] = count
        if token.special:
            special.add(count)
        groups.append(count)
        count += 1
    return Grouping(tuple(groups), of_word, frozenset(special))


def _one_word(one: Token, other: Token) -> bool:
    plain = other.word is not None and not one.special and not other.special
    return plain and (one.segment, one.word) == (other.segment, other.word)


def _word(place: Span, words: Sequence[Span], starts: Sequence[int]) -> int | None:
    """The word that most of the characters of a token are in, the first of several."""
    best, most = None, 0
    first = max(0, bisect_right(starts, place[0]) - 1)
    for number in range(first, len(words)):
        start, stop = words[number]
        if start >= place[1]:
            break
        inside = min(stop, place[1]) - max(start, place[0])
        if inside > most:
            best, most = number, inside
    return best


@dataclass(eq=False)
class Asked:
    """The questions of a batch about one kind of attention.

    A question is a row (a group of tokens of one text) and the keys (groups) that are right; an answer is one
    of these. A unit is what a text has for one slot.
    """

    rows: list[Grouping] = field(default_factory=list)  # by text
    keys: list[Grouping] = field(default_factory=list)
    one_sequence: bool = True  # whether rows and keys are the same groups
    text: list[int] = field(default_factory=list)  # of each question
    row: list[int] = field(default_factory=list)
    unit: list[int] = field(default_factory=list)
    question: list[int] = field(default_factory=list)  # of each answer
    key: list[int] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)  # in words
    slot: list[int] = field(default_factory=list)  # of each unit
    more: list[int] = field(default_factory=list)  # what a unit counts beside its questions
    lost: int = 0  # pairs without tokens of their own

    def ask(
        self,
        pairs: Sequence[Pair],
        rows: Grouping,
        keys: Grouping,
        slots: Slots,
        ways: int,
        half: int,
    ) -> None:
        """Add the questions of one more text."""
        self.rows.append(rows)
        self.keys.append(keys)
        for way in range(ways):
            found: dict[str, dict[int, dict[int, int]]] = {}
            for pair in pairs:
                self._collect(pair, way, rows, keys, found.setdefault(pair.label, {}))
            for label, questions in found.items():
                if questions:
                    self._add(questions, slots.number((label, way), half))

    def ask_alignment(self, pairs: Iterable[Pair], slots: Slots, half: int) -> None:
        """Add the agreement with an alignment, its sure links and all: 1 - AER (Och and Ney 2003)."""
        rows, keys = self.rows[-1], self.keys[-1]
        possible: dict[int, dict[int, int]] = {}
        sure: dict[int, dict[int, int]] = {}
        for pair in pairs:
            self._collect(pair, 0, rows, keys, possible, count=False)
            if pair.sure:
                self._collect(pair, 0, rows, keys, sure, count=False)
        slot = slots.number(None, half)
        self._add(possible, slot)
        self._add(sure, slot, joined=True)
        counted = len(rows.of_word) + sum(map(len, sure.values()))
        self.more[-1] = counted - len(possible) - len(sure)

    def _collect(
        self,
        pair: Pair,
        way: int,
        rows: Grouping,
        keys: Grouping,
        found: dict[int, dict[int, int]],
        count: bool = True,
    ) -> None:
        """The answers of a pair, with their distance in words, by row."""
        lefts, rights = (pair.left, pair.right) if way == 0 else (pair.right, pair.left)
        known = False
        for one in lefts:
            for other in rights:
                row, key = rows.of_word.get(one), keys.of_word.get(other)
                if row is not None and key is not None and not (self.one_sequence and row == key):
                    found.setdefault(row, {})[key] = other - one
                    known = True
        self.lost += count and not known and way == 0

    def _add(self, questions: Mapping[int, Mapping[int, int]], slot: int, joined: bool = False) -> None:
        if not joined:
            self.slot.append(slot)
            self.more.append(0)
        for row, answers in questions.items():
            for key, offset in answers.items():
                self.question.append(len(self.row))
                self.key.append(key)
                self.offset.append(offset)
            self.text.append(len(self.rows) - 1)
            self.row.append(row)
            self.unit.append(len(self.slot) - 1)
