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


def name_of(**scores: tuple[float, float]) -> str:
    found = role(figures(**scores))
    assert found is not None
    return found.name


def test_every_pattern_is_named_at_its_threshold_and_not_below() -> None:
    for name, pattern in PATTERNS.items():
        assert name_of(**{name: (pattern.threshold, 0.05)}) == name
        assert name_of(**{name: (pattern.threshold - 1e-6, 0.05)}) == "none"


def test_a_score_that_chance_explains_is_no_role() -> None:
    assert name_of(special=(0.67, 0.67)) == "none"
    assert name_of(previous=(0.55, 0.5)) == "none"


def test_a_pattern_seen_in_too_few_rows_is_no_role() -> None:
    seen = {**figures(), "duplicate": Figure(0.9, 0.1, FEWEST_ROWS - 1, 1)}
    found = role(seen)
    assert found is not None
    assert found.name == "none"


def test_the_first_token_beats_special_tokens_unless_the_others_add_to_it() -> None:
    assert name_of(first=(0.95, 0.1), special=(0.97, 0.2)) == "first"
    assert name_of(first=(0.65, 0.1), special=(0.95, 0.2)) == "special"


def test_the_pattern_with_the_greatest_lift_wins() -> None:
    assert name_of(previous=(0.8, 0.4), induction=(0.7, 0.1)) == "induction"


def test_an_even_head_is_broad() -> None:
    found = role({"normalized_entropy": Figure(BROAD + 0.01, 1.0, 20, 1)})
    assert found is not None
    assert found.name == "broad"
    assert found.sentence == "spreads over all tokens (normalized entropy 0.91, 1.00 is even)"


def test_without_figures_there_is_no_role() -> None:
    assert role({}) is None


def test_a_sentence_says_score_and_baseline() -> None:
    found = role(figures(previous=(0.97, 0.12)))
    assert found is not None
    assert found.sentence == "looks at the previous token (0.97, baseline 0.12)"


def test_a_head_without_a_role_says_what_comes_nearest() -> None:
    found = role(figures(previous=(0.4, 0.1), next=(0.2, 0.1)))
    assert found is not None
    assert found.sentence == (
        "no pattern stands out; most of all it looks at the previous token (0.40, baseline 0.10)"
    )


def head(number: int, **scores: tuple[float, float]) -> HeadFigures:
    seen = figures(**scores)
    return HeadFigures(Site("layer", 0, "encoder", 0), number, seen, {}, role(seen))


def test_the_heads_most_worth_a_look_are_of_different_roles() -> None:
    heads = [
        head(0),
        *(head(n, first=(0.99 - n / 100, 0.1)) for n in range(1, 8)),
        head(8, previous=(0.6, 0.1)),
        head(9, next=(0.7, 0.1)),
        head(10, normalized_entropy=(0.95, 1.0)),
    ]
    assert [h.head for h in worth_a_look(heads)] == [1, 9, 8, 2, 3]
    assert [h.head for h in worth_a_look(heads, 100)] == [1, 9, 8, 2, 3, 4, 5, 6, 7]


def test_the_ranking_does_not_touch_what_it_ranks() -> None:
    heads = [head(0), head(1, previous=(0.9, 0.1))]
    worth_a_look(heads, 1)
    assert [h.head for h in heads] == [0, 1]


def test_a_head_is_named_as_users_write_it() -> None:
    assert head(3).name == "L0H3"


def test_a_role_carries_the_numbers_of_its_pattern_or_of_the_spread() -> None:
    seen = {"normalized_entropy": Figure(0.7, 0.9, 20, 1), "duplicate": Figure(0.7, 0.1, 7, 1)}
    found = role(seen)
    assert found is not None
    assert (found.score, found.baseline, found.rows, found.lift) == (0.7, 0.1, 7, pytest.approx(0.6))
    assert (
        found.sentence
        == "looks at the same token elsewhere in the 7 rows that have one (0.70, baseline 0.10)"
    )
    for spread, name in ((BROAD, "none"), (BROAD + 1e-9, "broad")):
        found = role({"normalized_entropy": Figure(spread, 0.9, 20, 1)})
        assert found is not None
        assert (found.name, found.score, found.baseline, found.rows) == (name, spread, 0.9, 20)


def test_a_pattern_needs_few_rows_and_a_little_lift() -> None:
    enough = Figure(0.5, 0.5 - LEAST_LIFT - 1e-9, 1000, 1)
    few = Figure(1.0, 0.01, FEWEST_ROWS, 1)
    for figure, name in (
        (enough, "previous"),
        (replace(enough, baseline=enough.baseline + 1e-6), "none"),
        (few, "previous"),
        (replace(few, rows=FEWEST_ROWS - 1), "none"),
    ):
        found = role({"normalized_entropy": Figure(0.5, 1.0, 20, 1), "previous": figure})
        assert found is not None
        assert found.name == name


def test_of_a_head_that_nothing_comes_near_nothing_is_said() -> None:
    for scores in ({}, {"previous": (0.1, 0.1)}, {"previous": (0.1, 0.2), "next": (0.05, 0.3)}):
        found = role(figures(**scores))
        assert found is not None
        assert found.sentence == "no pattern stands out"


def test_what_comes_nearest_is_what_stands_farthest_above_chance() -> None:
    found = role(figures(previous=(0.45, 0.40), next=(0.3, 0.1), self=(0.2, 0.15)))
    assert found is not None
    assert "most of all it looks at the next token" in found.sentence


def test_a_weight_that_is_no_number_leaves_no_role() -> None:
    assert role(figures(previous=(float("nan"), 0.1))) is None


def test_heads_on_even_attention_and_heads_without_a_pattern_are_left_out() -> None:
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


def test_a_distance_that_was_measured_makes_a_head_positional() -> None:
    found = role({**figures(previous=(0.1, 0.08)), "offset=-2": Figure(0.8, 0.08, 20, 1)})
    assert found is not None
    assert (found.name, found.score) == ("positional", 0.8)
    assert found.sentence == "looks 2 tokens back (0.80, baseline 0.08)"


def test_two_tokens_back_are_never_called_previous() -> None:
    two_back = {"offset=-2": Figure(0.8, 0.08, 20, 1), "confidence": Figure(0.85, 0.2, 20, 1)}
    for previous in (0.1, 0.2, 0.4):
        found = role({**figures(previous=(previous, 0.08)), **two_back})
        assert found is not None
        assert found.name == "positional"


def test_what_most_of_a_row_does_not_look_at_is_not_what_a_head_does_most() -> None:
    three_back = {**figures(previous=(0.2, 0.05)), "confidence": Figure(0.9, 0.2, 20, 1)}
    found = role(three_back)
    assert found is not None
    assert found.sentence == "no pattern stands out"


def test_a_score_in_few_rows_must_be_beyond_chance() -> None:
    repeats = Figure(0.5, 0.1, 6, 1)
    for figure, name in ((repeats, "none"), (replace(repeats, rows=60), "induction")):
        found = role({"normalized_entropy": Figure(0.5, 1.0, 20, 1), "induction": figure})
        assert found is not None
        assert found.name == name


def test_one_token_back_stays_previous_under_its_other_name() -> None:
    found = role({**figures(previous=(0.9, 0.08)), "offset=-1": Figure(0.9, 0.08, 20, 1)})
    assert found is not None
    assert found.name == "previous"
