"""Attention and the encoder against torch with the same weights, and against the formula."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attnscope import network
from attnscope.errors import InputError, ModelError

BATCH, QUERIES, KEYS, WIDTH, HEADS, TOKENS = 2, 3, 5, 12, 3, 6
EXACT = {"rtol": 0.0, "atol": 1e-6, "equal_nan": True}
MASKS = ("none", "bool 2-D", "float 2-D", "bool 3-D", "float 3-D", "causal")
PADDINGS = ("none", "bool", "float")
SIZES = {
    "kdim": (7, None),
    "vdim": (None, 10),
    "kdim and vdim": (7, 10),
    "self": (None, None),
    "cross": (None, None),
}


@torch.no_grad()
def disturbed(module):
    """The module with noise in its parameters: all begin small, and biases at 0."""
    for parameter in module.parameters():
        parameter.add_(torch.randn_like(parameter) / 4)
    return module.eval()


def modules(**options):
    """Ours with torch's weights, loaded strictly."""
    theirs = disturbed(nn.MultiheadAttention(WIDTH, HEADS, **options))
    ours = network.MultiHeadAttention(WIDTH, HEADS, **options)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return ours.eval(), theirs


def attention_mask(kind, batch, keys):
    shape = (batch * HEADS, QUERIES, keys) if kind.endswith("3-D") else (QUERIES, keys)
    if kind == "none":
        return None
    if kind == "causal":
        return torch.ones(shape, dtype=torch.bool).triu(1)
    if kind.startswith("bool"):  # no row is closed altogether: another test looks at those
        return (torch.rand(shape) < 0.4) & (torch.arange(keys) > 0)
    return torch.randn(shape)


def padding_mask(kind, batch, keys, additive):
    if kind == "none":
        return None
    closed = torch.zeros(batch, keys, dtype=torch.bool)
    closed[-1, -1] = True
    if kind == "bool":
        return closed
    return torch.randn(batch, keys) if additive else torch.zeros(batch, keys).masked_fill(closed, -math.inf)


@pytest.mark.sweep(3)
@pytest.mark.filterwarnings("ignore:Support for mismatched:UserWarning")  # torch's, of bool and float masks
@pytest.mark.parametrize(
    ("layout", "bias"),
    [("batch first", True), ("batch first", False), ("sequence first", True), ("unbatched", False)],
)
@pytest.mark.parametrize("sizes", SIZES)
def test_attention_equals_torch_for_all_options_and_masks(layout, sizes, bias):
    torch.manual_seed(0)
    kdim, vdim = SIZES[sizes]
    batch = 1 if layout == "unbatched" else BATCH
    keys = QUERIES if sizes == "self" else KEYS
    compared = 0
    for bias_kv, zero in itertools.product([False, True], repeat=2):
        ours, theirs = modules(
            bias=bias, add_bias_kv=bias_kv, add_zero_attn=zero, kdim=kdim, vdim=vdim,
            batch_first=layout == "batch first",
        )  # fmt: skip
        shapes = (QUERIES, WIDTH), (keys, kdim or WIDTH), (keys, vdim or WIDTH)
        given = [torch.randn(batch, *shape) for shape in shapes]
        if layout == "sequence first":
            given = [x.transpose(0, 1).contiguous() for x in given]
        if layout == "unbatched":
            given = [x[0] for x in given]
        if sizes == "self":
            given = given[:1] * 3
        for mask_kind, padding_kind in itertools.product(MASKS, PADDINGS):
            mask = attention_mask(mask_kind, batch, keys)
            additive = mask is not None and mask.is_floating_point()
            padding = padding_mask(padding_kind, batch, keys, additive)
            if layout == "unbatched" and padding is not None:
                padding = padding[0]
            for need, average in ((True, True), (True, False), (False, True)):
                for is_causal in {False, mask_kind == "causal"}:
                    options = {
                        "key_padding_mask": padding, "attn_mask": mask, "need_weights": need,
                        "average_attn_weights": average, "is_causal": is_causal,
                    }  # fmt: skip
                    out, weights = ours(*given, **options)
                    torch.testing.assert_close((out, weights), theirs(*given, **options), **EXACT)
                    assert (weights is None) == (not need)
                    if weights is None and mask_kind == "float 2-D":  # no row is closed: products give no NaN
                        ours.use_kernel = False
                        torch.testing.assert_close(ours(*given, **options)[0], out, **EXACT)
                        ours.use_kernel = True
                    compared += 1
    assert compared == 4 * 3 * 3 * 7  # options of keys × kinds of weights × paddings × (masks, causal twice)


