"""Layers without attention are named, with what they hold instead; the others keep their numbers."""

import pytest
import torch
from torch import nn

from attnscope.capture import RowSums, recording
from tests.capture.observing import Keep, observe
from tests.capture.placing.ways import SIZE, STATES, TALK, Nested, Stream, attend, talk
from tests.capture.tiny import FAMILIES, SIZES, inputs, tiny


def test_a_hybrid_keeps_its_layer_numbers():
    layers = {"attn_layer_offset": 2, "attn_layer_period": 4, "expert_layer_period": 2, "num_experts": 4}
    sizes = SIZES | {"num_hidden_layers": 4, "num_key_value_heads": 2, "mamba_d_state": 8, "pad_token_id": 0}
    jamba = tiny("Jamba", **sizes, **layers, use_mamba_kernels=False).build()
    record, *_ = observe(jamba, input_ids=torch.randint(1, 99, (1, 6)))
    assert [(site.site.name, site.site.layer) for site in record.sites] == [("layers.2.self_attn", 2)]
    assert [(layer.name, layer.layer) for layer in record.without_attention] == [
        ("layers.0", 0),
        ("layers.1", 1),
        ("layers.3", 3),
    ]
    assert all("state-space model (JambaMamba" in layer.reason for layer in record.without_attention)


def test_a_model_without_attention_says_what_it_has():
    fnet = tiny("FNet", vocab_size=99, hidden_size=32, num_hidden_layers=2, intermediate_size=32).build()
    record, *_ = observe(fnet, input_ids=torch.randint(1, 99, (1, 6)))
    assert record.sites == []
    assert [layer.layer for layer in record.without_attention] == [0, 1]
    assert {layer.reason for layer in record.without_attention} == {
        "a Fourier transform (FNetFourierTransform)"
    }


def test_a_model_that_attends_everywhere_has_no_layer_without_attention():
    for name in ("bert", "gpt-oss", "t5", "vit"):
        family = FAMILIES[name]
        assert observe(family.build(), **inputs(family.inputs))[0].without_attention == []


def test_row_sums_show_the_sink_that_no_token_owns():
    sums, keep, model = RowSums(), Keep(), FAMILIES["gpt-oss"].build()
    nn.init.constant_(model.layers[0].self_attn.sinks, 2.0)
    with torch.inference_mode(), recording(model, [sums, keep]):
        model(**inputs("text"))
    for kept in keep.maps:
        alive = kept.allowed.any(-1).expand(kept.weights.shape[:3])
        rows = kept.weights.sum(-1)[alive]
        assert sums.ranges[kept.site] == (float(rows.min()), float(rows.max()))
    assert sums.ranges[keep.maps[0].site][1] < 0.9


def test_row_sums_are_one_without_a_sink():
    sums, model = RowSums(), FAMILIES["llama"].build()
    with torch.inference_mode(), recording(model, [sums]):
        model(**inputs("text"))
    assert [pytest.approx((1, 1), abs=1e-5)] * 3 == list(sums.ranges.values())


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


class Stacks(nn.Module):
    """Two stacks: talking heads in a Sequential, plain ones in a module list."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Stream(talk(TALK[0], behind=True)) for _ in range(3)))
        self.last = nn.ModuleList(Stream(attend) for _ in range(2))

    def forward(self, x):
        x = self.blocks(x)
        for block in self.last:
            x = block(x)
        return x


class Attributes(nn.Module):
    """Three layers of one make as attributes; the one in the middle does not attend."""

    def __init__(self):
        super().__init__()
        self.block_a, self.block_b, self.block_c = Layer(), Layer(False), Layer()
        self.norm, self.head = nn.LayerNorm(SIZE), nn.Linear(SIZE, 3)

    def forward(self, x):
        return self.head(self.norm(self.block_c(self.block_b(self.block_a(x)))))


def by_turns(*blocks):
    """Blocks, each in a list with its norm."""
    return Nested(*([nn.LayerNorm(SIZE), block] for block in blocks))


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
        lambda: Nested(*([Stream(attend), nn.Linear(SIZE, SIZE)] for _ in range(2))),
        [("layers.0.0", 0), ("layers.1.0", 1)],
        [],
    ),
    "two stacks": (
        Stacks,
        [("last.0", 0), ("last.1", 1)],
        [(f"blocks.{layer}", layer) for layer in range(3)],
    ),
    "attributes": (Attributes, [("block_a.attn", 0), ("block_c.attn", 1)], [("block_b", 1)]),
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


@pytest.mark.parametrize("name", LAYERS)
def test_layers_keep_their_numbers_and_those_that_do_not_attend_are_named(name):
    made, attending, named = LAYERS[name]
    record, *_ = observe(made(), STATES)
    assert [(site.site.name, site.site.layer) for site in record.sites] == attending
    assert [(layer.name, layer.layer) for layer in record.without_attention] == named


def test_an_unknown_mixer_is_named_by_its_class():
    model = Nested(*([Averaging(), nn.LayerNorm(SIZE)] for _ in range(2)))
    record, *_ = observe(model, STATES)
    assert {layer.reason for layer in record.without_attention} == {
        "no softmax in it weighed values (Averaging)"
    }
