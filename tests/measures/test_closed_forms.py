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
    assert head_of(np.full((10, 10), 0.1)).figures["coverage90"].value == 9


EYE = np.eye(LENGTH)
FIRST = EYE[np.zeros(LENGTH, int)]
ONE_HOT = {  # each row on one key; the role, its figure's rows, and other figures
    "self": (EYE, LENGTH, {"entropy": 0, "effective_keys": 1, "coverage90": 1, "distance": 0}),
    "previous": (EYE[[0, *range(LENGTH - 1)]], LENGTH - 1, {"offset": (1 - LENGTH) / LENGTH}),
    "next": (EYE[[*range(1, LENGTH), LENGTH - 1]], LENGTH - 1, {"offset": (LENGTH - 1) / LENGTH}),
    "first": (FIRST, LENGTH - 1, {"entropy": 0}),
}


@pytest.mark.parametrize("name", ONE_HOT)
def test_rows_on_one_key_are_named_by_its_place(name):
    weights, rows, others = ONE_HOT[name]
    head = head_of(weights)
    assert (head.figures[name].value, head.figures[name].rows) == (1, rows)
    assert {other: head.figures[other].value for other in others} == pytest.approx(others)
    assert (head.role.name, head.role.score) == (name, 1)


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
