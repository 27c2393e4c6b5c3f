"""Heads compared with each other, through the layers, in pairs: against an independent computation."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from attnscope.attention import Head
from attnscope.errors import InputError, SelectionError
from attnscope.models import load
from attnscope.questions import compare
from attnscope.questions.compare import compare_all_heads, compare_two_heads, evenly
from attnscope.questions.selection import Selection
from tests.models.folders import eager_minilm, gpt2, minilm, t5

TEXT = "The cat sat on the mat because it was tired."
OTHER = "A small tokenizer wants only a few lines to learn from."


@pytest.fixture(scope="module")
def own():
    return load("own")


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return load(t5(tmp_path_factory.mktemp("t5")))


@pytest.fixture(scope="module")
def eager():
    """The real model's own eager attention on a text.  [head of all layers, query, key]"""
    return np.concatenate(eager_minilm(TEXT))


def oracle(maps):
    """Mean over rows of scipy's distance, squared.  [head, query, key] -> [head, head]"""
    return (jensenshannon(maps[:, None], maps[None], axis=-1) ** 2).mean(-1)


def test_distances_agree_with_scipy_on_the_models_own_attention(eager):
    model = load(minilm())
    seen = compare_all_heads(model, model.prepare(TEXT))
    assert [head.name for head in seen.heads[:13]] == [f"L0H{i}" for i in range(12)] + ["L1H0"]
    assert seen.distances == pytest.approx(oracle(eager), abs=1e-6)
    assert not seen.error.any()
    assert (seen.rows, seen.of, seen.texts, seen.stability) == (13, 13, 1, None)
    nearest = seen.nearest[0]
    upper = seen.distances[np.triu_indices(72, 1)]
    assert nearest.distance == upper.min()


def test_one_layer_and_one_head_number_are_parts_of_the_whole(own):
    prepared = own.prepare(TEXT)
    whole = compare_all_heads(own, prepared)
    layer = compare_all_heads(own, prepared, Selection(layers=(2,)))
    assert [head.name for head in layer.heads] == [f"L2H{i}" for i in range(8)]
    assert layer.distances == pytest.approx(whole.distances[16:24, 16:24], abs=1e-7)
    number = compare_all_heads(own, prepared, Selection(number=5))
    assert [head.name for head in number.heads] == [f"L{i}H5" for i in range(4)]
    assert number.distances == pytest.approx(whole.distances[5::8, 5::8], abs=1e-7)


def test_words_are_merged_before_heads_are_compared(eager):
    model = load(minilm())
    text = "Tokenizers overfit."
    prepared = model.prepare(text)
    words = [token.word for token in prepared.tokens]
    assert len(set(words)) < len(words) - 1, "a word in this text has several pieces"
    maps = np.concatenate(eager_minilm(text))
    groups = [[0]]
    for number in range(1, len(words)):
        same = words[number] is not None and words[number] == words[number - 1]
        groups[-1].append(number) if same else groups.append([number])
    merged = np.stack([maps[:, group].mean(1) for group in groups], 1)
    merged = np.stack([merged[:, :, group].sum(-1) for group in groups], -1)
    assert compare_all_heads(model, prepared, Selection(words=True)).distances == pytest.approx(
        oracle(merged), abs=1e-6
    )


def test_long_texts_are_compared_on_an_even_sample_that_is_told(own, monkeypatch):
    prepared = own.prepare(TEXT + " " + OTHER)
    exact = compare_all_heads(own, prepared)
    monkeypatch.setattr(compare, "FEWEST", 8)
    sampled = compare_all_heads(own, prepared, replace(Selection()))
    assert sampled.rows == sampled.of
    monkeypatch.setattr(compare.even_rows, "__defaults__", (1,))
    sampled = compare_all_heads(own, prepared)
    assert (sampled.rows, sampled.of) == (8, len(prepared.tokens))
    assert f"compared on an even sample of 8 of {sampled.of} rows" in sampled.notes
    off = np.abs(sampled.distances - exact.distances)[np.triu_indices(32, 1)]
    told = sampled.error[np.triu_indices(32, 1)]
    assert (told > 0).all()
    assert (off < 2 * told).mean() > 0.9


def test_a_sample_is_even():
    assert evenly(10, 5) == list(range(10))
    assert evenly(8, 8, cells=4 * 8) == list(range(8)), "few rows are all compared"
    rows = evenly(1000, 512)
    assert len(rows) == 96
    assert set(np.diff(rows)) <= {10, 11}
    assert rows[0] + rows[-1] == pytest.approx(999, abs=11)


