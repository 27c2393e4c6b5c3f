"""Claims about heads that hold or fail: ``L0H2.previous > 0.9``. Parsed, never run as code."""

from __future__ import annotations

import json
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from attnscope.attention import Head
from attnscope.errors import InputError, SelectionError
from attnscope.measures import Figure, HeadFigures
from attnscope.questions.stats import OPERATORS, Condition, Stats, parse_conditions
from attnscope.records import Meaning, derived, record
from attnscope.storage.files import read_json, write_whole

COUNTED = {**OPERATORS, "=": operator.eq, "==": operator.eq, "!=": operator.ne}
"""How a number of heads is compared; a figure is never equal to a number that somebody writes."""


@record("a claim")
@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, and the evidence in words."""

    claim: Annotated[str, Meaning("as it was made")]
    holds: Annotated[bool, Meaning("whether it holds")]
    evidence: Annotated[str, Meaning("what was found", name="figures")]


@dataclass(frozen=True)
class Claim(ABC):
    """A sentence about heads; ``names`` are the measures that it speaks of."""

    text: str

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The measures that must be taken to judge it."""

    @abstractmethod
    def judge(self, heads: Sequence[HeadFigures]) -> Verdict:
        """Whether it holds. Raises ``SelectionError`` for a head that does not exist."""


@dataclass(frozen=True)
class _OneHead(Claim):
    """``L0H2.previous > 0.9``, ``cross.L0H2.entropy < 1`` or ``L0H2.role = previous``."""

    head: Head
    condition: Condition

    @property
    def names(self) -> tuple[str, ...]:
        return _names([self.condition])

    def judge(self, heads: Sequence[HeadFigures]) -> Verdict:
        name, kind = self.head.name, self.head.kind
        meant = [head for head in heads if head.name == name and kind in (None, head.site.kind)]
        if len({head.site.kind for head in meant}) > 1:
            raise SelectionError(f"which {name}? write {' or '.join(f'{h.site.kind}.{name}' for h in meant)}")
        if not meant:
            last = f"{heads[0].name} to {heads[-1].name}"
            raise SelectionError(f"no head {kind + '.' if kind else ''}{name}: there are {last}")
        (head,) = meant
        if self.condition.name == "role":
            evidence = head.role.name if head.role is not None else "no role"
        else:
            figure = head.figures.get(self.condition.name)
            evidence = head.absent[self.condition.name] if figure is None else figure_text(figure)
        return Verdict(self.text, self.condition.meets(head), evidence)


@dataclass(frozen=True)
class _SomeHead(Claim):
    """``any.induction > 0.4`` or ``all.entropy < 3``, over the heads that have such a figure."""

    every: bool
    condition: Condition

    @property
    def names(self) -> tuple[str, ...]:
        return _names([self.condition])

    def judge(self, heads: Sequence[HeadFigures]) -> Verdict:
        name = self.condition.name
        if name == "role":
            met = sum(self.condition.meets(head) for head in heads)
            holds = met == len(heads) if self.every else met > 0
            return Verdict(self.text, holds, f"{met} of {len(heads)} heads")
        known = [head for head in heads if name in head.figures]
        if not known:
            return Verdict(self.text, False, f"no head has it: {heads[0].absent[name]}")
        largest = self.condition.sign.startswith(">") != self.every  # the head that decides
        deciding = (max if largest else min)(known, key=lambda head: head.figures[name].value)
        evidence = f"{figure_text(deciding.figures[name])}, {deciding.site.kind} {deciding.name}"
        return Verdict(self.text, self.condition.meets(deciding), evidence)


@dataclass(frozen=True)
class _Count(Claim):
    """``count(previous > 0.5 and entropy < 1) >= 2``."""

    conditions: tuple[Condition, ...]
    sign: str
    wanted: float

    @property
    def names(self) -> tuple[str, ...]:
        return _names(self.conditions)

    def judge(self, heads: Sequence[HeadFigures]) -> Verdict:
        met = [head for head in heads if all(condition.meets(head) for condition in self.conditions)]
        listed = ", ".join(head.name for head in met[:4]) + (", ..." if len(met) > 4 else "")
        holds = COUNTED[self.sign](len(met), self.wanted)
        return Verdict(self.text, holds, f"{len(met)}{': ' if met else ''}{listed}")


