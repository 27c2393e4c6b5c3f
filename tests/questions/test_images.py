"""Looking at images: what is drawn over a picture is the model's own eager attention."""

import itertools

import numpy as np
import pytest
import torch

from attnscope.attention import Head
from attnscope.errors import InputError, SelectionError
from attnscope.models import load
from attnscope.questions.head import one_head
from attnscope.questions.layers import whole_layers
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads, overview
from attnscope.questions.token import one_token, see_token
from tests.models import images
from tests.models.folders import eager

CLS = ("CLS", "[CLS]", "cls", "0")


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    return images.picture(tmp_path_factory.mktemp("images") / "corner.png")


@pytest.fixture(scope="module")
def seen(tmp_path_factory, picture):
    """A model with special tokens, an image in it, and its own eager attention.  [layer, head, query, key]"""
    folder = images.vision(tmp_path_factory.mktemp("registers"), "dinov2-with-registers")
    model = load(folder)
    prepared = model.prepare_image(picture)
    return model, prepared, torch.cat(eager(folder, **prepared.inputs).attentions).numpy()


@pytest.fixture(scope="module")
def windows(tmp_path_factory, picture):
    folder = images.vision(tmp_path_factory.mktemp("swin"), "swin")
    model = load(folder)
    prepared = model.prepare_image(picture)
    return model, prepared, [each.numpy() for each in eager(folder, **prepared.inputs).attentions]


def test_a_patch_is_drawn_over_the_picture_both_ways(seen):
    model, prepared, weights = seen
    focus = one_token(model, prepared, Selection(Head("L1H1"), token="2,3"))
    place = 5 + 2 * 4 + 3
    assert (focus.label, focus.position, focus.overlays[0].patch) == ("2,3", place, (2, 3))
    np.testing.assert_allclose(focus.overlays[0].looks_at, weights[1, 1, place, 5:].reshape(4, 4), atol=1e-5)
    np.testing.assert_allclose(
        focus.overlays[0].looked_at_by, weights[1, 1, 5:, place].reshape(4, 4), atol=1e-5
    )
    assert np.array_equal(focus.overlays[0].pixels, prepared.picture.pixels)


@pytest.mark.parametrize(
    ("asked", "label", "patch", "row"),
    [(Selection(Head("L0H1"), token=name), "[CLS]", None, lambda w: w[0, 1, 0]) for name in CLS]
    + [
        (Selection(Head("L0H0"), token="patch 1,2"), "1,2", (1, 2), lambda w: w[0, 0, 11]),
        (Selection(Head("L0H0"), token="0,1", hide_special=True), "0,1", (0, 1), lambda w: w[0, 0, 6]),
        (Selection(token="REG2"), "[REG2]", None, lambda w: w.mean((0, 1))[3]),
    ],
)
def test_a_token_is_drawn_over_the_picture_by_any_of_its_names(seen, asked, label, patch, row):
    model, prepared, weights = seen
    focus = one_token(model, prepared, asked)
    assert (focus.label, focus.overlays[0].patch) == (label, patch)
    np.testing.assert_allclose(focus.overlays[0].looks_at, row(weights)[5:].reshape(4, 4), atol=1e-5)
    assert ("mean of 4 heads of 2 layers" in focus.title) == (asked.head is None)


@pytest.mark.parametrize(("name", "side"), [("distance2d", 1), ("distance2d=16", 16)])
def test_the_distance_of_patches_leaves_special_tokens_out(seen, name, side):
    model, prepared, weights = seen  # [CLS] and four registers before 4 × 4 patches
    place = np.array(list(itertools.product(range(4), range(4))), float)
    apart = np.linalg.norm(place[:, None] - place, axis=-1)  # [patch, patch]
    inside = weights[:, :, 5:, 5:].astype(np.float64)
    expected = side * ((inside * apart).sum(-1) / inside.sum(-1)).mean(-1)  # [layer, head]
    found = measure_heads(model, prepared, Selection(), names=(name,)).heads
    assert {(head.site.layer, head.head) for head in found} == set(np.ndindex(expected.shape))
    for head in found:
        assert head.figures[name].value == pytest.approx(expected[head.site.layer, head.head], abs=1e-5)
        assert head.figures[name].baseline == pytest.approx(side * apart.mean(), abs=1e-9)


def test_a_patch_that_is_not_there_is_told_what_is(seen):
    model, prepared, _ = seen
    with pytest.raises(SelectionError, match=r"no patch '9,9': .* from 0,0 to 3,3 and \[CLS\], \[REG0\]"):
        one_token(model, prepared, Selection(token="9,9"))


def test_heads_are_drawn_with_patches_on_their_axes(seen):
    model, prepared, weights = seen
    head = one_head(model, prepared, "L1H0").heatmap
    np.testing.assert_allclose(head.values, weights[1, 0], atol=1e-5)
    assert [place.label for place in head.weights.keys][4:7] == ["[REG3]", "0,0", "0,1"]
    assert overview(model, prepared, Selection()).grids["encoder"].size == (21, 21)


