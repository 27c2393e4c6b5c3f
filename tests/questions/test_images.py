"""Images and sounds: overlays equal eager attention, and tokens have their regions."""

import itertools
from functools import cache

import numpy as np
import pytest
import soundfile
import torch
import transformers
from transformers.models.rf_detr import modeling_rf_detr as rf_detr
from transformers.models.unlimited_ocr import modeling_unlimited_ocr as unlimited_ocr

from attnscope.attention import Head, Token
from attnscope.axes import PICTURE_ID, SOUND_ID
from attnscope.capture import recording
from attnscope.errors import InputError, SelectionError
from attnscope.models import load
from attnscope.models.huggingface.model import HuggingFaceModel
from attnscope.models.inputs import ModelInput, Picture
from attnscope.models.trace_model import TracedModel
from attnscope.models.trace_recording import record_trace
from attnscope.questions.head import one_head
from attnscope.questions.layers import whole_layers
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads, overview
from attnscope.questions.token import find_scene, one_token, see_token
from attnscope.storage.trace import read_trace, write_trace
from tests.measures.rounding import near
from tests.models import images, speech
from tests.models.folders import eager
from tests.models.vision_language import vision_language


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    return images.picture(tmp_path_factory.mktemp("images") / "corner.png")


@pytest.fixture(scope="module")
def shown(tmp_path_factory, picture):
    """What gives a model by its name, an image in it, and its own eager attention, layer by layer."""

    @cache
    def make(name):
        folder = images.vision(tmp_path_factory.mktemp(name), name)
        model = load(folder)
        prepared = model.prepare_image(picture)
        weights = eager(folder, **prepared.inputs).attentions
        return model, prepared, [each.numpy() for each in weights if isinstance(each, torch.Tensor)]

    return make


@pytest.fixture(scope="module")
def seen(shown):
    """One with special tokens before its 4 × 4 patches; weights are [layer, head, query, key]."""
    model, prepared, weights = shown("dinov2-with-registers")
    return model, prepared, np.concatenate(weights)


@pytest.mark.parametrize(
    ("head", "name", "label", "place"),
    [("L0H1", name, "[CLS]", 0) for name in ("CLS", "[CLS]", "cls", "0")]
    + [("L1H1", "2,3", "2,3", 16), ("L0H0", "patch 1,2", "1,2", 11), (None, "REG2", "[REG2]", 3)],
)
def test_token_overlay_works_for_any_name_of_the_token(seen, head, name, label, place):
    model, prepared, weights = seen
    weights = weights[int(head[1]), int(head[3])] if head else weights.mean((0, 1))
    for hide in (False, True) if "," in label else (False,):
        focus = one_token(model, prepared, Selection(head and Head(head), token=name, hide_special=hide))
        (over,) = focus.overlays
        assert focus.label == label
        assert hide or focus.position == place
        assert over.patch == (divmod(place - 5, 4) if place >= 5 else None)
        np.testing.assert_allclose(over.looks_at, weights[place, 5:].reshape(4, 4), atol=1e-5)
        np.testing.assert_allclose(over.looked_at_by, weights[5:, place].reshape(4, 4), atol=1e-5)
        assert np.array_equal(over.pixels, prepared.picture.pixels)
        assert ("average over 4 heads of 2 layers" in focus.title) == (head is None)


def test_trace_has_the_model_input_image(seen, tmp_path):
    model, prepared, _ = seen
    write_trace(record_trace(model, prepared), tmp_path / "a.trace")
    (kept,) = TracedModel(read_trace(tmp_path / "a.trace")).prepared.pictures
    assert np.array_equal(kept.pixels, prepared.picture.pixels)


@pytest.mark.parametrize(("name", "side"), [("distance2d", 1), ("distance2d=16", 16)])
def test_patch_distance_excludes_special_tokens(seen, name, side):
    model, prepared, weights = seen  # [CLS] and four registers before 4 × 4 patches
    place = np.array(list(itertools.product(range(4), range(4))), float)
    apart = np.linalg.norm(place[:, None] - place, axis=-1)  # [patch, patch]
    inside = weights[:, :, 5:, 5:].astype(np.float64)
    expected = side * ((inside * apart).sum(-1) / inside.sum(-1)).mean(-1)  # [layer, head]
    found = measure_heads(model, prepared, Selection(), names=(name,)).heads
    assert {(head.site.layer, head.head) for head in found} == set(np.ndindex(expected.shape))
    for head in found:
        assert head.scores[name].value == near(expected[head.site.layer, head.head], "distance2d", 4 * side)
        assert head.scores[name].baseline == pytest.approx(side * apart.mean(), abs=1e-9)


