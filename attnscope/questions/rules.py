"""The language of ``find``: questions and rules, ``it -> cat``, ``same or +0``. Parsed, never run as code.

A rule names keys of each row; a question asks some rows about the keys of a rule. Both are also measures:
``rule(-1 or special)``, how often a row's largest weight is on such a key, and ``find(it -> cat)``, how much
of its weight is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain
from operator import and_, or_
from typing import TYPE_CHECKING, NamedTuple

from attnscope.attention import Token
from attnscope.errors import SelectionError
from attnscope.lazy import torch
from attnscope.measures.block import Block, Patterns
from attnscope.measures.forms import LEAST_PEAK, MEASURES, Measure, OnQuestion, OnRelation, OnRule
from attnscope.measures.standard import NO_TOKEN
from attnscope.questions.parts import AFTER_SAME, SAME, TextPart, part_of

if TYPE_CHECKING:
    from torch import Tensor

HELP = (
    "write a word (cat), one of several (cat#2), a token's number (5), a quoted phrase ('the mat'), [CLS], "
    "special, punctuation, image, image 2, sound, /regex/, or *; on one side also a number of tokens from "
    "the other (-2, +1); on the right also same, after same, and several by and, or; quote what contains an "
    "arrow, and, or"
)

CLOSED = r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|/(?:\\.|[^/\\])*/)(?:\#\d+)?"""
"""A phrase or a regular expression up to its closing quotes or slash: it may contain an arrow."""

SIDES = re.compile(rf"(?P<left>{CLOSED}|(?:(?!<?->).)+)\s*(?P<arrow><?->)(?P<right>.*)", re.S)

WHOLE = rf"(?<!\S){CLOSED}(?!\S)"

RIGHT = re.compile(rf"(?:{WHOLE}|(?!<?->).)+", re.S)

ATOM = re.compile(
    rf"{CLOSED}|[+-]\d+|\d+|special|punctuation|{SAME}|{AFTER_SAME}|\[[^\[\]\s]+\]|<[^<>\s]+>", re.ASCII
)
"""An atom of a rule that stands without an arrow, where a word would be a text."""


class RuleCells(NamedTuple):
    """Rows and keys of some texts of one length, as far as a rule asks about them."""

    rows: Tensor  # the ids of the rows' tokens, [text, row, 1]
    keys: Tensor  # those of the keys, [text, row or 1, key]
    before: Tensor  # and those of the tokens before them
    find: Callable[[TextPart], Tensor]  # which keys are of a part, bool, [text, row or 1, key]
    gaps: Tensor | None = None  # how far each key is behind its row, [row, key]

    @classmethod
    def of_ids(cls, rows: Tensor, keys: Tensor, find: Callable[[TextPart], Tensor]) -> RuleCells:
        """Those of ids, [text, row] and [text, key]."""
        before = torch.nn.functional.pad(keys[:, :-1], (1, 0), value=NO_TOKEN)
        return cls(rows[..., None], keys[:, None], before[:, None], find)

    @classmethod
    def of_block(cls, block: Block) -> RuleCells:
        """Those of a block, whose patterns were looked for when it was read."""
        assert block.queries is not None
        assert block.keys is not None
        keys = block.keys

        def find(part: TextPart) -> Tensor:
            return block.of_keys(keys.matches[part.text])

        whole = cls.of_ids(block.queries.ids, keys.ids, find)
        own, before = (block.of_keys(each[:, 0]) for each in (whole.keys, whole.before))
        return whole._replace(keys=own, before=before, gaps=None if block.start is None else block.gaps)


@dataclass(frozen=True)
class Rule:
    """Clauses of which one must hold, each of atoms that all must hold; see ``parse_rule``."""

    clauses: tuple[tuple[TextPart, ...], ...]

    def __str__(self) -> str:
        return " or ".join(" and ".join(atom.text for atom in clause) for clause in self.clauses)

    @property
    def atoms(self) -> tuple[TextPart, ...]:
        """All of them."""
        return tuple(chain(*self.clauses))

    @property
    def repeats(self) -> bool:
        """Whether it compares the row's token with those of its own sequence."""
        return any(atom.text in (SAME, AFTER_SAME) for atom in self.atoms)

    @property
    def relative(self) -> bool:
        """Whether its keys depend on the row."""
        return any(atom.relative for atom in self.atoms)

    def keys(self, cells: RuleCells) -> Tensor:
        """The keys of each row that it names.  -> bool, [text or 1, row or 1, key]"""
        return reduce(or_, (reduce(and_, (_named(atom, cells) for atom in each)) for each in self.clauses))


def _named(atom: TextPart, cells: RuleCells) -> Tensor:
    if not atom.relative:
        return cells.find(atom)
    assert cells.gaps is not None
    if atom.step is not None:
        return (cells.gaps == atom.step)[None]
    if atom.text == SAME:
        return (cells.rows == cells.keys) & (cells.gaps != 0)
    return (cells.rows == cells.before) & (cells.gaps <= 0)


def parse_rule(text: str) -> Rule:
    """Read ``-1``, ``special or same``, ``/^[A-Z]/ and -2``.

    An atom is a part of a text (a word, special, /regex/, a token's number), a distance, or ``same``, another
    occurrence of the row's token, or ``after same``, what followed an earlier one. Raises ``SelectionError``.
    """
    clauses = [[atom.strip() for atom in _split(clause, "and")] for clause in _split(text, "or")]
    for atom in chain(*clauses):
        first, *others = atom.split() or ("and", "")
        if others and {first, others[-1]} & {"and", "or"}:
            raise SelectionError(f"cannot read the rule {text!r}: write one like '-1 or special'")
    return Rule(tuple(tuple(map(part_of, atoms)) for atoms in clauses))


