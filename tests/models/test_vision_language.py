"""A picture inside a text or beside it, and frames of videos: each token is named by what it stands for."""

import copy
import json
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from attnscope.attention import Head
from attnscope.errors import AttnscopeError, InputError, ModelError
from attnscope.models import load
from attnscope.models.inputs import Chat
from attnscope.questions.head import one_head
from attnscope.questions.info import survey_model
from attnscope.questions.selection import Selection
from attnscope.questions.token import one_token
from tests.models import folders
from tests.models.images import save_noise
from tests.models.vision_language import ALL, FAMILIES, MORE, NEED_TORCHVISION, NUMBERED, vision_language
from tests.models.vision_recipes import make_folder, vision_encoder_decoder
from tests.tools.pictures_in_texts import SIZES, TEXT, eager, identity, states_of, tiling

LONG = SIZES[1:]
"""The proportions that lie farthest apart; other tests read a picture of the first ones."""

TEMPLATE = (
    "{% for m in messages %}{{ m.role }} : {% for c in m.content %}"
    "{% if c.type == 'image' %}<image>{% else %}{{ c.text }}{% endif %}{% endfor %}{% endfor %}"
)


ALIKE = ("vipllava", "paligemma", "llava_onevision", "llava_next_video", "qwen2_5_vl", "smolvlm")
"""Families whose pictures stand in the text as those of another one, with another tower or decoder."""


def case(name: str, *more, slow: bool = False):
    """A case of a family; some processors need torchvision."""
    marks = {"torchvision": name in NEED_TORCHVISION, "sweep": name in (*MORE, *ALIKE), "slow": slow}
    return pytest.param(name, *more, marks=[getattr(pytest.mark, mark) for mark in marks if marks[mark]])


def families(*left_out: str) -> list:
    """Every family whose tokens stand for parts of a picture."""
    return [case(name) for name in ALL if name not in left_out]


@pytest.fixture(scope="module")
def model_of(folder_of):
    """The model of a family, loaded once."""
    return cache(lambda name: load(folder_of(name)))


@pytest.mark.parametrize("name", families("idefics2", *NUMBERED))
def test_the_boxes_of_a_pictures_tokens_tile_it(name, model_of, tmp_path):
    assert tiling(model_of(name), tmp_path / "a.png", LONG) == "2 of 2"


@pytest.mark.slow
@pytest.mark.parametrize("name", families("idefics2", "mllama", "idefics", *NUMBERED))
@pytest.mark.sweep
def test_what_is_painted_in_a_box_moves_that_token_most(name, model_of, picture):
    model = model_of(name)
    skip_if_it_cannot_run(model.module, model.prepare_image(picture, TEXT))
    right, _, count = identity(model, picture, 5).partition(" of ")
    assert right == count


def skip_if_it_cannot_run(module, prepared) -> None:
    """Llama 4 of transformers 5.24.0 fails by itself: it reads a field that its text model's output lacks."""
    try:
        with torch.inference_mode():
            module(**prepared.inputs)
    except AttributeError as error:
        if "has no attribute 'image_outputs'" not in str(error):
            raise
        pytest.skip(f"this release of transformers cannot run the model: {error}")


@pytest.mark.parametrize("name", families("instructblip"))  # its queries with the text are as many
def test_weights_are_those_that_the_eager_model_returns(name, model_of, picture):
    model = model_of(name)
    prepared = model.prepare_image(picture, TEXT)
    skip_if_it_cannot_run(model.module, prepared)
    if name == "kosmos_2":
        plain, states = copy.deepcopy(model), states_of(model, prepared)
        plain.module.set_attn_implementation("eager")
        if not torch.allclose(states_of(plain, prepared), states, atol=1e-4):
            pytest.skip("this release of transformers gives a picture other vectors under eager attention")
    assert float(eager(model, picture)) <= 1e-5


def test_tokens_are_named_by_their_place_tiles_and_small_pictures_apart(model_of, picture):
    prepared = model_of("llava_next").prepare_image(picture, TEXT)
    names = [token.text for token in prepared.tokens]
    assert names[:16] == [f"thumbnail 1 · {row},{column}" for row in range(4) for column in range(4)]
    rows = [[f"image 1 · {row},{column}" for column in range(8)] + ["image 1 · row end"] for row in range(6)]
    assert names[16:70] == [name for row in rows for name in row]
    assert names[70:] == TEXT.split()
    assert [token.special for token in prepared.tokens[16:25]] == [False] * 8 + [True]
    assert prepared.picture.grid == (6, 8)


