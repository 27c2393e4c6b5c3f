"""Weights that no softmax made, against the numbers that the module weighs its values with."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnscope.capture import Keep, recording

SIZE, HEADS, COUNT = 16, 4, 7


def divide(scores):
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def divide_in_place(scores):
    powers = torch.exp(scores)
    powers /= powers.sum(dim=-1, keepdim=True)
    return powers


def subtract_the_logarithm(scores):
    return torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True))


def softmax_plus_one(scores):
    powers = scores.exp()
    return powers / (1 + powers.sum(-1, keepdim=True))


def keep_the_largest(scores):
    largest, places = scores.topk(3, -1)
    return torch.zeros_like(scores).scatter_(-1, places, largest.softmax(-1))


def square(scores):
    squares = scores.nan_to_num(0.0, 0.0, 0.0) ** 2
    return squares / (1 + squares.sum(-1, keepdim=True))


def break_sticks(scores):
    """Each key takes its share of what those behind it left."""
    left = F.logsigmoid(-scores).nan_to_num(0.0, 0.0, 0.0)
    return (F.logsigmoid(scores) + left.flip(-1).cumsum(-1).flip(-1) - left).exp()


WAYS = {
    "divide": divide,
    "divide in place": divide_in_place,
    "all in place": lambda scores: scores.exp_().div_(scores.sum(-1, keepdim=True)),
    "copied into the scores": lambda scores: scores.copy_(scores.softmax(-1)),
    "the largest put back": keep_the_largest,
    "subtract the logarithm": subtract_the_logarithm,
    "softmax plus one": softmax_plus_one,
    "sigmoid": lambda scores: torch.sigmoid(scores - 1),
    "relu": lambda scores: F.relu(scores) / COUNT,
    "softplus": F.softplus,
    "squares over their sum and one": square,
    "a stick broken from the right": break_sticks,
    "the highest alone": lambda scores: F.one_hot(scores.argmax(-1), COUNT).to(scores.dtype),
    "the highest, as max finds it": lambda scores: F.one_hot(scores.max(-1).indices, COUNT).float(),
    "straight through": lambda scores: F.gumbel_softmax(scores, hard=True),
    "a logarithm's softmax": lambda scores: F.log_softmax(scores, -1).exp(),
}


class WrittenAttention(nn.Module):
    def __init__(self, way, causal):
        super().__init__()
        self.qkv, self.out = nn.Linear(SIZE, 3 * SIZE), nn.Linear(SIZE, SIZE)
        self.way, self.causal = way, causal

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / 2
        if self.causal:
            scores = scores.masked_fill(torch.ones(COUNT, COUNT).triu(1).bool(), -torch.inf)
        self.kept = self.way(scores)
        mixed = torch.einsum("bhij,bhjd->bhid", self.kept, v)
        return self.out(mixed.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_weights_without_a_softmax_are_shown_as_they_are(way, causal):
    torch.manual_seed(0)
    model, keep = nn.Sequential(WrittenAttention(WAYS[way], causal)).eval(), Keep(lambda site: range(HEADS))
    with torch.inference_mode(), recording(model, [keep]) as record:
        model(torch.randn(2, COUNT, SIZE))
    (kept,), (site,) = keep.maps, record.sites
    assert not record.failures
    assert torch.equal(kept.weights, model[0].kept)
    assert (site.site.kind, site.source, site.kernel) == (
        "decoder" if causal else "encoder",
        "module",
        "product",
    )
    if causal:
        assert not kept.allowed.expand(2, HEADS, -1, -1).triu(1).any()


class Stream(WrittenAttention):
    """The same in a module of another name."""


@pytest.mark.parametrize("way", WAYS)
def test_in_a_module_of_another_name_weights_of_any_sum_are_shown(way):
    torch.manual_seed(0)
    model, keep = nn.Sequential(Stream(WAYS[way], False)).eval(), Keep(lambda site: range(HEADS))
    with torch.inference_mode(), recording(model, [keep]) as record:
        model(torch.randn(2, COUNT, SIZE))
    assert torch.equal(keep.maps[0].weights, model[0].kept)
    assert [site.difference < 1e-6 for site in record.sites] == [True]


class GatedUnit(nn.Module):
    """Queries and keys are scales of one state, and rows of squares need not sum to 1 (GAU)."""

    def __init__(self):
        super().__init__()
        self.gate_and_value, self.base = nn.Linear(SIZE, 4 * SIZE), nn.Linear(SIZE, 8)
        self.scale, self.shift = nn.Parameter(torch.randn(2, 8)), nn.Parameter(torch.randn(2, 8))
        self.out = nn.Linear(2 * SIZE, SIZE)

    def forward(self, x):
        gate, value = F.silu(self.gate_and_value(x)).chunk(2, -1)
        query, key = (F.silu(self.base(x))[..., None, :] * self.scale + self.shift).unbind(-2)
        self.kept = (F.relu(query @ key.mT / COUNT) ** 2).tril()
        return self.out(gate * (self.kept @ value))


@pytest.mark.parametrize("way", ["relu", "the highest alone", "sigmoid"])
def test_a_zero_of_rectified_scores_is_a_zero_and_no_mask(way):
    torch.manual_seed(0)
    model, keep = nn.Sequential(Stream(WAYS[way], False)).eval(), Keep(lambda site: range(HEADS))
    with torch.inference_mode(), recording(model, [keep]):
        model(torch.randn(1, COUNT, SIZE))
    assert bool(keep.maps[0].allowed.all())


class SharedKeys(nn.Module):
    """All heads, alone or in groups, weigh the same keys and values."""

    def __init__(self, groups):
        super().__init__()
        self.q, self.kv, self.groups = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE // 2 * groups), groups

    def forward(self, x):
        q = self.q(x).unflatten(-1, (self.groups, HEADS // self.groups, -1))
        k, v = (t.unflatten(-1, (self.groups, -1)) for t in self.kv(x).chunk(2, -1))
        weights = torch.einsum("bighd,bjgd->bghij", q, k).sigmoid()
        self.kept = weights.flatten(1, 2)
        return torch.einsum("bghij,bjgd->bighd", weights, v).flatten(2)


class OneKeyHead(SharedKeys):
    """Heads with one set of keys and values."""

    def forward(self, x):
        q, (k, v) = self.q(x).unflatten(-1, (HEADS, -1)), self.kv(x).chunk(2, -1)
        self.kept = torch.einsum("bihd,bjd->bhij", q, k).relu()
        return torch.einsum("bhij,bjd->bihd", self.kept, v).flatten(2)


@pytest.mark.parametrize("module", [SharedKeys(2), OneKeyHead(1)])
def test_heads_that_share_their_values_are_shown(module):
    torch.manual_seed(0)
    model, keep = nn.Sequential(module).eval(), Keep(lambda site: range(HEADS))
    with torch.inference_mode(), recording(model, [keep]) as record:
        model(torch.randn(2, COUNT, SIZE))
    assert torch.equal(keep.maps[0].weights, model[0].kept)
    assert len(record.sites) == 1


def test_a_gated_unit_is_shown_by_its_squares():
    torch.manual_seed(0)
    model, keep = nn.Sequential(GatedUnit()).eval(), Keep(lambda site: range(1))
    with torch.inference_mode(), recording(model, [keep]) as record:
        model(torch.randn(2, COUNT, SIZE) * 3)
    assert torch.equal(keep.maps[0].weights[:, 0], model[0].kept)
    assert bool(model[0].kept.any())
    assert [site.site.kind for site in record.sites] == ["decoder"]


class LinearAttention(nn.Module):
    """Linear attention: keys meet values first, and no weights exist."""

    def __init__(self, feature):
        super().__init__()
        self.qkv, self.feature = nn.Linear(SIZE, 3 * SIZE), feature

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.feature(q) @ (self.feature(k).mT @ self.feature(v))


@pytest.mark.parametrize("feature", [F.relu, torch.exp, lambda x: x])
def test_linear_attention_has_no_weights(feature):
    torch.manual_seed(0)
    model = nn.Sequential(LinearAttention(feature)).eval()
    with torch.inference_mode(), recording(model) as record:
        model(torch.randn(2, COUNT, SIZE))
    assert not record.sites


def test_negative_weights_are_no_attention():
    model = nn.Sequential(WrittenAttention(lambda scores: scores / COUNT, False)).eval()
    with torch.inference_mode(), recording(model) as record:
        model(torch.randn(2, COUNT, SIZE))
    assert not record.sites


class Closure(nn.Module):
    """Powers of a graph between tokens, and what they make of the states as they are."""

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x):
        graph = (self.q(x) @ self.k(x).mT).sigmoid() / COUNT
        return (graph @ graph) @ x


def test_powers_of_a_graph_are_no_attention():
    model = nn.Sequential(Closure()).eval()
    with torch.inference_mode(), recording(model) as record:
        model(torch.randn(2, COUNT, SIZE))
    assert record.sites == []


class WiderClosure(nn.Module):
    """The sum of powers of a graph whose rows sum to 1, which orders what was found (PP-DocLayout)."""

    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)

    def forward(self, x):
        graph = (self.q(x) @ self.k(x).mT).sigmoid()
        graph = power = graph / graph.sum(-1, keepdim=True)
        for _ in range(3):
            power = graph @ power
        return power - power.mT


def test_powers_of_a_graph_are_no_values_however_many():
    model = nn.Sequential(WiderClosure()).eval()
    with torch.inference_mode(), recording(model) as record:
        model(torch.randn(2, COUNT, SIZE))
    assert record.sites == []


class TwoHops(nn.Module):
    """Attention over what attention sees: its weights are the square of those of a softmax."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(SIZE, 3 * SIZE)

    def forward(self, x):
        query, key, value = self.qkv(x).chunk(3, -1)
        hop = (query @ key.mT).softmax(-1)
        self.kept = hop @ hop
        return self.kept @ value


