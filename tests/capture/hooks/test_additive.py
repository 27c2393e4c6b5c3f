"""Additive attention, whose scores a layer makes of pairs, against the weights that the module keeps."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnscope.capture import Keep, recording

SIZE, HEADS, COUNT = 16, 4, 6
WIDE = SIZE // HEADS


class Additive(nn.Module):
    """Multi-head additive attention (Bahdanau et al. 2015; Brody et al. 2022), written in many ways."""

    def __init__(self, way):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(SIZE, SIZE) for _ in range(3))
        self.one, self.many, self.both = nn.Linear(WIDE, 1), nn.Linear(SIZE, HEADS), nn.Linear(2 * SIZE, SIZE)
        self.left, self.right = nn.Linear(SIZE, HEADS), nn.Linear(SIZE, HEADS)
        self.each = nn.Parameter(torch.randn(HEADS, WIDE))
        self.way = way

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        wide = [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (q, k, v)]
        self.kept = self.way(self, x, q, k, *wide[:2])
        return (self.kept @ wide[2]).transpose(1, 2).flatten(2)


def by_one_vector(m, x, q, k, qs, ks):
    return m.one(torch.tanh(qs[:, :, :, None] + ks[:, :, None])).squeeze(-1).softmax(-1)


def by_a_vector_of_each_head(m, x, q, k, qs, ks):
    return torch.einsum("bhqkd,hd->bhqk", torch.tanh(qs[:, :, :, None] + ks[:, :, None]), m.each).softmax(-1)


def by_a_layer_of_all_heads(m, x, q, k, qs, ks):
    return m.many(torch.tanh(q[:, :, None] + k[:, None])).permute(0, 3, 1, 2).softmax(-1)


def by_a_layer_that_is_turned_late(m, x, q, k, qs, ks):
    return m.many(torch.tanh(q[:, :, None] + k[:, None])).softmax(2).permute(0, 3, 1, 2)


def by_expanded_pairs(m, x, q, k, qs, ks):
    pairs = q[:, :, None].expand(-1, -1, COUNT, -1) + k[:, None].expand(-1, COUNT, -1, -1)
    return m.many(torch.tanh(pairs)).permute(0, 3, 1, 2).softmax(-1)


def by_repeated_pairs(m, x, q, k, qs, ks):
    pairs = q.unsqueeze(2).repeat(1, 1, COUNT, 1) + k.unsqueeze(1).repeat(1, COUNT, 1, 1)
    return m.many(torch.tanh(pairs)).permute(0, 3, 1, 2).softmax(-1)


def by_pairs_side_by_side(m, x, q, k, qs, ks):
    pairs = [q[:, :, None].expand(-1, -1, COUNT, -1), k[:, None].expand(-1, COUNT, -1, -1)]
    return m.many(torch.tanh(m.both(torch.cat(pairs, -1)))).permute(0, 3, 1, 2).softmax(-1)


def by_the_sum_of_two_scores(m, x, q, k, qs, ks):
    return F.leaky_relu(m.left(x)[:, :, None] + m.right(x)[:, None], 0.2).permute(0, 3, 1, 2).softmax(-1)


WAYS = (
    by_one_vector,
    by_a_vector_of_each_head,
    by_a_layer_of_all_heads,
    by_a_layer_that_is_turned_late,
    by_expanded_pairs,
    by_repeated_pairs,
    by_pairs_side_by_side,
    by_the_sum_of_two_scores,
)


@pytest.mark.parametrize("way", WAYS)
def test_additive_attention_is_shown_with_its_own_weights(way):
    torch.manual_seed(0)
    model, keep = nn.Sequential(Additive(way), Additive(way)).eval(), Keep(lambda site: range(HEADS))
    with torch.inference_mode(), recording(model, [keep]) as record:
        model(torch.randn(2, COUNT, SIZE))
    assert [site.site.layer for site in record.sites] == [0, 1]
    assert not record.failures
    assert all(site.difference < 1e-6 for site in record.sites)
    for kept, module in zip(keep.maps, model, strict=True):
        assert torch.equal(kept.weights, module.kept)


class Routed(nn.Module):
    """Experts that every token weighs by a softmax of its own states, moved by what all tokens share."""

    def __init__(self):
        super().__init__()
        self.route, self.values = nn.Linear(SIZE, HEADS), nn.Linear(SIZE, HEADS * SIZE)

    def forward(self, x):
        moved = F.relu(x + x.mean(1, keepdim=True))
        experts = self.values(x).unflatten(-1, (HEADS, SIZE))  # [text, position, expert, size]
        return (self.route(moved).softmax(-1)[:, :, None] @ experts).squeeze(2)


def test_the_choice_of_experts_is_no_attention():
    model = nn.Sequential(Routed()).eval()
    with torch.inference_mode(), recording(model, warn=False) as record:
        model(torch.randn(2, COUNT, SIZE))
    assert record.sites == []
    assert not record.failures
