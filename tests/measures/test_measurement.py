"""Texts, batches and processes add up to the same figures."""

import json

import numpy as np
import pytest
import torch

from attnscope.attention import Token
from attnscope.errors import SelectionError
from attnscope.measures import MEASURES, Measurement

from .reference import Case, attention, figure, random_rows, random_text

LENGTHS = (9, 14, 14, 5)


def texts() -> list[Case]:
    rng = np.random.default_rng(3)
    cases = []
    for length in LENGTHS:
        causal = np.tril(np.ones((length, length), bool))[None, None]
        cases.append(Case(random_rows(rng, causal, 2, sink=False), causal, [random_text(rng, length)]))
    return cases


def observed(cases: list[Case], dtype: torch.dtype = torch.float32) -> Measurement:
    measured = Measurement(tuple(MEASURES))
    for case in cases:
        for layer in (0, 1):
            measured.observe(attention(case, dtype, layer))
    return measured


def assert_alike(one: Measurement, other: Measurement) -> None:
    for a, b in zip(one.figures(), other.figures(), strict=True):
        assert (a.site, a.head, a.absent) == (b.site, b.head, b.absent)
        assert list(a.figures) == list(b.figures)
        for name, left in a.figures.items():
            right = b.figures[name]
            assert (left.rows, left.texts) == (right.rows, right.texts)
            assert left.value == pytest.approx(right.value, abs=1e-9)
            assert left.baseline == pytest.approx(right.baseline, abs=1e-9)
            assert left.error == pytest.approx(right.error, abs=1e-7)


def test_the_figure_of_several_texts_is_the_average_over_all_their_rows():
    cases = texts()
    for head in observed(cases).figures():
        for name, found in head.figures.items():
            parts = [part for case in cases if (part := figure(case, name, head.head)) is not None]
            rows = sum(rows for _, rows in parts)
            assert found.rows == rows
            assert found.texts == len(parts)
            assert found.value == pytest.approx(
                sum(value * n for value, n in parts) / rows, rel=1e-5, abs=1e-6
            )


def test_every_head_and_measure_has_the_standard_error_of_its_own_texts():
    cases = texts()
    for head in observed(cases).figures():
        for name, found in head.figures.items():
            parts = [part for case in cases if (part := figure(case, name, head.head)) is not None]
            if len(parts) < 2:
                continue
            mean = sum(value * rows for value, rows in parts) / found.rows
            squares = sum((value * rows - mean * rows) ** 2 for value, rows in parts)
            error = (len(parts) / (len(parts) - 1) * squares) ** 0.5 / found.rows
            assert found.error == pytest.approx(error, rel=1e-4, abs=1e-6), name


def test_merging_equals_one_pass_over_all_in_any_order():
    cases = texts()
    whole = observed(cases)
    for split in (1, 2, 3):
        left, right = observed(cases[:split]), observed(cases[split:])
        left.merge(right)
        assert_alike(whole, left)
        back = observed(cases[split:])
        back.merge(observed(cases[:split]))
        assert_alike(whole, back)


def test_merging_leaves_the_other_as_it_was():
    cases = texts()
    one, other = Measurement(tuple(MEASURES)), observed(cases[:1])
    before = json.dumps(other.state())
    one.merge(other)
    one.merge(other)
    assert json.dumps(other.state()) == before


def test_a_batch_of_texts_equals_the_texts_one_by_one():
    first, second = (case for case in texts() if case.weights.shape[-1] == 14)
    batch = Case(
        np.concatenate([first.weights, second.weights]), first.allowed[:1], [*first.keys, *second.keys]
    )
    together = Measurement(tuple(MEASURES))
    together.label({"encoder": (batch.queries, batch.keys)})
    together.observe(attention(batch, torch.float64))
    together.observe(attention(batch, torch.float64, layer=1))
    assert_alike(together, observed([first, second], torch.float64))


def test_a_label_of_another_length_is_not_used():
    case = texts()[0]
    measured = Measurement(tuple(MEASURES))
    measured.label({"encoder": ([[Token("x", 1)]], [[Token("x", 1)]])})
    measured.observe(attention(case))
    expected = figure(case, "special", 0)
    assert measured.figures()[0].figures["special"].value == pytest.approx(expected[0], rel=1e-5)


