"""Every view against eager attention with the same weights."""

import numpy as np
import pytest
import torch

import attnscope
from attnscope.attention import Head
from attnscope.axes import coarsen_axis, fit, group_places, places, weights
from attnscope.errors import SelectionError
from attnscope.models import load
from attnscope.models.inputs import Limit
from attnscope.models.trace_model import WeightsFile
from attnscope.questions.head import one_head, several_heads
from attnscope.questions.layers import all_heads, whole_layers
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads, overview
from attnscope.questions.token import one_token
from attnscope.views import THUMBNAIL_CELLS
from tests.axes.test_axes import grouped
from tests.measures.rounding import near
from tests.models.folders import eager as run_eager
from tests.models.folders import eager_minilm, gpt2, t5
from tests.models.test_generation import DECODERS, writer_folder

TEXT = "The unbelievably tired cat sat on the mat, because the cat was tired."


@pytest.fixture(scope="module")
def prepared(minilm):
    return minilm.prepare(TEXT)


@pytest.fixture(scope="module")
def eager():
    """The model's own eager attention.  [layer, head, query, key]"""
    return eager_minilm(TEXT)


@pytest.fixture(scope="module")
def labelled(eager, prepared):
    return weights(eager[2, 5], prepared.tokens, prepared.tokens)


def test_single_and_side_by_side_heads_equal_eager_on_one_scale(minilm, prepared, eager):
    places = [(5, 0), (0, 2), (3, 11), (0, 1)]
    named = [f"L{layer}H{head}" for layer, head in places]
    found = several_heads(minilm, prepared, Selection(scale="head"), named)
    assert [each.title for each in found.view.maps] == named
    assert [str(each.scores.name) for each in found.heads] == named
    top = max(eager[place].max() for place in places)
    for each, place in zip(found.view.maps, places, strict=True):
        np.testing.assert_allclose(each.values, eager[place], atol=1e-5)
        assert each.limits == pytest.approx((0, top), abs=1e-5)
    alone = one_head(minilm, prepared, "L0H1")
    np.testing.assert_allclose(alone.heatmap.values, eager[0, 1], atol=1e-5)
    assert [each.text for each in alone.heatmap.weights.keys] == [token.text for token in prepared.tokens]
    assert not alone.heatmap.masked.any()
    assert (found.heads[3].scores.scores, found.heads[3].scores.head) == (alone.scores.scores, 1)


@pytest.mark.parametrize("hide", [False, True])
@pytest.mark.parametrize("words", [False, True])
def test_head_merges_words_and_hides_special_tokens(minilm, prepared, labelled, words, hide):
    expected, share = grouped(labelled, words=words, hide_special=hide)
    found = one_head(minilm, prepared, Selection(Head("L2H5"), words=words, hide_special=hide)).heatmap
    assert found.weights.keys == expected.keys
    assert (len(expected.keys) < len(prepared.tokens)) == (words or hide)
    np.testing.assert_allclose(found.values, expected.values, atol=1e-5)
    assert (f"special tokens hidden: they receive {share:.0%} of its attention" in found.notes) == hide


def test_very_large_head_is_pooled_with_a_note(minilm, prepared, labelled, monkeypatch):
    monkeypatch.setattr("attnscope.questions.head.MAX_TOKENS", 8)
    expected = fit(labelled, 8, 8)
    found = one_head(minilm, prepared, "L2H5").heatmap
    assert [place.label for place in found.weights.keys] == [place.label for place in expected.keys]
    np.testing.assert_allclose(found.values, expected.values, atol=1e-5)
    assert any("pooled" in note for note in found.notes)


@pytest.mark.parametrize("layers", [None, (4,)])
def test_overview_has_every_head_in_order(minilm, prepared, eager, layers):
    seen = overview(minilm, prepared, Selection(layers=layers))
    (grid,), wanted = seen.grids.values(), list(layers or range(6))
    assert [layer.layer for layer in grid.layers] == wanted
    for layer in grid.layers:
        np.testing.assert_allclose(layer.values, eager[layer.layer], atol=1e-5)
    assert grid.size == (len(prepared.tokens),) * 2
    assert [found.site.layer for found in seen.heads] == [layer for layer in wanted for _ in range(12)]
    assert grid.without_attention == ()


def weights_of(listed):
    """The places that are listed, each with its weight."""
    return {bar.position: bar.weight for bar in listed.bars}


def require(listed, numbers):
    """The places that are listed have what is theirs of the numbers of all, the largest first."""
    found = weights_of(listed)
    assert found == pytest.approx({place: numbers[place] for place in found}, abs=1e-5)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert max(found.values()) == pytest.approx(numbers.max(), abs=1e-5)


def test_token_matches_ignoring_case_and_other_positions_are_noted(minilm, prepared, eager):
    first, second = [number for number, token in enumerate(prepared.tokens) if token.text == "cat"]
    seen = one_token(minilm, prepared, Selection(Head("L3H4"), token="CAT"))
    assert (seen.label, seen.position) == ("cat", first)
    assert f"the same text is also at {second}" in " ".join(seen.notes)
    require(seen.looks_at, eager[3, 4, first])
    require(seen.looked_at_by, eager[3, 4, :, first])


