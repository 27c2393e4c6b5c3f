"""Softmaxes over streams, experts, slots and heads of one token are not attention over tokens."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.capture.modules import FunctionModule, Heads
from tests.capture.observing import check_kept, observe
from tests.capture.placing.mixing_modules import attend

SIZE, COUNT = 8, 4  # features, and the number of tokens, of streams, of experts, of slots and of heads


def streams_by_gates(m, x):
    """Hyper-connections: each token mixes its own streams, by gates that its streams make."""
    streams = x[:, :, None].expand(-1, -1, COUNT, -1)
    for each in range(3):
        gates = F.linear(F.rms_norm(streams.flatten(2).float(), (SIZE * COUNT,)), m.mixing[each].float())
        mixing = (gates.unflatten(-1, (COUNT, COUNT)) * m.scale + m.base).softmax(-1) + 1e-6
        for _ in range(3):
            mixing = mixing / mixing.sum(-2, keepdim=True)
            mixing = mixing / mixing.sum(-1, keepdim=True)
        new = m.attend(streams.mean(2))
        write = torch.sigmoid(m.write(new))[..., None] * new[:, :, None]
        streams = write + mixing.transpose(-1, -2) @ streams
    return streams.mean(2)


def experts(m, x):
    return torch.stack([expert(x) for expert in m.experts], 2)  # [text, token, expert, feature]


def experts_by_an_einsum(m, x):
    likeness = torch.einsum("btd,ed->bte", m.attend(x), m.table.double().float()).softmax(-1)
    return torch.einsum("btre,bted->btrd", likeness[:, :, None], experts(m, x))[:, :, 0]


def experts_by_their_own_scores(m, x):
    made = experts(m, m.attend(x))
    return (m.one(made).softmax(2).transpose(2, 3) @ made)[:, :, 0]


def experts_by_attention(m, x):
    made = experts(m, m.attend(x))
    weights = (m.q(x)[:, :, None] @ m.k(made).mT).softmax(-1)
    return (weights @ made)[:, :, 0]


def experts_by_torchs_kernel(m, x):
    made = experts(m, m.attend(x))
    return F.scaled_dot_product_attention(m.q(x)[:, :, None], m.k(made), m.v(made))[:, :, 0]


def layers_by_a_learned_query_of_torchs_kernel(m, x):
    """Each token chooses among its own states of several layers: tokens stand where heads would."""
    layers = torch.stack([x, m.attend(x), m.v(x)], 2)  # [text, token, layer, feature]
    return F.scaled_dot_product_attention(m.table[:1].expand(len(x), COUNT, 1, -1), layers, layers)[:, :, 0]


def heads_by_attention(m, x):
    heads = m.attend(x).unflatten(-1, (COUNT, -1))
    q, k, v = (part(x).unflatten(-1, (COUNT, -1)) for part in (m.q, m.k, m.v))
    return ((q @ k.mT).softmax(-1) @ v + heads).flatten(2)


def experts_by_a_layer_of_torch(m, x):
    made = experts(m, m.attend(x)).flatten(0, 1)  # [text · token, expert, feature]
    return m.torchs(made, made, made, need_weights=False)[0].unflatten(0, (len(x), -1)).mean(2)


INSIDE = [
    *(streams_by_gates, experts_by_an_einsum),
    *(experts_by_their_own_scores, experts_by_attention, experts_by_torchs_kernel, heads_by_attention),
    *(layers_by_a_learned_query_of_torchs_kernel, experts_by_a_layer_of_torch),
]


class Model(FunctionModule):
    """Attention beside a mixture of some kind; ``kept`` are the weights with which it asks tokens itself."""

    def __init__(self, way):
        super().__init__(way, attend=Heads(attend, SIZE, 2))
        self.q, self.k, self.v = (nn.Linear(SIZE, SIZE) for _ in range(3))
        self.mixing = nn.Parameter(torch.randn(3, COUNT * COUNT, SIZE * COUNT))
        self.scale, self.base = nn.Parameter(torch.randn(1)), nn.Parameter(torch.randn(COUNT, COUNT))
        self.table = nn.Parameter(torch.randn(COUNT, SIZE))
        self.experts = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(COUNT))
        self.write = self.router = nn.Linear(SIZE, COUNT)
        self.one, self.over = nn.Linear(SIZE, 1), nn.Linear(COUNT, COUNT)
        self.torchs = nn.MultiheadAttention(SIZE, 2, batch_first=True)


STATES = torch.randn(2, COUNT, SIZE, generator=torch.Generator().manual_seed(0))


def observe_way(way):
    """The record of a model, whose maps are those that it kept."""
    torch.manual_seed(0)
    record, maps, _ = observe(model := Model(way), STATES)
    check_kept(model, maps)
    return record


@pytest.mark.parametrize("way", INSIDE, ids=lambda way: way.__name__)
def test_mixing_within_tokens_is_not_shown_as_attention(way):
    record = observe_way(way)
    assert {site.site.name for site in record.sites} == {"attend"}
    named = [layer.reason for layer in record.without_attention if "not between tokens" in layer.reason]
    assert bool(named) == (way.__name__.endswith(("by_attention", "torchs_kernel", "layer_of_torch")))


def keep(m, weights):
    """The weights of one head, [text, query, key]."""
    return m.keep(weights[:, None])[:, 0]


def slots(m, x):
    """Soft mixture of experts: slots gather tokens, by scores with what was learned; tokens gather slots."""
    x = m.attend(x)
    scores = torch.einsum("btd,sd->bts", x, F.normalize(m.table, dim=-1))
    return scores.softmax(-1) @ m.v(keep(m, scores.softmax(1).transpose(1, 2)) @ x)


def heads_that_pool(m, x):
    return keep(m, m.router(torch.tanh(m.q(m.attend(x)))).softmax(1).transpose(1, 2)) @ x


def a_learned_query(m, x):
    return keep(m, (m.table @ m.k(m.attend(x)).mT).softmax(-1)) @ m.v(x)


@pytest.mark.parametrize("way", [slots, heads_that_pool, a_learned_query], ids=lambda way: way.__name__)
def test_learned_queries_are_cross_attention_without_positions(way):
    record = observe_way(way)
    assert [(site.site.name, site.site.kind) for site in record.sites] == [
        ("attend", "encoder"),
        ("", "cross"),
    ]


def tokens_of_all_tokens(m, x):
    return m.attend(m.over(x.mT).mT)


def tokens_of_a_mean(m, x):
    return m.attend(x.mean(1, keepdim=True).expand(-1, COUNT, -1))


@pytest.mark.parametrize("way", [tokens_of_all_tokens, tokens_of_a_mean], ids=lambda way: way.__name__)
def test_tokens_mixed_from_all_tokens_remain_tokens(way):
    assert [(site.site.name, site.site.kind) for site in observe_way(way).sites] == [("attend", "encoder")]
