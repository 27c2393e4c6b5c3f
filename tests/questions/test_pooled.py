"""Small maps of every head, out of the pass that measures them."""

from itertools import product

import numpy as np
import pytest
import torch

import attnscope
from attnscope.axes import coarsen_axis, group_places, places
from attnscope.models import load
from attnscope.models.inputs import Limit
from attnscope.models.kept import WeightsFile
from attnscope.questions.head import one_head
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads, overview
from attnscope.views import CELLS
from tests.models.folders import eager, gpt2

TOKENS = 700
WORDS = "The cat sat on the mat because it was tired, and words look back at words. " * 90


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return gpt2(tmp_path_factory.mktemp("long"), n_positions=TOKENS)


@pytest.fixture(scope="module")
def model(folder):
    return load(folder)


@pytest.fixture(scope="module")
def prepared(model):
    return model.prepare(WORDS, limit=Limit(TOKENS))


@pytest.fixture(scope="module")
def whole(folder, prepared):
    """The model's own eager attention.  [layer, head, query, key]"""
    ids = torch.tensor([[token.id for token in prepared.tokens]])
    return torch.cat(eager(folder, input_ids=ids).attentions).numpy()


def cells(whole, reduce):
    """Each cell's weights reduced, by hand.  [layer, head, query, key] -> [layer, head, cell, cell]"""
    cuts = [slice(cell * TOKENS // 256, (cell + 1) * TOKENS // 256) for cell in range(256)]
    open_ = np.tril(np.ones((TOKENS, TOKENS), bool))
    result = np.zeros((*whole.shape[:2], 256, 256))
    for (r, rows), (c, keys) in product(enumerate(cuts), repeat=2):
        if open_[rows, keys].any():
            result[..., r, c] = reduce(whole[..., rows, keys], open_[rows, keys])
    return result


@pytest.mark.parametrize(
    ("pool", "reduce"),
    [
        ("share", lambda part, open_: part.sum(-1).mean(-1)),
        ("mean", lambda part, open_: part[..., open_].mean(-1)),
        ("max", lambda part, open_: part.max((-1, -2))),
    ],
)
@pytest.mark.parametrize("exact_kernel", [False, True])
def test_a_long_text_is_pooled_to_256_cells_a_side_as_the_eager_weights_are(
    model, prepared, whole, pool, reduce, exact_kernel
):
    seen = measure_heads(model, prepared, Selection(), pool=pool, exact_kernel=exact_kernel)
    assert ("fused pass" in seen.ran) != exact_kernel
    how = "sdpa, float32, weights recomputed" if exact_kernel else "fused pass, float32, weights from the"
    assert how in seen.title
    found = np.stack([layer.values for _, layer in seen.maps.kinds["decoder"]])
    np.testing.assert_allclose(found, cells(whole, reduce), atol=1e-5)


def test_figures_are_the_same_with_maps_and_without(model, prepared):
    plain, pooled = (measure_heads(model, prepared, Selection(), pool=pool) for pool in (None, "share"))
    for one, other in zip(plain.heads, pooled.heads, strict=True):
        assert (one.site, one.head, list(one.figures)) == (other.site, other.head, list(other.figures))
        for name, figure in one.figures.items():
            assert figure.value == pytest.approx(other.figures[name].value, rel=1e-5, abs=1e-6), name
    assert plain.maps is None


def test_rows_and_columns_are_labelled_with_the_tokens_that_they_stand_for(model, prepared):
    (_, layer), _ = measure_heads(model, prepared, Selection(), pool="share").maps.kinds["decoder"]
    starts = [(place.start, place.stop) for place in layer.keys]
    assert starts[:3] == [(0, 2), (2, 5), (5, 8)]
    assert starts[-1][1] == TOKENS
    assert layer.keys[1].label.startswith("2-4 ")


def test_a_short_text_is_kept_token_by_token(model):
    prepared = model.prepare("The cat sat on the mat.")
    maps = measure_heads(model, prepared, Selection(layers=(1,)), pool="share").maps
    ((number, layer),) = maps.kinds["decoder"]
    assert (number, len(layer.keys)) == (1, len(prepared.tokens))
    assert not any(place.pooled for place in layer.keys)
    assert not any(note.startswith("pooled") for note in maps.notes)


def test_what_was_saved_is_read_back_with_its_ranges(model, prepared, tmp_path):
    maps = measure_heads(model, prepared, Selection(), pool="share").maps
    maps.save(tmp_path / "maps.npz")
    saved = WeightsFile(tmp_path / "maps.npz")
    assert [len(layer.keys) for layer in saved.prepared.replay.attentions] == [256, 256]
    np.testing.assert_array_equal(
        saved.prepared.replay.attentions[1].rows(0, 256)[0], maps.kinds["decoder"][1][1].values
    )
    assert any("pooled: 700 × 700 tokens; keys of a cell are summed" in note for note in saved.notes)
    shown = one_head(saved, saved.prepared, "L1H2").heatmap
    assert shown.weights.keys == maps.kinds["decoder"][1][1].keys
    assert sum(note.startswith("pooled") for note in shown.notes) == 1
    # the columns of a saved layer, pooled once more
    coarser = group_places(places(saved.prepared.replay.attentions[1].keys), most=100)
    assert [(place.start, place.stop) for place in coarser.places][:2] == [(0, 8), (8, 16)]
    assert [len(words) for words in coarser.parts][:2] == [3, 3]


def test_cells_of_one_token_beside_cells_of_two_keep_their_numbers(model, tmp_path):
    prepared = model.prepare(WORDS, limit=Limit(300))
    maps = measure_heads(model, prepared, Selection(), pool="share").maps
    maps.save(tmp_path / "maps.npz")
    read = WeightsFile(tmp_path / "maps.npz")
    (_, layer), *_ = maps.kinds["decoder"]
    assert {place.stop - place.start for place in layer.keys} == {1, 2}
    assert group_places(places(read.prepared.replay.attentions[0].keys)).places == layer.keys


def test_its_maps_and_figures_are_those_of_the_models_own_eager_weights(model, prepared, whole):
    result = overview(model, prepared, Selection())
    assert {site.kernel for site in result.record.sites} == {"fused pass"}
    coarse = coarsen_axis(prepared.tokens, most=CELLS, even=True)
    (grid,) = result.grids.values()
    for layer, weights in enumerate(whole):
        expected = coarse.averaging() @ weights @ coarse.summing().T
        shown = grid.layers[layer].values
        np.testing.assert_allclose(np.where(shown > 0, shown, 0), expected, atol=1e-5)
    figures = [head.figures["entropy"].value for head in result.heads]
    rows = torch.from_numpy(whole)[:, :, 1:].double()  # the first row has one key, and is not counted
    entropies = torch.special.entr(rows).sum(-1).mean(-1).flatten()
    np.testing.assert_allclose(figures, entropies, atol=1e-4)


def test_the_models_own_kernel_runs_where_that_is_asked_for(model, prepared):
    result, fused = (overview(model, prepared, Selection(), exact_kernel=exact) for exact in (True, False))
    assert {site.kernel for site in result.record.sites} == {"sdpa"}
    for one, other in zip(result.grids["decoder"].layers, fused.grids["decoder"].layers, strict=True):
        np.testing.assert_allclose(one.values, other.values, atol=1e-4)


def test_words_and_special_tokens_are_read_beside_the_kernel():
    text = "the cat sat on the mat because it was tired " * 60
    run = attnscope.load("own-causal").read(text, truncate=True)
    assert "fused" not in repr(run.overview(words=True))
