"""Roles name the strongest pattern, in plain words, and the ranking shows different ones."""

from dataclasses import replace

import pytest

from attnscope.attention import Site
from attnscope.measures import PATTERNS, Figure, HeadFigures, role, worth_a_look
from attnscope.measures.roles import BROAD, FEWEST_ROWS, LEAST_LIFT


def figures(**scores: tuple[float, float]) -> dict[str, Figure]:
    return {
        "normalized_entropy": Figure(0.5, 1.0, 20, 1),
        **{name: Figure(value, baseline, 20, 1) for name, (value, baseline) in scores.items()},
    }


def scored(rows: int, **scores: float) -> dict[str, Figure]:
    return {**figures(), **{name: Figure(value, 0.1, rows, 1) for name, value in scores.items()}}


NAMED = {  # figures, and the role with its sentence or a part of it
    "a score that chance explains": (figures(special=(0.67, 0.67)), "none", ""),
    "a score little above chance": (figures(previous=(0.55, 0.5)), "none", ""),
    "too few rows": (scored(FEWEST_ROWS - 1, duplicate=0.9), "none", ""),
    "enough rows": (scored(FEWEST_ROWS, previous=1.0), "previous", ""),
    "one row too few": (scored(FEWEST_ROWS - 1, previous=1.0), "none", ""),
    "a few rows of a middling score": (scored(6, induction=0.5), "none", ""),
    "more rows of it": (scored(60, induction=0.5), "induction", ""),
    "the first token before special ones": (figures(first=(0.95, 0.1), special=(0.97, 0.2)), "first", ""),
    "special ones that add to it": (figures(first=(0.65, 0.1), special=(0.95, 0.2)), "special", ""),
    "the greatest lift": (figures(previous=(0.8, 0.4), induction=(0.7, 0.1)), "induction", ""),
    "an even head": (
        figures(normalized_entropy=(BROAD + 0.01, 1.0)),
        "broad",
        "spreads over all tokens (normalized entropy 0.91, 1.00 is even)",
    ),
    "a sentence with score and baseline": (
        figures(previous=(0.97, 0.12)),
        "previous",
        "looks at the previous token (0.97, baseline 0.12)",
    ),
    "what comes nearest": (
        figures(previous=(0.4, 0.1), next=(0.2, 0.1)),
        "none",
        "no pattern stands out; most of all it looks at the previous token (0.40, baseline 0.10)",
    ),
    "what stands farthest above chance": (
        figures(previous=(0.45, 0.40), next=(0.3, 0.1), self=(0.2, 0.15)),
        "none",
        "no pattern stands out; most of all it looks at the next token (0.30, baseline 0.10)",
    ),
    "nothing": (figures(), "none", "no pattern stands out"),
    "nothing above chance": (figures(previous=(0.1, 0.1)), "none", "no pattern stands out"),
    "all below chance": (figures(previous=(0.1, 0.2), next=(0.05, 0.3)), "none", "no pattern stands out"),
    "what most of a row does not look at": (
        figures(previous=(0.2, 0.05), confidence=(0.9, 0.2)),
        "none",
        "no pattern stands out",
    ),
    "a distance that was measured": (
        figures(**{"previous": (0.1, 0.08), "offset=-2": (0.8, 0.08)}),
        "positional",
        "looks 2 tokens back (0.80, baseline 0.08)",
    ),
    **{
        f"two tokens back beside {previous} one back": (
            figures(**{"previous": (previous, 0.08), "offset=-2": (0.8, 0.08), "confidence": (0.85, 0.2)}),
            "positional",
            "",
        )
        for previous in (0.1, 0.2, 0.4)
    },
    "one token back by its other name": (
        figures(**{"previous": (0.9, 0.08), "offset=-1": (0.9, 0.08)}),
        "previous",
        "",
    ),
}


@pytest.mark.parametrize(("seen", "name", "sentence"), NAMED.values(), ids=NAMED)
def test_a_role_names_the_strongest_pattern(seen, name, sentence):
    found = role(seen)
    assert (found.name, found.sentence) == (name, sentence or found.sentence)


def test_every_pattern_is_named_at_its_threshold_and_not_below():
    for name, pattern in PATTERNS.items():
        for score, told in ((pattern.threshold, name), (pattern.threshold - 1e-6, "none")):
            found = role(figures(**{name: (score, 0.05)}))
            assert found.name == told


@pytest.mark.parametrize("seen", [{}, figures(previous=(float("nan"), 0.1))], ids=["no figures", "no number"])
def test_what_is_no_number_leaves_no_role(seen):
    assert role(seen) is None


def head(number: int, **scores: tuple[float, float]) -> HeadFigures:
    seen = figures(**scores)
    return HeadFigures(Site("layer", 0, "encoder", 0), number, seen, {}, role(seen))


def test_the_heads_most_worth_a_look_are_of_different_roles():
    heads = [
        head(0),
        *(head(n, first=(0.99 - n / 100, 0.1)) for n in range(1, 8)),
        head(8, previous=(0.6, 0.1)),
        head(9, next=(0.7, 0.1)),
        head(10, normalized_entropy=(0.95, 1.0)),
    ]
    assert [h.head for h in worth_a_look(heads)] == [1, 9, 8, 2, 3]
    assert [h.head for h in worth_a_look(heads, 100)] == [1, 9, 8, 2, 3, 4, 5, 6, 7]
    assert [h.head for h in heads] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


def test_a_role_carries_the_numbers_of_its_pattern_or_of_the_spread():
    seen = {"normalized_entropy": Figure(0.7, 0.9, 20, 1), "duplicate": Figure(0.7, 0.1, 7, 1)}
    found = role(seen)
    assert (found.score, found.baseline, found.rows, found.lift) == (0.7, 0.1, 7, pytest.approx(0.6))
    sentence = "looks at the same token elsewhere in the 7 rows that have one (0.70, baseline 0.10)"
    assert found.sentence == sentence
    for spread, name in ((BROAD, "none"), (BROAD + 1e-9, "broad")):
        found = role({"normalized_entropy": Figure(spread, 0.9, 20, 1)})
        assert (found.name, found.score, found.baseline, found.rows) == (name, spread, 0.9, 20)


def test_a_pattern_needs_a_little_lift():
    enough = Figure(0.5, 0.5 - LEAST_LIFT - 1e-9, 1000, 1)
    for figure, name in ((enough, "previous"), (replace(enough, baseline=enough.baseline + 1e-6), "none")):
        found = role({**figures(), "previous": figure})
        assert found.name == name


def test_heads_on_even_attention_and_heads_without_a_pattern_are_left_out():
    heads = [
        head(0, normalized_entropy=(0.2, 1.0)),
        head(1, normalized_entropy=(0.8, 1.0)),
        head(2, normalized_entropy=(0.92, 1.0)),
        head(3, normalized_entropy=(0.99, 1.0)),
        head(4, special=(0.9, 0.3)),
        head(5, previous=(0.95, 0.1)),
        head(6, previous=(0.99, 0.1)),
    ]
    assert [h.head for h in worth_a_look(heads, 7)] == [6, 4, 5]
    assert [h.head for h in worth_a_look(heads, 1)] == [6]
    assert worth_a_look(heads, 0) == []
    assert worth_a_look([], 3) == []
