"""Types that stand for pictures in ways of their own: what each was the first to show, held for all."""

import numpy as np
import pytest
import transformers
from PIL import Image

from attnscope.attention import Head
from attnscope.errors import InputError
from attnscope.models import load
from attnscope.questions.head import one_head
from attnscope.questions.selection import Selection
from tests.models.folders import eager
from tests.models.images import save_noise
from tests.models.vision_recipes import make_folder

TEXT = "what is on the mat ?"
pytestmark = pytest.mark.torchvision


def names_of(prepared) -> list[str]:
    return [token.text for token in prepared.tokens if not token.special]


def test_where_convolutions_mix_the_tokens_of_a_tower_no_word_is_called_a_part_of_the_picture(
    tmp_path, picture
):
    prepared = load(make_folder("lfm3_vl", tmp_path / "model")).prepare_image(picture, TEXT)
    assert names_of(prepared)[-6:] == TEXT.split()
    assert names_of(prepared)[:-6] == [f"image 1 · {number}" for number in range(12)]
    assert not prepared.picture.boxes
    assert "those of the picture are numbered" in prepared.notes[0]


def test_of_two_towers_one_that_mixes_its_tokens_does_not_hide_the_places_of_the_other(tmp_path, picture):
    prepared = load(make_folder("deepseek_vl_hybrid", tmp_path / "model")).prepare_image(picture, TEXT)
    assert prepared.picture.grid is not None
    assert "image 1 · 0,3" in names_of(prepared)


@pytest.mark.parametrize(
    "name",
    [
        "hunyuan_vl",  # its tokenizer alone names the signs around a picture
        pytest.param(
            "qianfan_ocr", marks=pytest.mark.slow
        ),  # the sign in a text is not the token in the model
        pytest.param(
            "cosmos3_edge", marks=pytest.mark.slow
        ),  # its processor is to be asked for kinds of tokens
        "lighton_ocr",  # the class without a head knows none of its weights
    ],
)
def test_its_tokens_have_places_and_its_weights_are_those_of_the_eager_model(name, tmp_path, picture):
    folder = make_folder(name, tmp_path / "model")
    model = load(folder)
    assert not model.notes
    prepared = model.prepare_image(picture, TEXT)
    assert names_of(prepared)[-6:] == TEXT.split()
    assert "image 1 · 0,1" in names_of(prepared)
    whole = eager(folder, transformers.AutoModelForImageTextToText, **prepared.inputs)
    weights = whole.attentions[0][0, 1]
    seen = one_head(model, prepared, Selection(Head(0, 1), kind="decoder"))
    np.testing.assert_allclose(seen.heatmap.values, weights.numpy(), atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        "t5gemma2",  # its encoder is given the text and the pixels, and joins them itself
        pytest.param("gemma4_unified", marks=pytest.mark.slow),  # no tower at all
    ],
)
def test_its_tokens_have_places_wherever_the_picture_enters(name, tmp_path, picture):
    prepared = load(make_folder(name, tmp_path / "model")).prepare_image(picture, TEXT)
    assert prepared.picture.grid is not None
    assert "image 1 · 0,1" in names_of(prepared)


def test_a_model_is_given_how_many_tiles_its_processor_made(tmp_path):
    save_noise(tmp_path / "a.png", 300, 400)
    model = load(make_folder("unlimited_ocr", tmp_path / "model"))
    prepared = model.prepare_image(tmp_path / "a.png", TEXT)
    assert prepared.settings["num_local_patches"] == [4]
    assert one_head(model, prepared, Selection(Head(0, 1), kind="decoder")).heatmap.values.shape[0] == len(
        prepared.tokens
    )


def test_the_times_of_frames_are_no_tokens_of_the_video(tmp_path):
    (tmp_path / "video").mkdir()
    for number in range(4):
        Image.new("RGB", (112, 84), (60 * number, 90, 120)).save(tmp_path / "video" / f"{number}.png")
    model = load(make_folder("qwen3_omni_moe_thinker", tmp_path / "model"))
    prepared = model.prepare_image(tmp_path / "video", TEXT, video=True)
    assert len(prepared.pictures) == 4
    assert "frames 1-2 · 0,1" in names_of(prepared)


def test_a_form_of_images_that_is_not_made_is_a_sentence(tmp_path, picture):
    model = load(make_folder("kosmos-2.5", tmp_path / "model"))
    with pytest.raises(InputError, match="takes images in a form that attnscope does not make: give"):
        model.prepare_image(picture, TEXT)
