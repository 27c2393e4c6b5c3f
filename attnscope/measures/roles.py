"""Roles: what a head does in one word and one sentence, from its scores.

``README.md`` says what makes a role, a weak role, and the role of an attention sink, and why.

The strongest pattern is the one with the greatest lift, score minus baseline: [CLS] is the first token and a
special one, and the lift names the head `first` unless [SEP] adds more to `special` than to its baseline.
Ties go to the pattern named first below. Rows with one unmasked key are left out, so that a role's score
can differ a little from the measure of the same name. `sharp` is a head without a pattern whose normalized
entropy is below ``SHARP_BAR``: it attends to few keys that no measure describes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, isfinite, lgamma, log, log1p
from statistics import fmean, median

from attnscope.attention import Head
from attnscope.scores import WEAK, HeadScores, Role, Score
from attnscope.text import round_short

POSITION_BAR = 0.5  # threshold of previous, next and self
SINK_BAR = 0.6  # threshold of first, special and punctuation: attention sinks, for which the bar is higher
REPEAT_BAR = 0.4  # threshold of duplicate and induction
BROAD_BAR = 0.9  # a head without a pattern is broad when its normalized entropy exceeds this

SHARP_BAR, SHARP_ROLE = 0.25, "sharp"
"""A head without a pattern is sharp when its normalized entropy is below this; uniform attention has 1."""

LEAST_LIFT = 0.1  # a pattern's score must stand this far above its baseline

CHANCE = 5
"""And by this many standard errors of chance: for rows between 0 and 1 with mean b, the baseline, the error
is at most sqrt(b (1 - b) / rows)."""

FEWEST_ROWS = 3  # a pattern must count in at least this many rows

LARGEST_RATIO = 3
"""A head's pattern must hold a third of its largest weights; otherwise the head does something else that is
not measured: a head on the next token but two is not a `previous` head."""

RETRIEVAL_SCORE, STREAMING_SHARE, RECALLED_SHARE = 0.1, 0.95, 0.5
"""``cachecost``: a retrieval head copies from a needle at least this often, of the needles of which the model
recalls this share with its whole cache; a streaming head keeps this much of its weight in the window."""

NONE = "none"  # the role of a head without a pattern
NO_ROLE = "no clear role"


@dataclass(frozen=True, slots=True)
class Pattern:
    """A measure that can be a head's role: its threshold and wording."""

    threshold: float
    words: str


PATTERNS: Mapping[str, Pattern] = {
    "previous": Pattern(POSITION_BAR, "attends to the previous token"),
    "next": Pattern(POSITION_BAR, "attends to the next token"),
    "self": Pattern(POSITION_BAR, "attends to the token itself"),
    "induction": Pattern(REPEAT_BAR, "attends to what followed earlier occurrences of the token"),
    "duplicate": Pattern(REPEAT_BAR, "attends to other occurrences of the token"),
    "first": Pattern(SINK_BAR, "attends to the first token"),
    "punctuation": Pattern(SINK_BAR, "attends to punctuation"),
    "special": Pattern(SINK_BAR, "attends to special tokens"),
}
"""Every pattern, by the name of its measure."""

POSITIONAL = "positional"  # the role of a head at another fixed distance, if measured: ``offset=-2``
ROLE_MEASURES = (*PATTERNS, "normalized_entropy")  # the measures that make up roles

SINK_PATTERNS = tuple(name for name, pattern in PATTERNS.items() if pattern.threshold == SINK_BAR)
"""The patterns of an attention sink: all rows attend to one place."""

WORTH_COUNT, WORTH_OF_MANY = 5, 10  # how many heads are recommended, of few and of many
MANY_HEADS = 100


