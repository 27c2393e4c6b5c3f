"""Torch's fused encoder layers stay fused while they are watched, and their attention is seen and proved."""

from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attnscope.capture import recording
from attnscope.capture.record import tolerance
from tests.capture.observing import observe

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

BATCH, LENGTH, SIZE, HEADS = 3, 6, 16, 4


def encoder(norm_first=False, layers=2, nested=True, **options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(SIZE, HEADS, 32, batch_first=True, norm_first=norm_first, **options)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=nested and not norm_first).eval()


def padding(*lengths):
    """True where a text has ended.  -> [batch, position]"""
    return torch.arange(LENGTH) >= torch.tensor(lengths)[:, None]


def watched(model, *given, **options):
    """Run as it is and watched; all weights are proved.  -> (record, kept maps)"""
    record, maps, _ = observe(model, *given, **options)
    assert record.changes == []
    assert all(site.difference < 1e-5 for site in record.sites)
    return record, maps


def same(model, *given, **options):
    """The record of a pass in the modes of the caller, whose output is that without a recording."""
    expected = model(*given, **options)
    with recording(model, warn=False) as record:
        output = model(*given, **options)
    for one, other in zip(tree_leaves(output), tree_leaves(expected), strict=True):
        assert one is other is None or torch.equal(one, other)
    return record


def by_hand(model, x, closed=None):
    """The weights of every layer, each run by its plain path.  -> [[batch, head, query, key]]"""
    seen = []
    with torch.no_grad(), plain_path():
        for layer in model.layers:
            states = layer.norm1(x) if layer.norm_first else x
            options = {"key_padding_mask": closed, "average_attn_weights": False}
            seen.append(layer.self_attn(states, states, states, **options)[1])
            x = layer(x, src_key_padding_mask=closed)
    return seen


@contextmanager
def plain_path():
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


