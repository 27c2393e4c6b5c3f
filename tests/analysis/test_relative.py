"""Relative attention: a word over a neutral text, part by part of the picture."""

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from attnscope.analysis.places.relative import relative_token
from attnscope.analysis.selection import Selection
from attnscope.attention import Head
from attnscope.errors import InputError
from attnscope.models import load
from tests.models.vision_folders import vision_language


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return vision_language(tmp_path_factory.mktemp("llava"), "llava")


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    file = tmp_path_factory.mktemp("pictures") / "a.png"
    pixels = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)
    return file


def eager_row(folder, prepared, head: int, token: int) -> np.ndarray:
    """The row of a token in one head of the last layer, as the eager model returns it.  [key]"""
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        return model(**prepared.inputs, output_attentions=True).attentions[1][0, head, token].numpy()


def test_it_is_the_quotient_of_two_rows_of_the_eager_model(folder, picture):
    model = load(folder)
    asked = model.prepare_image(picture, "what is on the mat ?")
    neutral = model.prepare_image(picture, "describe this")
    seen = relative_token(model, asked, neutral, Selection(Head("L1H1"), token="mat"), "describe this")
    expected = eager_row(folder, asked, 1, 20)[:16] / eager_row(folder, neutral, 1, 17)[:16]
    np.testing.assert_allclose(seen.overlays[0].looks_at, expected.reshape(4, 4), rtol=1e-4)
    best = seen.looks_at.bars[0]
    assert best.weight == pytest.approx(expected.max(), rel=1e-4)
    assert best.position == expected.argmax()
    assert seen.title.startswith("relative attention · L1H1")
    assert 'the last token of "describe this"' in seen.notes[0]


def test_a_word_before_the_picture_and_another_picture_are_refused(folder, picture, tmp_path):
    model = load(folder)
    asked = model.prepare_image(picture, "what <image> is on the mat ?")
    neutral = model.prepare_image(picture, "describe this")
    with pytest.raises(InputError, match="what cannot look at the picture: choose a token behind it"):
        relative_token(model, asked, neutral, Selection(token="what"))
    two = model.prepare_image([picture, picture], "describe this")
    with pytest.raises(InputError, match="has 16 tokens in the text and 32 in the neutral one"):
        relative_token(model, asked, two, Selection(token="mat"))
