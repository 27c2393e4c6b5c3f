"""Comparison of heads, texts and models, against an independent computation."""

import copy
import math
import re

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon

from attnscope.attention import Head
from attnscope.axes import weights
from attnscope.errors import InputError, SelectionError
from attnscope.models import load
from attnscope.questions import compare
from attnscope.questions.compare import compare_all_heads, compare_two_heads, even_sample
from attnscope.questions.compare_texts_models import by_word, compare_models, compare_texts
from attnscope.questions.selection import Selection
from tests.axes.test_axes import grouped
from tests.measures.rounding import near
from tests.models.folders import eager_minilm, gpt2, t5

TEXT = "The cat sat on the mat because it was tired."
OTHER = "A small tokenizer wants only a few lines to learn from."


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return load(t5(tmp_path_factory.mktemp("t5")))


@pytest.mark.parametrize(("text", "words"), [(TEXT, False), ("Tokenizers overfit.", True)])
def test_head_distances_agree_with_scipy_on_eager_attention(text, words, minilm):
    tokens = minilm.prepare(text).tokens
    maps, _ = grouped(weights(np.concatenate(eager_minilm(text)), tokens, tokens), words=words)
    assert (len(maps.keys) < len(tokens)) == words, "a word has several pieces"
    seen = compare_all_heads(minilm, minilm.prepare(text), Selection(words=words))
    assert [head.name for head in seen.heads[:13]] == [f"L0H{i}" for i in range(12)] + ["L1H0"]
    apart = jensenshannon(maps.values[:, None], maps.values[None], axis=-1) ** 2  # [head, head, query]
    assert seen.distances == near(apart.mean(-1), "entropy", len(maps.keys))
    assert not seen.error.any()
    size = len(maps.keys)
    assert (seen.rows, seen.texts, seen.stability) == (compare.RowCount(size, size), 1, None)
    assert seen.nearest[0].distance == seen.distances[np.triu_indices(72, 1)].min()


@pytest.mark.parametrize(
    ("selection", "part"), [(Selection(layers=(2,)), slice(16, 24)), (Selection(number=5), slice(5, None, 8))]
)
def test_selected_heads_are_a_part_of_all_distances(own, selection, part):
    prepared = own.prepare(TEXT)
    whole, some = compare_all_heads(own, prepared), compare_all_heads(own, prepared, selection)
    assert some.heads == whole.heads[part]
    assert some.distances == pytest.approx(whole.distances[part, part], abs=1e-7)


def test_long_texts_compare_on_an_even_sample_with_a_note(own, monkeypatch):
    prepared = own.prepare(TEXT + " " + OTHER)
    exact = compare_all_heads(own, prepared)
    monkeypatch.setattr(compare, "FEWEST", 8)
    monkeypatch.setattr(compare.even_rows, "__defaults__", (1,))
    sampled = compare_all_heads(own, prepared)
    assert sampled.rows == compare.RowCount(8, len(prepared.tokens))
    assert f"8 of {sampled.rows.of} rows were compared (an even sample)" in sampled.notes
    off = np.abs(sampled.distances - exact.distances)[np.triu_indices(32, 1)]
    told = sampled.error[np.triu_indices(32, 1)]
    assert (told > 0).all()
    assert (off < 2 * told).mean() > 0.9


def test_row_sample_is_evenly_spaced():
    assert even_sample(10, 5) == list(range(10))
    assert even_sample(8, 8, cells=4 * 8) == list(range(8)), "few rows are all compared"
    rows = even_sample(1000, 512)
    assert len(rows) == 96
    assert set(np.diff(rows)) <= {10, 11}
    assert rows[0] + rows[-1] == pytest.approx(999, abs=11)


