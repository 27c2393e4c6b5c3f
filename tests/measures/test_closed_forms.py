"""Attention whose figures can be told without computing them."""

import math

import numpy as np
import pytest

from attnscope.attention import Token
from attnscope.measures import MEASURES, HeadFigures, Measurement

from .reference import Case, attention

LENGTH = 12


def head_of(
    weights: np.ndarray, allowed: np.ndarray | None = None, ids: list[int] | None = None
) -> HeadFigures:
    """The figures of one head from its weights [query, key]."""
    size = weights.shape[-1]
    text = [Token(f"w{id_}", id_) for id_ in ids or range(100, 100 + size)]
    open_ = np.ones((1, 1, *weights.shape), bool) if allowed is None else allowed[None, None]
    measured = Measurement(tuple(MEASURES))
    measured.observe(attention(Case(weights[None, None], open_, [text])))
    return measured.figures()[0]


def test_even_rows_are_their_own_baseline():
    causal = np.tril(np.ones((LENGTH, LENGTH), bool))
    for allowed in (causal, np.ones_like(causal)):
        head = head_of(allowed / allowed.sum(-1, keepdims=True), allowed)
        for figure in head.figures.values():
            assert figure.value == pytest.approx(figure.baseline, rel=1e-6, abs=1e-6)
        assert head.figures["normalized_entropy"].value == pytest.approx(1)
        assert head.role.name == "broad"


def test_an_even_row_over_n_keys_has_entropy_log_n_and_span_n():
    figures = head_of(np.full((LENGTH, LENGTH), 1 / LENGTH)).figures
    assert figures["entropy"].value == pytest.approx(math.log(LENGTH))
    assert figures["effective_keys"].value == pytest.approx(LENGTH)
    assert figures["confidence"].value == pytest.approx(1 / LENGTH)
    assert figures["distance"].value == pytest.approx((LENGTH**2 - 1) / (3 * LENGTH))
    assert figures["offset"].value == pytest.approx(0, abs=1e-6)


def test_ten_even_keys_cover_nine_tenths_with_nine():
    assert head_of(np.full((10, 10), 0.1)).figures["coverage90"].value == 9


def test_the_identity_is_a_self_head_without_entropy():
    head = head_of(np.eye(LENGTH))
    figures = head.figures
    assert figures["self"].value == 1
    assert figures["entropy"].value == 0
    assert figures["effective_keys"].value == 1
    assert figures["coverage90"].value == 1
    assert figures["distance"].value == 0
    assert (head.role.name, head.role.score) == ("self", 1)


@pytest.mark.parametrize(("gap", "name"), [(-1, "previous"), (1, "next")])
def test_a_fixed_offset_is_found(gap, name):
    weights = np.zeros((LENGTH, LENGTH))
    for i in range(LENGTH):
        weights[i, min(max(i + gap, 0), LENGTH - 1)] = 1
    head = head_of(weights)
    assert head.figures[name].value == 1
    assert head.figures[name].rows == LENGTH - 1
    assert head.figures["offset"].value == pytest.approx(gap * (LENGTH - 1) / LENGTH)
    assert head.role.name == name


def test_one_hot_on_the_first_token_is_a_first_head():
    weights = np.zeros((LENGTH, LENGTH))
    weights[:, 0] = 1
    head = head_of(weights)
    assert head.figures["first"].value == 1
    assert head.figures["first"].rows == LENGTH - 1
    assert head.role.name == "first"


def test_a_repeated_text_shows_duplicate_and_induction_heads():
    half = LENGTH // 2
    ids = [*range(50, 50 + half)] * 2
    allowed = np.tril(np.ones((LENGTH, LENGTH), bool))
    duplicate, induction = np.eye(LENGTH), np.eye(LENGTH)
    for i in range(half, LENGTH):
        duplicate[i] = np.eye(LENGTH)[i - half]
        induction[i] = np.eye(LENGTH)[i - half + 1]
    for name, weights in (("duplicate", duplicate), ("induction", induction)):
        head = head_of(weights, allowed, ids)
        assert head.figures[name].value == 1
        assert head.figures[name].rows == half
        assert head.role.name == name
        assert f"in the {half} rows that have one" in head.role.sentence


def test_a_text_without_repeats_has_no_duplicate_figure_and_says_why():
    head = head_of(np.eye(LENGTH))
    assert "duplicate" not in head.figures
    assert head.absent["duplicate"] == "duplicate is taken over rows that have such a key, and there are none"


def test_a_sink_keeps_what_the_keys_do_not_hold():
    head = head_of(np.full((LENGTH, LENGTH), 0.25 / LENGTH))
    assert head.figures["no_key"].value == pytest.approx(0.75)
    assert head.figures["no_key"].baseline == pytest.approx(0, abs=1e-12)
    assert head.figures["entropy"].value == pytest.approx(-0.25 * math.log(0.25 / LENGTH), rel=1e-6)


def test_a_single_token_has_no_entropy_and_no_role():
    head = head_of(np.ones((1, 1)))
    assert "entropy" not in head.figures
    assert head.role is None
    assert head.figures["self"].value == 1
