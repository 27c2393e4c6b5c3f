"""Kernels that a module calls by ``torch.ops.aten``, and modules whose own code does not run in Python."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnscope.capture import recording
from tests.capture.modules import blocks

SIZE, HEADS, COUNT = 16, 4, 7

aten = torch.ops.aten
CALLS = {
    "_scaled_dot_product_flash_attention_for_cpu": lambda q, k, v: (
        aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0]
    ),
    "scaled_dot_product_attention": lambda q, k, v: aten.scaled_dot_product_attention.default(q, k, v),
    "_scaled_dot_product_attention_math": lambda q, k, v: torch._scaled_dot_product_attention_math(q, k, v)[
        0
    ],
}


class Direct(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.qkv, self.attend = nn.Linear(SIZE, 3 * SIZE), attend

    def project(self, x):
        return [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)]

    def forward(self, x):
        return (self.attend(*self.project(x)).transpose(1, 2).flatten(2),)


@pytest.mark.parametrize("name", CALLS)
def test_kernels_that_are_called_directly_are_named(name):
    model, x = blocks(lambda: Direct(CALLS[name])), torch.randn(2, COUNT, SIZE)
    with torch.inference_mode():
        plain = model(x)
        with recording(model, warn=False) as record:
            assert torch.equal(model(x), plain)
    assert not record.sites
    assert [layer.name for layer in record.without_attention] == ["0.attention", "1.attention"]
    assert all(f"torch.ops.aten.{name} itself" in layer.reason for layer in record.without_attention)


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = blocks(lambda: Direct(F.scaled_dot_product_attention), 3)

    def forward(self, x):
        return self.layers(x)


X = torch.zeros(2, COUNT, SIZE)
MADE = {
    "traced or scripted": lambda module: torch.jit.trace(module, X),
    "exported": lambda module: torch.export.export(module, (X,)).module(),
    "exported (torch.export)": lambda module: torch.export.export(module, (X,)).run_decompositions().module(),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("how", MADE)
def test_a_traced_or_exported_part_is_named_with_the_reason(how):
    torch.manual_seed(0)
    model = Stack().eval()
    model.layers[1] = MADE[how](model.layers[1])
    with torch.inference_mode(), recording(model) as record:
        model(torch.randn(2, COUNT, SIZE))
    assert [site.site.layer for site in record.sites] == [0, 2]
    (layer,) = record.without_attention
    assert (layer.name, layer.layer) == ("layers.1", 1)
    assert how in layer.reason
    assert "watch the original module" in layer.reason


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_traced_part_without_attention_is_not_mentioned():
    model = Stack().eval()
    model.norm = torch.jit.trace(nn.LayerNorm(SIZE), X)
    plain = model.forward
    model.forward = lambda x: model.norm(plain(x))
    with warnings.catch_warnings(), torch.inference_mode(), recording(model) as record:
        model(X)
    assert len(record.sites) == 3
    assert record.without_attention == []
