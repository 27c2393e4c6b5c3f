"""Weights that show in no softmax: a module returned or stored them itself."""

import torch
from torch import nn

from attnscope.capture import Keep, recording


class Exponential(nn.Module):
    """Attention by exponentials and sums, several heads; what becomes of the weights differs."""

    def __init__(self, size=16, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(size, 3 * size)

    def weigh(self, x):
        batch, length, _ = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        powers = (q @ k.mT / 2).exp()
        weights = powers / powers.sum(-1, keepdim=True)
        mixed = (weights[..., None] * v.unsqueeze(-3)).sum(-2)  # by no product that a hook sees
        return mixed.transpose(1, 2).flatten(2), weights


class StoringAttention(Exponential):
    def forward(self, x):
        output, self.weights = self.weigh(x)
        return output


class Storing(Exponential):
    def forward(self, x):
        output, self.attn_probs = self.weigh(x)
        return output


class ReturningAttention(Exponential):
    def forward(self, x):
        return self.weigh(x)


class NamingAttention(Exponential):
    def forward(self, x):
        output, weights = self.weigh(x)
        return {"output": output, "attention": weights}


class Gate(nn.Module):
    """Returns rows that sum to 1 and are no attention."""

    def __init__(self, size=16):
        super().__init__()
        self.attention_router = nn.Linear(size, 3)

    def forward(self, x):
        return x, self.attention_router(x).softmax(-1)


class Scoring(Exponential):
    """Returns scores under a name that says attention."""

    def forward(self, x):
        _, self.attention_scores = x, self.weigh(x)[1].log()
        return x


def observe(module, x):
    """Two passes under one recording.  -> (record, maps)"""
    torch.manual_seed(0)
    keep = Keep(lambda site: range(4))
    with torch.inference_mode(), recording(module.eval(), [keep]) as record:
        module(x)
        module(x + 1)
    return record, keep.maps


def check(cls):
    module, x = nn.Sequential(cls()), torch.randn(2, 5, 16)
    record, maps = observe(module, x)
    assert [(s.source, s.kernel, s.site.name, s.step) for s in record.sites] == [
        ("module", cls.__name__, "0", 0),
        ("module", cls.__name__, "0", 1),
    ]
    for kept, given in zip(maps, (x, x + 1), strict=True):
        assert torch.equal(kept.weights, module[0].weigh(given)[1])


def test_weights_in_an_attribute_of_an_attention_module():
    check(StoringAttention)


def test_weights_in_an_attribute_that_says_attention():
    check(Storing)


def test_weights_that_a_module_returns():
    check(ReturningAttention)


def test_weights_that_a_module_returns_by_name():
    check(NamingAttention)


def test_gates_and_scores_are_no_attention():
    for cls in (Gate, Scoring):
        record, _ = observe(cls(), torch.randn(2, 5, 16))
        assert record.sites == []


def test_weights_left_from_an_earlier_pass_are_not_taken_again():
    module, x = StoringAttention(), torch.randn(2, 5, 16)
    module(x)
    module.forward = lambda x: x
    record, _ = observe(module, x)
    assert record.sites == []
