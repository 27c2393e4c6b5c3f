"""Queries that a module is given with their heads: torch's axes are the model's."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnscope.capture import Keep, recording


class Bare(nn.Module):
    def forward(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("keys", [1, 5])
@pytest.mark.parametrize(("heads", "group"), [(1, 2), (2, 1), (2, 2), (3, 1)])
def test_heads_of_a_bare_kernel_are_heads(heads, group, queries, keys):
    torch.manual_seed(0)
    query, key = torch.randn(2, heads * group, queries, 4), torch.randn(2, heads, keys, 4)
    unit = torch.eye(keys).expand(2, heads, keys, keys)  # the output is the weights
    keep = Keep(lambda site: range(heads * group))
    with torch.inference_mode(), recording(module := Bare(), [keep]):
        weights = module(query, key, unit)
    (kept,) = keep.maps
    assert torch.allclose(kept.weights, weights, atol=1e-6)