def test_head_axes_have_patch_labels_and_missing_patch_is_refused(seen):
    model, prepared, weights = seen
    head = one_head(model, prepared, "L1H0").heatmap
    np.testing.assert_allclose(head.values, weights[1, 0], atol=1e-5)
    assert [place.label for place in head.weights.keys][4:7] == ["[REG3]", "0,0", "0,1"]
    assert overview(model, prepared, Selection()).grids["encoder"].size == (21, 21)
    with pytest.raises(SelectionError, match=r"no patch '9,9': .* from 0,0 to 3,3 and \[CLS\], \[REG0\]"):
        one_token(model, prepared, Selection(token="9,9"))


def test_shifted_windows_are_drawn_in_image_order(shown):
    model, prepared, weights = shown("swin")
    last, merged = (  # of a stage, and in the next stage
        images.put_in_place(torch.from_numpy(weights[at]), 4, shift).numpy() for at, shift in ((0, 2), (1, 0))
    )
    layers = dict(whole_layers(model, prepared, Selection()).kinds["encoder"])
    np.testing.assert_allclose(layers[1].values, last, atol=1e-5)
    np.testing.assert_allclose(layers[2].values, merged, atol=1e-5)
    focus = one_token(model, prepared, Selection(Head("L1H0"), token="2,3"))
    assert (focus.label, focus.overlays[0].patch) == ("2,3", (2, 3))
    np.testing.assert_allclose(focus.overlays[0].looks_at, last[0, 2 * 16 + 3].reshape(16, 16), atol=1e-5)
    every = overview(model, prepared, Selection())
    assert not any("mean of" in said for said in every.notes)
    assert "sizes: 256 in layers 0-1, 64 in layer 2" in every.notes
    # a merged patch lies where its four patches do
    focus = one_token(model, prepared, Selection(Head("L2H0"), token="2,3"))
    assert [picture.grid for picture in prepared.pictures] == [(16, 16), (8, 8)]
    np.testing.assert_allclose(focus.overlays[0].looks_at, merged[0, 2 * 8 + 3].reshape(8, 8), atol=1e-5)
    with pytest.raises(SelectionError, match="0,0 to 15,15"):
        one_token(model, prepared, Selection(Head("L1H0"), token="16,3"))


def test_detection_tokens_follow_the_patches(shown):
    model, prepared, _ = shown("yolos")
    assert [token.text for token in prepared.tokens][-4:] == ["3,3", "[DET0]", "[DET1]", "[DET2]"]
    assert len({token.id for token in prepared.tokens}) == len(prepared.tokens)
    for name, place, patch in (("DET1", 18, None), ("0,2", 3, (0, 2))):
        focus = one_token(model, prepared, Selection(Head("L1H1"), token=name))
        assert (focus.position, focus.overlays[0].patch) == (place, patch)
        assert focus.overlays[0].looked_at_by.shape == (4, 4)


def test_axes_of_all_stage_sizes_map_to_the_image(shown):
    model, prepared, _ = shown("segformer")
    every = overview(model, prepared, Selection())
    assert "sizes: 256 × 16 in layer 0, 64 × 16 in layer 1" in every.notes
    assert "256 × 16 and 64 × 16 tokens" in every.grids["encoder"].subtitle
    assert {picture.grid for picture in prepared.pictures} == {(16, 16), (8, 8), (4, 4)}
    assert not any("rows and columns are positions" in note for note in every.notes)
    for head, token, looks in (("L0H0", "15,2", (4, 4)), ("L1H1", "7,6", (4, 4))):
        (overlay,) = one_token(model, prepared, Selection(Head(head), token=token)).overlays
        assert overlay.looks_at.shape == looks