def role(scores: Mapping[str, Score]) -> Role | None:
    """The role of a head, from its scores over rows with two unmasked keys; ``None`` without any or with NaN.

    For ``broad`` and ``none``, score and baseline are those of the normalized entropy.
    """
    if not all(isfinite(score.value) for score in scores.values()):
        return None
    patterns = patterns_of(scores)
    passing = strongest(patterns, scores)
    if passing is not None:
        return passing
    evenness = scores.get("normalized_entropy")
    if evenness is None:
        return None
    even = f"(normalized entropy {evenness.value:.2f} of 1)"
    if evenness.value > BROAD_BAR:
        return Role.from_score("broad", evenness, f"spreads over all tokens {even}")
    words = NO_ROLE
    if evenness.value < SHARP_BAR:
        words = f"focused on few keys {even}, at no place that has a name"
    most = [name for name in patterns if scores[name].lift > 0 and is_no_shoulder(scores, name)]
    lifted = _lifted(patterns, scores)
    if most:
        name = max(most, key=lambda name: scores[name].lift)
        words += f"; {_mostly(patterns[name])} {beside_baseline(scores[name])}"
        words += f" in {scores[name].rows:,} rows, too few to rule out chance" if name in lifted else ""
    return Role.from_score(_name_none(evenness), evenness, words)


def _mostly(pattern: Pattern) -> str:
    """A pattern that passes no threshold, in words: "attends most of all to the first token"."""
    return pattern.words.replace("attends", "attends most of all", 1)


def _name_none(evenness: Score) -> str:
    """The role of a head without a pattern."""
    return SHARP_ROLE if evenness.value < SHARP_BAR else NONE


def strongest(patterns: Mapping[str, Pattern], scores: Mapping[str, Score]) -> Role | None:
    """The role of the pattern farthest above its baseline, of those that pass; ``None`` if none passes."""
    passing = [name for name in _lifted(patterns, scores) if is_beyond_chance(scores[name])]
    if not passing:
        return None
    name = max(passing, key=lambda name: scores[name].lift)
    return Role.from_score(role_name(name), scores[name], sentence_of(patterns[name], scores[name]))


def _lifted(patterns: Mapping[str, Pattern], scores: Mapping[str, Score]) -> list[str]:
    """The patterns that reach their threshold above their baseline, if only by chance."""
    reaching = [name for name, pattern in patterns.items() if scores[name].value >= pattern.threshold]
    return [name for name in reaching if scores[name].lift >= LEAST_LIFT]


def patterns_of(scores: Iterable[str]) -> dict[str, Pattern]:
    """The patterns that were measured, including measured distances without a name."""
    named = {name: pattern for name, pattern in PATTERNS.items() if name in scores}
    steps = {name: int(name.removeprefix("offset=")) for name in scores if name.startswith("offset=")}
    away = {name: f"{abs(step):,} tokens {'ahead' if step > 0 else 'back'}" for name, step in steps.items()}
    far = [name for name, step in steps.items() if abs(step) > 1]
    return named | {name: Pattern(POSITION_BAR, f"attends {away[name]}") for name in far}


def role_name(measure: str) -> str:
    """The role of a head with this strongest pattern."""
    return measure if measure in PATTERNS else POSITIONAL


def is_beyond_chance(score: Score) -> bool:
    """Whether random attention would hardly reach the score in so many rows."""
    error = (max(score.baseline * (1 - score.baseline), 0.0) / score.rows) ** 0.5
    return score.rows >= FEWEST_ROWS and score.lift >= CHANCE * error


def is_no_shoulder(scores: Mapping[str, Score], name: str) -> bool:
    """Whether enough of the largest weights goes to what the measure counts."""
    confidence = scores.get("confidence")
    return confidence is None or LARGEST_RATIO * scores[name].value >= confidence.value


def sentence_of(pattern: Pattern, score: Score) -> str:
    """What the head does, in how many rows if not in all, and its score with the baseline."""
    rows = f" in the {score.rows:,} rows that have one" if pattern.threshold == REPEAT_BAR else ""
    return f"{pattern.words}{rows} {beside_baseline(score)}"


def beside_baseline(score: Score) -> str:
    """A score with its baseline."""
    return f"({score.value:.2f}, baseline {round_short(score.baseline)})"


