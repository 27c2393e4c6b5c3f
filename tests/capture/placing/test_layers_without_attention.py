"""Layers have numbers and kinds; layers without attention are named with what they contain instead."""

import re

import pytest
import torch
from torch import nn

from attnscope.capture import RowSums, recording
from attnscope.capture.placing.kinds import LayerNumbers
from attnscope.errors import ModelError
from attnscope.models import ModelInput
from attnscope.models.model import Model
from tests.capture.observing import MapObserver, observe
from tests.capture.placing.mixing_modules import SIZE, STATES, TALK, Chain, Stream, attend, talk
from tests.capture.tiny import FAMILIES, SIZES, inputs, tiny

pytestmark = pytest.mark.sealed


def asked(module, *arguments, **inputs):
    """The record of a pass of a model that was asked how it mixes tokens."""
    return Model("", module, None).run(ModelInput(inputs, {}, (), arguments=arguments), [])


def test_hybrid_model_keeps_its_layer_numbers():
    layers = {"attn_layer_offset": 2, "attn_layer_period": 4, "expert_layer_period": 2, "num_experts": 4}
    sizes = SIZES | {"num_hidden_layers": 4, "num_key_value_heads": 2, "mamba_d_state": 8, "pad_token_id": 0}
    jamba = tiny("Jamba", **sizes, **layers, use_mamba_kernels=False).build()
    record = asked(jamba, input_ids=torch.randint(1, 99, (1, 6)))
    assert [(site.site.name, site.site.layer) for site in record.sites] == [("layers.2.self_attn", 2)]
    named = [(layer.name, layer.layer) for layer in record.without_attention]
    assert named == [(f"layers.{layer}", layer) for layer in (0, 1, 3)]
    assert all("state-space model (JambaMamba" in layer.reason for layer in record.without_attention)


@pytest.mark.parametrize("family", ["gpt-oss", "llama"])
def test_row_sums_below_one_reveal_the_sink(family):
    sums, keep, model = RowSums(), MapObserver(), FAMILIES[family].build()
    if family == "gpt-oss":
        nn.init.constant_(model.layers[0].self_attn.sinks, 2.0)
    with torch.inference_mode(), recording(model, [sums, keep]):
        model(**inputs("text"))
    for kept in keep.maps:
        rows = kept.weights.sum(-1)[kept.allowed.any(-1).expand(kept.weights.shape[:3])]
        assert sums.ranges[kept.site] == (float(rows.min()), float(rows.max()))
    highest = sums.ranges[keep.maps[0].site][1]
    assert highest < 0.9 if family == "gpt-oss" else highest == pytest.approx(1, abs=1e-5)


class Averaging(nn.Module):
    def forward(self, x):
        return x.mean(1, keepdim=True).expand_as(x)


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Conv1d(SIZE, SIZE, 3, padding=1)

    def forward(self, x):
        return self.mix(x.mT).mT


class FeedForward(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(SIZE, SIZE), nn.GELU(), nn.Linear(SIZE, SIZE))


class Layer(nn.Module):
    """Attention, or the mean of all tokens in its place."""

    def __init__(self, attends=True):
        super().__init__()
        self.attends, self.attn, self.average = attends, Stream(attend), Averaging()

    def forward(self, x):
        return x + self.attn(x) if self.attends else self.average(x)


def by_turns(*blocks):
    """Blocks, each in a list with its norm."""
    return Chain(layers=[[nn.LayerNorm(SIZE), block] for block in blocks])