def test_windows_are_drawn_at_their_places_in_the_picture(windows):
    model, prepared, weights = windows
    placed = images.put_in_place(
        torch.from_numpy(weights[0]), 4, shift=2
    ).numpy()  # of the last block of a stage
    layers = dict(whole_layers(model, prepared, Selection()).kinds["encoder"])
    np.testing.assert_allclose(layers[1].values, placed, atol=1e-5)
    focus = one_token(model, prepared, Selection(Head("L1H0"), token="2,3"))
    assert (focus.label, focus.overlays[0].patch) == ("2,3", (2, 3))
    np.testing.assert_allclose(focus.overlays[0].looks_at, placed[0, 2 * 16 + 3].reshape(16, 16), atol=1e-5)
    every = overview(model, prepared, Selection())
    assert not any("mean of" in said for said in every.notes)
    assert "sizes: 256 in layers 0-1, 64 in layer 2" in every.notes
    merged = images.put_in_place(torch.from_numpy(weights[1]), 4).numpy()
    np.testing.assert_allclose(layers[2].values, merged, atol=1e-5)


def test_detection_tokens_stand_behind_the_patches(tmp_path, picture):
    model = load(images.vision(tmp_path, "yolos"))
    prepared = model.prepare_image(picture)
    assert [token.text for token in prepared.tokens][-4:] == ["3,3", "[DET0]", "[DET1]", "[DET2]"]
    assert len({token.id for token in prepared.tokens}) == len(prepared.tokens)
    focus = one_token(model, prepared, Selection(Head("L1H1"), token="DET1"))
    assert (focus.position, focus.overlays[0].patch) == (18, None)
    patch = one_token(model, prepared, Selection(Head("L1H1"), token="0,2"))
    assert (patch.position, patch.overlays[0].patch) == (3, (0, 2))
    assert patch.overlays[0].looked_at_by.shape == (4, 4)


def test_stages_of_other_sizes_are_named_and_bare_positions_are_said_to_be_such(tmp_path, picture):
    model = load(images.vision(tmp_path, "segformer"))
    seen = overview(model, model.prepare_image(picture), Selection())
    assert "sizes: 256 × 16 in layer 0, 64 × 16 in layer 1" in seen.notes
    assert "layers 0-1: rows and columns are positions, no patches of the picture" in seen.notes
    assert "256 × 16 and 64 × 16 tokens" in seen.grids["encoder"].subtitle


def test_a_token_is_looked_up_in_the_tower_that_it_is_of(tmp_path, picture):
    model = load(images.siglip(tmp_path))
    both = model.prepare_image(picture, "a tired cat")
    focus = one_token(model, both, Selection(token="0"))
    assert "mean of 4 heads of 2 layers" in focus.title
    alone = one_token(model, model.prepare_image(picture), Selection(token="0"))
    np.testing.assert_allclose(focus.overlays[0].looks_at, alone.overlays[0].looks_at, atol=1e-6)


def test_a_text_and_an_image_in_one_sequence_need_each_other(tmp_path, picture):
    model = load(images.vilt(tmp_path))
    seen = overview(model, model.prepare_image(picture, "a tired cat"), Selection())
    assert seen.grids["encoder"].size == (5 + 1 + 16, 5 + 1 + 16)
    with pytest.raises(InputError, match="reads a text beside the image: give both"):
        model.prepare_image(picture)


def test_a_merged_patch_has_no_place_in_the_picture(windows):
    model, prepared, _ = windows
    focus = one_token(model, prepared, Selection(Head("L2H0"), token="5"))
    assert not focus.overlays
    with pytest.raises(SelectionError, match="tokens 0-63"):
        one_token(model, prepared, Selection(Head("L2H0"), token="2,3"))


@pytest.mark.parametrize("mass", [0.3, 0.6, 1.0])
def test_a_mask_holds_the_fewest_patches_with_a_share_of_the_weight_in_each_head(seen, mass):
    model, prepared, weights = seen
    token = see_token(model, prepared, Selection(layers=(1,), token="CLS"))
    for head in range(2):
        view = token.head(token.sites[0].site, head, mass)
        row = weights[1, head, 0, 5:]
        heaviest = np.sort(row)[::-1].cumsum() / row.sum()
        count = 1 + int((heaviest[:-1] < mass - 1e-6).sum())
        shown = view.overlays[0].looks_at
        assert set(np.flatnonzero(shown)) == set(np.argsort(-row)[:count])
        assert shown.shape == (4, 4)
        assert view.looked_at_by is None
        assert f"{count} of 16 patches are shown" in view.notes[-1]
        assert view.title.startswith(f"L1H{head} · ")