@pytest.mark.parametrize(("size", "grid"), [((100, 500), (2, 8)), ((500, 100), (8, 2))])
def test_small_pictures_of_a_panorama_stay_apart_though_their_pixels_are_as_large(
    size, grid, model_of, tmp_path
):
    prepared = model_of("llava_next").prepare_image(save_noise(tmp_path / "a.png", *size), TEXT)
    assert prepared.picture.grid == grid
    assert prepared.tokens[15].text == "thumbnail 1 · 3,3"


def test_a_token_of_the_tower_that_looks_at_the_whole_picture_is_no_end_of_a_row(tmp_path, picture):
    config, processor = ALL["llava"].make()
    config.vision_feature_select_strategy = processor.vision_feature_select_strategy = "full"
    model = transformers.AutoModelForImageTextToText.from_config(config)
    model.save_pretrained(tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    prepared = load(str(tmp_path / "model")).prepare_image(picture, TEXT)
    names = [token.text for token in prepared.tokens if token.text.startswith("image")]
    assert names[:2] == ["image 1 · 0 of no place", "image 1 · 0,0"]
    assert len(names) == 17
    assert not any("row end" in name for name in names)


@pytest.mark.parametrize("name", ["idefics2", *NUMBERED])
def test_what_stands_for_no_part_alone_is_numbered_and_a_note_says_so(name, model_of, picture):
    model = model_of(name)
    prepared = model.prepare_image(picture, TEXT)
    numbered = [token.text for token in prepared.tokens if token.id >= 1 << 20]
    count = {"kosmos_2": 64, "chameleon": 784, "emu3": 60, "florence2": 50}.get(name, 8)
    assert numbered == [f"image 1 · {number}" for number in range(count)]
    words = [token.text for token in prepared.tokens if token.id < 1 << 20 and not token.special]
    signs = ["<image>", "</image>"] if name == "kosmos_2" else []
    assert words == signs + TEXT.split()  # and no sign is read as one word more
    assert prepared.notes == (
        "no token stands for a part of the picture alone: those of the picture are numbered",
    )
    assert not prepared.picture.boxes
    assert prepared.picture.grid is None
    assert "mat" in one_token(model, prepared, Selection(token="mat")).label


def test_what_a_model_does_not_read_is_a_sentence(folder_of, tmp_path, picture):
    folder = shutil.copytree(folder_of("llava"), tmp_path / "model")
    file = folder / "processor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_additional_image_tokens": 5}))
    with pytest.raises(AttnscopeError, match="the model does not read what its processor made: Image feat"):
        load(str(folder)).prepare_image(picture, TEXT)


@pytest.mark.parametrize("name", ["mllama", "idefics"])
def test_a_picture_that_is_looked_at_across_a_model_has_places_too(name, model_of, picture):
    model = model_of(name)
    prepared = model.prepare_image(picture, TEXT)
    seen = one_token(model, prepared, Selection(token="mat", kind="cross"))
    assert seen.overlays[0].looks_at.shape == prepared.picture.grid
    assert {token.text for token in prepared.axes["cross"][1]} >= {"image 1 · 0,0", "image 1 · 3,3"}


def test_a_word_lights_the_patches_that_it_looks_at(model_of, picture):
    model = model_of("llava_next")
    prepared = model.prepare_image(picture, TEXT)
    view = one_token(model, prepared, Selection(Head("L1H0"), token="mat", kind="decoder"))
    weights = one_head(model, prepared, Selection(Head("L1H0"), kind="decoder")).heatmap.values
    row = weights[[token.text for token in prepared.tokens].index("mat")]
    patches = [
        i
        for i, token in enumerate(prepared.tokens)
        if token.text.startswith("image 1 · ") and not token.special
    ]
    np.testing.assert_allclose(view.overlays[0].looks_at.ravel(), row[patches], atol=1e-6)
    assert view.overlays[0].looked_at_by is None  # it stands behind the picture, which cannot see it
    corner = one_token(model, prepared, Selection(token="0,7"))
    assert corner.label == "image 1 · 0,7"
    assert corner.overlays[0].patch == (0, 7)
    assert corner.notes[-1] == "image 1 · 0,7 is 105-120 across, 0-15 down, in pixels of the picture"


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["llava", "llava_next", "idefics3"])
def test_half_precision_finds_the_same_places(name, folder_of, model_of, picture):
    models = model_of(name), load(folder_of(name), dtype="bfloat16")
    whole, half = (model.prepare_image(picture, TEXT) for model in models)
    assert [token.text for token in half.tokens] == [token.text for token in whole.tokens]
    for id_, box in whole.picture.boxes.items():
        assert half.picture.boxes[id_] == pytest.approx(box, abs=1)  # pixels, of tokens 15 to 60 wide