def test_token_without_head_is_mean_and_word_averages_pieces(minilm, prepared, eager):
    seen = one_token(minilm, prepared, Selection(token="1"))
    require(seen.looks_at, eager.mean((0, 1))[1])
    assert "average over 72 heads of 6 layers" in seen.title
    word = [number for number, token in enumerate(prepared.tokens) if token.word == 1]
    assert len(word) > 1
    seen = one_token(minilm, prepared, Selection(Head("L0H0"), token="unbelievably", words=True))
    assert weights_of(seen.looks_at).get(0, 0) == pytest.approx(eager[0, 0][word].mean(0)[0], abs=1e-5)


def test_encoder_decoder_has_three_kinds_with_a_note(tmp_path):
    model = load(t5(tmp_path))
    prepared = model.prepare("The cat sat.", "It was tired.")
    seen = overview(model, prepared, Selection())
    assert list(seen.grids) == ["encoder", "decoder", "cross"]
    shown = one_head(model, prepared, "L0H0").heatmap
    assert "exists in decoder and cross attention too" in " ".join(shown.notes)
    cross = one_head(model, prepared, Selection(Head("L0H0"), kind="cross")).heatmap
    assert cross.weights.keys[-1].text == "</s>"
    assert cross.weights.queries[0].text == "<pad>"
    queries, keys = ([token.text for token in axis] for axis in prepared.axes["cross"])
    source = next(text for text in keys if text.strip() and text not in queries)
    token = one_token(model, prepared, Selection(kind="cross", token=source))
    assert token.looks_at is None  # a word of the source has only a column
    assert token.looked_at_by is not None
    with pytest.raises(SelectionError, match="encoder L0H0 and cross L0H0 have other rows or columns"):
        several_heads(model, prepared, Selection(), ["encoder L0H0", "cross L0H0"])


def test_head_scores_follow_word_axes_of_its_picture(own):
    spelled = own, own.prepare("Unbelievable interpretability of tokenizers.")
    found = one_head(*spelled, Selection(words=True).of("L0H7"))
    shown = found.heatmap.weights.values  # [word, word]
    assert len(shown) == 7
    scores = {name: score.value for name, score in found.scores.scores.items()}
    assert scores["next"] == pytest.approx(np.diagonal(shown, 1).mean(), abs=1e-6)
    assert scores["self"] == pytest.approx(np.diagonal(shown).mean(), abs=1e-6)
    assert scores["first"] == pytest.approx(shown[1:, 0].mean(), abs=1e-6)
    assert "scores are averages over words, as in the picture" in found.heatmap.notes
    same = all_heads(*spelled, Selection(words=True)).scores["encoder", 0][7]
    assert same.name == found.scores.name == "L0H7"
    assert {name: each.value for name, each in same.scores.items()} == pytest.approx(scores, abs=1e-6)
    hidden = one_head(*spelled, Selection(words=True, hide_special=True).of("L0H7"))
    assert hidden.scores.scores["next"] == one_head(*spelled, "L0H7").scores.scores["next"]
    assert "scores are averages over all tokens" in hidden.heatmap.notes
    assert "scores are averages over all tokens" in overview(*spelled, Selection(words=True)).notes


def test_generated_text_is_shown_and_measured_over_all_rows(tmp_path):
    folder = writer_folder(tmp_path, DECODERS["gemma3"]())  # of a sliding window
    model = load(folder, generative=True)
    text = model.generate(model.prepare("The cat sat on the mat"), 9)
    out = run_eager(folder, input_ids=text.inputs["input_ids"], use_cache=False)
    eager = torch.cat(out.attentions).numpy()  # [layer, head, query, key]
    head = one_head(model, text, "L1H2")
    np.testing.assert_allclose(head.heatmap.values, eager[1, 2], atol=1e-5)
    np.testing.assert_array_equal(head.heatmap.masked, eager[1, 2] == 0)  # what lies ahead, or too far back
    assert [place.text for place in head.heatmap.weights.keys] == [token.text for token in text.tokens]
    layers = dict(whole_layers(model, text, Selection()).kinds["decoder"])
    np.testing.assert_allclose(layers[2].values, eager[2], atol=1e-5)
    for found in measure_heads(model, text, Selection(layers=(2,))).heads:
        rows = eager[2, found.head]
        expected = {"previous": np.diag(rows, -1), "confidence": rows[1:].max(1), "first": rows[1:, 0]}
        for name, numbers in expected.items():
            score = found.scores[name]
            assert (score.value, score.rows) == (pytest.approx(numbers.mean(), abs=1e-5), len(rows) - 1)
    last = len(text.tokens) - 1
    listed = one_token(model, text, Selection(Head("L0H1"), token=str(last))).looks_at
    assert weights_of(listed).keys() == set(range(last - 3, last + 1))
    require(listed, eager[0, 1, last])


TOKENS = 700
WORDS = "The cat sat on the mat because it was tired, and words look back at words. " * 90


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    return load(gpt2(tmp_path_factory.mktemp("long"), n_positions=TOKENS))


