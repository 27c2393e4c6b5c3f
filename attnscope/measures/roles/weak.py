"""Weak roles: a pattern below its threshold that hardly any other head of the model has.

An induction head at 0.3 among heads at 0.01 is told, with its rank. A head is weak at a pattern of position
or of repeats when its score

- is at least a quarter of the threshold and ``TIMES`` its baseline, and beyond chance;
- is no shoulder of something else (``role.py``);
- stands ``OUTLYING`` deviations above the median of the model's heads, the deviation being the median one;
- is the head's strongest, and among the best tenth of the heads of one kind of attention (the best, where
  they are few), of which there are at least ``FEWEST_HEADS``.

Resting places (first, special, punctuation) have no weak form: there all rows look at one key, which with
random weights is any, so that a text holds a single sample however many rows it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from attnscope.figures import WEAK, Figure, HeadFigures, Role
from attnscope.measures.roles.role import (
    NONE,
    PATTERNS,
    POSITIONAL,
    RESTING,
    Pattern,
    is_beyond_chance,
    is_no_shoulder,
    pattern_words,
    patterns_of,
    role_name,
    score,
)

WEAK_ROLES = tuple(WEAK + name for name in (*PATTERNS, POSITIONAL) if name not in RESTING)
"""Every weak role."""

ROLES = (*PATTERNS, POSITIONAL, *WEAK_ROLES, "broad", NONE)
"""Every role."""

PART = 0.25
"""The part of a pattern's threshold that a weak head reaches."""

TIMES = 3
"""How many times its baseline the score is."""

OUTLYING = 7
"""How many median deviations it stands above the median head. A deviation is at least ``FINEST``."""

FINEST = 0.01

FEWEST_HEADS = 8
"""Among fewer heads none is called unlike the others."""

BEST = 0.1
"""The part of the heads that may be weak at one pattern; one always may."""


def name_weak(heads: Sequence[HeadFigures]) -> list[HeadFigures]:
    """The heads of one kind of attention, those without a role that are unlike the others with a weak one."""
    weak = zip(heads, _find_weak(heads), strict=True)
    return [replace(head, role=found or head.role) for head, found in weak]


def _find_weak(heads: Sequence[HeadFigures]) -> Iterator[Role | None]:
    """The weak role of each head, if it has one."""
    patterns = patterns_of({name for head in heads for name in head.figures})
    patterns = {name: pattern for name, pattern in patterns.items() if name not in RESTING}
    lifts = {name: [head.figures[name].lift for head in heads if name in head.figures] for name in patterns}
    least = {name: _least(lifts[name]) for name in patterns}
    for head in heads:
        figures = head.figures
        known = [name for name in patterns if name in figures]
        if head.role is None or head.role.name != NONE or not known:
            yield None
            continue
        name = max(known, key=lambda name: figures[name].lift)
        found = None
        if figures[name].lift > least[name] and _is_weak(figures, name, patterns[name]):
            rank = 1 + sum(lift > figures[name].lift for lift in lifts[name])
            found = _name(name, patterns[name], figures[name], f"{_ordinal(rank)} of {len(heads):,}")
        yield found


def _is_weak(figures: Mapping[str, Figure], name: str, pattern: Pattern) -> bool:
    figure = figures[name]
    return (
        figure.value >= max(PART * pattern.threshold, TIMES * figure.baseline)
        and is_beyond_chance(figure)
        and is_no_shoulder(figures, name)
    )


def _least(lifts: Sequence[float]) -> float:
    """The lift that stands out from those of most heads, and that few heads exceed."""
    if len(lifts) < FEWEST_HEADS:
        return float("inf")
    middle = median(lifts)
    deviation = max(median(abs(lift - middle) for lift in lifts), FINEST)
    few = max(1, int(BEST * len(lifts)))
    return max(middle + OUTLYING * deviation, sorted(lifts)[-few - 1])


def _name(name: str, pattern: Pattern, figure: Figure, rank: str) -> Role:
    words = replace(pattern, words=f"weakly {pattern.words}")
    sentence = f"{pattern_words(words, figure)} {score(figure)}, {rank} heads"
    return Role(WEAK + role_name(name), figure.value, figure.baseline, figure.rows, sentence)


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in (11, 12, 13) else 0, "th")
    return f"{number:,}{ending}"
