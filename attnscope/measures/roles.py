"""Roles: what a head does in one word and one sentence, from its figures.

A head's role is its strongest pattern. A pattern passes when its score reaches its threshold, stands at
least ``LEAST_LIFT`` above the baseline (on three tokens even attention puts 0.67 on two special ones) and
counted in at least ``FEWEST_ROWS`` rows. The strongest of those that pass is the one with the greatest lift,
score minus baseline: [CLS] is the first token and a special one, and the lift names the head `first` unless
[SEP] adds more to `special` than to its baseline. Equal lifts fall to the pattern named first below. Without
a pattern, a head is `broad` when its spread exceeds ``BROAD``, else `mixed`.

Rows with one open key have no choice and are left out, so that a role's score can differ a little from
the figure of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite

from attnscope.figures import Figure, HeadFigures, Role
from attnscope.text import round_short

POSITION = 0.5
"""Threshold of previous, next and self."""

TARGET = 0.6
"""Threshold of first, special and punctuation: resting places, that take more to stand out."""

REPEAT = 0.4
"""Threshold of duplicate and induction."""

BROAD = 0.9
"""A head without a pattern is broad when its spread exceeds this."""

LEAST_LIFT = 0.1
"""A pattern's score must stand this far above its baseline."""

FEWEST_ROWS = 3
"""A pattern must count in as many rows."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A measure that can be a head's role: its threshold and the words for it."""

    threshold: float
    words: str


PATTERNS: Mapping[str, Pattern] = {
    "previous": Pattern(POSITION, "looks at the previous token"),
    "next": Pattern(POSITION, "looks at the next token"),
    "self": Pattern(POSITION, "looks at the token itself"),
    "induction": Pattern(REPEAT, "looks at what followed the same token earlier"),
    "duplicate": Pattern(REPEAT, "looks at the same token elsewhere"),
    "first": Pattern(TARGET, "looks at the first token"),
    "punctuation": Pattern(TARGET, "looks at punctuation"),
    "special": Pattern(TARGET, "looks at special tokens"),
}
"""Every pattern, by the name of its measure."""

POSITIONAL = "positional"
"""The role of a head that looks at another fixed distance, where it was measured: ``offset=-2``."""

ROLES = (*PATTERNS, POSITIONAL, "broad", "mixed")
"""Every role."""

ROLE_MEASURES = (*PATTERNS, "spread")
"""The measures that make up roles."""


def role(figures: Mapping[str, Figure]) -> Role | None:
    """The role of a head, from its figures over rows with a choice; ``None`` if none of them counts.

    A head with a figure that is no finite number, because a weight is none, has no role either.
    Figures that do not exist for the head (positions in cross-attention) are simply not in ``figures``.
    For ``broad`` and ``mixed``, score and baseline are those of the spread.
    """
    if not all(isfinite(figure.value) for figure in figures.values()):
        return None
    patterns = {**PATTERNS, **_distances(figures)}
    known = {name: figures[name] for name in patterns if name in figures}
    passing = [name for name, figure in known.items() if _passes(patterns[name], figure)]
    if passing:
        name = max(passing, key=lambda name: known[name].lift)
        figure, sentence = known[name], _pattern_sentence(patterns[name], known[name])
        return Role(
            name if name in PATTERNS else POSITIONAL, figure.value, figure.baseline, figure.rows, sentence
        )
    spread = figures.get("spread")
    if spread is None:
        return None
    if spread.value > BROAD:
        words = f"spreads over all tokens (spread {spread.value:.2f}, 1.00 is even)"
        return Role("broad", spread.value, spread.baseline, spread.rows, words)
    words = "mixes several patterns"
    nearest = max(known, key=lambda name: known[name].lift, default=None)
    if nearest is not None and known[nearest].lift > 0:
        figure = known[nearest]
        words = f"no single pattern stands out; most of all it {patterns[nearest].words} {_score(figure)}"
    return Role("mixed", spread.value, spread.baseline, spread.rows, words)


def _passes(pattern: Pattern, figure: Figure) -> bool:
    return figure.value >= pattern.threshold and figure.lift >= LEAST_LIFT and figure.rows >= FEWEST_ROWS


def _distances(figures: Iterable[str]) -> dict[str, Pattern]:
    """The measured distances that have no name of their own, as patterns."""
    steps = {name: int(name.removeprefix("offset=")) for name in figures if name.startswith("offset=")}
    return {
        name: Pattern(POSITION, f"looks {abs(step):,} tokens {'back' if step < 0 else 'ahead'}")
        for name, step in steps.items()
        if abs(step) > 1
    }


def _pattern_sentence(pattern: Pattern, figure: Figure) -> str:
    where = f" in the {figure.rows} rows that have one" if pattern.threshold == REPEAT else ""
    return f"{pattern.words}{where} {_score(figure)}"


def _score(figure: Figure) -> str:
    return f"({figure.value:.2f}, baseline {round_short(figure.baseline)})"


def worth_a_look(heads: Iterable[HeadFigures], count: int) -> list[HeadFigures]:
    """The ``count`` heads most worth a look, most telling first, of as many different roles as there are.

    Heads are dealt in rounds: each round takes the best head left of every role, ordered by lift, so that
    thirty heads on [CLS] do not hide the one that copies. Roles with a pattern rank by lift, `broad` heads
    by spread after them in each round; `mixed` heads come last of all, by how uneven they are.
    """
    by_role: dict[str, list[HeadFigures]] = {}
    for head in heads:
        if head.role is not None:
            by_role.setdefault(head.role.name, []).append(head)
    for group in by_role.values():
        group.sort(key=_interest, reverse=True)
    mixed = by_role.pop("mixed", [])
    chosen: list[HeadFigures] = []
    while any(by_role.values()) and len(chosen) < count:
        round_ = [group.pop(0) for group in by_role.values() if group]
        chosen += sorted(round_, key=_interest, reverse=True)
    return (chosen + mixed)[:count]


def _interest(head: HeadFigures) -> float:
    """Lift of a pattern (0.1 to 1); below every pattern: broad heads by spread, mixed ones by unevenness."""
    assert head.role is not None
    if head.role.name == "broad":
        return head.role.score - 2
    return head.role.lift if head.role.name != "mixed" else -head.role.score
