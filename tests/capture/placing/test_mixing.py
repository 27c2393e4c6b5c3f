"""Modules that mix tokens without softmax weights are named, whatever they are called."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnscope.capture import recording
from attnscope.capture.lineage.layout import SAMPLED
from attnscope.capture.rows.capture import MAPPED
from tests.capture.observing import check_kept, observe
from tests.capture.placing.mixing_modules import COUNT, EACH, HEADS, SIZE, STATES, TEXTS, Stream, attend
from tests.capture.tiny import FAMILIES, inputs


def by_a_product(self, q, k, v):
    return self.keep(self.one(k).softmax(2).mT) @ v


def by_torchs_kernel(self, q, k, v):
    query = self.table[:, None].expand(TEXTS, -1, -1, -1)
    self.keep((query @ k.mT / EACH**0.5).softmax(-1))
    return F.scaled_dot_product_attention(query, k, v)


@pytest.mark.parametrize("way", [by_a_product, by_torchs_kernel])
def test_pooling_by_a_product_is_one_row_without_a_position(way):
    record, maps, _ = observe(model := Stream(way), STATES)
    check_kept(model, maps)
    (site,) = record.sites
    assert (site.site.kind, site.batch, site.queries, site.keys, site.offset) == ("cross", 2, 1, COUNT, None)


SAMPLE = torch.tensor([1, 3, 4, 6])


def sample_queries(self, q, k, v):
    return self.keep((q[:, :, SAMPLE] @ k.mT).softmax(-1)) @ v


def sample_rows(self, q, k, v):
    """Rows are sampled behind the softmax (adaptive token sampling)."""
    rows = (q @ k.mT).softmax(-1).gather(2, SAMPLE[:, None].expand(TEXTS, HEADS, -1, COUNT))
    return self.keep(rows) @ v


@pytest.mark.parametrize("way", [sample_queries, sample_rows])
def test_sampled_query_positions_are_noted(way):
    record, maps, _ = observe(model := nn.Sequential(Stream(way)), STATES)
    check_kept(model, maps)
    assert record.notes == [SAMPLED.format(names="0")]


def mix_heads(self, q, k, v):
    gates = torch.einsum("bhnd,bgnd->bnhg", q, k)  # of the heads of one token
    return torch.einsum("bnhg,bgnd->bhnd", gates.sigmoid(), v).cumsum(-1)


def mix_layers(self, q, k, v):
    """A learned mean of what several layers made of each token."""
    return (self.table[:3, 0].softmax(0).view(3, 1, 1, 1, 1) * torch.stack([q, k, v])).sum(0)


def choose_experts(self, q, k, v):
    made = torch.stack([self.both(torch.cat(pair, -1)) for pair in ((q, k), (k, v), (v, q))], -2)
    moved = F.relu(q + q.mean(1, keepdim=True))
    return (self.many(moved).softmax(-1)[..., None, :] @ made).squeeze(-2)


def add_experts(self, q, k, v):
    made = torch.stack([self.both(torch.cat(pair, -1)) for pair in ((q, k), (k, v), (v, q))], -2)
    return (self.many(q).softmax(-1)[..., None] * made).sum(-2)


def join_scores_of_heads(self, q, k, v):
    """Scores of all heads become one by weights that each token makes for its heads (an indexer)."""
    scores = (q @ k.mT).relu().permute(0, 2, 1, 3)  # [text, query, head, key]
    return (self.one(q).permute(0, 2, 3, 1) @ scores)[:, :, 0].topk(2, -1).values


def normalize(self, q, k, v):
    """A norm of each token by itself, in NumPy's words and in torch's."""
    return (q - q.mean(axis=-1, keepdim=True)) / q.square().sum((-1,), keepdim=True).sqrt()


def powers_of_a_graph(self, q, k, v):
    graph = (q @ k.mT).sigmoid()
    graph = graph / graph.sum(-1, keepdim=True)
    return (graph @ graph @ graph)[..., 0]


class Attention(nn.Module):
    """A module whose name says that it attends, around another one."""

    def __init__(self, way):
        super().__init__()
        self.attention = Stream(way)

    def forward(self, x):
        return self.attention(x)


def take_types(self, q, k, v):
    """The types of states of another size, and of others in another order."""
    return q.to(k[..., :3]) + q.type_as(k.flip(2))


ALONE = [mix_heads, mix_layers, choose_experts, add_experts, join_scores_of_heads, normalize]
ALONE += [powers_of_a_graph, take_types]


@pytest.mark.parametrize(
    ("made", "way"), [(Attention, join_scores_of_heads), *((Stream, way) for way in ALONE)]
)
def test_modules_that_mix_no_tokens_are_not_named(made, way):
    record, *_ = observe(nn.Sequential(made(way)), STATES)
    assert (record.sites, record.without_attention, record.notes) == ([], [], [])


@pytest.mark.parametrize("kind", ["sdpa", "eager"])
def test_vmapped_model_runs_unchanged_and_names_each_layer(kind):
    model, given = FAMILIES["llama"].build(kind), inputs("text", batch=3)["input_ids"]
    call = torch.vmap(lambda ids: model(input_ids=ids[None], use_cache=False).last_hidden_state[0])
    record, *_ = observe(model, given, call=call)
    assert record.sites == []
    assert {layer.reason for layer in record.without_attention} == {MAPPED}
    assert len(record.without_attention) == len(model.layers)


def test_per_sample_gradients_are_unchanged_by_recording():
    torch.manual_seed(0)
    model, x = Stream(attend).eval(), torch.randn(3, 1, COUNT, SIZE)
    weights = dict(model.named_parameters())

    def loss(weights, x):
        return torch.func.functional_call(model, weights, (x,)).square().sum()

    slopes = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))
    expected = slopes(weights, x)
    with recording(model, warn=False) as record:
        again = slopes(weights, x)
    assert all(torch.equal(again[name], expected[name]) for name in expected)
    assert (record.failures, [layer.reason for layer in record.without_attention]) == ([], [MAPPED])
