"""Relative attention against quotients of the eager model's own maps, on texts and on a picture."""

import numpy as np
import pytest
import torch
import transformers

from attnscope.attention import Head
from attnscope.errors import InputError
from attnscope.models import load
from attnscope.questions.layers import all_heads
from attnscope.questions.relative import BAR, relative_head, relative_heads, relative_token
from attnscope.questions.selection import Selection
from tests.models import folders, images
from tests.models.vision_language import vision_language

TEXT, NEUTRAL = "A cat sat", ("A mat sat", "A sat cat")


def eager_maps(folder, prepared) -> np.ndarray:
    """The weights of the last layer.  [head, query, key]"""
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        return model(**prepared.inputs, output_attentions=True).attentions[-1][0].numpy()


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return folders.gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    return vision_language(tmp_path_factory.mktemp("llava"), "llava")


@pytest.fixture(scope="module")
def drawing(tmp_path_factory):
    return images.save_noise(tmp_path_factory.mktemp("drawing") / "a.png", 90, 120)


@pytest.mark.parametrize("count", [1, 2])
def test_head_and_page_are_quotients_of_eager_maps(gpt2, count):
    model = load(gpt2)
    prepared, *neutral = (model.prepare(text) for text in (TEXT, *NEUTRAL[:count]))
    own, *others = (eager_maps(gpt2, each) for each in (prepared, *neutral))
    expected = np.log2(np.maximum(own, 0.001) / np.maximum(np.mean(others, 0), 0.001))  # [head, query, key]
    layer = max(each.site.layer for each in model.run(prepared, []).sites)
    shown = relative_head(model, prepared, neutral, Selection(Head(layer, 1)))
    np.testing.assert_allclose(
        shown.heatmap.values, np.where(shown.heatmap.masked, 0, expected[1]), atol=1e-4
    )
    assert (shown.heatmap.signed, shown.heatmap.bar) == (True, BAR)
    assert shown.heatmap.limits[1] == -shown.heatmap.limits[0] >= np.abs(shown.heatmap.values).max()
    named = NEUTRAL[0] if count == 1 else "the mean of 2 texts"
    assert named in shown.heatmap.subtitle.replace("“", "").replace("”", "")
    plain, *rest = (all_heads(model, each, Selection()) for each in (prepared, *neutral))
    page = relative_heads(plain, rest, neutral)
    assert not page.layers.proofs  # those of the plain weights
    whole = page.weights["decoder", layer]
    np.testing.assert_allclose(whole.values, np.where(whole.allowed, expected, 0), atol=1e-4)


def test_text_relative_to_itself_is_zero_everywhere(gpt2):
    model = load(gpt2)
    prepared = model.prepare(TEXT)
    assert not relative_head(model, prepared, [prepared], Selection(Head("L0H0"))).heatmap.values.any()
    with pytest.raises(InputError, match="divides cell by cell, and the texts have"):
        relative_head(model, prepared, [model.prepare("A")], Selection(Head("L0H0")))


def test_picture_under_a_question_is_over_the_last_row_of_a_neutral_text(llava, drawing):
    model = load(llava)
    asked, neutral = (
        model.prepare_image(drawing, text) for text in ("what is on the mat ?", "describe this")
    )
    own, other = eager_maps(llava, asked)[1], eager_maps(llava, neutral)[1]
    at = [number for number, token in enumerate(asked.tokens) if token.id >= 0 and "mat" in token.text][-1]
    seen = relative_token(model, asked, [neutral], Selection(Head("L1H1"), token="mat"))
    quotient = np.maximum(own[at, :16], 0.001) / np.maximum(other[-1, :16], 0.001)
    np.testing.assert_allclose(seen.overlays[0].looks_at, quotient.reshape(4, 4), rtol=1e-4)
    assert seen.subtitle.startswith("relative to another text: 1 is the same weight; weights below 0.001")
    assert seen.looks_at.bars[0].weight == pytest.approx(quotient.max(), rel=1e-4)
    head = relative_head(model, asked, [neutral], Selection(Head("L1H1")))
    assert head.heatmap.values.shape == (len(own), 16)
    np.testing.assert_allclose(2.0 ** head.heatmap.values[at], quotient, rtol=1e-4)
