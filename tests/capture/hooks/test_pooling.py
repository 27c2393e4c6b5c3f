"""One query over all tokens, written in many ways: pooling by learned queries, a decoder's steps."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnscope.capture import Keep, recording

SIZE, COUNT, HEADS = 8, 6, 4


class Pool(nn.Module):
    """Tokens become one vector, by weights that the module keeps: [text, token] or [text, token, head]."""

    def __init__(self, way):
        super().__init__()
        self.way, self.kept = way, []
        self.one, self.many, self.k = nn.Linear(SIZE, 1), nn.Linear(SIZE, HEADS), nn.Linear(SIZE, SIZE)
        self.query, self.q = nn.Parameter(torch.randn(1, 1, SIZE)), nn.Linear(SIZE, SIZE)

    def forward(self, x):
        self.kept = self.way(self, x)[0]


def by_a_sum(m, x):
    weights = m.one(torch.tanh(m.k(x))).softmax(1)
    return weights, (weights * x).sum(1)


def by_a_sum_the_other_way_round(m, x):
    weights = torch.softmax(m.one(x), dim=1)
    return weights, torch.sum(x * weights, dim=1, keepdim=True)


def by_channels_first(m, x):
    weights = m.one(x).mT.softmax(-1)
    return weights.mT, (x.mT * weights).sum(dim=-1)


def by_a_product(m, x):
    weights = m.one(x).softmax(1)
    return weights, weights.mT @ x


def by_an_einsum(m, x):
    weights = m.one(x)[..., 0].softmax(-1)
    return weights[..., None], torch.einsum("btd,bt->bd", x, weights)


def by_heads(m, x):
    weights = m.many(x).softmax(1)
    return weights, (weights[..., None] * x.unflatten(-1, (HEADS, -1))).sum(1)


def by_a_learned_query(m, x):
    weights = (m.query @ m.k(x).mT).softmax(-1)
    return weights.mT, weights @ x


def by_torchs_kernel(m, x):
    query, key = m.q(m.query).expand(len(x), -1, -1), m.k(x)
    F.scaled_dot_product_attention(query[:, None], key[:, None], x[:, None])
    return ((query @ key.mT / SIZE**0.5).softmax(-1).mT,)


POOLS = [
    by_a_sum,
    by_a_sum_the_other_way_round,
    by_channels_first,
    by_a_product,
    by_an_einsum,
    by_heads,
    by_a_learned_query,
    by_torchs_kernel,
]


def observe(model, *inputs):
    keep = Keep(lambda site: range(HEADS if getattr(model, "way", None) is by_heads else 1))
    with torch.inference_mode(), recording(model.eval(), [keep], warn=False) as record:
        model(*inputs)
    assert not record.failures
    return record, keep.maps


@pytest.mark.parametrize("count", [COUNT, HEADS, 1])
@pytest.mark.parametrize("way", POOLS, ids=lambda way: way.__name__)
def test_pooling_is_one_row_over_all_tokens_that_stands_at_none(way, count):
    torch.manual_seed(0)
    model = Pool(way)
    record, maps = observe(model, torch.randn(2, count, SIZE))
    if count == 1:  # nothing is chosen among one token
        return
    (site,) = record.sites
    assert (site.site.kind, site.batch, site.queries, site.keys, site.offset) == ("cross", 2, 1, count, None)
    torch.testing.assert_close(maps[0].weights[:, :, 0], model.kept.mT)
    assert site.difference is not None
    assert not site.differs


class Decoder(nn.Module):
    """A recurrent decoder that attends by sums of its state and the encoder's (Bahdanau et al. 2015)."""

    def __init__(self, way):
        super().__init__()
        self.step, self.rnn, self.encoder = Step(way), nn.GRUCell(SIZE, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x):
        states, state = self.encoder(x), x.new_zeros(len(x), SIZE)
        for _ in range(3):
            state = self.rnn(self.step(state, states), state)


class Step(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.way, self.kept = way, []
        self.q, self.k, self.v = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE), nn.Linear(SIZE, 1, bias=False)

    def forward(self, state, states):
        weights = self.v(torch.tanh(self.q(state)[:, None] + self.k(states))).squeeze(-1).softmax(-1)
        self.kept.append(weights)
        return self.way(weights, states)


@pytest.mark.parametrize(
    "way",
    [
        lambda weights, states: torch.bmm(weights[:, None], states)[:, 0],
        lambda weights, states: (weights[..., None] * states).sum(1),
        lambda weights, states: torch.einsum("bt,btd->bd", weights, states),
    ],
    ids=["bmm", "sum", "einsum"],
)
def test_each_step_of_a_recurrent_decoder_is_one_row_over_what_it_reads(way):
    model = Decoder(way)
    record, maps = observe(model, torch.randn(2, COUNT, SIZE))
    assert [(site.site.kind, site.batch, site.heads, site.queries) for site in record.sites] == [
        ("cross", 2, 1, 1)
    ] * 3
    for mine, theirs in zip(maps, model.step.kept, strict=True):
        torch.testing.assert_close(mine.weights[:, 0, 0], theirs)


def test_a_learned_mean_of_layers_is_no_attention():
    class Mix(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(COUNT))
            self.share = nn.Linear(COUNT, 1)

        def forward(self, x):
            made = torch.stack([layer(x) for layer in self.layers])
            return (self.share.weight.view(-1, 1, 1, 1).softmax(0) * made).sum(0)

    record, _ = observe(Mix(), torch.randn(2, COUNT, SIZE))
    assert record.sites == []


def test_parts_of_a_text_that_are_summed_apart_are_no_heads():
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(SIZE, 1)

        def forward(self, x):
            parts = x.unflatten(1, (2, -1))  # [text, part, token, feature]
            return (self.one(x).unflatten(1, (2, -1)).softmax(2) * parts).sum(2)

    record, _ = observe(Parts(), torch.randn(2, COUNT, SIZE))
    assert record.sites == []