def _split(text: str, word: str) -> list[str]:
    """What stands between some words, quotes and slashes aside."""
    pieces = [""]
    for piece in re.split(rf"({WHOLE}|\s+{word}(?=\s))", f"{text} "):
        if piece.strip() == word and piece[:1].isspace():
            pieces.append("")
        else:
            pieces[-1] += piece
    return pieces


@dataclass(frozen=True, slots=True)
class Question:
    """How much of the attention of one part goes to another, or to the keys that a rule names."""

    left: TextPart
    right: TextPart
    rule: Rule | None = None  # of the right part, where it is more than one part of a text

    def __str__(self) -> str:
        return f"{self.left.text} -> {self.right.text}"

    @property
    def step(self) -> int | None:
        """How many tokens each key is from its row, where one side is such a number."""
        return self.right.step if self.left.step is None else -self.left.step

    @property
    def whole(self) -> Rule:
        """What it asks about as a rule; a step on the left is one of its atoms."""
        rule = self.rule or Rule(((self.right,),))
        if self.left.step is None:
            return rule
        step = part_of(f"{-self.left.step:+d}")
        return Rule(tuple((step, *clause) for clause in rule.clauses))

    @property
    def varying(self) -> Rule | None:
        """The same if its keys are found row by row: those of a rule, or of a step."""
        return None if self.rule is None and self.step is None else self.whole


def parse_questions(text: str) -> tuple[Question, ...]:
    """``it -> cat``, or both ways: ``it <-> cat``; a rule alone, ``same or +0``, is about every row.

    Raises ``SelectionError`` for what is not a question.
    """
    sides = SIDES.fullmatch(text.strip()) or (SIDES.fullmatch(f"* -> {text}") if is_rule(text) else None)
    left, right = (sides[side].strip() if sides else "" for side in ("left", "right"))
    if sides is None or not left or not RIGHT.fullmatch(right):
        raise SelectionError(f"{text!r} is not a question: write FROM -> TO, like 'it -> cat'; {HELP}")
    one, rule = part_of(left), parse_rule(right)
    if one.text in (SAME, AFTER_SAME):
        raise SelectionError(f"{left} names keys of a row, on the right: quote the word, '{left}' -> {right}")
    plain = len(rule.atoms) == 1 and right not in (SAME, AFTER_SAME)
    other = part_of(right) if plain else TextPart(right)
    if one.step is not None and (other.step is not None or (not plain and rule.relative)):
        raise SelectionError(
            f"{text!r} counts tokens on both sides: one side is a part, as in '* -> {right}'"
        )
    there = Question(one, other, None if plain else rule)
    if sides["arrow"] == "->":
        return (there,)
    if not plain:
        raise SelectionError(f"{text!r} asks a rule for its rows: write '{left} -> {right}'")
    return there, Question(other, one)


def is_rule(text: str) -> bool:
    """Whether a text is a rule that needs no arrow: none of its atoms is a mere word."""
    atoms = (atom.strip() for clause in _split(text, "or") for atom in _split(clause, "and"))
    return all(map(ATOM.fullmatch, atoms))


def patterns_of(parts: Iterable[TextPart]) -> Patterns:
    """What finds the tokens of these parts."""
    return {part.text: partial(_find, part) for part in parts if not part.relative}


def _find(part: TextPart, tokens: tuple[Token, ...]) -> Iterable[int]:
    return chain.from_iterable(part.tokens(tokens))


@MEASURES.register_family("rule(...)", r"rule\((.{1,200})\)")
def rule_measure(name: str, text: str) -> Measure:
    """How often a rule says where a head looks: ``rule(-1 or special)``."""
    rule = parse_rule(text)

    def named(block: Block) -> Tensor:
        return rule.keys(RuleCells.of_block(block))

    named.__doc__ = f"Share of rows whose largest weight, above {LEAST_PEAK}, is on a key of {rule}"
    formula = f"[max_j A[i, j] > {LEAST_PEAK} at a key j that is {rule}]"
    return Measure(name, OnRule(named, patterns_of(rule.atoms)), formula, "this program")


@MEASURES.register_family("find(...)", r"find\((.{1,200})\)")
def question_measure(name: str, text: str) -> Measure:
    """How much attention goes to what a question asks for: ``find(it -> cat)``."""
    question, *others = parse_questions(text)
    if others:
        raise SelectionError(f"{text!r} are two questions: write ->")
    left, rule = question.left, question.whole
    asks_all = left.everything or left.step is not None

    def asked(block: Block) -> tuple[Tensor, Tensor]:
        cells = RuleCells.of_block(block)
        assert block.queries is not None
        ids, matches = block.queries.ids, block.queries.matches
        return torch.ones_like(ids, dtype=torch.bool) if asks_all else matches[left.text], rule.keys(cells)

    asked.__doc__ = f"Weight on the keys of {question.right.text} in rows of {left.text}"
    form = OnRelation if rule.relative else OnQuestion
    patterns = patterns_of((*rule.atoms, *([] if asks_all else [left])))
    formula = f"Σ_j A[i, j] · [j is {question.right.text}]"
    return Measure(name, form(asked, patterns), formula, "this program")
