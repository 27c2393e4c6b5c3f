"""Interventions on hand-written softmaxes equal those on torch's kernel with the same weights."""

import math

import pytest
import torch
from torch import einsum, nn
from torch.nn import functional as F

from attnscope.attention import Head
from attnscope.errors import ModelError
from attnscope.questions.cause import cut
from attnscope.questions.circuit import find_circuit
from attnscope.questions.find import parse_questions
from attnscope.questions.loss import ablate
from attnscope.questions.patching import Receiver, TextPair, patch
from attnscope.questions.selection import Selection
from tests.questions.planted import Planted, wrap_planted

CLEAN, CORRUPT = "ash bay cod dew ash", "elm bay cod dew ash"


def later(length):
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def split(block, x):
    """-> three of [text, head, position, size]"""
    parts = (part(x).unflatten(-1, (block.heads, -1)) for part in (block.query, block.key, block.value))
    return [part.transpose(1, 2) for part in parts]


def join(block, heads):
    return block.output(heads.transpose(1, 2).flatten(-2))


def matmul(block, x):
    q, k, v = split(block, x)
    scores = (8 * q) @ k.transpose(-2, -1) / math.sqrt(64)
    return join(block, scores.masked_fill(later(x.shape[1]), -torch.inf).softmax(-1) @ v)


def in_place(block, x):
    q, k, v = split(block, x)
    scores = torch.matmul(q / 8, k.mT)
    scores *= torch.tensor(8.0)
    scores += torch.zeros_like(scores).masked_fill(later(x.shape[1]), -10000.0)
    weights = F.dropout(F.softmax(scores.float(), dim=-1).type_as(scores), 0.1, block.training)
    return join(block, torch.matmul(weights, v))


def flat(block, x):
    q, k, v = (part.flatten(0, 1) for part in split(block, x))
    weights = torch.bmm(q, k.mT).masked_fill(later(x.shape[1]), -torch.inf).softmax(-1)
    return join(block, torch.bmm(weights, v).unflatten(0, (-1, block.heads)))


def einsums(block, x):
    q, k, v = (part.transpose(1, 2) for part in split(block, x))
    scores = einsum("bqhd,bkhd->bhqk", q, k).masked_fill(later(x.shape[1]), -1e5)
    return einsum("bqhd,hde->bqe", einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v), projection(block))


def keys_first(block, x):
    q, k, v = split(block, x)
    scores = einsum("bhkd,bhqd->bkqh", k, q).masked_fill(later(x.shape[1]).T[..., None], -1e5)
    return einsum("bhdq,hde->bqe", einsum("bkqh,bhkd->bhdq", scores.softmax(1), v), projection(block))


class One(nn.Module):
    """One head, in a module of its own."""

    def __init__(self, *weights):
        super().__init__()
        self.weights = nn.ParameterList(weights)

    def forward(self, x):
        q, k, v = (x @ weight.T for weight in self.weights)
        return F.softmax((q @ k.mT).masked_fill(later(x.shape[1]), -torch.inf), -1) @ v


def apart(block, x):
    if not hasattr(block, "singles"):
        parts = (part.weight.detach().chunk(block.heads) for part in (block.query, block.key, block.value))
        block.singles = nn.ModuleList(One(*weights) for weights in zip(*parts, strict=True))
    return block.output(torch.cat([head(x) for head in block.singles], -1))


def projection(block):
    return block.output.weight.T.unflatten(0, (block.heads, -1))


WAYS = [matmul, in_place, flat, einsums, keys_first, apart]


def planted(way=None):
    """Two planted induction heads among six; ``way`` computes each layer in the place of torch's kernel."""
    module = Planted(5)
    module.plant_induction((0, 1), (1, 2))
    for block in module.layers if way else ():
        block.forward = lambda x, block=block: way(block, x)
    if way is apart:
        module(torch.ones(1, 2, dtype=torch.long))  # makes the modules
    return wrap_planted(module.eval())


def pair_of(model):
    return TextPair(model.prepare(CLEAN), model.prepare(CORRUPT), "bay", "dew")


def effects(result):
    heads = sorted(result.heads, key=lambda each: each.head)
    return [each.score for each in heads] + [each.score for each in [result.together] if each is not None]


def edges(result):
    ways = sorted((each.source, each.target, each.effect) for each in result.edges)
    return [effect for *_, effect in ways] + [result.faithfulness, result.completeness]


ASKED = {
    "cut": lambda model, pair: effects(cut(model, pair.clean, parse_questions("4 -> 1"), target="bay")),
    "zero": lambda model, pair: effects(cut(model, pair.clean, parse_questions("1 -> 0"), how="zero")),
    **{
        what: lambda model, pair, what=what: effects(patch(model, [pair], what=what))
        for what in ("output", "q", "k", "v", "pattern")
    },
    "estimate": lambda model, pair: effects(patch(model, [pair], fast=True)),
    "path": lambda model, pair: effects(patch(model, [pair], to=Receiver.parse("L1H2:k"))),
    "circuit": lambda model, pair: edges(find_circuit(model, [pair])),
}


@pytest.fixture(scope="module")
def expected():
    model = planted()
    return {name: ask(model, pair_of(model)) for name, ask in ASKED.items()}


@pytest.mark.sweep(7)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("asked", ASKED)
def test_hand_written_softmax_is_edited_like_the_kernel(way, asked, expected):
    model = planted(way)
    assert ASKED[asked](model, pair_of(model)) == pytest.approx(expected[asked], abs=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_removed_hand_written_head_equals_zeroed_columns(way):
    model, zeroed = planted(way), planted(way)
    block = zeroed.module.layers[0]
    with torch.no_grad():
        block.output.weight[:, block.size : 2 * block.size] = 0
        (ids,) = model.prepare(CLEAN).arguments
        losses = [F.cross_entropy(each.module(ids)[0, :-1], ids[0, 1:]).item() for each in (model, zeroed)]
    found = ablate(model, model.prepare(CLEAN), Selection(), [Head("L0H1")])
    assert found.losses == pytest.approx(losses, abs=1e-5)
    assert abs(losses[1] - losses[0]) > 1e-3


def relative(block, x):
    q, k, v = split(block, x)
    apart = (torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])).clamp(min=0)
    scores = q @ k.mT + einsum("bhqd,qkd->bhqk", q, block.places.weight[apart])
    return join(block, scores.masked_fill(later(x.shape[1]), -torch.inf).softmax(-1) @ v)


def capped(block, x):
    q, k, v = split(block, x)
    scores = 5 * torch.tanh(q @ k.mT / 5)
    return join(block, scores.masked_fill(later(x.shape[1]), -torch.inf).softmax(-1) @ v)


@pytest.mark.parametrize("way", [relative, capped])
def test_queries_with_a_second_use_are_not_patched(way):
    model = planted(way)
    for block in model.module.layers:
        block.places = nn.Embedding(12, block.size)
    patch(model, [pair_of(model)])
    with pytest.raises(ModelError, match="shows weights without its queries and keys"):
        patch(model, [pair_of(model)], what="q")
