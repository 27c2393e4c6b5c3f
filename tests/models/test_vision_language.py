"""Images in or beside a text, and video frames: each token is named by its image region."""

import copy
import json
import shutil
from functools import cache

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
from tests.models.vision_language import ALL, FAMILIES, LAYERS, MORE, NEED_TORCHVISION, NUMBERED
from tests.models.vision_recipes import make_folder, vision_encoder_decoder
from tests.tools.pictures_in_texts import SIZES, TEXT, eager, identity, states_of, tiling

LONG = SIZES[1:]
"""The proportions that lie farthest apart; other tests read a picture of the first ones."""
ALIKE = ("vipllava", "paligemma", "llava_onevision", "llava_next_video", "qwen2_5_vl", "smolvlm")
"""Families whose pictures stand in the text as those of another one, with another tower or decoder."""
OFTEN = ("llava", "llava_next", "qwen2_vl")
TEMPLATE = (
    "{% for m in messages %}{{ m.role }} : {% for c in m.content %}"
    "{% if c.type == 'image' %}<image>{% else %}{{ c.text }}{% endif %}{% endfor %}{% endfor %}"
)
PATCHES = [f"{row},{column}" for row in range(4) for column in range(4)]


def case(name: str, *more, slow: bool = False):
    """A case of a family; some processors need torchvision."""
    marks = {"torchvision": name in NEED_TORCHVISION, "sweep": name in (*MORE, *ALIKE), "slow": slow}
    return pytest.param(name, *more, marks=[getattr(pytest.mark, mark) for mark in marks if marks[mark]])


def families(*left_out: str) -> list:
    """Every family whose tokens stand for parts of a picture."""
    return [case(name) for name in ALL if name not in left_out]


@pytest.fixture(scope="module")
def model_of(folder_of):
    return cache(lambda name: load(folder_of(name)))


@pytest.fixture
def made(tmp_path):
    """The model of a type that is no family."""
    return lambda name: load(make_folder(name, tmp_path / "model"))


@pytest.fixture
def two(tmp_path):
    """Two square pictures."""
    return [save_noise(tmp_path / f"{number}.png", 56, 56, number) for number in range(2)]


@pytest.fixture
def video(tmp_path):
    folder = tmp_path / "video"
    folder.mkdir()
    for number in range(4):
        save_noise(folder / f"{number}.png", 84, 112, number)
    return folder


def names(tokens, *, special: bool = True) -> list[str]:
    return [token.text for token in tokens if special or not token.special]


def placed(prepared, number: int) -> set[str]:
    """The tokens that have a place in a picture."""
    return set(names(token for token in prepared.tokens if token.id in prepared.pictures[number].boxes))


def moved(model, kept, prepared) -> set[str]:
    """The tokens that the language model is given otherwise than it was."""
    far = (states_of(model, prepared) - kept).norm(dim=-1) > 1e-6
    return {token.text for token, moves in zip(prepared.tokens, far.tolist(), strict=True) if moves}


@pytest.mark.parametrize("name", families("idefics2", *NUMBERED))
def test_image_token_boxes_tile_the_image(name, model_of, tmp_path):
    assert tiling(model_of(name), tmp_path / "a.png", LONG) == "2 of 2"


@pytest.mark.slow
@pytest.mark.parametrize("name", families("idefics2", "mllama", "idefics", *NUMBERED))
@pytest.mark.sweep
def test_painting_a_box_changes_its_token_most(name, model_of, picture):
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


@pytest.mark.sweep
@pytest.mark.parametrize("name", families("instructblip"))  # its queries with the text are as many
def test_vision_language_weights_equal_eager(name, model_of, picture):
    model = model_of(name)
    prepared = model.prepare_image(picture, TEXT)
    skip_if_it_cannot_run(model.module, prepared)
    if name == "kosmos_2":
        plain, states = copy.deepcopy(model), states_of(model, prepared)
        plain.module.set_attn_implementation("eager")
        if not torch.allclose(states_of(plain, prepared), states, atol=1e-4):
            pytest.skip("this release of transformers gives a picture other vectors under eager attention")
    assert float(eager(model, picture)) <= 1e-5


