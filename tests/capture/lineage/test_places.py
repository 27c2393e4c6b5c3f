"""Attention whose keys are other ones for each query, mixed, cut or shared: maps stand at the true keys."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnscope.capture import recording
from attnscope.capture.lineage.layout import JOINED, SAMPLED

TEXTS, COUNT, SIZE, HEADS, EACH = 2, 12, 16, 4, 4


class Maps:
    """Keeps the weights of every call."""

    def __init__(self):
        self.seen = []

    def observe(self, attention):
        self.seen.append(attention.weights().clone())


class Attend(nn.Module):
    """Queries, keys and values of several heads, and a way to make weights and what they give of them."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.q, self.k, self.v, self.out = (nn.Linear(SIZE, SIZE) for _ in range(4))
        self.mixing = nn.Parameter(torch.randn(5, COUNT))
        self.static = nn.Parameter(torch.randn(HEADS, COUNT, COUNT))
        self.distances = nn.Parameter(torch.randn(2 * COUNT, EACH))

    def forward(self, x):
        heads = (part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        self.kept, mixed = self.way(self, *heads)
        return self.out(mixed.transpose(1, 2).flatten(2))


def observe(way):
    torch.manual_seed(0)
    model, maps = nn.Sequential(nn.Linear(SIZE, SIZE), Attend(way)).eval(), Maps()
    with torch.inference_mode(), recording(model, [maps], warn=False) as record:
        model(torch.randn(TEXTS, COUNT, SIZE))
    assert not record.failures
    assert all(site.difference < 1e-6 for site in record.sites)
    return model[1].kept, maps.seen, record


def put(weights, places):
    """[text, head, query, slot] at the keys that each slot is -> [text, head, query, key]"""
    return torch.zeros(TEXTS, HEADS, COUNT, COUNT).scatter_add(-1, places.expand_as(weights), weights)


def neighbours_and_some_for_all(m, q, k, v):
    """One softmax over three neighbours, round a circle, and two keys that all ask: two products."""
    near = [torch.stack([part.roll(step, 2) for step in (1, 0, -1)], 3) for part in (k, v)]
    scores = torch.cat([torch.einsum("bhie,bhije->bhij", q, near[0]), q @ k[:, :, :2].mT], -1)
    weights = scores.softmax(-1)
    places = (torch.arange(COUNT)[:, None] + torch.tensor([-1, 0, 1])) % COUNT
    kept = put(weights[..., :3], places) + F.pad(weights[..., 3:], (0, COUNT - 2))
    mixed = torch.einsum("bhij,bhije->bhie", weights[..., :3], near[1]) + weights[..., 3:] @ v[:, :, :2]
    return kept, mixed


def mixed_keys(m, q, k, v):
    """Five keys, each a sum of all (Linformer): they stand at no token."""
    weights = (q @ (m.mixing @ k).mT).softmax(-1)
    return weights, weights @ (m.mixing @ v)


def values_of_distances(m, q, k, v):
    """Beside the values, each distance has one that was learned."""
    distance = torch.arange(COUNT)[:, None] - torch.arange(COUNT) + COUNT
    weights = (q @ k.mT).softmax(-1)
    return weights, weights @ v + torch.einsum("bhij,ije->bhie", weights, m.distances[distance])


def values_of_distances_first(m, q, k, v):
    """The same in the layout of other libraries: a product for each query."""
    distance = torch.arange(COUNT)[:, None] - torch.arange(COUNT) + COUNT
    weights = (q @ k.mT).softmax(-1)
    rows = weights.permute(2, 0, 1, 3).reshape(COUNT, TEXTS * HEADS, COUNT) @ m.distances[distance]
    return weights, rows.view(COUNT, TEXTS, HEADS, EACH).permute(1, 2, 0, 3) + weights @ v


def learned_weights(m, q, k, v):
    """Weights that are alike in all texts (a random synthesizer)."""
    weights = m.static.softmax(-1)
    return weights.expand(TEXTS, -1, -1, -1), weights @ v


def learned_weights_by_an_einsum(m, q, k, v):
    weights = m.static.softmax(-1)
    return weights.expand(TEXTS, -1, -1, -1), torch.einsum("hij,bhje->bhie", weights, v)


def a_window_by_gather(m, q, k, v):
    """Each query asks its neighbours, round a circle, whose keys are gathered beside each other."""
    places = (torch.arange(COUNT)[:, None] + torch.tensor([-1, 0, 1])) % COUNT
    near = (
        part.gather(2, places.flatten()[:, None].expand(TEXTS, HEADS, -1, EACH)).unflatten(2, (COUNT, 3))
        for part in (k, v)
    )
    keys, values = near
    weights = (q[:, :, :, None] @ keys.mT).softmax(-1)  # [text, head, query, 1, slot]
    return put(weights[..., 0, :], places), (weights @ values)[..., 0, :]


def queries_that_each_head_samples(m, q, k, v):
    """The longest queries of each head ask, all others take the mean (ProbSparse attention of Informer)."""
    asked = q.norm(dim=-1).topk(5).indices[..., None]  # [text, head, sampled, 1]
    weights = (q.gather(2, asked.expand(-1, -1, -1, EACH)) @ k.mT).softmax(-1)
    mixed = v.mean(2, keepdim=True).expand(-1, -1, COUNT, -1)
    full = torch.zeros(TEXTS, HEADS, COUNT, COUNT).scatter(2, asked.expand(-1, -1, -1, COUNT), weights)
    first, last = int(asked.min()), int(asked.max())
    return full[:, :, first : last + 1], mixed.scatter(2, asked.expand(-1, -1, -1, EACH), weights @ v)


WAYS = [
    a_window_by_gather,
    queries_that_each_head_samples,
    mixed_keys,
    values_of_distances,
    values_of_distances_first,
    learned_weights,
    learned_weights_by_an_einsum,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_one_map_stands_at_the_true_keys(way):
    kept, maps, _ = observe(way)
    assert len(maps) == 1
    torch.testing.assert_close(maps[0], kept, atol=1e-6, rtol=0)


SAMPLE = torch.tensor([1, 4, 5, 9])


def every_sampled_query(m, q, k, v):
    weights = (q[:, :, SAMPLE] @ k.mT).softmax(-1)
    return weights, weights @ v


def every_sampled_row(m, q, k, v):
    """Rows are sampled behind the softmax (adaptive token sampling)."""
    weights = (q @ k.mT).softmax(-1).gather(2, SAMPLE[:, None].expand(TEXTS, HEADS, -1, COUNT))
    return weights, weights @ v


@pytest.mark.parametrize("way", [every_sampled_query, every_sampled_row])
def test_rows_that_few_positions_ask_are_said_to_stand_at_these(way):
    kept, maps, record = observe(way)
    assert len(maps) == 1
    torch.testing.assert_close(maps[0], kept, atol=1e-6, rtol=0)
    assert record.notes == [SAMPLED.format(names="1")]


def by_parts_of_the_keys(m, q, k, v):
    """Softmaxes over four keys each, joined by their sums, as in attention over several machines."""
    parts = [(q @ k[:, :, start : start + 4].mT) for start in range(0, COUNT, 4)]
    share = torch.stack([part.logsumexp(-1, keepdim=True) for part in parts]).softmax(0)
    mixed = [part.softmax(-1) @ v[:, :, 4 * at : 4 * at + 4] for at, part in enumerate(parts)]
    kept = [F.pad(part.softmax(-1), (4 * at, COUNT - 4 * at - 4)) for at, part in enumerate(parts)]
    return kept, (torch.stack(mixed) * share).sum(0)


@pytest.mark.parametrize("way", [by_parts_of_the_keys, neighbours_and_some_for_all])
def test_weights_over_a_part_of_the_keys_are_named(way):
    _, maps, record = observe(way)
    assert (maps, [layer.reason for layer in record.without_attention]) == ([], [JOINED])
