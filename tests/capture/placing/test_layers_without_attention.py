"""Layers without attention are named, with what they hold instead."""

import pytest
import torch
import transformers as hf
from torch import nn

from attnscope.capture import Keep, RowSums, recording
from tests.capture.tiny import FAMILIES, inputs


def record_of(model, *given, **named):
    """The record of one pass."""
    with torch.inference_mode(), recording(model.eval()) as record:
        model(*given, **named)
    return record


def jamba():
    torch.manual_seed(0)
    config = hf.JambaConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_layer_offset=2,
        attn_layer_period=4,
        expert_layer_period=2,
        num_experts=4,
        mamba_d_state=8,
        use_mamba_kernels=False,
        pad_token_id=0,
    )
    return hf.JambaModel._from_config(config)


def test_a_hybrid_keeps_its_layer_numbers():
    record = record_of(jamba(), input_ids=torch.randint(1, 99, (1, 6)))
    assert [(site.site.name, site.site.layer) for site in record.sites] == [("layers.2.self_attn", 2)]
    assert [(layer.name, layer.layer) for layer in record.without_attention] == [
        ("layers.0", 0),
        ("layers.1", 1),
        ("layers.3", 3),
    ]
    assert all("state-space model (JambaMamba" in layer.reason for layer in record.without_attention)


def test_a_model_without_attention_says_what_it_has():
    config = hf.FNetConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, intermediate_size=32)
    record = record_of(hf.FNetModel._from_config(config), input_ids=torch.randint(1, 99, (1, 6)))
    assert record.sites == []
    assert [layer.layer for layer in record.without_attention] == [0, 1]
    assert {layer.reason for layer in record.without_attention} == {
        "a Fourier transform (FNetFourierTransform)"
    }


def test_a_model_that_attends_everywhere_has_no_layer_without_attention():
    for name in ("bert", "gpt-oss", "t5", "vit"):
        family = FAMILIES[name]
        assert record_of(family.build(), **inputs(family.inputs)).without_attention == []


def test_an_unknown_mixer_is_named_by_its_class():
    class Averaging(nn.Module):
        def forward(self, x):
            return x.mean(1, keepdim=True).expand_as(x)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.mixer, self.norm = Averaging(), nn.LayerNorm(8)

        def forward(self, x):
            return self.norm(self.mixer(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(2))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    record = record_of(Model(), torch.randn(1, 5, 8))
    assert {layer.reason for layer in record.without_attention} == {
        "no softmax in it weighed values (Averaging)"
    }


def test_row_sums_show_the_sink_that_no_token_owns():
    sums = RowSums()
    keep = Keep(lambda site: range(4))
    model = FAMILIES["gpt-oss"].build()
    nn.init.constant_(model.layers[0].self_attn.sinks, 2.0)
    with torch.inference_mode(), recording(model, [sums, keep]):
        model(**inputs("text"))
    for kept in keep.maps:
        alive = kept.allowed.any(-1).expand(kept.weights.shape[:3])
        rows = kept.weights.sum(-1)[alive]
        assert sums.ranges[kept.site] == (float(rows.min()), float(rows.max()))
    assert sums.ranges[keep.maps[0].site][1] < 0.9


def test_row_sums_are_one_without_a_sink():
    sums = RowSums()
    model = FAMILIES["llama"].build()
    with torch.inference_mode(), recording(model, [sums]):
        model(**inputs("text"))
    assert [pytest.approx((1, 1), abs=1e-5)] * 3 == list(sums.ranges.values())


class FeedForward(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Conv1d(8, 8, 3, padding=1)

    def forward(self, x):
        return self.mix(x.mT).mT


class SelfAttention(nn.Module):
    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x, x, x)


class Alternating(nn.Module):
    """Attention and feed-forward networks by turns, each in a list with its norm, as in x-transformers."""

    def __init__(self, *blocks):
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([nn.LayerNorm(8), block]) for block in blocks)

    def forward(self, x):
        for norm, block in self.layers:
            x = x + block(norm(x))
        return x


def test_feed_forward_networks_between_lists_of_attention_are_no_layers():
    model = Alternating(SelfAttention(), FeedForward(), SelfAttention(), FeedForward()).eval()
    with torch.inference_mode(), recording(model) as record:
        model(torch.randn(2, 5, 8))
    assert [site.site.layer for site in record.sites] == [0, 1]
    assert record.without_attention == []


def test_another_mixer_between_lists_of_attention_is_a_layer():
    model = Alternating(SelfAttention(), Convolution(), SelfAttention(), FeedForward()).eval()
    with torch.inference_mode(), recording(model) as record:
        model(torch.randn(2, 5, 8))
    assert [layer.name for layer in record.without_attention] == ["layers.1"]