def test_image_tokens_are_named_by_place_apart_from_thumbnail(model_of, picture):
    prepared = model_of("llava_next").prepare_image(picture, TEXT)
    rows = [[f"image 1 · {row},{column}" for column in range(8)] + ["image 1 · row end"] for row in range(6)]
    small = [f"thumbnail 1 · {patch}" for patch in PATCHES]
    assert names(prepared.tokens) == [*small, *(name for row in rows for name in row), *TEXT.split()]
    assert [token.special for token in prepared.tokens[16:25]] == [False] * 8 + [True]
    assert prepared.picture.grid == (6, 8)


@pytest.mark.parametrize(("size", "grid"), [((100, 500), (2, 8)), ((500, 100), (8, 2))])
def test_panorama_thumbnail_stays_separate(size, grid, model_of, tmp_path):
    prepared = model_of("llava_next").prepare_image(save_noise(tmp_path / "a.png", *size), TEXT)
    assert prepared.picture.grid == grid
    assert prepared.tokens[15].text == "thumbnail 1 · 3,3"


def test_whole_picture_token_does_not_end_a_patch_row(tmp_path, picture):
    config, processor = ALL["llava"].make()
    config.vision_feature_select_strategy = processor.vision_feature_select_strategy = "full"
    model = transformers.AutoModelForImageTextToText.from_config(config)
    prepared = load(folders.save(tmp_path / "model", model, processor)).prepare_image(picture, TEXT)
    patches = [f"image 1 · {patch}" for patch in PATCHES]
    assert names(prepared.tokens) == ["image 1 · 0 of no place", *patches, *TEXT.split()]


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["idefics2", *NUMBERED])
def test_image_tokens_without_one_region_are_numbered(name, model_of, picture):
    model = model_of(name)
    prepared = model.prepare_image(picture, TEXT)
    count = {"kosmos_2": 64, "chameleon": 784, "emu3": 60, "florence2": 50}.get(name, 8)
    numbered = [token for token in prepared.tokens if token.id >= 1 << 20]
    assert names(numbered) == [f"image 1 · {number}" for number in range(count)]
    signs = ["<image>", "</image>"] if name == "kosmos_2" else []  # and no sign is read as one word more
    words = [token for token in prepared.tokens if token.id < 1 << 20]
    assert names(words, special=False) == signs + TEXT.split()
    said = "no token covers one image region alone: image tokens are numbered"
    assert prepared.notes[0] == said
    assert (prepared.picture.boxes, prepared.picture.grid) == ({}, None)
    assert "mat" in one_token(model, prepared, Selection(token="mat")).label


@pytest.mark.parametrize("name", ["mllama", "idefics"])
def test_cross_attended_image_tokens_have_places(name, model_of, picture):
    model = model_of(name)
    prepared = model.prepare_image(picture, TEXT)
    seen = one_token(model, prepared, Selection(token="mat", kind="cross"))
    assert seen.overlays[0].looks_at.shape == prepared.picture.grid
    assert set(names(prepared.axes["cross"][1])) >= {"image 1 · 0,0", "image 1 · 3,3"}


def test_word_overlay_equals_its_weights_on_patches(model_of, picture):
    model = model_of("llava_next")
    prepared = model.prepare_image(picture, TEXT)
    view = one_token(model, prepared, Selection(Head("L1H0"), token="mat", kind="decoder"))
    weights = one_head(model, prepared, Selection(Head("L1H0"), kind="decoder")).heatmap.values
    row = weights[names(prepared.tokens).index("mat")]
    patches = [token.text.startswith("image 1 · ") and not token.special for token in prepared.tokens]
    np.testing.assert_allclose(view.overlays[0].looks_at.ravel(), row[patches], atol=1e-6)
    assert view.overlays[0].looked_at_by is None  # it stands behind the picture, which cannot see it
    corner = one_token(model, prepared, Selection(token="0,7"))
    assert (corner.label, corner.overlays[0].patch) == ("image 1 · 0,7", (0, 7))
    assert corner.notes[-1] == "image 1 · 0,7 is 105-120 across, 0-15 down, in pixels of the picture"


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["llava", "llava_next", "idefics3"])
def test_half_precision_locates_the_same_boxes(name, folder_of, model_of, picture):
    models = model_of(name), load(folder_of(name), dtype="bfloat16")
    whole, half = (model.prepare_image(picture, TEXT) for model in models)
    assert names(half.tokens) == names(whole.tokens)
    for id_, box in whole.picture.boxes.items():
        assert half.picture.boxes[id_] == pytest.approx(box, abs=1)  # pixels, of tokens 15 to 60 wide


