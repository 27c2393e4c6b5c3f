"""Scores of selected rows, of special tokens by name, and of monotonic attention."""

from itertools import product

import numpy as np
import pytest
import torch

from attnscope.attention import Token
from attnscope.measures import Measurement
from attnscope.models import load
from attnscope.models.inputs import Limit
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads
from tests.capture.observing import MapObserver
from tests.measures.reference import Case, attention
from tests.measures.rounding import near

TEXT = "The cat sat on the mat because it was tired, and the dog sat on the cat."


@pytest.fixture(scope="module")
def model():
    return load("own-causal")


@pytest.fixture(scope="module")
def prepared(model):
    return model.prepare(TEXT)


def weights_of(model, prepared):
    """Every layer's weights, by its number.  [head, query, key]"""
    keep = MapObserver()
    model.run(prepared, [keep])
    return {kept.site.layer: kept.weights[0].double().numpy() for kept in keep.maps}


@pytest.fixture(scope="module")
def weights(model, prepared):
    return weights_of(model, prepared)


def monotonic(rows, block=1 << 21, offset=0, allowed=True):
    """Scores of rows [head, query, key], queries on the keys' sequence or, without an offset, on another."""
    queries, keys = ([[Token("", place) for place in range(size)]] for size in rows.shape[1:])
    measured = Measurement(["monotonic"], block)
    measured.observe(attention(Case(rows[None], np.array(allowed), keys, offset, queries), torch.float64))
    return [head.scores["monotonic"] for head in measured.scores()]


def test_scores_of_selected_rows_equal_those_of_the_weights(model, prepared, weights):
    seen = measure_heads(model, prepared, Selection(), rows=range(5, 12)).heads
    for head in seen:
        own = weights[head.site.layer][head.head]
        assert head.scores["previous"].rows == 7
        assert head.scores["previous"].value == near(own.diagonal(-1)[4:11].mean(), "previous", len(own))
        assert head.scores["first"].baseline == pytest.approx(np.mean([1 / (i + 1) for i in range(5, 12)]))
        assert head.scores["confidence"].value == near(own[5:12].max(-1).mean(), "confidence", len(own))


def test_scores_of_all_parts_average_to_the_whole_text(model, prepared):
    ranges = None, range(9), range(9, len(prepared.tokens))
    heads = [measure_heads(model, prepared, Selection(), rows=rows).heads for rows in ranges]
    for whole, *parts in zip(*heads, strict=True):
        for name in ("entropy", "previous", "special", "duplicate", "induction", "offset"):
            pair = [each.scores[name] for each in parts if name in each.scores]
            rows = sum(score.rows for score in pair)
            assert rows == whole.scores[name].rows
            total = sum(score.value * score.rows for score in pair) / rows
            assert total == near(whole.scores[name].value, name, len(prepared.tokens))


def test_curve_has_one_value_per_row(run, weights):
    seen = run.json("stats", TEXT, "-m", "own-causal", "--by-position", "previous", "--top", "12")
    curves = {each["head"]: each["values"] for each in seen["curves"]}
    assert len(curves) == 12
    for layer, heads in weights.items():
        for number, own in enumerate(heads):
            values = curves[f"L{layer}H{number}"]
            assert values[0] is None  # nothing stands before the first token
            assert values[1:] == near([own[i, i - 1] for i in range(1, len(own))], "previous", len(own))
    means = [np.mean(each["values"][1:]) for each in seen["curves"]]
    assert means == sorted(means, reverse=True)


@pytest.mark.parametrize("width", [50, 80, 160])
def test_curves_fit_the_terminal_width(run, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    asked = "-m", "own-causal", "--by-position", "distance", "--top", "2"
    lines = run("stats", TEXT * 4, *asked).out.splitlines()
    assert max(map(len, lines)) <= width
    assert sum(line.startswith("L") for line in lines) == 2
    assert any(line.startswith("baseline") for line in lines)


def test_special_token_measures_are_separate_by_name(run):
    model = load("own")
    text = model.prepare(TEXT)
    weights = weights_of(model, text)
    at = {name: [token.text == name for token in text.tokens] for name in ("[CLS]", "[SEP]")}
    heads = run.json("stats", TEXT, "--where", "[CLS]>=0 and [SEP]>=0", "--sort", "[SEP]")["heads"]
    assert len(heads) == 32
    for head in heads:
        own = weights[head["layer"]][head["head"]]
        for name, there in at.items():
            assert head["scores"][name]["value"] == near(own[:, there].sum(-1).mean(), "special", len(own))
            assert head["scores"][name]["baseline"] == pytest.approx(1 / len(own))
        both = sum(head["scores"][name]["value"] for name in at)
        assert both == near(head["scores"]["special"]["value"], "special", len(own))
    assert run("check", "any.[SEP] > 0.1", TEXT).code == 0
    assert "[SEP]" in run("stats", TEXT, "--sort", "[SEP]", "--top", "1").out


@pytest.mark.parametrize("times", [1, 40], ids=["beside the kernel", "fused"])
def test_missing_special_token_has_no_score(run, times):
    model = load("own-causal")
    text = model.prepare(TEXT * times, limit=Limit(truncate=True))
    seen = measure_heads(model, text, Selection(), names=("[CLS]", "</s>"))
    for each in seen.heads:
        assert each.scores["[CLS]"].value > 0
        assert "</s>" not in each.scores
        assert "rows of texts that have such a token, and there are none" in each.absent["</s>"]
    assert ("fused" in seen.ran) == (times > 1)


def test_monotonic_counts_rows_whose_top_key_does_not_move_back():
    rows = np.eye(6)[[[0, 1, 1, 3, 2, 5], [5, 4, 3, 2, 1, 0]]]
    for block, offset in product((1 << 21, 12, 24), (0, None)):  # blocks of all rows, of one, of two
        one, other = monotonic(rows, block, offset)
        assert (one.value, one.rows) == (pytest.approx(4 / 5), 5)
        assert other.value == 0
        assert one.baseline == pytest.approx(7 / 12)  # (n + 1) / 2n


def test_monotonic_baseline_equals_random_keys():
    random = np.random.default_rng(0)
    (found,) = monotonic(random.random((1, 4000, 5)))
    assert found.value == pytest.approx(found.baseline, abs=0.02)
    allowed = np.tril(np.ones((300, 300), bool))
    (found,) = monotonic(np.where(allowed, random.random((1, 300, 300)), 0), allowed=allowed)
    exact = np.mean([(np.add.outer(np.arange(i + 1), -np.arange(i)) >= 0).mean() for i in range(1, 300)])
    assert found.baseline == pytest.approx(exact)