def claim(text: str) -> Claim:
    """Read ``L0H2.previous > 0.9``, ``L0H2.role = previous``, ``any.induction > 0.4``, ``all.entropy < 3`` or
    ``count(previous > 0.5) >= 2``; a kind may stand before a head, ``cross.L0H2.entropy < 1``.

    Raises ``SelectionError`` for anything else.
    """
    plain = text.strip()
    counted = re.fullmatch(r"count\((.*)\)\s*(<=|>=|!=|==?|<|>)\s*(\d{1,9})", plain, re.ASCII)
    if counted is not None:
        return _Count(plain, parse_conditions(counted[1]), counted[2], float(counted[3]))
    some = re.fullmatch(r"(any|all)\.(.+)", plain)
    if some is not None:
        return _SomeHead(plain, some[1] == "all", _single(some[2], plain))
    one = re.fullmatch(r"((?:\w+\.)?[Ll]\d+[Hh]\d+)\.(.+)", plain, re.ASCII)
    if one is not None:
        return _OneHead(plain, Head(one[1]), _single(one[2], plain))
    raise SelectionError(
        f"cannot read the claim {text!r}: write one like 'L0H2.previous > 0.9', 'L0H2.role = previous', "
        "'any.induction > 0.4', 'all.entropy < 3' or 'count(previous > 0.5) >= 2'"
    )


def figure_text(figure: Figure) -> str:
    """A figure with its standard error, if it has one."""
    return f"{figure.value:.4g}" + ("" if figure.error is None else f" ±{figure.error:.2g}")


def _single(text: str, claim: str) -> Condition:
    conditions = parse_conditions(text)
    if len(conditions) > 1:
        raise SelectionError(f"the claim {claim!r} says two things: make it two claims")
    return conditions[0]


def _names(of: Iterable[Condition]) -> tuple[str, ...]:
    return tuple(condition.name for condition in of if condition.name != "role")


FORMAT = 1


@record("a figure that changed")
@dataclass(frozen=True)
class Change:
    """A figure that differs by more than was tolerated; ``None`` where there is none."""

    head: Annotated[str, Meaning("its head")]
    measure: Annotated[str, Meaning("its measure")]
    before: Annotated[float | None, Meaning("in the snapshot")]
    now: Annotated[float | None, Meaning("in this run")]


@record("claims and what became of them")
@dataclass(frozen=True)
class Checked:
    """Verdicts on claims, and what differs from a snapshot, if there was one to compare with."""

    claims: Annotated[tuple[Verdict, ...], Meaning("every claim")]
    changes: Annotated[tuple[Change, ...] | None, Meaning("with --against")] = None

    @property
    @derived("whether every claim holds and no figure changed")
    def holds(self) -> bool:
        """Whether all is as it was said to be."""
        return all(verdict.holds for verdict in self.claims) and not self.changes


def save_snapshot(stats: Stats, path: Path) -> None:
    """Write every figure of every head as JSON. Raises ``OutputError``."""
    content = {"attnscope snapshot": FORMAT, "title": stats.title, "heads": _figures(stats)}
    write_whole(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def changes(stats: Stats, path: Path, tolerance: float) -> list[Change]:
    """What differs from a snapshot, head by head.

    ``tolerance`` is absolute for figures up to 1, and relative to the snapshot's figure for larger ones. A
    head or figure that only one of the two has is a change. Raises ``InputError`` for a file that is no
    snapshot.
    """
    try:
        content = read_json(path)
        if content["attnscope snapshot"] != FORMAT:
            raise KeyError
        before: dict[str, dict[str, float]] = {
            str(head): {str(name): float(value) for name, value in figures.items()}
            for head, figures in content["heads"].items()
        }
    except FileNotFoundError:
        raise InputError(f"no such file: {path}; --save makes one") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{path} is no snapshot that attnscope check saved") from None
    now = _figures(stats)
    changed = []
    for head in dict.fromkeys((*before, *now)):
        old, new = before.get(head, {}), now.get(head, {})
        for name in dict.fromkeys((*old, *new)):
            was, is_ = old.get(name), new.get(name)
            if was is None or is_ is None or not abs(is_ - was) <= tolerance * max(1.0, abs(was)):
                changed.append(Change(head, name, was, is_))
    return changed


def _figures(stats: Stats) -> dict[str, Any]:
    """By head, the values by measure."""
    return {
        f"{head.site.kind} {head.name}": {name: figure.value for name, figure in head.figures.items()}
        for head in stats.heads
    }