def test_positions_of_unknown_order_are_numbered_and_noted(tmp_path, picture):
    torch.manual_seed(0)  # it reads a random quarter of 8 × 8 patches, after a [CLS]
    prepared = load(images.vision(tmp_path, "mae")).prepare_image(picture)
    assert "17 positions are numbered: where they lie in the picture is unknown" in prepared.notes
    assert [each.grid for each in prepared.pictures] == [(8, 8)]


def test_every_layer_of_pooled_mask_units_lies_on_the_image(shown):
    model, prepared, _ = shown("hiera")
    grids = [(32, 48), (16, 24), (8, 12), (4, 6)]
    assert [picture.grid for picture in prepared.pictures] == grids
    assert not any("where they lie" in note for note in prepared.notes)
    for layer, (fine, coarse) in enumerate([(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3)]):
        rows, columns = grids[coarse]
        token = f"{rows - 1},{columns - 2}"
        overlay = one_token(model, prepared, Selection(Head(f"L{layer}H0"), token=token)).overlays[0]
        assert overlay.looks_at.shape == grids[fine]
        assert overlay.patch == ((rows - 1, columns - 2) if fine == coarse else None)


def square(module, side):
    """A part of a model that no folder holds alone, with what reads square pictures for it."""
    processor = transformers.ViTImageProcessor(size={"height": side, "width": side})
    return HuggingFaceModel("it", module.eval(), None, (), None, lambda what: processor, None)


def key_labels(model, prepared, head):
    return [place.label for place in one_head(model, prepared, head).heatmap.weights.keys]


def test_class_tokens_of_windows_are_special_before_all_patches(picture):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "out_indices": [2]}
    windows = {"num_windows": 2, "window_block_indexes": [0], "image_size": 32, "patch_size": 4}
    model = square(rf_detr.RfDetrDinov2Backbone(transformers.RfDetrDinov2Config(**sizes, **windows)), 32)
    prepared = model.prepare_image(picture)
    special = [f"[special {window}]" for window in range(4)]
    patches = [f"{row},{column}" for row in range(8) for column in range(8)]
    assert key_labels(model, prepared, "L0H0") == key_labels(model, prepared, "L1H1") == [*special, *patches]
    (overlay,) = one_token(model, prepared, Selection(Head("L0H0"), token="6,5")).overlays
    assert overlay.patch == (6, 5)
    seen = np.zeros((8, 8), bool)
    seen[4:, 4:] = True  # its window
    assert np.array_equal(overlay.looks_at > 0, seen)


