from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch.nn import functional as F

from attnscope.errors import InputError
from attnscope.network.attention import sinusoids
from attnscope.network.encoder import Encoder, EncoderConfig

TINY = EncoderConfig(vocabulary=30, width=16, layers=2, heads=2, hidden=32, max_positions=24)
KINDS = ["rotary", "sinusoidal", "none"]


def tiny(**changes: object) -> Encoder:
    torch.manual_seed(0)
    encoder = Encoder(dataclasses.replace(TINY, **changes)).eval()  # type: ignore[arg-type]
    with torch.no_grad():  # larger than at the start of training, so that every part shows in the output
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter) / 4)
    return encoder


def test_sinusoids_are_the_formula() -> None:
    table = sinusoids(7, 6)
    for position in range(7):
        for column in range(6):
            angle = position / 10000 ** (2 * (column // 2) / 6)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert table[position, column].item() == pytest.approx(expected, abs=1e-6)
    assert sinusoids(7, 5).shape == (7, 5)


@pytest.mark.parametrize("positions", KINDS)
def test_hidden_states_and_logits_have_the_shapes_they_say(positions: str) -> None:
    encoder = tiny(positions=positions)
    ids = torch.randint(0, 30, (3, 9))
    hidden = encoder(ids)
    assert hidden.shape == (3, 9, 16)
    assert encoder.logits(hidden).shape == (3, 9, 30)


@pytest.mark.parametrize("positions", KINDS)
@pytest.mark.parametrize("causal", [False, True])
def test_only_a_bidirectional_encoder_sees_the_future(positions: str, causal: bool) -> None:
    encoder = tiny(positions=positions, causal=causal)
    ids = torch.randint(0, 30, (1, 9))
    changed = ids.clone()
    changed[0, 5] = (ids[0, 5] + 1) % 30
    difference = (encoder(ids) - encoder(changed)).abs().amax(-1)[0]
    assert (difference[5:] > 1e-4).all()
    assert (difference[:5] == 0).all() == causal
    if not causal:
        assert torch.equal(encoder(ids, causal=True)[0, :5], encoder(changed, causal=True)[0, :5])


@pytest.mark.parametrize("positions", KINDS)
def test_order_matters_unless_there_are_no_positions(positions: str) -> None:
    encoder = tiny(positions=positions)
    ids = torch.arange(8)[None]
    turned = encoder(ids.flip(1)).flip(1)
    assert torch.allclose(encoder(ids), turned, atol=1e-5) == (positions == "none")


def test_padding_changes_nothing_for_the_real_tokens() -> None:
    encoder = tiny()
    ids = torch.randint(0, 30, (2, 9))
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, 6:] = 0
    padded = encoder(ids, attention_mask=mask)
    torch.testing.assert_close(padded[1:, :6], encoder(ids[1:, :6]), rtol=0, atol=1e-5)
    torch.testing.assert_close(padded[:1], encoder(ids[:1]), rtol=0, atol=1e-5)


def test_segments_are_told_apart_where_there_are_any() -> None:
    ids = torch.randint(0, 30, (1, 6))
    segments = torch.tensor([[0, 0, 0, 1, 1, 1]])
    encoder = tiny()
    assert not torch.allclose(encoder(ids), encoder(ids, segments))
    assert torch.equal(encoder(ids), encoder(ids, torch.zeros_like(ids)))
    none = tiny(segments=0)
    assert torch.equal(none(ids), none(ids, segments))


def test_the_head_ends_in_the_token_embedding() -> None:
    encoder = tiny()
    hidden = torch.randn(5, 16)
    dense, _, norm = encoder.head
    inner = F.layer_norm(F.gelu(dense(hidden)), (16,), norm.weight, norm.bias)
    expected = inner @ encoder.embedding.weight.T + encoder.head_bias
    torch.testing.assert_close(encoder.logits(hidden), expected, rtol=0, atol=1e-5)


def test_a_text_beyond_the_positions_says_both_numbers() -> None:
    with pytest.raises(InputError, match="25 tokens, but the model has 24 positions"):
        tiny()(torch.zeros(1, 25, dtype=torch.int64))


def test_post_norm_ends_in_the_last_layers_own_norm() -> None:
    encoder = tiny(norm_first=False)
    assert not any(name.startswith("norm.") for name in encoder.state_dict())
    assert encoder(torch.zeros(1, 4, dtype=torch.int64)).shape == (1, 4, 16)