def test_weights_that_went_two_hops_are_shown_as_they_met_the_values():
    keep, model = Keep(lambda site: range(1)), nn.Sequential(TwoHops()).eval()
    with torch.inference_mode(), recording(model, [keep]) as record:
        model(torch.randn(2, COUNT, SIZE))
    torch.testing.assert_close(keep.maps[0].weights[:, 0], model[0].kept)
    assert [site.difference < 1e-6 for site in record.sites] == [True]


@pytest.mark.parametrize("way", WAYS)
def test_weights_without_a_softmax_are_proved_by_what_they_gave(way):
    model = nn.Sequential(WrittenAttention(WAYS[way], False)).eval()
    with torch.inference_mode(), recording(model) as record:
        model(torch.randn(2, COUNT, SIZE))
    assert [site.difference < 1e-6 for site in record.sites] == [True]


def test_a_softmax_times_numbers_of_any_sign_is_named_and_not_shown():
    """A state-space model (EfficientViM) multiplies a softmax over tokens by states, and then the values."""
    model = nn.Sequential(WrittenAttention(lambda scores: scores.softmax(-1) * scores.sin(), False)).eval()
    with torch.inference_mode(), recording(model, warn=False) as record:
        model(torch.randn(2, COUNT, SIZE))
    assert record.sites == []
    assert ["negative" in layer.reason for layer in record.without_attention] == [True]