TWO = [("layers.0.1", 0), ("layers.2.1", 1)]
LAYERS = {  # a model, the modules that attend with their layers, and the layers that are named
    "feed-forward networks between lists": (
        lambda: by_turns(Stream(attend), FeedForward(), Stream(attend), FeedForward()),
        TWO,
        [],
    ),
    "another mixer between lists": (
        lambda: by_turns(Stream(attend), Convolution(), Stream(attend), FeedForward()),
        TWO,
        [("layers.1", 1)],
    ),
    "feed-forward networks in lists": (
        lambda: Chain(layers=[[Stream(attend), nn.Linear(SIZE, SIZE)] for _ in range(2)]),
        [("layers.0.0", 0), ("layers.1.0", 1)],
        [],
    ),
    "two stacks, talking heads in a sequence and others in a list": (
        lambda: Chain(
            blocks=nn.Sequential(*(Stream(talk(TALK[0], behind=True)) for _ in range(3))),
            last=[Stream(attend), Stream(attend)],
        ),
        [("last.0", 0), ("last.1", 1)],
        [(f"blocks.{layer}", layer) for layer in range(3)],
    ),
    "attributes of one make": (
        lambda: Chain(a=Layer(), b=Layer(False), c=Layer(), norm=nn.LayerNorm(SIZE), head=nn.Linear(SIZE, 3)),
        [("a.attn", 0), ("c.attn", 1)],
        [],
    ),
    "a sequential": (
        lambda: nn.Sequential(Layer(), Layer(False), Layer(), nn.LayerNorm(SIZE)),
        [("0.attn", 0), ("2.attn", 2)],
        [("1", 1)],
    ),
    "a sequential in another": (
        lambda: nn.Sequential(nn.Linear(SIZE, SIZE), nn.Sequential(Layer(), Layer(False))),
        [("1.0.attn", 0)],
        [("1.1", 1)],
    ),
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_without_attention_are_named_and_numbered(name):
    made, attending, named = LAYERS[name]
    record = asked(made(), STATES)
    assert [(site.site.name, site.site.layer) for site in record.sites] == attending
    assert [(layer.name, layer.layer) for layer in record.without_attention] == named


FNET = tiny("FNet", vocab_size=99, hidden_size=32, num_hidden_layers=2, intermediate_size=32)
WITHOUT = [  # a model without attention, what it is given, and what is said
    (FNET.build, torch.randint(1, 99, (1, 6)), "a Fourier transform (FNetFourierTransform)"),
    (lambda: by_turns(*2 * [Averaging()]), STATES, "Averaging, LayerNorm"),
]


@pytest.mark.parametrize(("made", "given", "reason"), WITHOUT)
def test_model_without_attention_error_names_its_layers(made, given, reason):
    with pytest.raises(ModelError, match=re.escape(f"its layers hold {reason}")):
        asked(made(), given)


NUMBERED = {  # modules that attend in turn, and their layers
    "several numbers count on": (
        ["stages.0.blocks.0.attn", "stages.0.blocks.1.attn", "stages.1.blocks.0.attn"],
        4,
        [0, 1, 2],
    ),
    "a second tower counts on from the end of the first": (
        [f"{tower}.layers.{at}.attn" for tower, at in (("a", 0), ("a", 1), ("b", 0), ("b", 2))],
        4,
        [0, 1, 4, 6],
    ),
    "a second attention in every block counts on too": (
        [f"layers.{at}.{name}" for at in (0, 1) for name in ("time", "space")],
        2,
        [0, 2, 1, 3],
    ),
}


@pytest.mark.parametrize("name", NUMBERED)
def test_layers_are_numbered_by_their_paths(name):
    paths, width, layers = NUMBERED[name]
    numbers = LayerNumbers()
    assert [numbers.number("encoder", path, width) for path in paths] == layers


def test_both_towers_of_clip_are_captured():
    text = {**SIZES, "num_hidden_layers": 1}
    vision = {**text, "image_size": 16, "patch_size": 8}
    model = tiny("CLIP", text_config=text, vision_config=vision, projection_dim=16).build()
    ids, pixels = torch.randint(4, 90, (1, 6)), torch.randn(1, 3, 16, 16)
    record, *_ = observe(model, input_ids=ids, pixel_values=pixels)
    assert {(site.site.kind, site.site.layer, site.site.name) for site in record.sites} == {
        ("decoder", 0, "text_model.encoder.layers.0.self_attn"),
        ("encoder", 0, "vision_model.encoder.layers.0.self_attn"),
    }


PADDED = [("bert", "encoder", real, 6) for real in (1, 2, 4)]
PADDED += [("llama", "decoder", 1, length) for length in (1, 4)]


@pytest.mark.parametrize(("family", "kind", "real", "length"), PADDED)
def test_trailing_padding_does_not_change_attention_kind(family, kind, real, length):
    ids, mask = torch.randint(4, 99, (1, length)), (torch.arange(length) < real).long()[None]
    record, *_ = observe(FAMILIES[family].build(), input_ids=ids, attention_mask=mask)
    assert {site.site.kind for site in record.sites} == {kind}