def worth_a_look(
    heads: Iterable[HeadScores],
    count: int | None = None,
    apart: Callable[[Head], float] = lambda head: 0.0,
    by: str | None = None,
) -> list[HeadScores]:
    """The ``count`` heads most worth a look, most telling first, of as many different roles as possible.

    ``by`` a measure: those whose scores are farthest from their baselines, which uniform attention has.

    Each round takes the best remaining head of every role, ordered by lift, so that thirty heads on [CLS] do
    not hide the one that copies. Heads without a pattern come last in a round, ordered by how far they are
    from uniform attention times how far their rows are ``apart``: one that attends by content is far in both.
    Heads with nearly uniform attention are left out.
    """

    def telling(head: HeadScores) -> tuple[bool, float, float]:
        assert head.role is not None
        if head.role.name not in PATTERNLESS:
            return True, head.role.lift, 0.0
        far = 1 - head.role.score
        return False, far * apart(head.address), far

    heads = list(heads)
    if count is None:
        count = WORTH_COUNT if len(heads) < MANY_HEADS else WORTH_OF_MANY
    if by not in (None, "role"):
        known = [head for head in heads if by in head.scores and isfinite(head.scores[by].value)]
        return sorted(known, key=lambda head: -abs(head.scores[by].lift))[:count]
    by_role: dict[str, list[HeadScores]] = {}
    for head in heads:
        if head.role is not None and head.role.name != "broad":
            name = NONE if head.role.name == SHARP_ROLE else head.role.name
            by_role.setdefault(name, []).append(head)
    for group in by_role.values():
        group.sort(key=telling, reverse=True)
    chosen: list[HeadScores] = []
    while any(by_role.values()) and len(chosen) < count:
        round_ = [group.pop(0) for group in by_role.values() if group]
        chosen += sorted(round_, key=telling, reverse=True)
    return chosen[:count]


def note_threshold(name: str) -> list[str]:
    """A note on the threshold of a measure that is a role."""
    return [f"a head has the role {name} from {PATTERNS[name].threshold} on"] if name in PATTERNS else []


def note_unreached(heads: Sequence[HeadScores], only: str | None = None, *, repeated: bool) -> Iterator[str]:
    """A note on the roles of repeats, or the ``only`` one, if the text has some and no head reaches them.

    Unless it is ``repeated`` random tokens, the note says how to measure them.
    """
    highest = []
    for name in (name for name, pattern in PATTERNS.items() if pattern.threshold == REPEAT_BAR):
        scored = [(head.scores[name], head.name) for head in heads if name in head.scores]
        counted = [(each.value, head) for each, head in scored if each.rows >= FEWEST_ROWS]
        value, head = max(counted, default=(REPEAT_BAR, ""))
        if only in (None, name) and value < REPEAT_BAR:
            highest.append(f"{name} (highest: {head} {value:.2f})")
    if highest:
        hint = "" if repeated else "; --repeat-random 20 measures random tokens, read twice"
        yield f"no head reaches {REPEAT_BAR} in {' or '.join(highest)}{hint}"


def note_chance(heads: Sequence[HeadScores], name: str) -> Iterator[str]:
    """A note on heads that reach the threshold of a role in too few rows to have it."""
    lifted = [head for head in heads if name in _lifted(patterns_of(head.scores), head.scores)]
    doubtful = {head.name: head.scores[name] for head in lifted if not is_beyond_chance(head.scores[name])}
    if doubtful:
        rows = max(score.rows for score in doubtful.values())
        yield f"{', '.join(doubtful)}: {rows:,} rows are too few to rule out chance"


WEAK_ROLES = tuple(WEAK + name for name in (*PATTERNS, POSITIONAL) if name not in SINK_PATTERNS)
"""Every weak role."""

ROLES = (*PATTERNS, POSITIONAL, *WEAK_ROLES, SHARP_ROLE, "broad", NONE)  # every role

PATTERNLESS = (SHARP_ROLE, "broad", NONE)
"""The roles of heads without a pattern; their score is the normalized entropy."""