def test_over_texts_distances_average_with_their_error(own):
    prepared = [own.prepare(text) for text in (TEXT, OTHER, "Heads look at words.")]
    each = [compare_all_heads(own, text).distances for text in prepared]
    seen = compare_all_heads(own, prepared)
    assert seen.distances == pytest.approx(np.mean(each, 0), abs=1e-9)
    assert seen.error == pytest.approx(np.std(each, 0, ddof=1) / math.sqrt(3), abs=1e-9)
    assert seen.texts == 3
    assert 0 < seen.stability < 1
    assert any(note.startswith("rank correlation") for note in seen.notes)


def test_groups_are_named_in_the_order_of_the_table(own):
    seen = compare_all_heads(own, own.prepare(TEXT))
    view = seen.view
    order = [seen.heads[head].name for head in seen.groups.order]
    assert list(view.table.rows) == list(view.table.columns) == order
    assert sum(view.table.groups) == 32
    assert np.array_equal(view.table.values, seen.distances[np.ix_(seen.groups.order, seen.groups.order)])
    for pair in seen.singletons:
        others = [
            seen.distances[seen.heads.index(pair.one), i] for i, h in enumerate(seen.heads) if h != pair.one
        ]
        assert pair.distance == min(others)


def test_kinds_of_attention_are_never_mixed(pair):
    prepared = pair.prepare(TEXT, OTHER)
    seen = compare_all_heads(pair, prepared)
    assert seen.kind == "encoder"
    assert len(seen.heads) == 8
    assert any("--kind" in note for note in seen.notes)
    cross = compare_all_heads(pair, prepared, Selection(kind="cross"))
    assert (cross.kind, len(cross.heads)) == ("cross", 8)
    assert cross.distances != pytest.approx(seen.distances, abs=1e-3)


def test_two_heads_and_where_they_part(eager):
    model = load(minilm())
    seen = compare_two_heads(model, model.prepare(TEXT), "L0H2", "L3H4")
    one, other = eager[2], eager[40]
    apart = jensenshannon(one, other, axis=-1) ** 2
    assert seen.by_row == pytest.approx(apart, abs=1e-6)
    assert seen.distance == pytest.approx(apart.mean(), abs=1e-6)
    assert seen.view.difference.values == pytest.approx(one - other, abs=1e-5)
    assert seen.view.difference.signed
    top = seen.view.partings[0]
    row = int(apart.argmax())
    assert (top.position, top.distance) == (row, pytest.approx(apart[row], abs=1e-6))
    assert top.weights == (pytest.approx(one[row].max(), abs=1e-5), pytest.approx(other[row].max(), abs=1e-5))
    assert top.keys[0].endswith(f" {one[row].argmax()}")


def test_a_head_is_at_no_distance_from_itself(own):
    seen = compare_two_heads(own, own.prepare(TEXT), "L1H2", "L1H2")
    assert (seen.distance, seen.error) == (0, 0)


def test_hidden_special_tokens_count_as_one_key(own):
    seen = compare_two_heads(own, own.prepare(TEXT), "L0H1", "L2H3", Selection(hide_special=True))
    assert len(seen.rows) == 11
    assert seen.view.difference.values.shape == (11, 11)
    assert any("special tokens hidden" in note for note in seen.view.notes)


def test_no_text_and_one_head_alone_cannot_be_compared(own):
    with pytest.raises(InputError, match="there is no text"):
        compare_all_heads(own, [])
    for alone in (Selection(Head("L2H1")), Selection(layers=(2,), number=1)):
        with pytest.raises(SelectionError, match="L2H1 alone cannot be compared"):
            compare_all_heads(own, own.prepare(TEXT), alone)


def test_causal_heads_are_compared_with_each_other(tmp_path):
    model = load(gpt2(tmp_path))
    seen = compare_all_heads(model, model.prepare(TEXT))
    assert seen.kind == "decoder"
    assert (seen.distances[np.triu_indices(len(seen.heads), 1)] > 0).all()


@pytest.mark.parametrize("most", [31, 32])
def test_more_heads_than_can_be_compared_are_refused(most, monkeypatch):
    monkeypatch.setattr("attnscope.questions.compare.MOST_COMPARED", most)
    model = load("own")
    if most == 32:
        assert len(compare_all_heads(model, model.prepare("The cat sat.")).heads) == 32
        return
    with pytest.raises(SelectionError, match="at most 31 heads are compared, and these are 32: pick some"):
        compare_all_heads(model, model.prepare("The cat sat."))