@pytest.fixture(scope="module")
def book(reader):
    return reader.prepare(WORDS, limit=Limit(TOKENS))


@pytest.fixture(scope="module")
def whole(reader, book):
    """The model's own eager attention.  [layer, head, query, key]"""
    ids = torch.tensor([[token.id for token in book.tokens]])
    return torch.cat(run_eager(reader.name, input_ids=ids).attentions).numpy()


EDGES = np.arange(256) * TOKENS // 256


def cells(reduce, values):
    """The numbers of each cell reduced."""
    return reduce.reduceat(reduce.reduceat(values, EDGES, axis=-1), EDGES, axis=-2)


OPEN = cells(np.add, np.tril(np.ones((TOKENS, TOKENS))))
POOLED = {
    "share": lambda whole: cells(np.add, whole) / np.diff([*EDGES, TOKENS])[:, None],
    "mean": lambda whole: cells(np.add, whole) / np.maximum(OPEN, 1),
    "max": lambda whole: cells(np.maximum, whole),
}


@pytest.mark.sweep
@pytest.mark.parametrize("pool", POOLED)
@pytest.mark.parametrize("exact_kernel", [False, True])
def test_long_text_pools_to_256_cells_like_eager_weights(reader, book, whole, pool, exact_kernel):
    seen = measure_heads(reader, book, Selection(), pool=pool, exact_kernel=exact_kernel)
    assert ("fused pass" in seen.ran) != exact_kernel
    assert ("fused pass" in seen.title) != exact_kernel
    layers = [layer for _, layer in seen.maps.kinds["decoder"]]
    np.testing.assert_allclose([layer.values for layer in layers], POOLED[pool](whole), atol=1e-5)
    starts = [(place.start, place.stop) for place in layers[0].keys]
    assert [*starts[:3], starts[-1][1]] == [(0, 2), (2, 5), (5, 8), TOKENS]
    assert layers[0].keys[1].label.startswith("2-4 ")


def test_scores_are_equal_with_and_without_maps(reader, book):
    plain, pooled = (measure_heads(reader, book, Selection(), pool=pool) for pool in (None, "share"))
    for one, other in zip(plain.heads, pooled.heads, strict=True):
        assert (one.site, one.head, list(one.scores)) == (other.site, other.head, list(other.scores))
        for name, score in one.scores.items():
            assert score.value == near(other.scores[name].value, name, TOKENS), name
    assert plain.maps is None


@pytest.mark.parametrize(("tokens", "sizes"), [(TOKENS, {2, 3}), (300, {1, 2})])
def test_pooled_maps_survive_a_file_with_their_ranges(reader, tmp_path, tokens, sizes):
    text = reader.prepare(WORDS, limit=Limit(tokens))
    maps = measure_heads(reader, text, Selection(), pool="share").maps
    maps.save(tmp_path / "maps.npz")
    saved = WeightsFile(tmp_path / "maps.npz")
    layer, read = maps.kinds["decoder"][1][1], saved.prepared.replay.attentions[1]
    assert {place.stop - place.start for place in layer.keys} == sizes
    assert group_places(places(read.keys)).places == layer.keys
    np.testing.assert_array_equal(read.rows(0, 256)[0], layer.values)
    said = f"pooled: {tokens} × {tokens} tokens; keys summed"
    assert any(said in note for note in saved.notes)
    shown = one_head(saved, saved.prepared, "L1H2").heatmap
    assert shown.weights.keys == layer.keys
    assert sum(note.startswith("pooled") for note in shown.notes) == 1
    # the columns of a saved layer, pooled once more
    coarser = group_places(places(read.keys), most=100)
    assert [place.stop for place in coarser.places[:2]] == [layer.keys[2].stop, layer.keys[5].stop]
    assert [len(words) for words in coarser.parts][:2] == [3, 3]


@pytest.mark.parametrize("exact_kernel", [False, True])
def test_overview_of_a_book_equals_eager_weights(reader, book, whole, exact_kernel):
    result = overview(reader, book, Selection(), exact_kernel=exact_kernel)
    assert {site.kernel for site in result.record.sites} == {"sdpa" if exact_kernel else "fused pass"}
    coarse = coarsen_axis(book.tokens, most=THUMBNAIL_CELLS, even=True)
    expected = coarse.averaging() @ whole @ coarse.summing().T
    (grid,) = result.grids.values()
    shown = np.array([layer.values for layer in grid.layers])
    np.testing.assert_allclose(np.where(shown > 0, shown, 0), expected, atol=1e-5)
    scores = [head.scores["entropy"].value for head in result.heads]
    rows = torch.from_numpy(whole)[:, :, 1:].double()  # the first row has one key, and is not counted
    entropies = torch.special.entr(rows).sum(-1).mean(-1).flatten()
    np.testing.assert_allclose(scores, entropies, atol=1e-4)


def test_merged_words_do_not_use_the_fused_pass():
    text = "the cat sat on the mat because it was tired " * 60
    run = attnscope.load("own-causal").read(text, truncate=True)
    assert "fused" not in repr(run.overview(words=True))
