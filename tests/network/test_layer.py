from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from attnscope.network.encoder import EncoderLayer


@pytest.mark.parametrize(
    ("norm_first", "activation", "bias", "batch_first"),
    list(itertools.product([True, False], ["relu", "gelu"], [True, False], [True, False])),
)
def test_a_layer_equals_torch(norm_first: bool, activation: str, bias: bool, batch_first: bool) -> None:
    torch.manual_seed(0)
    options = {
        "dim_feedforward": 20, "activation": activation, "norm_first": norm_first,
        "bias": bias, "batch_first": batch_first, "layer_norm_eps": 1e-4,
    }  # fmt: skip
    theirs = nn.TransformerEncoderLayer(12, 3, **options).eval()
    ours = EncoderLayer(12, 3, **options).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) / 5)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    x = torch.randn(4, 7, 12)
    tokens, batch = (7, 4) if batch_first else (4, 7)
    causal = nn.Transformer.generate_square_subsequent_mask(tokens)
    padding = torch.zeros(batch, tokens)
    padding[1, 3:] = float("-inf")
    for mask, pad, is_causal in (
        (None, None, False),
        (causal, None, False),
        (causal, None, True),
        (None, padding, False),
        (causal, padding, True),
    ):
        given = {"src_mask": mask, "src_key_padding_mask": pad, "is_causal": is_causal}
        torch.testing.assert_close(ours(x, **given), theirs(x, **given), rtol=0, atol=1e-5)


def test_training_drops_what_torch_drops() -> None:
    theirs = nn.TransformerEncoderLayer(12, 3, dim_feedforward=20, dropout=0.3, batch_first=True).train()
    ours = EncoderLayer(12, 3, dim_feedforward=20, dropout=0.3, batch_first=True).train()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(1, 5, 12)  # of one text, since torch draws for several in another memory order
    results = []
    for layer in (ours, theirs):
        torch.manual_seed(1)
        results.append(layer(x))
    torch.testing.assert_close(*results, rtol=0, atol=1e-6)


def test_an_unknown_activation_says_what_exists() -> None:
    with pytest.raises(ValueError, match="no activation 'tanh': there are relu, gelu"):
        EncoderLayer(12, 3, activation="tanh")
