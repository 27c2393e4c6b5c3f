"""Which keys a head attends to, in the words of ``find``; each rule is a measure, ``rule(-1 or special)``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain
from operator import and_, or_
from typing import TYPE_CHECKING, TypeAlias

from attnscope.attention import Token
from attnscope.errors import SelectionError
from attnscope.lazy import torch
from attnscope.measures.block import KEY_PATTERNS, Block
from attnscope.measures.forms import LEAST_PEAK, MEASURES, Measure, OnRule
from attnscope.measures.standard import NO_TOKEN
from attnscope.questions.parts import TextPart, part_of
from attnscope.text import read_number

if TYPE_CHECKING:
    from torch import Tensor

SAME, AFTER_SAME = "same", "after same"

Keys: TypeAlias = "Callable[[Block], Tensor]"  # which keys of each row, bool, [text or 1, row or 1, key]


@dataclass(frozen=True)
class Rule:
    """Clauses of which one must hold, each of atoms that all must hold; see ``parse_rule``."""

    clauses: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return " or ".join(" and ".join(clause) for clause in self.clauses)

    def keys(self, block: Block) -> Tensor:
        """The keys of each row that it names.  -> bool, [text or 1, row or 1, key]"""
        return reduce(or_, (reduce(and_, (_keys(atom)(block) for atom in each)) for each in self.clauses))


def parse_rule(text: str) -> Rule:
    """Read ``-1``, ``special or same``, ``/^[A-Z]/ and -2``.

    An atom is a part of a question of ``find`` (a word, special, /regex/, a token's number, a distance), or
    ``same``, another occurrence of the row's token, or ``after same``, what followed an earlier one. Raises
    ``SelectionError``.
    """
    both = (re.split(r"\s+and\s+", clause) for clause in re.split(r"\s+or\s+", text))
    clauses = tuple(tuple(atom.strip() for atom in atoms) for atoms in both)
    for atom in chain(*clauses):
        if not atom or {atom.split()[0], atom.split()[-1]} & {"and", "or"}:
            raise SelectionError(f"cannot read the rule {text!r}: write one like '-1 or special'")
        _keys(atom)
    return Rule(clauses)


def _keys(atom: str) -> Keys:
    """The keys that an atom names. Raises ``SelectionError`` for an invalid regular expression."""
    if atom == SAME:
        return _same
    if atom == AFTER_SAME:
        return _after_same
    part, number = part_of(atom), read_number(atom)
    if part.step is not None:
        return partial(_at_step, part.step)
    if number is not None:
        return partial(_at_place, number)
    KEY_PATTERNS.setdefault(atom, partial(_find, part))
    return partial(_at_pattern, list(KEY_PATTERNS).index(atom))


def _find(part: TextPart, tokens: tuple[Token, ...]) -> Iterable[int]:
    return chain.from_iterable(part.tokens(tokens))


def _at_step(step: int, block: Block) -> Tensor:
    return (block.gaps == step)[None]


def _at_place(place: int, block: Block) -> Tensor:
    return (block.gaps + block.positions[:, None] == place)[None]


def _at_pattern(number: int, block: Block) -> Tensor:
    assert block.keys is not None
    return block.of_keys(block.keys.matches[..., number])


def _same(block: Block) -> Tensor:
    assert block.queries is not None
    assert block.keys is not None
    return (block.queries.ids[..., None] == block.of_keys(block.keys.ids)) & (block.gaps != 0)


def _after_same(block: Block) -> Tensor:
    assert block.queries is not None
    assert block.keys is not None
    before = torch.nn.functional.pad(block.keys.ids[:, :-1], (1, 0), value=NO_TOKEN)
    return (block.queries.ids[..., None] == block.of_keys(before)) & (block.gaps <= 0)


@MEASURES.register_family("rule(...)", r"rule\((.{1,200})\)")
def rule_measure(name: str, text: str) -> Measure:
    """How often a rule says where a head looks: ``rule(-1 or special)``."""
    rule = parse_rule(text)

    def named(block: Block) -> Tensor:
        return rule.keys(block)

    named.__doc__ = f"Share of rows whose largest weight, above {LEAST_PEAK}, is on a key of {rule}"
    formula = f"[max_j A[i, j] > {LEAST_PEAK} at a key j that is {rule}]"
    return Measure(name, OnRule(named), formula, "this program")
