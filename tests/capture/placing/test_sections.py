"""An axis of several sequences: labels of one of them name its positions, and the others have their own."""

import numpy as np
import pytest
import torch
from torch import nn

import attnscope

WORDS = ["the", "cat", "sat", "on", "mats", "."]
PICTURE = [f"image 1 · {row},{column}" for row in range(2) for column in range(3)]


class TextAndPicture(nn.Module):
    """An encoder over words and the patches of a picture, in either order, behind a learned state or not."""

    def __init__(self, text_first=True, learned=True, stem=False, turned=False):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.first = nn.Embedding(50, 16), nn.Parameter(torch.randn(1, 1, 16))
        self.cut = nn.Conv2d(3, 16, 4, 4)
        if stem:
            self.cut = nn.Sequential(nn.Conv2d(3, 8, 2, 2), nn.ReLU(), nn.Conv2d(8, 16, 2, 2))
        self.places = nn.Parameter(torch.randn(1, 7, 16))
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.text_first, self.learned, self.turned = text_first, learned, turned

    def forward(self, ids, picture):
        patches = self.cut(picture)
        seen = (patches.mT if self.turned else patches).flatten(2).mT
        seen = torch.cat([self.first, seen], 1) + self.places if self.learned else seen
        both = self.words(ids), seen
        return self.layers(torch.cat(both if self.text_first else both[::-1], 1))


def axes_of(model, labels=WORDS, words=6):
    given = torch.arange(words)[None], torch.rand(1, 3, 8, 12, generator=torch.manual_seed(1))
    with torch.inference_mode(), attnscope.record(model.eval(), labels) as run:
        model(*given)
    heads = [run.head(each) for each in run.heads]
    assert all(head.queries == head.keys for head in heads)
    (keys,) = {head.keys for head in heads}  # in each layer
    return list(keys), run


@pytest.mark.parametrize("text_first", [True, False])
@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("stem", [True, False])
def test_text_keeps_its_labels_beside_patches(text_first, learned, stem):
    model = TextAndPicture(text_first, learned, stem)
    keys, run = axes_of(model)
    seen = ["[special]"] * learned + PICTURE
    assert keys == ([*WORDS, *seen] if text_first else [*seen, *WORDS])
    assert not [note for note in run.notes if "fit no axis" in note]


def test_patch_named_by_row_and_column_is_where_the_picture_changes():
    model = TextAndPicture().eval()
    keys, _ = axes_of(model)
    ids, picture = torch.arange(6)[None], torch.rand(1, 3, 8, 12)
    states = []
    for number in range(2):
        picture[..., 4:8, 8:12] += number  # the second row, the third column
        hook = model.layers.layers[0].register_forward_pre_hook(lambda _, args: states.append(args[0]))
        with torch.inference_mode():
            model(ids, picture)
        hook.remove()
    changed = (states[0] != states[1]).any(-1)[0].nonzero().flatten().tolist()
    assert [keys[at] for at in changed] == ["image 1 · 1,2"]


def test_patches_in_another_order_are_numbered():
    keys, _ = axes_of(TextAndPicture(turned=True), WORDS[:5], words=5)
    assert keys == [*WORDS[:5], "[memory]", *map(str, range(5, 11))]


def test_labels_of_the_whole_axis_come_first():
    whole = [*WORDS, *"ghijklm"]
    assert axes_of(TextAndPicture(), whole)[0] == whole


@pytest.mark.parametrize("labels", [None, WORDS[:4]])
def test_axis_without_labels_that_fit_is_numbered(labels):
    keys, run = axes_of(TextAndPicture(), labels)
    assert keys == [str(number) for number in range(13)]
    assert [note for note in run.notes if "fit no axis" in note] == (
        [] if labels is None else ["the 4 labels fit no axis: there are 6 or 13 positions"]
    )


def small_layoutlmv3():
    from transformers import LayoutLMv3Config, LayoutLMv3Model

    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    boxes = {"coordinate_size": 4, "shape_size": 4, "input_size": 32, "patch_size": 16, "vocab_size": 50}
    return LayoutLMv3Model(LayoutLMv3Config(**sizes, **boxes)).eval()


def test_layoutlmv3_text_keeps_its_labels_beside_patches(tmp_path):
    model = small_layoutlmv3()
    model.set_attn_implementation("eager")
    inputs = {"input_ids": torch.arange(3, 9)[None], "pixel_values": torch.rand(1, 3, 32, 32)}
    with torch.inference_mode(), attnscope.record(model, WORDS) as run:
        weights = model(**inputs, output_attentions=True).attentions
    seen = [f"image 1 · {row},{column}" for row in range(2) for column in range(2)]
    head = run.head("L2H1")
    assert head.keys == head.queries == (*WORDS, "[special]", *seen)
    np.testing.assert_allclose(head.weights, weights[2][0, 1], atol=1e-6)
    file = tmp_path / "words.txt"
    file.write_text("\n".join(WORDS))
    assert attnscope.wrap(model).read(inputs, labels=file).head("L2H1").keys == head.keys