def test_a_message_in_a_chat_has_its_picture_where_the_template_puts_it(folder_of, tmp_path, picture):
    folder = folder_of("llava")
    processor = transformers.AutoProcessor.from_pretrained(folder)
    processor.chat_template = TEMPLATE
    with pytest.raises(InputError, match="has no chat format"):
        load(folder).prepare_image(picture, TEXT, Chat())
    copy = vision_language(tmp_path / "chat", "llava")
    processor.save_pretrained(copy)
    prepared = load(copy).prepare_image(picture, TEXT, Chat())
    assert [token.text for token in prepared.tokens[1:4]] == [":", "image 1 · 0,0", "image 1 · 0,1"]


@pytest.mark.parametrize("name", ["llava", "paligemma"])  # the latter reads what is given from both sides
def test_a_model_writes_on_about_a_picture(name, folder_of, picture):
    model = load(folder_of(name), generative=True)
    prepared = model.prepare_image(picture, TEXT)
    written = model.generate(prepared, 3)
    assert written.written == len(prepared.tokens)
    assert len(written.tokens) == len(prepared.tokens) + 3
    expected = model.writer.generate(**prepared.inputs, max_new_tokens=3, do_sample=False)[0, -3:]
    assert [token.id for token in written.tokens[-3:]] == expected.tolist()
    seen = one_token(model, written, Selection(token=str(len(prepared.tokens))))
    assert seen.overlays[0].looks_at.shape == (4, 4)


def test_what_a_processor_refuses_is_a_sentence(model_of, picture):
    with pytest.raises(InputError, match="the text has 2 × <image> and there is 1 image:"):
        model_of("llava").prepare_image(picture, "<image> <image> what")


def test_what_the_model_reports_of_its_text_is_not_held_against_its_tower(model_of, picture):
    model = model_of("llava")
    seen = survey_model(model, model.prepare_image(picture, TEXT)).sightings
    assert [(each.site.site.kind, each.report) for each in seen] == [("encoder", "none")] * 2 + [
        ("decoder", "right")
    ] * 2


TOO_MUCH, REFUSED = (
    "the processor of .* runs out of memory: .* asked for",
    "the processor of .* refuses this",
)
UNREAD = f"{REFUSED}|does not read what its processor"
LIES = [  # a family, the settings of its pictures, or of itself, that lie, and what is said of them
    ("llava", False, {"num_additional_image_tokens": 10**10}, TOO_MUCH),
    ("llava", False, {"patch_size": 0}, REFUSED),
    ("llava", False, {"auto_map": {"AutoProcessor": "some/code--file.P"}}, "names 'some/code--file"),
    ("llava", False, {"image_token": "<image><image>"}, UNREAD),
    ("idefics3", True, {"max_image_size": {"longest_edge": 0}}, REFUSED),
    ("idefics3", False, {"image_seq_len": 10**8}, TOO_MUCH),
    ("gemma3", False, {"image_seq_length": 10**8}, TOO_MUCH),  # while it is built
    ("llava_next", True, {"crop_size": {"height": 10**9, "width": 10**9}}, TOO_MUCH),
    ("qwen2_vl", True, {"min_pixels": 10**12}, TOO_MUCH),
    ("qwen2_vl", True, {"temporal_patch_size": 10**9}, TOO_MUCH),
    ("qwen2_vl", True, {"merge_size": 0}, REFUSED),
    ("qwen2_vl", True, {"merge_size": -1}, UNREAD),
    ("qwen2_vl", True, {"patch_size": 0}, REFUSED),
]
GROWN = [  # the same, where memory fills bit by bit
    ("llava_next", True, {"image_grid_pinpoints": [[10**6, 10**6]]}, TOO_MUCH),
    ("mllama", True, {"max_image_tiles": 10**9}, TOO_MUCH),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "pictures", "settings", "sentence"),
    [*(case(*lie) for lie in LIES), *(pytest.param(*lie, marks=pytest.mark.nightly) for lie in GROWN)],
)
def test_sizes_and_tiles_without_end_are_a_sentence(
    name, pictures, settings, sentence, folder_of, tmp_path, picture, little_memory
):
    folder = Path(shutil.copytree(folder_of(name), tmp_path / "model"))
    place = folder / "processor_config.json"
    said = json.loads(place.read_text())
    (said["image_processor"] if pictures else said).update(settings)
    place.write_text(json.dumps(said))
    with pytest.raises(AttnscopeError, match=sentence):
        load(str(folder)).prepare_image(picture, TEXT)