@pytest.mark.parametrize("need", [True, False])
def test_fully_masked_row_equals_torch(need):
    torch.manual_seed(2)
    ours, theirs = modules(batch_first=True)
    x = torch.randn(BATCH, KEYS, WIDTH, requires_grad=True)  # gradients keep torch off its fast path
    closed = torch.zeros(KEYS, KEYS, dtype=torch.bool)
    closed[1] = True
    options = {"attn_mask": closed, "need_weights": need}
    out, weights = ours(x, x, x, **options)
    torch.testing.assert_close((out, weights), theirs(x, x, x, **options), **EXACT)
    if need:
        assert out[:, 1].isnan().all()
    else:
        assert torch.equal(out[:, 1], ours.out_proj.bias.expand(BATCH, -1))


@pytest.mark.parametrize("need", [True, False])
def test_gradients_equal_torch(need):
    torch.manual_seed(3)
    ours, theirs = modules(add_bias_kv=True)
    x = torch.randn(KEYS, BATCH, WIDTH)
    for module in (ours, theirs):
        module(x, x, x, need_weights=need)[0].square().sum().backward()
    found, expected = ({name: p.grad for name, p in each.named_parameters()} for each in (ours, theirs))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def seeded(make, *given, **how):
    """What comes of a seed."""
    torch.manual_seed(4)
    return make(*given, **how)


@pytest.mark.parametrize("need", [True, False])
def test_seeded_dropout_equals_torch(need):
    ours, theirs = modules(dropout=0.5, batch_first=True)
    x = torch.randn(BATCH, KEYS, WIDTH)
    how = {"need_weights": need, "average_attn_weights": False}
    out, weights = seeded(ours.train(), x, x, x, **how)
    torch.testing.assert_close((out, weights), seeded(theirs.train(), x, x, x, **how), **EXACT)
    assert not need or (weights == 0).any()
    assert not torch.allclose(out, ours.eval()(x, x, x)[0])


@pytest.mark.parametrize("options", [{}, {"kdim": 7}, {"add_bias_kv": True}, {"bias": False}])
def test_seeded_initialization_equals_torch(options):
    ours = seeded(network.MultiHeadAttention, WIDTH, HEADS, **options)
    theirs = seeded(nn.MultiheadAttention, WIDTH, HEADS, **options)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=0, atol=0)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict(), strict=True)


EACH = WIDTH // HEADS


def test_attention_agrees_with_numpy_formula():
    torch.manual_seed(1)
    module = network.MultiHeadAttention(WIDTH, HEADS, batch_first=True)
    nn.init.normal_(module.in_proj_bias)
    x = torch.randn(TOKENS, WIDTH)
    state = {name: value.double().numpy() for name, value in module.state_dict().items()}
    projected = x.double().numpy() @ state["in_proj_weight"].T + state["in_proj_bias"]
    q, k, v = projected.reshape(TOKENS, 3, HEADS, EACH).transpose(1, 2, 0, 3)  # each [head, token, number]
    scores = q @ k.swapaxes(1, 2) / np.sqrt(EACH)
    powers = np.tril(np.exp(scores - scores.max(-1, keepdims=True)))
    maps = powers / powers.sum(-1, keepdims=True)
    joined = (maps @ v).swapaxes(0, 1).reshape(TOKENS, WIDTH)
    expected = joined @ state["out_proj.weight"].T + state["out_proj.bias"]
    out, weights = module(x, x, x, average_attn_weights=False, is_causal=True)
    kernel, _ = module(x, x, x, need_weights=False, is_causal=True)
    for found, wanted in ((weights, maps), (out, expected), (kernel, expected)):
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=0, atol=1e-6)


class Nearer(network.MultiHeadAttention):
    """Scores that fall with the distance (Press et al. 2022, ALiBi), as an override."""

    def scores(self, q, k):
        distance = (torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])).abs()
        return super().scores(q, k) - distance