def test_sums_go_through_json_and_come_back_to_the_last_bit():
    cases = texts()
    saved = json.dumps(observed(cases[:2]).state())
    resumed = Measurement.from_state(json.loads(saved))
    for case in cases[2:]:
        for layer in (0, 1):
            resumed.observe(attention(case, layer=layer))
    assert json.dumps(resumed.state()) == json.dumps(observed(cases).state())


def test_the_standard_error_is_that_of_resampled_texts():
    rng = np.random.default_rng(7)
    cases = []
    for _ in range(60):
        length = int(rng.integers(4, 12))
        open_ = np.ones((1, 1, length, length), bool)
        cases.append(Case(random_rows(rng, open_, 1, sink=False), open_, [random_text(rng, length)]))
    measured = Measurement(["entropy"])
    for case in cases:
        measured.observe(attention(case))
    found = measured.figures()[0].figures["entropy"]
    parts = np.array([figure(case, "entropy", 0) for case in cases])
    sums, rows = parts[:, 0] * parts[:, 1], parts[:, 1]
    picks = rng.integers(0, len(cases), (4000, len(cases)))
    resampled = (sums[picks].sum(1) / rows[picks].sum(1)).std()
    assert found.error == pytest.approx(resampled, rel=0.06)


def test_one_text_has_no_standard_error():
    for head in observed(texts()[:1]).figures():
        assert all(figure.error is None for figure in head.figures.values())


def test_axes_without_tokens_have_no_token_figures_and_say_so():
    measured = Measurement()
    measured.observe(attention(texts()[0], labelled=False))
    head = measured.figures()[0]
    assert head.absent["special"] == "special needs tokens, and this axis holds bare positions"
    assert "duplicate" not in head.figures
    assert "previous" in head.figures


def test_roles_are_not_told_without_their_measures():
    measured = Measurement(["entropy", "previous"])
    measured.observe(attention(texts()[0]))
    assert measured.figures()[0].role is None
    assert list(measured.figures()[0].figures) == ["entropy", "previous"]


def test_an_unknown_measure_names_the_nearest_one():
    with pytest.raises(SelectionError, match="did you mean 'entropy'"):
        Measurement(["entorpy"])


def test_other_measures_do_not_merge():
    with pytest.raises(ValueError, match="cannot merge"):
        Measurement(["entropy"]).merge(Measurement(["effective_keys"]))


def test_rows_are_read_in_blocks_of_bounded_size():
    case = texts()[1]
    given = attention(case)
    read: list[int] = []

    class Watched:
        def rows(self, start: int, stop: int, heads: object) -> torch.Tensor:
            read.append((stop - start) * 2 * 14)
            return given.rows(start, stop)

        def allowed(self, start: int, stop: int) -> torch.Tensor:
            return given.allowed(start, stop)

    from dataclasses import replace

    Measurement(block_elements=100).observe(replace(given, read=Watched()))
    assert sum(read) == 14 * 14 * 2
    assert max(read) <= 100


def test_gradients_are_not_kept():
    case = texts()[0]
    held = attention(case)
    held.read.weights.requires_grad_()  # type: ignore[attr-defined]
    measured = Measurement()
    measured.observe(held)
    assert not any(sums.numbers.requires_grad for sums in measured._sums.values())


def test_baselines_are_not_carried_over_to_other_masks_or_tokens():
    rng = np.random.default_rng(11)
    text, other = random_text(rng, 12), random_text(rng, 12)
    pair = tuple(
        Token(token.text, token.id, token.special, segment=int(n > 6)) for n, token in enumerate(text)
    )
    open_ = np.ones((1, 1, 12, 12), bool)
    causal = np.tril(open_)
    cases = [
        Case(random_rows(rng, mask, 2, sink=False), mask, [tokens])
        for mask, tokens in ((open_, text), (open_, other), (open_, pair), (causal, pair), (causal, text))
    ]
    measured = Measurement(tuple(MEASURES))
    for layer, case in enumerate(cases):
        measured.observe(attention(case, layer=layer))
    for head in measured.figures():
        even = cases[head.site.layer].even()
        for name in MEASURES:
            expected = figure(even, name, head.head)
            assert (name in head.figures) == (expected is not None)
            if expected is not None:
                assert head.figures[name].baseline == pytest.approx(expected[0], abs=1e-9), name
