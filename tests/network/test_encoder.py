import dataclasses
import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attnscope.errors import InputError, ModelError
from attnscope.network.attention import sinusoids
from attnscope.network.encoder import Encoder, EncoderConfig, EncoderLayer

TINY = EncoderConfig(vocabulary=30, width=16, layers=2, heads=2, hidden=32, max_positions=24)
KINDS = ["rotary", "sinusoidal", "none"]


def tiny(**changes):
    torch.manual_seed(0)
    encoder = Encoder(dataclasses.replace(TINY, **changes)).eval()
    with torch.no_grad():  # larger than at the start of training, so that every part shows in the output
        for parameter in encoder.parameters():
            parameter.add_(torch.randn_like(parameter) / 4)
    return encoder


def test_sinusoids_are_the_formula():
    table = sinusoids(7, 6)
    for position in range(7):
        for column in range(6):
            angle = position / 10000 ** (2 * (column // 2) / 6)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert table[position, column].item() == pytest.approx(expected, abs=1e-6)
    assert sinusoids(7, 5).shape == (7, 5)


@pytest.mark.parametrize("positions", KINDS)
@pytest.mark.parametrize("causal", [False, True])
def test_only_a_bidirectional_encoder_sees_the_future(positions, causal):
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
def test_order_matters_unless_there_are_no_positions(positions):
    encoder = tiny(positions=positions)
    ids = torch.arange(8)[None]
    turned = encoder(ids.flip(1)).flip(1)
    assert torch.allclose(encoder(ids), turned, atol=1e-5) == (positions == "none")


def test_padding_changes_nothing_for_the_real_tokens():
    encoder = tiny()
    ids = torch.randint(0, 30, (2, 9))
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, 6:] = 0
    padded = encoder(ids, attention_mask=mask)
    torch.testing.assert_close(padded[1:, :6], encoder(ids[1:, :6]), rtol=0, atol=1e-5)
    torch.testing.assert_close(padded[:1], encoder(ids[:1]), rtol=0, atol=1e-5)


def test_segments_are_told_apart_where_there_are_any():
    ids = torch.randint(0, 30, (1, 6))
    segments = torch.tensor([[0, 0, 0, 1, 1, 1]])
    encoder = tiny()
    assert not torch.allclose(encoder(ids), encoder(ids, segments))
    assert torch.equal(encoder(ids), encoder(ids, torch.zeros_like(ids)))
    none = tiny(segments=0)
    assert torch.equal(none(ids), none(ids, segments))


def test_the_head_ends_in_the_token_embedding():
    encoder = tiny()
    hidden = torch.randn(5, 16)
    dense, _, norm = encoder.head
    inner = F.layer_norm(F.gelu(dense(hidden)), (16,), norm.weight, norm.bias)
    expected = inner @ encoder.embedding.weight.T + encoder.head_bias
    torch.testing.assert_close(encoder.logits(hidden), expected, rtol=0, atol=1e-5)


def test_a_text_beyond_the_positions_says_both_numbers():
    with pytest.raises(InputError, match="25 tokens, but the model has 24 positions"):
        tiny()(torch.zeros(1, 25, dtype=torch.int64))


def test_post_norm_ends_in_the_last_layers_own_norm():
    encoder = tiny(norm_first=False)
    assert not any(name.startswith("norm.") for name in encoder.state_dict())
    assert encoder(torch.zeros(1, 4, dtype=torch.int64)).shape == (1, 4, 16)


@pytest.mark.parametrize(
    ("norm_first", "activation", "bias", "batch_first"),
    list(itertools.product([True, False], ["relu", "gelu"], [True, False], [True, False])),
)
def test_a_layer_equals_torch(norm_first, activation, bias, batch_first):
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
    for mask, pad in itertools.product((None, causal), (None, padding)):
        for is_causal in {False, mask is not None}:
            given = {"src_mask": mask, "src_key_padding_mask": pad, "is_causal": is_causal}
            torch.testing.assert_close(ours(x, **given), theirs(x, **given), rtol=0, atol=1e-5)


def test_training_drops_what_torch_drops():
    theirs = nn.TransformerEncoderLayer(12, 3, dim_feedforward=20, dropout=0.3, batch_first=True).train()
    ours = EncoderLayer(12, 3, dim_feedforward=20, dropout=0.3, batch_first=True).train()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(1, 5, 12)  # of one text, since torch draws for several in another memory order
    results = []
    for layer in (ours, theirs):
        torch.manual_seed(1)
        results.append(layer(x))
    torch.testing.assert_close(*results, rtol=0, atol=1e-6)


def test_an_unknown_activation_says_what_exists():
    with pytest.raises(ValueError, match="no activation 'tanh': there are relu, gelu"):
        EncoderLayer(12, 3, activation="tanh")


SIZES = {"vocabulary": 30, "width": 16, "layers": 2, "heads": 2, "hidden": 32}


def test_a_config_survives_its_own_dictionary():
    config = EncoderConfig(**SIZES, causal=True, trained=True, positions="none", rotary_base=50.0)
    assert EncoderConfig.from_dict(dataclasses.asdict(config)) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, "3 heads do not divide a width of 16"),
        ({"heads": 16}, "an even width a head, not 1"),
        ({"width": 0}, "width is a whole number from 1 to 65536, not 0"),
        ({"layers": 2.0}, "layers is a whole number .* not 2.0"),
        ({"layers": True}, "layers is a whole number .* not True"),
        ({"segments": 3}, "segments is a whole number from 0 to 2, not 3"),
        ({"causal": 1}, "causal is true or false, not 1"),
        ({"positions": "learned"}, "positions is one of rotary, sinusoidal, none, not 'learned'"),
        ({"positions": ["rotary"]}, "positions is one of"),
        ({"activation": "swish"}, "activation is one of gelu, relu, not 'swish'"),
        ({"dropout": 1.0}, "dropout is a number from 0.0 to 0.9, not 1.0"),
        ({"dropout": float("nan")}, "dropout is a number"),
        ({"rotary_base": "10000"}, "rotary_base is a number .* not '10000'"),
        ({"depth": 4}, "unknown field 'depth': there are activation, causal, "),
    ],
)
def test_a_value_that_makes_no_sense_is_named(changes, message):
    with pytest.raises(ModelError, match=message):
        EncoderConfig.from_dict({**SIZES, **changes})


def test_a_missing_size_is_named():
    with pytest.raises(ModelError, match="the field 'layers' is missing"):
        EncoderConfig.from_dict({name: value for name, value in SIZES.items() if name != "layers"})
