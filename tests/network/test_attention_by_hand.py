"""The attention module against the formula, and what it refuses."""

import numpy as np
import pytest
import torch
from torch import nn

from attnscope.network.attention import MultiHeadAttention, RotaryAttention

WIDTH, HEADS, TOKENS = 12, 3, 6
EACH = WIDTH // HEADS


def test_the_formula_written_in_numpy_agrees():
    torch.manual_seed(1)
    module = MultiHeadAttention(WIDTH, HEADS, batch_first=True)
    nn.init.normal_(module.in_proj_bias)
    x = torch.randn(TOKENS, WIDTH)
    state = {name: value.double().numpy() for name, value in module.state_dict().items()}
    q, k, v = np.split(x.double().numpy() @ state["in_proj_weight"].T + state["in_proj_bias"], 3, axis=1)
    outputs, maps = [], []
    for head in range(HEADS):
        columns = slice(head * EACH, (head + 1) * EACH)
        scores = q[:, columns] @ k[:, columns].T / np.sqrt(EACH)
        scores[np.triu_indices(TOKENS, 1)] = -np.inf
        powers = np.exp(scores - scores.max(1, keepdims=True))
        maps.append(powers / powers.sum(1, keepdims=True))
        outputs.append(maps[-1] @ v[:, columns])
    expected = np.concatenate(outputs, axis=1) @ state["out_proj.weight"].T + state["out_proj.bias"]
    out, weights = module(x, x, x, average_attn_weights=False, is_causal=True)
    np.testing.assert_allclose(weights.detach().numpy(), np.stack(maps), rtol=0, atol=1e-6)
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=0, atol=1e-6)
    kernel, _ = module(x, x, x, need_weights=False, is_causal=True)
    np.testing.assert_allclose(kernel.detach().numpy(), expected, rtol=0, atol=1e-6)


def test_causal_with_padding_needs_no_mask_beside_it():
    torch.manual_seed(2)
    module = MultiHeadAttention(WIDTH, HEADS, batch_first=True)
    x = torch.randn(2, TOKENS, WIDTH)
    padding = torch.zeros(2, TOKENS, dtype=torch.bool)
    padding[1, 4:] = True
    out, _ = module(x, x, x, key_padding_mask=padding, need_weights=False, is_causal=True)
    alone, _ = module(x[1:, :4], x[1:, :4], x[1:, :4], need_weights=False, is_causal=True)
    torch.testing.assert_close(out[1:, :4], alone, rtol=0, atol=1e-6)


class Nearer(MultiHeadAttention):
    """Scores that fall with the distance (Press et al. 2022, ALiBi), as an override."""

    def scores(self, q, k):
        distance = (torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])).abs()
        return super().scores(q, k) - distance


def test_an_overridden_score_function_rules_with_and_without_weights():
    torch.manual_seed(3)
    module, plain = Nearer(WIDTH, HEADS), MultiHeadAttention(WIDTH, HEADS)
    plain.load_state_dict(module.state_dict(), strict=True)
    x = torch.randn(TOKENS, WIDTH)
    distance = (torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)).abs().float()
    expected, expected_weights = plain(x, x, x, attn_mask=-distance)
    out, weights = module(x, x, x)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(weights, expected_weights, rtol=0, atol=1e-6)
    torch.testing.assert_close(module(x, x, x, need_weights=False)[0], expected, rtol=0, atol=1e-6)


def test_rotary_scores_depend_on_the_distance_alone():
    torch.manual_seed(4)
    module = RotaryAttention(WIDTH, HEADS, batch_first=True, length=20)
    q, k = torch.randn(EACH), torch.randn(EACH)
    turned_q = module.rotate(q.expand(1, 1, 20, EACH))[0, 0]
    turned_k = module.rotate(k.expand(1, 1, 20, EACH))[0, 0]
    scores = turned_q @ turned_k.T
    for offset in range(-19, 20):
        diagonal = scores.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-5)
    assert scores[0].std() > 0.01
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm().expand(20), rtol=0, atol=1e-5)


def test_rotary_equals_multiplying_by_complex_numbers():
    torch.manual_seed(5)
    module = RotaryAttention(16, 2, length=50, base=100.0)
    x = torch.randn(1, 2, 50, 8)
    numbers = torch.complex(x[..., :4].double(), x[..., 4:].double())
    angle = torch.outer(torch.arange(50).double(), 100.0 ** (-torch.arange(4).double() / 4))
    turned = numbers * torch.polar(torch.ones_like(angle), angle)
    expected = torch.cat([turned.real, turned.imag], -1).float()
    torch.testing.assert_close(module.rotate(x), expected, rtol=0, atol=1e-5)


def test_rotary_has_the_parameters_of_plain_attention():
    rotary = RotaryAttention(WIDTH, HEADS, length=9)
    rotary.load_state_dict(MultiHeadAttention(WIDTH, HEADS).state_dict(), strict=True)
    x = torch.randn(10, WIDTH)
    with pytest.raises(ValueError, match="10 tokens are more than the 9 positions"):
        rotary(x, x, x)
    with pytest.raises(ValueError, match="even head width, not 3"):
        RotaryAttention(12, 4, length=9)


def test_sizes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="5 heads do not divide a width of 12"):
        MultiHeadAttention(12, 5)
    module = MultiHeadAttention(WIDTH, HEADS, batch_first=True)
    x = torch.randn(2, TOKENS, WIDTH)
    with pytest.raises(ValueError, match="key of shape"):
        module(x, torch.randn(2, TOKENS, WIDTH + 1), x)
    with pytest.raises(ValueError, match="6 keys do not fit 5 values"):
        module(x, x, x[:, :5])
    with pytest.raises(ValueError, match="key_padding_mask is"):
        module(x, x, x, key_padding_mask=torch.zeros(1, TOKENS, dtype=torch.bool))
    with pytest.raises(ValueError, match="attn_mask is"):
        module(x, x, x, attn_mask=torch.zeros(1, TOKENS))
    with pytest.raises(ValueError, match=r"a mask is bool or float, not torch\.int64"):
        module(x, x, x, attn_mask=torch.zeros(TOKENS, TOKENS, dtype=torch.int64))
