"""Layers outside of module lists, and heads that are mixed around the softmax."""

import pytest
import torch
from torch import nn

from attnscope.capture import Keep, recording


class Talking(nn.Module):
    """Attention whose heads a learned layer mixes before the softmax, behind it, or not at all."""

    def __init__(self, before=None, behind=None, size=16, heads=4):
        super().__init__()
        self.heads, self.before, self.behind = heads, before, behind
        self.qkv = nn.Linear(size, 3 * size)
        self.line = nn.Linear(heads, heads)
        self.conv = nn.Conv2d(heads, heads, 1)
        self.table = nn.Parameter(torch.randn(heads, heads))

    def mix(self, how, x):  # [batch, head, query, key]
        if how == "linear":
            return self.line(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        if how == "conv":
            return self.conv(x)
        return x if how is None else torch.einsum("bhij,hg->bgij", x, self.table)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        self.shown = self.mix(self.before, q @ k.transpose(-2, -1)).softmax(-1)
        return (self.mix(self.behind, self.shown) @ v).transpose(1, 2).flatten(2)


class Layer(nn.Module):
    """Attention, or the mean of all tokens in its place."""

    def __init__(self, attends=True):
        super().__init__()
        self.attends, self.attn = attends, Talking()

    def forward(self, x):
        return x + self.attn(x) if self.attends else x.mean(1, keepdim=True).expand_as(x)


class Stacks(nn.Module):
    """Two stacks: talking heads in a Sequential, plain ones in a module list."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Talking("linear", "linear") for _ in range(3)))
        self.last = nn.ModuleList(Talking() for _ in range(2))

    def forward(self, x):
        x = self.blocks(x)
        for block in self.last:
            x = block(x)
        return x


class Named(nn.Module):
    """Three layers of one make as attributes; the one in the middle does not attend."""

    def __init__(self):
        super().__init__()
        self.block_a, self.block_b, self.block_c = Layer(), Layer(False), Layer()
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.norm(self.block_c(self.block_b(self.block_a(x)))))


class Pairs(nn.Module):
    """Attention and a feed-forward network in lists inside a list."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([Talking(), nn.Linear(16, 16)]) for _ in range(2))

    def forward(self, x):
        for attend, feed in self.layers:
            x = x + feed(x + attend(x))
        return x


def observe(module):
    keep = Keep(lambda site: range(4))
    with torch.inference_mode(), recording(module.eval(), [keep]) as record:
        module(torch.randn(2, 5, 16))
    return record, keep.maps


def without(record):
    return [(layer.name, layer.layer) for layer in record.without_attention]


@pytest.mark.parametrize("before", ["linear", "conv", "einsum"])
def test_heads_mixed_before_the_softmax_are_shown_as_they_met_the_values(before):
    module = Talking(before)
    record, (kept,) = observe(module)
    assert torch.equal(kept.weights, module.shown)
    assert record.sites[0].heads == 4


@pytest.mark.parametrize("behind", ["linear", "conv", "einsum"])
def test_heads_mixed_behind_the_softmax_are_named_and_not_shown(behind):
    record, maps = observe(Talking(behind=behind))
    assert (record.sites, maps) == ([], [])
    (layer,) = record.without_attention
    assert "talking heads" in layer.reason


def test_two_stacks_show_the_one_and_name_every_layer_of_the_other():
    record, _ = observe(Stacks())
    assert [site.site.name for site in record.sites] == ["last.0", "last.1"]
    assert without(record) == [(f"blocks.{layer}", layer) for layer in range(3)]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (Named(), "block_b"),
        (nn.Sequential(Layer(), Layer(False), nn.LayerNorm(16)), "1"),
        (nn.Sequential(nn.Linear(16, 16), nn.Sequential(Layer(), Layer(False))), "1.1"),
    ],
    ids=["attributes", "sequential", "nested sequential"],
)
def test_a_layer_of_one_make_that_does_not_attend_is_named_alone(module, name):
    assert without(observe(module)[0]) == [(name, 1)]


def test_layers_in_a_sequential_are_numbered_by_their_place():
    record, _ = observe(nn.Sequential(Layer(), Layer(), Layer()))
    assert [(site.site.name, site.site.layer) for site in record.sites] == [
        (f"{layer}.attn", layer) for layer in range(3)
    ]


def test_feed_forward_networks_in_nested_lists_are_no_layers():
    record, _ = observe(Pairs())
    assert len(record.sites) == 2
    assert without(record) == []