VIDEOS = ("llava_onevision", "qwen2_vl", "qwen2_5_vl", "smolvlm", "internvl", "llava_next_video")


OFTEN = ("llava", "llava_next", "qwen2_vl")


@pytest.mark.parametrize(
    "name", [case(name, slow=name not in OFTEN) for name in FAMILIES if name not in ("idefics2", "mllama")]
)
def test_of_two_pictures_each_has_its_own_tokens(name, model_of, tmp_path):
    model = model_of(name)
    paths = [save_noise(tmp_path / "a.png", 90, 120), save_noise(tmp_path / "b.png", 120, 70, seed=1)]
    before = model.prepare_image(paths, TEXT)
    assert [picture.name for picture in before.pictures] == ["image 1", "image 2"]
    kept = states_of(model, before)
    for number in (0, 1):
        save_noise(paths[number], *(90, 120) if number == 0 else (120, 70), seed=7)
        after = model.prepare_image(paths, TEXT)
        save_noise(paths[number], *(90, 120) if number == 0 else (120, 70), seed=number)
        moved = (states_of(model, after) - kept).norm(dim=-1) > 1e-6
        own = {token.text for token, moves in zip(before.tokens, moved.tolist(), strict=True) if moves}
        placed = {token.text for token in before.tokens if token.id in before.pictures[number].boxes}
        assert own == placed
        assert {text.split(" · ")[0] for text in own} <= {f"image {number + 1}", f"thumbnail {number + 1}"}


def test_pictures_stand_where_the_text_has_their_signs(model_of, tmp_path):
    model = model_of("llava")
    paths = [save_noise(tmp_path / "a.png", 56, 56), save_noise(tmp_path / "b.png", 56, 56, seed=1)]
    names = [token.text for token in model.prepare_image(paths, "left <image> right <image> what").tokens]
    assert names[:2] == ["left", "image 1 · 0,0"]
    assert names[17:19] == ["right", "image 2 · 0,0"]
    assert names[-1] == "what"
    with pytest.raises(InputError, match="the text has 1 × <image> and there are 2 images"):
        model.prepare_image(paths, "left <image> right")


def test_a_word_lights_both_pictures_on_one_scale(model_of, tmp_path):
    model = model_of("llava")
    paths = [save_noise(tmp_path / "a.png", 56, 56), save_noise(tmp_path / "b.png", 56, 56, seed=1)]
    prepared = model.prepare_image(paths, TEXT)
    seen = one_token(model, prepared, Selection(Head("L1H0"), token="mat"))
    assert [shown.name for shown in seen.overlays] == ["image 1", "image 2"]
    second = one_token(model, prepared, Selection(Head("L1H0"), token="image 2 · 1,3"))
    assert [shown.patch for shown in second.overlays] == [None, (1, 3)]
    boxed = [bar for bar in seen.looks_at.bars if bar.label.startswith("image")]
    assert boxed
    assert all(bar.box is not None and bar.where.count("-") == 2 for bar in boxed)


@pytest.mark.parametrize("name", [case(name, slow=name not in OFTEN) for name in VIDEOS])
def test_the_tokens_of_a_video_are_named_by_their_frames(name, model_of, tmp_path):
    model = model_of(name)
    frames = [np.asarray(Image.open(save_noise(tmp_path / "f.png", 84, 112, seed=i))) for i in range(4)]

    def prepare(frames):
        images = [Image.fromarray(frame) for frame in frames]
        folder = tmp_path / "video"
        folder.mkdir(exist_ok=True)
        for number, image in enumerate(images):
            image.save(folder / f"{number:02}.png")
        return model.prepare_image(folder, TEXT, video=True)

    before = prepare(frames)
    assert [picture.name for picture in before.pictures] == [f"frame {n}" for n in range(1, 5)]
    kept = states_of(model, before)
    for number in range(4):
        changed = [255 - frame if place == number else frame for place, frame in enumerate(frames)]
        moved = (states_of(model, prepare(changed)) - kept).norm(dim=-1) > 1e-6
        own = {token.text for token, moves in zip(before.tokens, moved.tolist(), strict=True) if moves}
        assert own == {token.text for token in before.tokens if token.id in before.pictures[number].boxes}
        assert own
    merged = {"qwen2_vl", "qwen2_5_vl"}
    first = next(token.text for token in before.tokens if token.id in before.pictures[0].boxes)
    assert first == ("frames 1-2 · 0,0" if name in merged else "frame 1 · 0,0")
    assert ("each token of the video stands for the same part of 2 frames" in before.notes) == (
        name in merged
    )