def test_learned_positions_beside_merged_patches_are_special(picture):
    """The oracle: a changed corner of the picture changes most what the layers receive at the corner."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    merged = {"output_channels": 16, "downsample_channels": [16, 32], "global_attn_indexes": []}
    tower = {**sizes, **merged, "image_size": 256, "window_size": 4, "mlp_dim": 32}
    config = transformers.UnlimitedOcrVisionConfig(
        sam_config=tower, encoder_config=sizes | {"intermediate_size": 32}
    )
    model, given = square(unlimited_ocr.UnlimitedOcrVisionModel(config), 256), list[torch.Tensor]()
    for parameter in model.module.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    prepared = model.prepare_image(picture)
    labels = key_labels(model, prepared, "L1H0")
    assert labels == ["[special]", *(f"{row},{column}" for row in range(4) for column in range(4))]
    layer = model.module.vision_encoder.encoder.layers[0]
    layer.register_forward_pre_hook(lambda layer, states: given.append(states[0][0]))
    pixels = prepared.inputs["pixel_values"]
    for corner in ("0,0", "0,3", "3,0", "3,3"):
        row, column = (64 * int(at) for at in corner.split(","))
        changed = pixels.clone()
        changed[..., row : row + 64, column : column + 64] += 2.0
        with torch.inference_mode():
            model.module(pixels), model.module(changed)
        assert labels[int((given.pop() - given.pop()).norm(dim=-1).argmax())] == corner


@pytest.mark.parametrize("name", ["pvt", "pvt_v2"])
def test_queries_and_keys_of_every_pyramid_layer_are_on_the_image(shown, name):
    model, prepared, _ = shown(name)
    grids = {picture.grid for picture in prepared.pictures}
    assert grids == {(16, 16), (8, 8), (4, 4), (2, 2)}
    with recording(model.module, []) as record:
        model.module(**prepared.inputs)
    lengths = {size for call in record.sites for size in (call.queries, call.keys)}
    assert lengths <= {rows * columns for rows, columns in grids} | {5, 1}  # [CLS] + 2 × 2, one key for all


@pytest.mark.parametrize("name", ["swin", "segformer", "pvt_v2", "hiera"])
def test_grid_positions_respond_to_their_image_region(shown, name):
    """The oracle: a bright square at one place changes the position there, and those beside it, the most."""
    model, prepared, _ = shown(name)
    seen, grids = prepared.inputs["pixel_values"], set()
    for picture in prepared.pictures:
        rows, columns = picture.grid
        for row, column in ((1, columns - 2), (rows - 2, 1), (rows // 2, columns // 2)):
            states = []
            for bright in (0.0, 4.0):
                changed = seen.clone()
                high, wide = seen.shape[-2] // rows, seen.shape[-1] // columns
                changed[..., row * high : (row + 1) * high, column * wide : (column + 1) * wide] += bright
                with torch.inference_mode():
                    output = model.module(changed, output_hidden_states=True)
                found = getattr(output, "reshaped_hidden_states", output.hidden_states)
                found = [each.movedim(-1, 1) if name == "hiera" else each for each in found]
                states += [each[0] for each in found if each.shape[-2:] == (rows, columns)][:1]
            if states:  # keys that were merged are no states of a stage
                moved = (states[1] - states[0]).norm(dim=0)
                highest = divmod(int(moved.argmax()), columns)
                # the patches of the others overlap
                assert max(abs(highest[0] - row), abs(highest[1] - column)) <= (name != "swin")
                grids.add(picture.grid)
    assert grids >= {picture.grid for picture in prepared.pictures[:2] if picture.grid != (4, 4)}
    assert len(grids) > 1


def test_token_is_looked_up_in_its_own_tower(tmp_path, picture):
    model = load(images.vision(tmp_path, "siglip"))
    both, alone = (
        one_token(model, model.prepare_image(picture, *text), Selection(token="0"))
        for text in (["a tired cat"], [])
    )
    assert "average over 4 heads of 2 layers" in both.title
    np.testing.assert_allclose(both.overlays[0].looks_at, alone.overlays[0].looks_at, atol=1e-6)


def test_joint_text_image_model_needs_both(tmp_path, picture):
    model = load(images.vision(tmp_path, "vilt"))
    seen = overview(model, model.prepare_image(picture, "a tired cat"), Selection())
    assert seen.grids["encoder"].size == (5 + 1 + 16, 5 + 1 + 16)
    with pytest.raises(InputError, match="reads a text beside the image: give both"):
        model.prepare_image(picture)


def test_patches_behind_a_text_lie_on_the_picture(tmp_path, picture):
    folder = images.vision(tmp_path, "layoutlmv3")
    model = load(folder)
    prepared = model.prepare_image(picture, "a tired cat")
    patches = [f"{row},{column}" for row in range(4) for column in range(4)]
    text = ["[CLS]", "a", "tired", "cat", "[SEP]"]
    assert [token.text for token in prepared.tokens] == [*text, "[CLS]", *patches]
    weights = eager(folder, **prepared.inputs).attentions[1][0, 0]  # [query, key]
    focus = one_token(model, prepared, Selection(Head("L1H0"), token="cat"))
    np.testing.assert_allclose(focus.overlays[0].looks_at, weights[3, 6:].reshape(4, 4), atol=1e-5)


@pytest.mark.parametrize("mass", [0.3, 0.6, 1.0])
def test_patch_mask_is_the_smallest_set_with_the_given_share(seen, mass):
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


def test_picture_patches_are_equal_parts_in_row_order(shown, own):
    scene = find_scene(shown("vit")[1])
    assert scene.pixels.shape == (64, 64, 3)
    assert list(scene.parts) == [PICTURE_ID + number for number in range(16)]
    assert scene.parts[PICTURE_ID + 6] == (0.5, 0.25, 0.75, 0.5, True)
    assert find_scene(own.prepare("the cat")) is None


def test_scene_parts_of_image_tokens_tile_the_image(tmp_path):
    model = load(vision_language(tmp_path, "llava_next"))
    noise = images.save_noise(tmp_path / "a.png", 90, 120)
    scene = find_scene(model.prepare_image(noise, "what is on the mat ?"))
    fine = np.array([part[:4] for part in scene.parts.values() if part.fine])
    assert ((fine[:, 2] - fine[:, 0]) * (fine[:, 3] - fine[:, 1])).sum() == pytest.approx(1)
    assert (fine.min(), fine.max()) == (0, 1)
    assert len(scene.parts) - len(fine) == 16  # the thumbnail shows all of it once more


def test_scene_boxes_are_relative_to_the_shown_part():
    tokens = tuple(Token(f"image 1 · 0,{n}", PICTURE_ID + n) for n in range(2))
    boxes = {PICTURE_ID: (10.0, 20.0, 30.0, 40.0), PICTURE_ID + 1: (30.0, 20.0, 50.0, 40.0)}
    picture = Picture(np.zeros((20, 40, 3), np.uint8), (1, 2), tokens, boxes)
    scene = find_scene(ModelInput({}, {}, tokens, pictures=(picture,)))
    assert [part[:4] for part in scene.parts.values()] == [(0, 0, 0.5, 1), (0.5, 0, 1, 1)]


def test_sound_scene_has_consecutive_moments_without_padding(tmp_path):
    prepared = load(speech.whisper(tmp_path / "model")).prepare_audio(speech.sound(tmp_path / "a.wav"), "cat")
    scene, frames = find_scene(prepared), prepared.sound.frames
    assert scene.heard
    assert scene.pixels.shape == (16, frames, 3)
    assert list(scene.parts) == [SOUND_ID + frame for frame in range(frames)]
    assert frames < len(prepared.axes["cross"][1])
    loud = prepared.sound.bands[:, :frames]  # [band, frame]
    drawn = scene.pixels[::-1, :, 0] / 255  # low tones at the bottom
    np.testing.assert_allclose(drawn, (loud - loud.min()) / np.ptp(loud), atol=0.003)


def test_waveform_model_spectrogram_shows_tones_in_place(tmp_path):
    rate, at = 16000, np.arange(16000) / 16000
    tones = np.where(at < 0.5, np.sin(2 * np.pi * 1000 * at), np.sin(2 * np.pi * 6000 * at))
    soundfile.write(tmp_path / "tones.wav", 0.6 * tones, rate)
    prepared = load(speech.encoder(tmp_path / "model", "hubert")).prepare_audio(tmp_path / "tones.wav")
    assert find_scene(prepared).heard
    bands, frames = prepared.sound.bands, prepared.sound.frames  # [band, frame]
    assert bands.shape[1] >= frames
    loudest = bands[:, :frames].argmax(0) * (rate / 2) / len(bands)  # hertz where each band begins
    half = round(0.5 / prepared.sound.seconds)
    assert np.all(np.abs(loudest[1 : half - 1] - 1000) < 150)
    assert np.all(np.abs(loudest[half + 1 : frames - 1] - 6000) < 150)


def test_scene_places_several_images_side_by_side():
    def one(first: int, grey: int) -> Picture:
        tokens = tuple(Token("", PICTURE_ID + first + n) for n in range(2))
        return Picture(np.full((20, 40, 3), grey, np.uint8), (1, 2), tokens, name=f"image {grey}")

    pictures = one(0, 50), one(2, 90), one(4, 130)
    scene = find_scene(ModelInput({}, {}, (), pictures=pictures))
    tall, wide = scene.pixels.shape[:2]
    for number, (id_, part) in enumerate(scene.parts.items()):
        assert id_ == PICTURE_ID + number
        rows = slice(round(part.top * tall), round(part.bottom * tall))
        inside = scene.pixels[rows, round(part.left * wide) : round(part.right * wide)]
        assert (inside == (50, 90, 130)[number // 2]).all()
        assert inside.shape == (20, 20, 3)
