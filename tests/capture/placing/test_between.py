"""Attention from text to text of a batch is named, by whatever it is computed, and never shown as tokens'."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertAttention

from attnscope.capture.placing.mixing import ACROSS
from tests.capture.observing import observe
from tests.capture.placing.ways import COUNT, SIZE, STATES

ORDER = torch.tensor([3, 1, 0, 6, 2, 4, 5])


def bert_attention(**options):
    """Attention of transformers, which goes through its attention functions."""
    config = BertConfig(hidden_size=SIZE, num_attention_heads=2, attn_implementation="sdpa", **options)
    return BertAttention(config, is_causal=False, is_cross_attention=config.is_decoder)


def written(qkv, x):
    q, k, v = qkv(x).chunk(3, -1)
    return (q @ k.mT).softmax(-1) @ v


def by_the_kernel(qkv, x):
    return F.scaled_dot_product_attention(*qkv(x)[:, None].chunk(3, -1))[:, 0]


def positions_first(module, x):
    return module(*[x.transpose(0, 1)] * 3)[0].transpose(0, 1)


WAYS = {  # what attends along the first axis but one, and how it is called
    "written": (partial(nn.Linear, SIZE, 3 * SIZE), written),
    "kernel": (partial(nn.Linear, SIZE, 3 * SIZE), by_the_kernel),
    "fused module": (partial(nn.MultiheadAttention, SIZE, 2, batch_first=True), lambda m, x: m(x, x, x)[0]),
    "positions first in a module": (partial(nn.MultiheadAttention, SIZE, 2), positions_first),
    "fused layer": (partial(nn.TransformerEncoderLayer, SIZE, 2, 8, batch_first=True), lambda m, x: m(x)),
    "function of transformers": (bert_attention, lambda m, x: m(x)[0]),
}


class Attend(nn.Module):
    """One of the ways in which people attend."""

    def __init__(self, way):
        super().__init__()
        made, self.run = WAYS[way]
        self.inner = made()

    def forward(self, x):
        return self.run(self.inner, x)


class Table(nn.Module):
    """Rows of a table, whose cells look at each other, and at the same cell of other rows."""

    def __init__(self, way):
        super().__init__()
        self.cells, self.rows = Attend(way), Attend(way)

    def forward(self, x):
        x = x + self.cells(x)
        return x + self.rows(x.transpose(0, 1)).transpose(0, 1)


@pytest.mark.parametrize("way", WAYS)
def test_attention_from_text_to_text_is_named_beside_that_of_tokens(way):
    record, maps, _ = observe(Table(way), STATES)
    assert [(layer.name.partition(".")[0], layer.reason) for layer in record.without_attention] == [
        ("rows", ACROSS)
    ]
    assert [(kept.site.name.partition(".")[0], tuple(kept.weights.shape[-2:])) for kept in maps] == [
        ("cells", (COUNT, COUNT))
    ]


def in_two_orders(make):
    """Maps of two models of the same weights: one in another order, and one in order."""
    for order in (ORDER, torch.arange(COUNT)):
        torch.manual_seed(0)
        yield observe(make(order), STATES)[1]


class Elsewhere(nn.Module):
    """A model that attends in another order than it was given, as by windows, backwards or by rank."""

    def __init__(self, way, order):
        super().__init__()
        self.layers, self.order = nn.ModuleList([Attend(way), Attend(way)]), order

    def forward(self, x):
        x = x[:, self.order]
        for layer in self.layers:
            x = x + layer(x)
        return x


@pytest.mark.parametrize("way", WAYS)
def test_tokens_in_another_order_are_shown_at_their_places(way):
    placed, plain = in_two_orders(partial(Elsewhere, way))
    assert not torch.allclose(plain[0].weights[..., ORDER, :], plain[0].weights, atol=1e-3)
    for mine, theirs in zip(placed, plain, strict=True):
        torch.testing.assert_close(mine.weights, theirs.weights, atol=1e-6, rtol=0)


class Memory(nn.Module):
    """A model whose keys stand in another order than its queries."""

    def __init__(self, order):
        super().__init__()
        self.attention, self.order = bert_attention(is_decoder=True), order

    def forward(self, x):
        return self.attention(x, encoder_hidden_states=x[:, self.order])[0]


def test_keys_in_another_order_are_shown_at_their_places():
    (placed,), (plain,) = in_two_orders(Memory)
    torch.testing.assert_close(placed.weights, plain.weights, atol=1e-6, rtol=0)
