"""Conditions on heads, as ``--where`` and the claims of ``check`` have them: ``entropy<1 and role=none``."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from math import isfinite

from attnscope.errors import SelectionError
from attnscope.measures import MEASURES, ROLES, HeadScores
from attnscope.questions.rules import rule_measure as rule_measure  # declares rule(...), find(...)
from attnscope.registry import nearest_name

OPERATORS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}

RULE = r"(?:rule|find)\(.+?\)(?=\s*[<>=!])"
NAME = RULE + r"|offset=[+-]?\d+|distance2d=\d+|window=\d+\+\d+|\[[^\[\]\s]+\]|<[^<>\s]+>|\w+"
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
CONDITION = re.compile(rf"({NAME})\s*(<=|>=|!=|<|>|=)\s*([\w.+-]+(?: [\w()]+)*)", re.ASCII)


@dataclass(frozen=True)
class Condition:
    """``entropy<1`` or ``role=previous``; ``meets`` is False for a head without such a score."""

    name: str
    sign: str
    wanted: str

    def meets(self, head: HeadScores) -> bool:
        """Whether a head meets it."""
        if self.name == "role":
            return (head.role is not None and head.role.name == self.wanted) == (self.sign == "=")
        score = head.scores.get(self.name)
        return score is not None and bool(OPERATORS[self.sign](score.value, float(self.wanted)))


def parse_conditions(text: str) -> tuple[Condition, ...]:
    """Read ``entropy<1 and role=none``: parsed, never run as code. Raises ``SelectionError``."""
    beyond = r"(?!(?:(?!rule\(|find\().)*?\)\s*[<>=!])"  # the end of rule(...), find(...)
    parts = re.split(rf"\s+and\s+{beyond}", text.strip())
    return tuple(_condition(part.strip()) for part in parts)


def _condition(text: str) -> Condition:
    match = CONDITION.fullmatch(text)
    if match is None:
        raise SelectionError(f"cannot read {text!r}: write conditions like entropy<1 and role=previous")
    name, sign, wanted = match.groups()
    why = ""
    if name == "role":
        if sign not in ("=", "!=") or wanted not in ROLES:
            why = f"{nearest_name(wanted, ROLES)}write role=NAME or role!=NAME, of {', '.join(ROLES)}"
    elif MEASURES[name] and (NUMBER.fullmatch(wanted) is None or not isfinite(float(wanted))):
        why = f"{wanted!r} is no number"
    elif sign not in OPERATORS:
        why = f"compare a score by {', '.join(OPERATORS)}: it never equals a number exactly"
    if why:
        raise SelectionError(f"cannot read {text!r}: {why}")
    return Condition(name, sign, wanted)
