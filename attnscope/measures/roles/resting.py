"""Resting places: whether more heads of a model rest there than chance puts there.

A head that looks at one key from every row may look at a special token or at a full stop by chance. All its
rows are then a single sample, so that no number of rows makes it sure, and a short text has few other keys.
But the heads of a model are samples. Of the heads whose largest weights would do, each rests at a
pattern's keys by chance as often as the baseline says. The role is theirs if that puts as many of them there
as there are in at most one of twenty models, or hardly any there at all: at most one of a hundred heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import exp, lgamma, log, log1p
from statistics import fmean

from attnscope.figures import HeadFigures, Role
from attnscope.measures.roles.role import NONE, PATTERNS, RESTING, score, strongest
from attnscope.measures.roles.weak import FEWEST_HEADS, name_weak

LEVEL = 0.05
"""One of twenty models."""

HARDLY = 0.01
"""One of a hundred heads."""


def settle_roles(heads: Sequence[HeadFigures]) -> tuple[HeadFigures, ...]:
    """The heads of a model with the roles that can be told when all heads are known."""
    settled = list(heads)
    for kind in {head.site.kind for head in heads}:
        alike = [number for number, head in enumerate(heads) if head.site.kind == kind]
        roles = _doubt([heads[number] for number in alike])
        doubted = [replace(heads[number], role=role) for number, role in zip(alike, roles, strict=True)]
        for number, head in zip(alike, name_weak(doubted), strict=True):
            settled[number] = head
    return tuple(settled)


def _doubt(heads: Sequence[HeadFigures]) -> Iterator[Role | None]:
    """The role of each of the heads of one kind, without resting places that may be chance."""
    sure = {name: PATTERNS[name] for name in RESTING if _is_sure(heads, name)}
    for head in heads:
        role, spread = head.role, head.figures.get("spread")
        if role is None or role.name not in RESTING or role.name in sure or len(heads) < FEWEST_HEADS:
            yield role
            continue
        known = {name: pattern for name, pattern in sure.items() if name in head.figures}
        words = f"{PATTERNS[role.name].words} {score(head.figures[role.name])}, as heads may by chance"
        none = replace(role, name=NONE, sentence=f"no pattern stands out; most of all it {words}")
        if spread is not None:
            none = replace(none, score=spread.value, baseline=spread.baseline, rows=spread.rows)
        yield strongest(known, head.figures) or none


def _is_sure(heads: Sequence[HeadFigures], name: str) -> bool:
    """Whether chance puts so many heads there in at most ``LEVEL`` of all models, or hardly any at all."""
    pattern = PATTERNS[name]
    figures = [(head.figures[name], head.figures.get("confidence")) for head in heads if name in head.figures]
    resting = sum(figure.value >= pattern.threshold for figure, _ in figures)
    able = sum(
        max(figure.value, largest.value if largest else 0) >= pattern.threshold for figure, largest in figures
    )
    if not resting:
        return False
    chance = fmean(figure.baseline for figure, _ in figures)
    return able * chance <= HARDLY * len(heads) or _tail(able, resting, chance) <= LEVEL


def _tail(count: int, least: int, chance: float) -> float:
    """How likely of ``count`` draws at least ``least`` succeed, each with the same chance."""
    if not 0 < chance < 1:
        return chance
    ways = (lgamma(count + 1) - lgamma(k + 1) - lgamma(count - k + 1) for k in range(least, count + 1))
    logs = (way + k * log(chance) + (count - k) * log1p(-chance) for k, way in enumerate(ways, least))
    return sum(map(exp, logs))