@pytest.mark.torchvision
def test_of_a_long_gif_some_frames_are_taken_and_named(model_of, tmp_path):
    frames = [Image.fromarray(np.full((56, 56, 3), 10 * i, np.uint8)) for i in range(20)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    prepared = model_of("qwen2_vl").prepare_image(tmp_path / "a.gif", TEXT, video=True)
    assert len(prepared.pictures) == 16
    assert prepared.notes[-1].startswith("of 20 frames, 16 are shown to the model: 1, 2, 4,")


def test_a_model_without_a_place_for_videos_says_so(model_of, tmp_path):
    with pytest.raises(InputError, match="sees no videos"):
        model_of("llava").prepare_image(save_noise(tmp_path / "a.png", 56, 56), TEXT, video=True)


SAID = "what is on the mat"
PATCHES = [f"{row},{column}" for row in range(4) for column in range(4)]


def names(axis) -> list[str]:
    return [token.text for token in axis]


def test_what_a_decoder_writes_of_a_picture_looks_at_its_patches(tmp_path, picture):
    folder = vision_encoder_decoder(tmp_path / "model")
    model = load(folder)
    prepared = model.prepare_image(picture, SAID)
    queries, keys = prepared.axes["cross"]
    assert names(queries) == ["<s>", "what", "is", "on", "the"]  # what it read when it wrote the text
    assert names(keys) == ["[CLS]", *PATCHES]
    output = folders.eager(folder, transformers.AutoModelForImageTextToText, **prepared.inputs)
    for kind, weights in (
        ("cross", output.cross_attentions),
        ("encoder", output.encoder_attentions),
        ("decoder", output.decoder_attentions),
    ):
        view = one_head(model, prepared, Selection(Head(1, 1), kind=kind)).heatmap
        np.testing.assert_allclose(view.values, weights[1][0, 1].numpy(), atol=1e-5)


def test_a_decoder_writes_what_it_reads_in_a_picture(tmp_path, picture):
    model = load(vision_encoder_decoder(tmp_path / "model"), generative=True)
    written = model.generate(model.prepare_image(picture), 3)
    assert len(written.axes["decoder"][0]) == 4
    assert names(written.axes["cross"][1])[1:] == PATCHES
    assert "generated 3 tokens" in written.notes[-1]


@pytest.mark.usefixtures("unlisted")
def test_two_models_of_text_that_are_joined_are_a_sentence(tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    words = transformers.BertConfig(vocab_size=9, is_decoder=True, add_cross_attention=True, **sizes)
    reads = transformers.BertModel(transformers.BertConfig(vocab_size=9, **sizes))
    model = transformers.EncoderDecoderModel(encoder=reads, decoder=transformers.BertLMHeadModel(words))
    model.save_pretrained(tmp_path / "both")
    with pytest.raises(ModelError, match="joins several; save the one that reads in a folder of its own"):
        load(str(tmp_path / "both"))
    model.encoder.save_pretrained(tmp_path / "encoder")
    assert load(str(tmp_path / "encoder"))


@pytest.mark.torchvision
def test_tokens_of_a_picture_that_stand_before_the_text_have_its_patches(tmp_path, picture):
    prepared = load(make_folder("git", tmp_path / "model")).prepare_image(picture, SAID)
    assert names(prepared.axes["decoder"][0]) == ["[CLS]", *PATCHES, *SAID.split()]


@pytest.mark.torchvision
def test_of_two_classes_of_a_type_the_one_that_was_saved_is_loaded(tmp_path, picture):
    model = load(make_folder("blip", tmp_path / "model"))
    assert not model.notes  # no weight is missing
    queries, keys = model.prepare_image(picture, SAID).axes["cross"]
    assert (names(queries), names(keys)) == (SAID.split(), ["[CLS]", *PATCHES])


def plain_names(prepared) -> list[str]:
    return [token.text for token in prepared.tokens if not token.special]


@pytest.mark.torchvision
def test_where_convolutions_mix_the_tokens_of_a_tower_no_word_is_called_a_part_of_the_picture(
    tmp_path, picture
):
    prepared = load(make_folder("lfm3_vl", tmp_path / "model")).prepare_image(picture, TEXT)
    assert plain_names(prepared)[-6:] == TEXT.split()
    assert plain_names(prepared)[:-6] == [f"image 1 · {number}" for number in range(12)]
    assert not prepared.picture.boxes
    assert "those of the picture are numbered" in prepared.notes[0]


@pytest.mark.torchvision
def test_of_two_towers_one_that_mixes_its_tokens_does_not_hide_the_places_of_the_other(tmp_path, picture):
    prepared = load(make_folder("deepseek_vl_hybrid", tmp_path / "model")).prepare_image(picture, TEXT)
    assert prepared.picture.grid is not None
    assert "image 1 · 0,3" in plain_names(prepared)


COPIES = ["glm4v", "glm46v", "glm4v_moe", "glm_ocr", "qwen3_5", "qwen3_vl", "qwen3_vl_moe", "video_llama_3"]
TILED = ["aya_vision", "cohere2_vision", "deepseek_vl", "janus", "mistral3"]


@pytest.mark.parametrize(
    "name",
    [
        "hunyuan_vl",  # its tokenizer alone names the signs around a picture
        "lighton_ocr",  # the class without a head knows none of its weights
        # a sign in a text that is not the model's token; a processor that is to be asked for kinds of tokens
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("qianfan_ocr", "cosmos3_edge")),
        *(pytest.param(name, marks=pytest.mark.sweep) for name in COPIES + TILED),
    ],
)
@pytest.mark.torchvision
def test_its_tokens_tile_the_picture_and_its_weights_are_those_of_the_eager_model(name, tmp_path, picture):
    model = load(make_folder(name, tmp_path / "model"))
    assert not model.notes
    prepared = model.prepare_image(picture, TEXT)
    assert names(prepared.tokens)[-6:] == TEXT.split()
    assert "image 1 · 0,1" in names(prepared.tokens)
    assert float(eager(model, picture)) <= 1e-5
    assert tiling(model, picture, LONG) == "2 of 2"


@pytest.mark.parametrize(
    "name",
    [
        "t5gemma2",  # its encoder is given the text and the pixels, and joins them itself
        pytest.param("gemma4_unified", marks=pytest.mark.slow),  # no tower at all
    ],
)
@pytest.mark.torchvision
def test_its_tokens_have_places_wherever_the_picture_enters(name, tmp_path, picture):
    prepared = load(make_folder(name, tmp_path / "model")).prepare_image(picture, TEXT)
    assert prepared.picture.grid is not None
    assert "image 1 · 0,1" in plain_names(prepared)


@pytest.mark.torchvision
def test_a_model_is_given_how_many_tiles_its_processor_made(tmp_path):
    save_noise(tmp_path / "a.png", 300, 400)
    model = load(make_folder("unlimited_ocr", tmp_path / "model"))
    prepared = model.prepare_image(tmp_path / "a.png", TEXT)
    assert prepared.settings["num_local_patches"] == [4]
    assert one_head(model, prepared, Selection(Head(0, 1), kind="decoder")).heatmap.values.shape[0] == len(
        prepared.tokens
    )


@pytest.mark.torchvision
def test_the_times_of_frames_are_no_tokens_of_the_video(tmp_path):
    (tmp_path / "video").mkdir()
    for number in range(4):
        Image.new("RGB", (112, 84), (60 * number, 90, 120)).save(tmp_path / "video" / f"{number}.png")
    model = load(make_folder("qwen3_omni_moe_thinker", tmp_path / "model"))
    prepared = model.prepare_image(tmp_path / "video", TEXT, video=True)
    assert len(prepared.pictures) == 4
    assert "frames 1-2 · 0,1" in plain_names(prepared)


@pytest.mark.torchvision
def test_a_form_of_images_that_is_not_made_is_a_sentence(tmp_path, picture):
    model = load(make_folder("kosmos-2.5", tmp_path / "model"))
    with pytest.raises(InputError, match="takes images in a form that attnscope does not make: give"):
        model.prepare_image(picture, TEXT)