NEAR_SHARE = 0.75  # from this share of the threshold on a head is weak at a pattern, however many others are
WEAK_SHARE = 0.25  # a weak head reaches at least this share of a pattern's threshold
WEAK_RATIO = 3  # and this many times its baseline
DEVIATIONS = 7  # and this many median deviations above the median head
LEAST_DEVIATION = 0.01  # the least that counts as a deviation

FEWEST_HEADS = 8  # with fewer heads, none is called an outlier
WEAK_HEADS = 0.1  # at most this share of the heads may be weak at one pattern, but always at least one


def _with_weak_roles(heads: Sequence[HeadScores]) -> Iterator[HeadScores]:
    """The heads of one kind, those without a pattern with their weak role, if any."""
    patterns = patterns_of({name for head in heads for name in head.scores})
    patterns = {name: pattern for name, pattern in patterns.items() if name not in SINK_PATTERNS}
    lifts = {name: [head.scores[name].lift for head in heads if name in head.scores] for name in patterns}
    least = {name: _outlying_lift(lifts[name]) for name in patterns}
    for head in heads:
        measured = [name for name in patterns if name in head.scores]
        if head.role is not None and head.role.name in (NONE, SHARP_ROLE) and measured:
            name = max(measured, key=lambda name: head.scores[name].lift)
            pattern, score = patterns[name], head.scores[name]
            if _is_weak(pattern, score, least[name]) and is_no_shoulder(head.scores, name):
                rank = _ordinal(1 + sum(lift > score.lift for lift in lifts[name]))
                words = sentence_of(replace(pattern, words=f"weakly {pattern.words}"), score)
                sentence = f"{words}, {rank}strongest of {len(heads):,} heads"
                head = replace(head, role=Role.from_score(WEAK + role_name(name), score, sentence))
        yield head


def _is_weak(pattern: Pattern, score: Score, outlying: float) -> bool:
    """Whether a pattern is near its threshold or has an ``outlying`` lift, and is not there by chance."""
    near = score.value >= NEAR_SHARE * pattern.threshold or score.lift > outlying
    least = max(WEAK_SHARE * pattern.threshold, WEAK_RATIO * score.baseline)
    return near and score.value >= least and is_beyond_chance(score)


def _outlying_lift(lifts: Sequence[float]) -> float:
    """The lift that is an outlier among the heads, and that few heads exceed."""
    if len(lifts) < FEWEST_HEADS:
        return float("inf")
    middle = median(lifts)
    deviation = max(median(abs(lift - middle) for lift in lifts), LEAST_DEVIATION)
    few = max(1, int(WEAK_HEADS * len(lifts)))
    return max(middle + DEVIATIONS * deviation, sorted(lifts)[-few - 1])


def _ordinal(number: int) -> str:
    """What stands before "strongest": ``2nd``, and nothing for the first."""
    if number == 1:
        return ""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in (11, 12, 13) else 0, "th")
    return f"{number:,}{ending} "


SINK_MODELS = 0.05  # one of twenty models
SINK_HEADS = 0.01  # one of a hundred heads


def settle_roles(heads: Sequence[HeadScores]) -> tuple[HeadScores, ...]:
    """The heads of a model with the roles that depend on all heads."""
    settled = list(heads)
    for kind in {head.site.kind for head in heads}:
        alike = [number for number, head in enumerate(heads) if head.site.kind == kind]
        exceeding = list(_without_chance_sinks([heads[number] for number in alike]))
        for number, head in zip(alike, _with_weak_roles(exceeding), strict=True):
            settled[number] = head
    return tuple(settled)