def copied(model, change):
    """A copy of a model, each weight of which was changed."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weights in other.module.parameters():
            weights.copy_(change(weights))
    return other


@pytest.mark.parametrize("models", [1, 2])
def test_distances_average_over_texts_with_errors(own, models):
    noise, texts = torch.Generator(), (TEXT, OTHER, "Heads look at words.")
    other = copied(own, lambda w: w + 0.02 * torch.randn(w.shape, generator=noise.manual_seed(1)))

    def distances(*texts):
        read = [(own.prepare(text), other.prepare(text)) for text in texts]
        if models == 2:
            return compare_models(own, other, read)
        return compare_all_heads(own, [text for text, _ in read])

    seen, each = distances(*texts), [distances(text).distances for text in texts]
    assert seen.distances == pytest.approx(np.mean(each, 0), abs=1e-9)
    assert seen.error == pytest.approx(np.std(each, 0, ddof=1) / math.sqrt(3), abs=1e-9)
    assert seen.texts == 3
    assert 0 < seen.stability < 1
    assert any(note.startswith("rank correlation") for note in seen.notes)


def test_clusters_follow_the_table_order(own):
    seen = compare_all_heads(own, own.prepare(TEXT))
    view = seen.view
    order = [head for group in seen.groups.members for head in group]
    assert list(view.table.rows) == list(view.table.columns) == [seen.heads[head].name for head in order]
    assert sum(view.table.groups) == 32
    assert np.array_equal(view.table.values, seen.distances[np.ix_(order, order)])
    for pair in seen.singletons:
        row = seen.distances[seen.heads.index(pair.one)]
        assert pair.distance == np.sort(row)[1]


def test_attention_kinds_are_compared_separately(pair):
    prepared = pair.prepare(TEXT, OTHER)
    seen, cross = (compare_all_heads(pair, prepared, Selection(kind=kind)) for kind in (None, "cross"))
    assert [(each.kind, len(each.heads)) for each in (seen, cross)] == [("encoder", 8), ("cross", 8)]
    assert any("--kind" in note for note in seen.notes)
    assert cross.distances != pytest.approx(seen.distances, abs=1e-3)


def test_two_heads_are_compared_row_by_row(minilm):
    model, eager = minilm, np.concatenate(eager_minilm(TEXT))
    seen = compare_two_heads(model, model.prepare(TEXT), "L0H2", "L3H4")
    one, other = eager[2], eager[40]
    apart = jensenshannon(one, other, axis=-1) ** 2
    assert [each.distance for each in seen.rows] == near(apart, "entropy", len(one))
    assert seen.distance == near(apart.mean(), "entropy", len(one))
    assert seen.view.difference.values == pytest.approx(one - other, abs=1e-5)
    assert seen.view.difference.signed
    top = seen.view.partings[0]
    row = int(apart.argmax())
    assert (top.position, top.distance) == (row, near(apart[row], "entropy", len(one)))
    assert top.weights == (pytest.approx(one[row].max(), abs=1e-5), pytest.approx(other[row].max(), abs=1e-5))
    assert top.keys[0].endswith(f" {one[row].argmax()}")
    hidden = compare_two_heads(model, model.prepare(TEXT), "L0H2", "L3H4", Selection(hide_special=True))
    assert hidden.view.difference.values.shape == (len(hidden.rows),) * 2 == (11, 11)
    assert any("special tokens hidden" in note for note in hidden.view.notes)


def test_invalid_comparison_is_refused(own, monkeypatch):
    text = own.prepare("The cat sat.")
    with pytest.raises(InputError, match="no text to compare heads on"):
        compare_all_heads(own, [])
    for alone in (Selection(Head("L2H1")), Selection(layers=(2,), number=1)):
        with pytest.raises(SelectionError, match="L2H1 alone cannot be compared"):
            compare_all_heads(own, text, alone)
    with pytest.raises(InputError, match="share no word"):
        compare_models(own, own, [(text, own.prepare("Nobody knows why"))])
    monkeypatch.setattr(compare, "MAX_COMPARED_HEADS", 32)
    assert len(compare_all_heads(own, text).heads) == 32
    monkeypatch.setattr(compare, "MAX_COMPARED_HEADS", 31)
    with pytest.raises(SelectionError, match="at most 31 heads can be compared, these are 32: choose some"):
        compare_all_heads(own, text)


LONGER = "The dog sat on the very old mat because it was tired."


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return load(gpt2(tmp_path_factory.mktemp("gpt2")))


def of_heads(*heads):
    """The columns of some heads' queries, keys and values in GPT-2's projection."""
    return [block * 32 + head * 8 + i for head in heads for block in range(3) for i in range(8)]


def test_model_with_shuffled_heads_is_matched_exactly(small):
    orders, other = [[2, 0, 3, 1], [1, 3, 2, 0]], copy.deepcopy(small)
    with torch.no_grad():
        for layer, order in zip(other.module.h, orders, strict=True):
            new, old = of_heads(*range(4)), of_heads(*order)
            for weights in (layer.attn.c_attn.weight, layer.attn.c_attn.bias):
                weights[..., new] = weights[..., old]
            layer.attn.c_proj.weight[:] = layer.attn.c_proj.weight.unflatten(0, (4, 8))[order].flatten(0, 1)
    seen = compare_models(small, other, [(small.prepare(TEXT), other.prepare(TEXT))])
    assert len(seen.matches) == 8
    for pair in seen.matches:
        assert pair.one.layer == pair.other.layer
        assert orders[pair.one.layer][pair.other.head] == pair.one.head
        assert pair.distance == pytest.approx(0, abs=1e-6)
    assert seen.drift.max() > 1e-4


@pytest.mark.parametrize(("layer", "head"), [(0, 1), (1, 2)])
def test_changed_head_has_the_largest_drift(small, layer, head):
    other = copy.deepcopy(small)
    with torch.no_grad():
        columns = of_heads(head)[:8]  # its query
        other.module.h[layer].attn.c_attn.weight[:, columns] *= -1
    seen = compare_models(small, other, [(small.prepare(TEXT), other.prepare(TEXT))])
    assert seen.units == "tokens"
    assert seen.ranking[0].one == Head(layer, head, "decoder")
    assert seen.ranking[0].distance > 2 * seen.ranking[1].distance
    assert (seen.drift[: 4 * layer] == pytest.approx(0, abs=1e-9)) if layer else True


def test_models_of_other_shape_are_matched_as_by_scipy(own, minilm):
    seen = compare_models(minilm, own, [(minilm.prepare(TEXT), own.prepare(TEXT))])
    assert (len(seen.heads), len(seen.others), len(seen.matches)) == (72, 32, 32)
    assert seen.drift is None
    assert seen.ranking[-1].distance < 0.05, "both have a head that looks at the previous token"
    assert {seen.ranking[-1].one.name, seen.ranking[-1].other.name} == {"L0H2", "L2H1"}
    table = seen.view
    assert table.values.shape == (72, 32)
    assert (np.diff(table.values.diagonal()) >= 0).all()


def test_models_with_other_tokenizers_compare_words(small, pair):
    read, others = small.prepare(TEXT), pair.prepare(TEXT)
    seen = compare_models(small, pair, [(read, others)])
    assert (seen.units, seen.kind) == ("words", "decoder")
    sides = zip(*by_word(read.tokens, others.tokens), strict=True)
    one, other = (
        ["".join(text.tokens[at].text.strip() for at in places) for places in side]
        for text, side in zip((read, others), sides, strict=True)
    )
    assert one == other
    assert "".join(one) == TEXT.replace(" ", "")


def test_small_drift_is_in_thousandths_and_other_heads_empty(own):
    other = copied(own, lambda weights: 1.001 * weights)
    prepared = own.prepare(TEXT), other.prepare(TEXT)
    seen = compare_models(own, other, [prepared], Selection(number=2))
    assert 0 < seen.drift.max() < 0.1
    assert seen.view.unit == "× 10⁻³ nats"
    assert seen.view.values[:, 2] == pytest.approx(1000 * seen.drift)
    assert np.isnan(seen.view.values[:, :2]).all()


def test_drift_has_its_own_standard_error_in_note_and_digits(own, monkeypatch):
    monkeypatch.setattr(compare, "FEWEST", 8)
    monkeypatch.setattr(compare.even_rows, "__defaults__", (1,))
    other = copied(own, lambda weights: 1.01 * weights)
    long = f"{TEXT} {OTHER}"
    seen = compare_models(own, other, [(own.prepare(long), other.prepare(long))])
    drift = seen.error.diagonal()
    assert seen.error.max() > 10 * drift.max() > 0  # of pairs of different heads
    (note,) = (each for each in seen.notes if each.startswith("standard error"))
    assert (
        note == f"standard error of a distance: {drift.mean():.1g} nats on average, {drift.max():.1g} at most"
    )
    first = seen.ranking[0]
    assert re.fullmatch(r"0\.0*[1-9]\d* ± 0\.0*[1-9]\d? nats apart", first.words)
    shown, error = (float(each) for each in first.words.removesuffix(" nats apart").split(" ± "))
    assert (shown, error) == pytest.approx((first.distance, first.error), rel=0.1)


def test_text_change_agrees_with_scipy(minilm):
    seen = compare_texts(minilm, minilm.prepare(TEXT), minilm.prepare(LONGER), Selection(Head("L1H3")))
    one, other = (np.concatenate(eager_minilm(text)) for text in (TEXT, LONGER))
    theirs = [*range(6), *range(8, 15)]  # "very old" was put in
    kept = other[:, theirs][:, :, theirs]
    rest = (1 - kept.sum(-1, keepdims=True)).clip(0)
    one = np.concatenate([one, np.zeros_like(rest)], -1)
    apart = jensenshannon(one, np.concatenate([kept, rest], -1), axis=-1) ** 2
    assert seen.change == near(apart.mean(-1), "entropy", one.shape[-1])
    assert seen.ranking[0].head == Head(*divmod(int(apart.mean(-1).argmax()), 12), "encoder")
    shown = seen.difference.values[np.ix_(theirs, theirs)]
    assert shown == pytest.approx(kept[15] - one[15, :, :13], abs=1e-5)
    masked = seen.difference.masked
    assert masked[6:8].all()
    assert masked[:, 6:8].all()
    labels = [place.text for place in seen.difference.weights.queries]
    assert [labels[i] for i in (0, 2, 6, 7, 8)] == ["[CLS]", "cat→dog", "+very", "+old", "mat"]
    assert len([mine for mine, _ in seen.aligned.steps if mine is not None]) == 13


def test_text_has_distance_zero_from_itself(own):
    seen = compare_texts(own, own.prepare(TEXT), own.prepare(TEXT))
    assert seen.change == pytest.approx(np.zeros(32), abs=1e-9)
    assert seen.difference is None
