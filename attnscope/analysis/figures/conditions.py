"""Conditions on heads, like ``entropy<1 and role=previous``: parsed, never run as code."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite

from attnscope.errors import SelectionError
from attnscope.measures import MEASURES, ROLES, HeadFigures
from attnscope.registry import nearest_name

OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}

NAME = r"offset=[+-]?\d+|\[[^\[\]\s]+\]|<[^<>\s]+>|\w+"
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
CONDITION = re.compile(rf"({NAME})\s*(<=|>=|!=|<|>|=)\s*([\w.+-]+|weak \w+)", re.ASCII)


@dataclass(frozen=True)
class Condition:
    """``entropy<1`` or ``role=previous``; ``meets`` is false for a head that has no such figure."""

    name: str
    sign: str
    wanted: str

    def meets(self, head: HeadFigures) -> bool:
        """Whether a head is meant."""
        if self.name == "role":
            return (head.role is not None and head.role.name == self.wanted) == (self.sign == "=")
        figure = head.figures.get(self.name)
        return figure is not None and OPERATORS[self.sign](figure.value, float(self.wanted))


def parse_conditions(text: str) -> tuple[Condition, ...]:
    """Read ``entropy<1 and previous>0.5 and role=none``. It is parsed, never run as code.

    Raises ``SelectionError`` for anything else.
    """
    return tuple(_condition(part.strip()) for part in re.split(r"\s+and\s+", text.strip()))


def _condition(text: str) -> Condition:
    match = CONDITION.fullmatch(text)
    if match is None:
        raise SelectionError(f"cannot read {text!r}: write conditions like entropy<1 and role=previous")
    name, sign, wanted = match.groups()
    if name == "role":
        if sign not in ("=", "!=") or wanted not in ROLES:
            raise SelectionError(
                f"cannot read {text!r}: {nearest_name(wanted, ROLES)}write role=NAME or role!=NAME, of "
                f"{', '.join(ROLES)}"
            )
        return Condition(name, sign, wanted)
    MEASURES[name]
    if NUMBER.fullmatch(wanted) is None or not isfinite(float(wanted)):
        raise SelectionError(f"cannot read {text!r}: {wanted!r} is no number")
    if sign not in OPERATORS:
        raise SelectionError(
            f"cannot read {text!r}: compare a figure with {', '.join(OPERATORS)}, as none equals a number"
        )
    return Condition(name, sign, wanted)