def _without_chance_sinks(heads: Sequence[HeadScores]) -> Iterator[HeadScores]:
    """The heads of one kind, without the roles of attention sinks that may be due to chance."""
    beyond_chance = {name: PATTERNS[name] for name in SINK_PATTERNS if _exceeds_chance(heads, name)}
    for head in heads:
        role, evenness = head.role, head.scores.get("normalized_entropy")
        if role is not None and role.name in SINK_PATTERNS and role.name not in beyond_chance:
            measured = {name: pattern for name, pattern in beyond_chance.items() if name in head.scores}
            weight = beside_baseline(head.scores[role.name])
            words = f"{NO_ROLE}; {_mostly(PATTERNS[role.name])} {weight}, as heads may by chance"
            none = replace(role, name=NONE, sentence=words)
            if evenness is not None:
                none = Role.from_score(_name_none(evenness), evenness, words)
            head = replace(head, role=strongest(measured, head.scores) or none)
        yield head


def _exceeds_chance(heads: Sequence[HeadScores], name: str) -> bool:
    """Whether chance puts so many heads there in at most ``SINK_MODELS`` of models, or hardly any at all."""
    if len(heads) < FEWEST_HEADS:
        return True  # too few to estimate chance
    scored = [head.scores for head in heads if name in head.scores]
    hits = sum(scores[name].value >= SINK_BAR for scores in scored)
    if not hits:
        return False
    largest = [max(scores[name].value, scores.get("confidence", scores[name]).value) for scores in scored]
    able = sum(value >= SINK_BAR for value in largest)
    chance = fmean(scores[name].baseline for scores in scored)
    return able * chance <= SINK_HEADS * len(heads) or _tail(able, hits, chance) <= SINK_MODELS


def _tail(count: int, least: int, chance: float) -> float:
    """The probability of at least ``least`` successes in ``count`` draws with the same chance."""
    if not 0 < chance < 1:
        return chance
    terms = (lgamma(count + 1) - lgamma(k + 1) - lgamma(count - k + 1) for k in range(least, count + 1))
    logs = (term + k * log(chance) + (count - k) * log1p(-chance) for k, term in enumerate(terms, least))
    return sum(map(exp, logs))


SINK_CONDITION = (
    f";\n            in a model of {FEWEST_HEADS} heads or more, only if chance gives as many such heads in\n"
    f"            at most {SINK_MODELS:.0%} of models, or in at most {SINK_HEADS:.0%} of the heads"
)
"""The additional condition for an attention sink."""


EXPLANATIONS = {
    POSITIONAL: (
        f"positional: attends two or more tokens back or ahead with a weight of at least {POSITION_BAR}; two "
        "are always measured, more on request, such as --sort offset=-3."
    ),
    "broad": f"broad: no pattern passes its threshold, and the normalized entropy exceeds {BROAD_BAR}.",
    SHARP_ROLE: f"sharp: no pattern passes its threshold, and the normalized entropy is below {SHARP_BAR}.",
    NONE: (
        "none: no pattern passes its threshold or is rare among the heads;\n"
        f"  normalized entropy at most {BROAD_BAR}."
    ),
}
"""The roles that are no pattern with a name."""


def explain_role(name: str) -> str:
    """The definition of a role, or the condition for a measure to be one; empty for any other name."""
    if name in PATTERNS:
        pattern = PATTERNS[name]
        return (
            f"  role      a head {pattern.words} if this is at least {pattern.threshold},\n"
            f"            exceeds the baseline by at least {LEAST_LIFT} and {CHANCE} standard errors of "
            f"chance, in {FEWEST_ROWS} rows\n            or more with two unmasked keys, and no other "
            "pattern exceeds its baseline by more"
        ) + (SINK_CONDITION if name in SINK_PATTERNS else "")
    if name == WEAK.strip() or (name.startswith(WEAK) and name in ROLES):
        what = name.removeprefix(WEAK) if name in ROLES else "a pattern of position or of repeats"
        return (
            f"{name}: below the threshold of {what}, but at least {WEAK_SHARE:g} of it and "
            f"{WEAK_RATIO} times the baseline,\n  and either {NEAR_SHARE:g} of the threshold, or "
            f"{DEVIATIONS} median deviations above the model's median head\n  and among its best "
            f"{WEAK_HEADS:.0%}."
        )
    return EXPLANATIONS.get(name, "")