def test_overridden_score_function_applies_with_and_without_weights():
    torch.manual_seed(3)
    module, plain = Nearer(WIDTH, HEADS), network.MultiHeadAttention(WIDTH, HEADS)
    plain.load_state_dict(module.state_dict(), strict=True)
    x = torch.randn(TOKENS, WIDTH)
    distance = (torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)).abs().float()
    expected = plain(x, x, x, attn_mask=-distance)
    torch.testing.assert_close(module(x, x, x), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(module(x, x, x, need_weights=False)[0], expected[0], rtol=0, atol=1e-6)


def test_rotary_equals_complex_multiplication():
    torch.manual_seed(5)
    module = network.RotaryAttention(16, 2, length=50, base=100.0)
    x = torch.randn(1, 2, 50, 8)
    numbers = torch.complex(x[..., :4].double(), x[..., 4:].double())
    angle = torch.outer(torch.arange(50).double(), 100.0 ** (-torch.arange(4).double() / 4))
    turned = numbers * torch.polar(torch.ones_like(angle), angle)
    expected = torch.cat([turned.real, turned.imag], -1).float()
    torch.testing.assert_close(module.rotate(x), expected, rtol=0, atol=1e-5)


def test_rotary_has_the_parameters_of_plain_attention():
    rotary = network.RotaryAttention(WIDTH, HEADS, length=9)
    rotary.load_state_dict(network.MultiHeadAttention(WIDTH, HEADS).state_dict(), strict=True)
    x = torch.randn(10, WIDTH)
    with pytest.raises(ValueError, match="10 tokens are more than the 9 positions"):
        rotary(x, x, x)
    with pytest.raises(ValueError, match="even head width, not 3"):
        network.RotaryAttention(12, 4, length=9)


def test_mismatched_sizes_are_named():
    with pytest.raises(ValueError, match="5 heads do not divide a width of 12"):
        network.MultiHeadAttention(12, 5)
    module = network.MultiHeadAttention(WIDTH, HEADS, batch_first=True)
    x = torch.randn(2, TOKENS, WIDTH)
    whole = torch.zeros(TOKENS, TOKENS, dtype=torch.int64)
    for said, key, value, masks in (
        ("key of shape", torch.randn(2, TOKENS, WIDTH + 1), x, {}),
        ("6 keys do not fit 5 values", x, x[:, :5], {}),
        ("key_padding_mask is", x, x, {"key_padding_mask": whole[:1].bool()}),
        ("attn_mask is", x, x, {"attn_mask": whole[:1].float()}),
        (r"a mask is bool or float, not torch\.int64", x, x, {"attn_mask": whole}),
    ):
        with pytest.raises(ValueError, match=said):
            module(x, key, value, **masks)


FIELDS = {"vocabulary": 30, "width": 16, "layers": 2, "heads": 2, "hidden": 32}
TINY = network.EncoderConfig(**FIELDS, max_positions=24)
KINDS = ["rotary", "sinusoidal", "none"]


def tiny(**changes):
    torch.manual_seed(0)
    return disturbed(network.Encoder(dataclasses.replace(TINY, **changes)))


def test_sinusoidal_positions_follow_the_formula():
    position, column = np.indices((7, 6))
    angle = position / 10000 ** (2 * (column // 2) / 6)
    expected = np.where(column % 2, np.cos(angle), np.sin(angle))
    np.testing.assert_allclose(network.Sinusoidal(7, 6).table, expected, rtol=0, atol=1e-6)
    assert network.Sinusoidal(7, 5).table.shape == (7, 5)


@pytest.mark.parametrize("positions", KINDS)
@pytest.mark.parametrize("causal", [False, True])
def test_only_bidirectional_encoder_attends_to_later_tokens(positions, causal):
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
def test_token_order_matters_only_with_positions(positions):
    encoder = tiny(positions=positions)
    ids = torch.arange(8)[None]
    turned = encoder(ids.flip(1)).flip(1)
    assert torch.allclose(encoder(ids), turned, atol=1e-5) == (positions == "none")


@pytest.mark.parametrize("causal", [False, True])
def test_encoder_padding_does_not_change_real_tokens(causal):
    encoder = tiny(causal=causal)
    ids = torch.randint(0, 30, (2, 9))
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, 6:] = 0
    padded = encoder(ids, attention_mask=mask)
    torch.testing.assert_close(padded[1:, :6], encoder(ids[1:, :6]), rtol=0, atol=1e-5)
    torch.testing.assert_close(padded[:1], encoder(ids[:1]), rtol=0, atol=1e-5)


def test_segments_change_the_output_if_supported():
    ids = torch.randint(0, 30, (1, 6))
    segments = torch.tensor([[0, 0, 0, 1, 1, 1]])
    encoder = tiny()
    assert not torch.allclose(encoder(ids), encoder(ids, segments))
    assert torch.equal(encoder(ids), encoder(ids, torch.zeros_like(ids)))
    none = tiny(segments=0)
    assert torch.equal(none(ids), none(ids, segments))


def test_output_head_is_tied_to_the_token_embedding():
    encoder = tiny()
    hidden = torch.randn(5, 16)
    dense, _, norm = encoder.head
    inner = F.layer_norm(F.gelu(dense(hidden)), (16,), norm.weight, norm.bias)
    expected = inner @ encoder.embedding.weight.T + encoder.head_bias
    torch.testing.assert_close(encoder.logits(hidden), expected, rtol=0, atol=1e-5)


def test_post_norm_has_no_final_norm_and_long_text_is_refused():
    encoder = tiny(norm_first=False)
    assert not any(name.startswith("norm.") for name in encoder.state_dict())
    assert encoder(torch.zeros(1, 24, dtype=torch.int64)).shape == (1, 24, 16)
    with pytest.raises(InputError, match="25 tokens, but the model has 24 positions"):
        encoder(torch.zeros(1, 25, dtype=torch.int64))


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_encoder_layer_equals_torch(norm_first, activation, batch_first):
    torch.manual_seed(0)
    options = {"activation": activation, "norm_first": norm_first, "batch_first": batch_first}
    theirs = disturbed(nn.TransformerEncoderLayer(12, 3, dim_feedforward=20, **options))
    ours = network.EncoderLayer(12, 3, dim_feedforward=20, **options).eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    x = torch.randn(4, 7, 12)
    tokens, batch = (7, 4) if batch_first else (4, 7)
    causal = nn.Transformer.generate_square_subsequent_mask(tokens)
    padding = torch.zeros(batch, tokens)
    padding[1, 3:] = float("-inf")
    for mask, pad, is_causal in itertools.product((None, causal), (None, padding), (False, True)):
        if mask is not None or not is_causal:
            given = {"src_mask": mask, "src_key_padding_mask": pad, "is_causal": is_causal}
            torch.testing.assert_close(ours(x, **given), theirs(x, **given), rtol=0, atol=1e-5)


def test_encoder_layer_dropout_equals_torch():
    how = {"dim_feedforward": 20, "dropout": 0.3, "batch_first": True}
    theirs = nn.TransformerEncoderLayer(12, 3, **how).train()
    ours = network.EncoderLayer(12, 3, **how).train()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(1, 5, 12)  # of one text, since torch draws for several in another memory order
    torch.testing.assert_close(seeded(ours, x), seeded(theirs, x), rtol=0, atol=1e-6)


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
        *(({name: ["rotary"]}, f"{name} is one of") for name in ("positions", "activation")),
        ({"activation": "swish"}, "activation is one of gelu, relu, not 'swish'"),
        ({"dropout": 1.0}, "dropout is a number from 0.0 to 0.9, not 1.0"),
        ({"dropout": float("nan")}, "dropout is a number"),
        ({"rotary_base": "10000"}, "rotary_base is a number .* not '10000'"),
        ({"depth": 4}, "unknown field 'depth': there are activation, causal, "),
    ],
)
def test_invalid_config_value_is_named(changes, message):
    with pytest.raises(ModelError, match=message):
        network.EncoderConfig.from_dict({**FIELDS, **changes})


def test_missing_config_size_is_named():
    with pytest.raises(ModelError, match="the field 'layers' is missing"):
        network.EncoderConfig.from_dict({"vocabulary": 30, "width": 16})