def test_chat_image_stands_where_the_template_puts_it(folder_of, tmp_path, picture):
    folder = folder_of("llava")
    with pytest.raises(InputError, match="has no chat format"):
        load(folder).prepare_image(picture, TEXT, Chat())
    chat = shutil.copytree(folder, tmp_path / "chat")
    (chat / "chat_template.jinja").write_text(TEMPLATE)
    prepared = load(chat).prepare_image(picture, TEXT, Chat())
    assert names(prepared.tokens[1:4]) == [":", "image 1 · 0,0", "image 1 · 0,1"]


@pytest.mark.parametrize("name", ["llava", "paligemma"])  # the latter reads what is given from both sides
def test_generation_continues_after_an_image(name, folder_of, picture):
    model = load(folder_of(name), generative=True)
    prepared = model.prepare_image(picture, TEXT)
    written = model.generate(prepared, 3)
    assert written.written == len(prepared.tokens)
    expected = model.writer.generate(**prepared.inputs, max_new_tokens=3, do_sample=False)[0, -3:]
    assert [token.id for token in written.tokens[len(prepared.tokens) :]] == expected.tolist()
    seen = one_token(model, written, Selection(token=str(len(prepared.tokens))))
    assert seen.overlays[0].looks_at.shape == (4, 4)


def test_report_of_text_model_is_not_compared_with_tower(model_of, picture):
    model = model_of("llava")
    seen = survey_model(model, model.prepare_image(picture, TEXT)).sightings
    said = [(each.site.site.kind, each.report) for each in seen]
    assert said == [("encoder", "none")] * 2 + [("decoder", "right")] * 2