X = torch.randn(BATCH, LENGTH, SIZE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("activation", ["relu", "gelu", nn.functional.silu], ids=["relu", "gelu", "its own"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_an_encoder_without_padding(norm_first, activation):
    model = encoder(norm_first, activation=activation)
    record, maps = watched(model, X)
    assert [site.site.name for site in record.sites] == ["layers.0.self_attn", "layers.1.self_attn"]
    assert [site.site.kind for site in record.sites] == ["encoder"] * 2
    whole = isinstance(activation, str)  # else a layer runs its own code around fused attention
    kernel = "transformer_encoder_layer_fwd" if whole else "native_multi_head_attention"
    assert {site.kernel for site in record.sites} == {kernel}
    for kept, weights in zip(maps, by_hand(model, X), strict=True):
        torch.testing.assert_close(kept.weights, weights, atol=1e-6, rtol=0)


@pytest.mark.parametrize("lengths", [(6, 4, 2), (4, 3, 1), (5, 5, 5)], ids=str)
@pytest.mark.parametrize("nested", [True, False])
def test_padded_texts_are_zeros_with_and_without_a_recording(nested, lengths):
    model, closed = encoder(nested=nested), padding(*lengths)
    record, maps = watched(model, X, src_key_padding_mask=closed)
    assert [(site.queries, site.keys) for site in record.sites] == [(LENGTH, LENGTH)] * 2
    for kept, weights in zip(maps, by_hand(model, X, closed), strict=True):
        for text, length in enumerate(lengths):
            torch.testing.assert_close(
                kept.weights[text, :, :length], weights[text, :, :length], atol=1e-6, rtol=0
            )
        rows = kept.allowed.expand_as(kept.weights)[:, 0]  # [text, query, key]
        real = ~closed[:, None] & (~closed[:, :, None] | (not nested))
        assert torch.equal(rows, real.expand_as(rows))
        if nested:
            assert kept.weights[closed[:, None].expand(-1, HEADS, -1)].sum() == 0


def test_a_mask_and_padding_together():
    causal = nn.Transformer.generate_square_subsequent_mask(LENGTH) < 0
    record, maps = watched(encoder(), X, mask=causal)
    assert [site.site.kind for site in record.sites] == ["decoder"] * 2
    _, both = watched(encoder(nested=False), X, mask=causal, src_key_padding_mask=padding(6, 4, 2))
    assert both[0].allowed.sum() < maps[0].allowed.expand_as(both[0].allowed).sum()


def test_a_layer_and_its_attention_alone():
    layer = encoder().layers[0]
    record, (kept,) = watched(layer, X)
    assert record.sites[0].site.name == "self_attn"
    record, (alone,) = watched(layer.self_attn, X, X, X)
    assert record.sites[0].site.name == ""
    assert record.sites[0].kernel == "native_multi_head_attention"
    torch.testing.assert_close(alone.weights, kept.weights, atol=1e-6, rtol=0)


def test_nested_states_reach_attention_through_a_layer_with_code_of_its_own():
    model = encoder()
    for layer in model.layers:
        layer.activation_relu_or_gelu = 0
    record, _ = watched(model, X, src_key_padding_mask=padding(4, 3, 1))
    assert [site.kernel for site in record.sites] == ["native_multi_head_attention"] * 2
    assert [site.keys for site in record.sites] == [LENGTH] * 2


def test_a_class_of_ones_own_that_calls_the_fast_path():
    class Own(nn.TransformerEncoder):
        def forward(self, x, closed):
            return super().forward(x, src_key_padding_mask=closed)

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(SIZE, HEADS, 32, batch_first=True)
    for closed in (padding(6, 4, 2), padding(6, 4, 2).flip(1)):  # at the end, and at the start
        watched(Own(layer, 2).eval(), X, closed)


def test_recordings_inside_each_other():
    model = encoder()
    with recording(model) as outer:
        inner, _ = watched(model, X, src_key_padding_mask=padding(6, 4, 2))
    assert len(outer.sites) == 2 * len(inner.sites) == 4


def test_the_fused_function_called_with_keys_of_their_own():
    class Across(nn.Module):
        def __init__(self, attention):
            super().__init__()
            self.attention = attention

        def forward(self, query, key):
            one = self.attention
            weights = one.in_proj_weight, one.in_proj_bias, one.out_proj.weight, one.out_proj.bias
            return torch._native_multi_head_attention(query, key, key, SIZE, HEADS, *weights)[0]

    attention = encoder().layers[0].self_attn
    other = torch.randn(BATCH, LENGTH, SIZE, generator=torch.Generator().manual_seed(2))
    record, (kept,) = watched(Across(attention).eval(), X, other)
    assert record.sites[0].kernel == "native_multi_head_attention"
    with torch.no_grad(), plain_path():
        expected = attention(X, other, other, average_attn_weights=False)[1]
    torch.testing.assert_close(kept.weights, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_of_numbers_are_proved_by_the_product_inside(dtype):
    model, closed, x = encoder().to(dtype), padding(6, 4, 2), X.to(dtype)
    record, maps, _ = observe(model, x, src_key_padding_mask=closed)
    assert all(site.difference <= tolerance(dtype) for site in record.sites)
    for kept, weights in zip(maps, by_hand(model, x, closed), strict=True):
        torch.testing.assert_close(kept.weights[0].to(dtype), weights[0], atol=tolerance(dtype), rtol=0)


def test_a_mode_of_operators_sees_what_it_did_and_the_record_says_what_is_not_watched():
    class Other(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    model, around = encoder(), Other()
    with torch.inference_mode(), around:
        record = same(model, X)
    assert around.seen.count("aten._transformer_encoder_layer_fwd.default") == 4  # two layers in two passes
    assert record.sites == []
    assert ["TorchDispatchMode" in layer.reason for layer in record.without_attention] == [True] * 2


class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("grad", "mode"), [(torch.inference_mode, Mode), (nullcontext, nullcontext)])
def test_where_torch_takes_its_plain_path_it_does_so_under_a_recording(grad, mode):
    model, closed = encoder(), padding(6, 4, 2)
    with grad(), mode():
        record = same(model, X, src_key_padding_mask=closed)
    assert {site.kernel for site in record.sites} == {"multi_head_attention_forward"}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("context", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("made", ["attention", "layer"])
@pytest.mark.parametrize("texts", [1, 7])
def test_states_that_are_transposed_are_projected_as_they_are_without_a_recording(made, context, grad, texts):
    torch.manual_seed(0)
    model = encoder().layers[0]
    model = model if made == "layer" else model.self_attn
    model, states = model.eval().requires_grad_(grad), torch.randn(texts, SIZE, 2).mT
    with context():
        record = same(model, *((states,) * 3 if made == "attention" else (states,)))
    assert [site.difference < 1e-5 for site in record.sites] == [True]
