"""Questions about two parts of a text: ``it -> cat``. Parsed, never run as code."""

from __future__ import annotations

import re
from dataclasses import dataclass

from attnscope.analysis.questions.parts import Part, part_of
from attnscope.errors import SelectionError

HELP = (
    "write a word (cat), one of several (cat#2), a token's number (5), a quoted phrase ('the mat'), [CLS], "
    "special, punctuation, image, image 2, sound, /regex/, or *; on one side also a number of tokens from "
    "the other (-2, +1); what has an arrow in it stands in quotes"
)

CLOSED = r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|/(?:\\.|[^/\\])*/)(?:\#\d+)?"""
"""A phrase or a regular expression up to where its quotes or strokes close: an arrow may be in it."""

SIDES = re.compile(rf"(?P<left>{CLOSED}|(?:(?!<?->).)+)\s*(?P<arrow><?->)(?P<right>.*)", re.S)

RIGHT = re.compile(rf"{CLOSED}|(?:(?!<?->).)+", re.S)


@dataclass(frozen=True, slots=True)
class Question:
    """How much of the attention of one part goes to another."""

    left: Part
    right: Part

    def __str__(self) -> str:
        return f"{self.left.text} -> {self.right.text}"


def parse_questions(text: str) -> tuple[Question, ...]:
    """``it -> cat``, or both ways: ``it <-> cat``. Raises ``SelectionError`` for what is no question."""
    sides = SIDES.fullmatch(text.strip())
    left, right = (sides[side].strip() if sides else "" for side in ("left", "right"))
    if sides is None or not left or not RIGHT.fullmatch(right):
        raise SelectionError(f"{text!r} is no question: write FROM -> TO, like 'it -> cat'; {HELP}")
    one, other = part_of(left), part_of(right)
    if one.step is not None and other.step is not None:
        raise SelectionError(
            f"{text!r} counts tokens on both sides: one side is a part, as in '* -> {right}'"
        )
    there = Question(one, other)
    return (there,) if sides["arrow"] == "->" else (there, Question(other, one))


def is_question(text: str) -> bool:
    """Whether an argument is a question, and no text."""
    return "->" in text