TOO_MUCH = "the processor of .* runs out of memory: .* asked for"
REFUSED, UNREAD = "the processor of .* refuses this", "the model does not read what its processor made: "
LIES = [  # a family, the settings of its pictures, or of itself, that lie, and what is said of them
    ("llava", False, {"num_additional_image_tokens": 5}, f"{UNREAD}Image feat"),
    ("llava", False, {"num_additional_image_tokens": 10**10}, TOO_MUCH),
    ("llava", False, {"patch_size": 0}, REFUSED),
    ("llava", False, {"auto_map": {"AutoProcessor": "some/code--file.P"}}, "names 'some/code--file"),
    ("llava", False, {"image_token": "<image><image>"}, f"{REFUSED}|{UNREAD}"),
    ("gemma3", False, {"image_seq_length": 10**8}, TOO_MUCH),  # while it is built
    ("llava_next", True, {"crop_size": {"height": 10**9, "width": 10**9}}, TOO_MUCH),
    ("qwen2_vl", True, {"temporal_patch_size": 10**9}, TOO_MUCH),
    ("qwen2_vl", True, {"merge_size": 0}, REFUSED),
    ("qwen2_vl", True, {"merge_size": -1}, f"{REFUSED}|{UNREAD}"),
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
@pytest.mark.usefixtures("little_memory")
def test_excessive_processor_sizes_are_refused(
    name, pictures, settings, sentence, folder_of, tmp_path, picture
):
    folder = shutil.copytree(folder_of(name), tmp_path / "model")
    said = json.loads((folder / "processor_config.json").read_text()).get("image_processor")
    settings = {"image_processor": said | settings} if pictures else settings
    folders.changed(folder, "processor_config.json", **settings)
    with pytest.raises(AttnscopeError, match=sentence):
        load(folder).prepare_image(picture, TEXT)


ALONE = [case(name, slow=name not in OFTEN) for name in FAMILIES if name not in ("idefics2", "mllama")]


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", ALONE)
def test_two_images_have_separate_tokens(name, model_of, tmp_path):
    model, sizes = model_of(name), ((90, 120), (120, 70))
    paths = [save_noise(tmp_path / f"{number}.png", *size, number) for number, size in enumerate(sizes)]
    before = model.prepare_image(paths, TEXT)
    assert [picture.name for picture in before.pictures] == ["image 1", "image 2"]
    kept = states_of(model, before)
    for number, size in enumerate(sizes):
        others = paths.copy()
        others[number] = save_noise(tmp_path / "other.png", *size, seed=7)
        own = moved(model, kept, model.prepare_image(others, TEXT))
        assert own == placed(before, number)
        assert {text.split(" · ")[0] for text in own} <= {f"image {number + 1}", f"thumbnail {number + 1}"}


def test_images_stand_at_their_placeholders(model_of, two):
    model = model_of("llava")
    tokens = names(model.prepare_image(two, "left <image> right <image> what").tokens)
    assert tokens[:2] == ["left", "image 1 · 0,0"]
    assert tokens[17:19] == ["right", "image 2 · 0,0"]
    assert tokens[-1] == "what"
    with pytest.raises(InputError, match="the text has 1 × <image> and there are 2 images"):
        model.prepare_image(two, "left <image> right")
    with pytest.raises(InputError, match="the text has 2 × <image> and there is 1 image:"):
        model.prepare_image(two[0], "<image> <image> what")


def test_word_overlays_of_two_images_share_a_scale(model_of, two):
    model = model_of("llava")
    prepared = model.prepare_image(two, TEXT)
    seen = one_token(model, prepared, Selection(Head("L1H0"), token="mat"))
    assert [shown.name for shown in seen.overlays] == ["image 1", "image 2"]
    second = one_token(model, prepared, Selection(Head("L1H0"), token="image 2 · 1,3"))
    assert [shown.patch for shown in second.overlays] == [None, (1, 3)]
    boxed = [bar for bar in seen.looks_at.bars if bar.label.startswith("image")]
    assert boxed
    assert all(bar.box is not None and bar.where.count("-") == 2 for bar in boxed)


VIDEOS = [case(name, slow=name not in OFTEN) for name, family in FAMILIES.items() if family.videos]


@pytest.mark.parametrize("name", VIDEOS)
def test_video_tokens_are_named_by_frame(name, model_of, video):
    model, merged = model_of(name), name in ("qwen2_vl", "qwen2_5_vl")
    before = model.prepare_image(video, TEXT, video=True)
    assert [picture.name for picture in before.pictures] == [f"frame {n}" for n in range(1, 5)]
    kept = states_of(model, before)
    for number in range(4):
        save_noise(video / f"{number}.png", 84, 112, seed=7)
        own = moved(model, kept, model.prepare_image(video, TEXT, video=True))
        save_noise(video / f"{number}.png", 84, 112, number)
        assert own == placed(before, number)
        assert own
    assert ("frames 1-2 · 0,0" if merged else "frame 1 · 0,0") in placed(before, 0)
    assert ("each video token covers the same region of 2 frames" in before.notes) == merged


@pytest.mark.torchvision
def test_long_gif_is_sampled_with_a_note(model_of, tmp_path):
    frames = [Image.fromarray(np.full((56, 56, 3), 10 * i, np.uint8)) for i in range(20)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    prepared = model_of("qwen2_vl").prepare_image(tmp_path / "a.gif", TEXT, video=True)
    assert len(prepared.pictures) == 16
    assert prepared.notes[-1].startswith("the model reads 16 of 20 frames: 1, 2, 4,")


def test_video_for_an_image_model_is_refused(model_of, video):
    with pytest.raises(InputError, match="does not read videos"):
        model_of("llava").prepare_image(video, TEXT, video=True)


SAID = "what is on the mat"


def test_image_decoder_cross_attends_to_patches(tmp_path, picture):
    folder = vision_encoder_decoder(tmp_path / "model")
    model = load(folder, generative=True)
    prepared = model.prepare_image(picture, SAID)
    queries, keys = prepared.axes["cross"]
    assert names(queries) == ["<s>", "what", "is", "on", "the"]  # what it read when it wrote the text
    assert names(keys) == ["[CLS]", *PATCHES]
    output = folders.eager(folder, transformers.AutoModelForImageTextToText, **prepared.inputs)
    if "cross_attentions" not in output:
        pytest.skip("this transformers reports no attention across of a model that is joined")
    for kind in ("cross", "encoder", "decoder"):
        view = one_head(model, prepared, Selection(Head(1, 1), kind=kind)).heatmap
        np.testing.assert_allclose(view.values, output[f"{kind}_attentions"][1][0, 1].numpy(), atol=1e-5)
    written = model.generate(model.prepare_image(picture), 3)
    assert len(written.axes["decoder"][0]) == 4
    assert names(written.axes["cross"][1])[1:] == PATCHES
    assert "generated 3 tokens" in written.notes[-1]


@pytest.mark.usefixtures("unlisted")
def test_joined_text_models_are_refused(tmp_path):
    words = transformers.BertConfig(vocab_size=9, is_decoder=True, add_cross_attention=True, **LAYERS)
    reads = transformers.BertModel(transformers.BertConfig(vocab_size=9, **LAYERS))
    model = transformers.EncoderDecoderModel(encoder=reads, decoder=transformers.BertLMHeadModel(words))
    model.save_pretrained(tmp_path / "both")
    with pytest.raises(ModelError, match="joins several; save the one that reads in a folder of its own"):
        load(str(tmp_path / "both"))
    model.encoder.save_pretrained(tmp_path / "encoder")
    assert load(str(tmp_path / "encoder"))


@pytest.mark.torchvision
def test_image_tokens_before_the_text_have_patch_names(made, picture):
    prepared = made("git").prepare_image(picture, SAID)
    assert names(prepared.axes["decoder"][0]) == ["[CLS]", *PATCHES, *SAID.split()]


@pytest.mark.torchvision
def test_saved_class_of_two_is_loaded(made, picture):
    model = made("blip")
    assert not model.notes  # no weight is missing
    queries, keys = model.prepare_image(picture, SAID).axes["cross"]
    assert (names(queries), names(keys)) == (SAID.split(), ["[CLS]", *PATCHES])


@pytest.mark.torchvision
def test_image_tokens_mixed_by_convolutions_are_numbered(made, picture):
    prepared = made("lfm3_vl").prepare_image(picture, TEXT)
    numbered = [f"image 1 · {number}" for number in range(12)]
    assert names(prepared.tokens, special=False) == numbered + TEXT.split()
    assert not prepared.picture.boxes
    assert "image tokens are numbered" in prepared.notes[0]


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
def test_image_tokens_tile_picture_with_eager_weights(name, made, picture):
    model = made(name)
    assert not model.notes
    tokens = names(model.prepare_image(picture, TEXT).tokens)
    assert tokens[-6:] == TEXT.split()
    assert "image 1 · 0,1" in tokens
    assert float(eager(model, picture)) <= 1e-5
    assert tiling(model, picture, LONG) == "2 of 2"


@pytest.mark.parametrize(
    "name",
    [
        "t5gemma2",  # its encoder is given the text and the pixels, and joins them itself
        "deepseek_vl_hybrid",  # one of its two towers mixes its tokens, the other does not
        pytest.param("gemma4_unified", marks=pytest.mark.slow),  # no tower at all
    ],
)
@pytest.mark.torchvision
def test_image_tokens_have_places_at_any_entry_layer(name, made, picture):
    prepared = made(name).prepare_image(picture, TEXT)
    assert prepared.picture.grid is not None
    assert "image 1 · 0,1" in names(prepared.tokens, special=False)


@pytest.mark.torchvision
def test_tile_count_of_processor_reaches_the_model(made, tmp_path):
    model = made("unlimited_ocr")
    prepared = model.prepare_image(save_noise(tmp_path / "a.png", 300, 400), TEXT)
    assert prepared.settings["num_local_patches"] == [4]
    seen = one_head(model, prepared, Selection(Head(0, 1), kind="decoder")).heatmap
    assert len(seen.values) == len(prepared.tokens)


@pytest.mark.torchvision
def test_frame_timestamps_are_not_video_tokens(made, video):
    prepared = made("qwen3_omni_moe_thinker").prepare_image(video, TEXT, video=True)
    assert len(prepared.pictures) == 4
    assert "frames 1-2 · 0,1" in names(prepared.tokens, special=False)


@pytest.mark.torchvision
def test_unsupported_image_input_form_is_refused(made, picture):
    with pytest.raises(InputError, match="takes images in a form that attnscope does not make: give"):
        made("kosmos-2.5").prepare_image(picture, TEXT)
