"""Texts, batches and processes sum to the same scores; means and errors are computed a second way."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from attnscope.attention import HeldRows
from attnscope.errors import SelectionError
from attnscope.measures import MEASURES, Measurement
from attnscope.measures import measurement as of_heads
from attnscope.measures.measurement import Setting, Sums

from .reference import Case, attention, random_rows, random_text, score
from .rounding import near

LENGTHS = (9, 14, 14, 5)


def texts():
    rng = np.random.default_rng(3)
    cases = []
    for length in LENGTHS:
        causal = np.tril(np.ones((length, length), bool))[None, None]
        cases.append(Case(random_rows(rng, causal, 2), causal, [random_text(rng, length)]))
    return cases


def observed(cases, dtype=torch.float32, measured=None):
    measured = measured or Measurement(tuple(MEASURES))
    for case in cases:
        for layer in (0, 1):
            measured.observe(attention(case, dtype, layer))
    return measured


def assert_alike(one, other):
    for a, b in zip(one.scores(), other.scores(), strict=True):
        assert (a.site, a.head, a.absent) == (b.site, b.head, b.absent)
        assert list(a.scores) == list(b.scores)
        for name, left in a.scores.items():
            right = b.scores[name]
            assert (left.rows, left.texts) == (right.rows, right.texts)
            assert left.value == pytest.approx(right.value, abs=1e-9)
            assert left.baseline == pytest.approx(right.baseline, abs=1e-9)
            assert left.error == pytest.approx(right.error, abs=1e-7)


def test_score_over_texts_is_row_mean_with_error_over_texts():
    cases = texts()
    for head in observed(cases).scores():
        for name, found in head.scores.items():
            parts = [part for case in cases if (part := score(case, name, head.head)) is not None]
            rows = sum(rows for _, rows in parts)
            mean = sum(value * n for value, n in parts) / rows
            assert (found.rows, found.texts) == (rows, len(parts))
            assert found.value == near(mean, name, max(LENGTHS))
            if len(parts) > 1:
                squares = sum((value * n - mean * n) ** 2 for value, n in parts)
                error = (len(parts) / (len(parts) - 1) * squares) ** 0.5 / rows
                assert found.error == near(error, name, max(LENGTHS)), name


def test_merge_equals_one_pass_and_leaves_other_unchanged():
    cases = texts()
    whole = observed(cases)
    for split in (1, 2, 3):
        for parts in ((cases[:split], cases[split:]), (cases[split:], cases[:split])):
            one, other = map(observed, parts)
            before = json.dumps(other.state())
            one.merge(other)
            assert_alike(whole, one)
            one.merge(other)
            assert json.dumps(other.state()) == before


def test_batched_scores_equal_single_texts():
    first, second = (case for case in texts() if case.weights.shape[-1] == 14)
    weights = np.concatenate([first.weights, second.weights])
    batch = Case(weights, first.allowed[:1], [*first.keys, *second.keys])
    together = Measurement(tuple(MEASURES))
    together.label({"encoder": (batch.queries, batch.keys)})
    for layer in (0, 1):
        together.observe(attention(batch, torch.float64, layer))
    assert_alike(together, observed([first, second], torch.float64))
    case = texts()[0]  # a label of another length is not used
    together.observe(attention(case, layer=2))
    found = together.scores()[-1].scores["special"].value
    assert found == near(score(case, "special", 1)[0], "special", LENGTHS[0])


def test_measurement_state_survives_json_exactly():
    cases = texts()
    saved = json.dumps(observed(cases[:2]).state())
    resumed = observed(cases[2:], measured=Measurement.from_state(json.loads(saved)))
    assert json.dumps(resumed.state()) == json.dumps(observed(cases).state())


def test_axes_without_tokens_have_no_token_scores_and_no_roles():
    measured = Measurement(["entropy", "special", "previous"])
    measured.observe(replace(attention(texts()[0]), queries=range(9), keys=range(9)))
    head = measured.scores()[0]
    assert head.absent == {"special": "special needs tokens, and this axis has only positions"}
    assert (list(head.scores), head.role) == (["entropy", "previous"], None)


def test_unknown_measure_or_unlike_merge_is_refused():
    with pytest.raises(SelectionError, match="did you mean 'entropy'"):
        Measurement(["entorpy"])
    with pytest.raises(ValueError, match="cannot merge"):
        Measurement(["entropy"]).merge(Measurement(["effective_keys"]))


def test_rows_are_read_in_bounded_blocks_without_gradients(monkeypatch):
    read, rows = [], HeldRows.rows

    def watched(self, start, stop, heads):
        read.append((stop - start) * 2 * 14)
        return rows(self, start, stop, heads)

    monkeypatch.setattr(HeldRows, "rows", watched)
    held, measured = attention(texts()[1]), Measurement(block_elements=100)
    held.read.weights.requires_grad_()
    measured.observe(held)
    assert sum(read) == 14 * 14 * 2
    assert max(read) <= 100
    assert not any(sums.exact.value().requires_grad for sums in measured._sums.values())


def test_baselines_are_not_reused_for_other_masks_or_tokens():
    rng = np.random.default_rng(11)
    text, other = random_text(rng, 12), random_text(rng, 12)
    pair = tuple(replace(token, segment=int(n > 6)) for n, token in enumerate(text))
    open_ = np.ones((1, 1, 12, 12), bool)
    causal = np.tril(open_)
    cases = [
        Case(random_rows(rng, mask, 2), mask, [tokens])
        for mask, tokens in ((open_, text), (open_, other), (open_, pair), (causal, pair), (causal, text))
    ]
    measured = Measurement(tuple(MEASURES))
    for layer, case in enumerate(cases):
        measured.observe(attention(case, layer=layer))
    for head in measured.scores():
        even = cases[head.site.layer].even()
        for name in MEASURES:
            expected = score(even, name, head.head)
            assert (name in head.scores) == (expected is not None)
            if expected is not None:
                assert head.scores[name].baseline == pytest.approx(expected[0], abs=1e-9), name


def scores_of(rows, values, lone=(0.0, 0.0)):
    """One measure of one head of some texts, over all rows and over those with a choice.

    Some rows of each text may have no choice, ``lone``. A baseline is a tenth of its value.
    """
    numbers = np.empty((2, 3, 1, len(rows), 1))  # [choice|lone, rows|value|baseline, measure, text, head]
    for part, (count, total) in zip(numbers, ((rows, values), lone), strict=True):
        for row, each in zip(part, (count, total, np.divide(total, 10)), strict=True):
            row[0, :, 0] = each
    sums = Sums.from_texts(*torch.from_numpy(numbers))
    return [sums.scores(every)[0][0] for every in (True, False)]


def test_standard_error_for_equal_lengths_and_for_one_text():
    means = np.array([0.2, 0.5, 0.1, 0.7])
    assert scores_of([10] * 4, 10 * means)[0].error == pytest.approx(means.std(ddof=1) / np.sqrt(4))
    assert scores_of([3], [1])[0].error is None
    assert scores_of([3, 3], [1.5, 1.5])[0].error == pytest.approx(0, abs=1e-12)
    assert scores_of([3, 0], [1, 0])[0].error is None, "a text without rows is no text"
    assert scores_of([0], [0])[0] is None


def test_single_key_rows_count_unless_excluded():
    everything, chosen = scores_of([2, 2], [1, 0.5], lone=(1, 1))
    assert (everything.value, everything.baseline, everything.rows) == pytest.approx((3.5 / 6, 0.35 / 6, 6))
    assert (chosen.value, chosen.baseline, chosen.rows) == pytest.approx((1.5 / 4, 0.15 / 4, 4))
    assert chosen.error is None


@pytest.mark.parametrize("kept", [1 << 22, 0])
def test_text_only_values_are_computed_once_for_all_layers(kept, monkeypatch):
    monkeypatch.setattr(of_heads, "CACHED", kept)
    made, from_block = [], Setting.from_block
    monkeypatch.setattr(Setting, "from_block", lambda *given: made.append(given) or from_block(*given))
    cases = texts()
    observed(cases)
    assert len(made) == len(cases) * (1 if kept else 2)
