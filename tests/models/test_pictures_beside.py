"""A picture that a text looks at across, or that stands before it, prepared apart from the text."""

import numpy as np
import pytest
import transformers

from attnscope.attention import Head
from attnscope.errors import ModelError
from attnscope.models import load
from attnscope.questions.head import one_head
from attnscope.questions.selection import Selection
from tests.models.folders import eager
from tests.models.vision_recipes import make_folder, vision_encoder_decoder

TEXT = "what is on the mat"
PATCHES = [f"{row},{column}" for row in range(4) for column in range(4)]


def names(axis) -> list[str]:
    return [token.text for token in axis]


def test_what_a_decoder_writes_of_a_picture_looks_at_its_patches(tmp_path, picture):
    folder = vision_encoder_decoder(tmp_path / "model")
    model = load(folder)
    prepared = model.prepare_image(picture, TEXT)
    queries, keys = prepared.axes["cross"]
    assert names(queries) == ["<s>", "what", "is", "on", "the"]  # what it read when it wrote the text
    assert names(keys) == ["[CLS]", *PATCHES]
    output = eager(folder, transformers.AutoModelForImageTextToText, **prepared.inputs)
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
    prepared = load(make_folder("git", tmp_path / "model")).prepare_image(picture, TEXT)
    assert names(prepared.axes["decoder"][0]) == ["[CLS]", *PATCHES, *TEXT.split()]


@pytest.mark.torchvision
def test_of_two_classes_of_a_type_the_one_that_was_saved_is_loaded(tmp_path, picture):
    model = load(make_folder("blip", tmp_path / "model"))
    assert not model.notes  # no weight is missing
    queries, keys = model.prepare_image(picture, TEXT).axes["cross"]
    assert (names(queries), names(keys)) == (TEXT.split(), ["[CLS]", *PATCHES])
