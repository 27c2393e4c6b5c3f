"""torch's fused encoder layers stay fused during a recording, and their attention is captured and proved."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attnscope.capture import recording
from attnscope.capture.record import tolerance
from tests.capture.modules import FunctionModule
from tests.capture.observing import observe

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

BATCH, LENGTH, SIZE, HEADS = 3, 6, 16, 4


class Own(nn.TransformerEncoder):
    def forward(self, x, **given):
        return super().forward(x, **given)


def encoder(made=nn.TransformerEncoder, norm_first=False, nested=True, **options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(SIZE, HEADS, 32, batch_first=True, norm_first=norm_first, **options)
    return made(layer, 2, enable_nested_tensor=nested and not norm_first).eval()


def padding(*lengths):
    """True where a text has ended.  -> [batch, position]"""
    return torch.arange(LENGTH) >= torch.tensor(lengths)[:, None]


def watched(model, *given, **options):
    """Run as it is and watched; all weights are proved.  -> (record, kept maps)"""
    record, maps, _ = observe(model, *given, **options)
    assert record.warnings == []
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
    """The weights of every layer by its plain path, which gradients need.  -> [[batch, head, query, key]]"""
    seen = []
    for layer in model.layers:
        states = layer.norm1(x) if layer.norm_first else x
        options = {"key_padding_mask": closed, "average_attn_weights": False}
        seen.append(layer.self_attn(states, states, states, **options)[1])
        x = layer(x, src_key_padding_mask=closed)
    return seen


X = torch.randn(BATCH, LENGTH, SIZE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("activation", ["relu", "gelu", nn.functional.silu], ids=["relu", "gelu", "its own"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_fast_path_weights_without_padding(norm_first, activation):
    model = encoder(norm_first=norm_first, activation=activation)
    record, maps = watched(model, X)
    assert [site.site.name for site in record.sites] == ["layers.0.self_attn", "layers.1.self_attn"]
    assert [site.site.kind for site in record.sites] == ["encoder"] * 2
    whole = isinstance(activation, str)  # else a layer runs its own code around fused attention
    kernel = "transformer_encoder_layer_fwd" if whole else "native_multi_head_attention"
    assert {site.kernel for site in record.sites} == {kernel}
    for kept, weights in zip(maps, by_hand(model, X), strict=True):
        torch.testing.assert_close(kept.weights, weights, atol=1e-6, rtol=0)


CLOSED = [padding(6, 4, 2), padding(4, 3, 1), padding(5, 5, 5), padding(6, 4, 2).flip(1)]


@pytest.mark.parametrize("closed", CLOSED)
@pytest.mark.parametrize("nested", [True, False])
def test_fast_path_weights_with_padding(nested, closed):
    model, nested = encoder(Own, nested=nested), nested and not closed[:, 0].any()  # at the end of the texts
    record, maps = watched(model, X, src_key_padding_mask=closed)
    assert [(site.queries, site.keys) for site in record.sites] == [(LENGTH, LENGTH)] * 2
    for kept, weights in zip(maps, by_hand(model, X, closed), strict=True):
        alive = ~closed[:, None, :, None]
        torch.testing.assert_close(kept.weights * alive, weights * alive, atol=1e-6, rtol=0)
        rows = kept.allowed.expand_as(kept.weights)[:, 0]  # [text, query, key]
        real = ~closed[:, None] & ~closed[:, :, None]
        assert torch.equal(rows, real.expand_as(rows))
        if nested:
            assert not (kept.weights * ~alive).any()


def test_fast_path_mask_with_and_without_padding():
    causal = nn.Transformer.generate_square_subsequent_mask(LENGTH) < 0
    for model, closed in ((encoder(), None), (encoder(nested=False), padding(6, 4, 2))):
        record, maps = watched(model, X, mask=causal, src_key_padding_mask=closed)
        assert [site.site.kind for site in record.sites] == ["decoder"] * 2
        opened = ~causal if closed is None else ~causal & ~closed[:, None] & ~closed[:, :, None]
        assert torch.equal(maps[0].allowed[:, 0], opened.expand_as(maps[0].allowed[:, 0]))


def test_nested_states_reach_attention_through_custom_layer():
    model = encoder()
    for layer in model.layers:
        layer.activation_relu_or_gelu = 0
    record, _ = watched(model, X, src_key_padding_mask=padding(4, 3, 1))
    assert [site.kernel for site in record.sites] == ["native_multi_head_attention"] * 2
    assert [site.keys for site in record.sites] == [LENGTH] * 2


def test_nested_recordings_both_see_the_fast_path():
    model = encoder()
    with recording(model) as outer:
        inner, _ = watched(model, X, src_key_padding_mask=padding(6, 4, 2))
    assert len(outer.sites) == 2 * len(inner.sites) == 4


def across(m, query, key):
    """The fused function with keys of their own."""
    one = m.attention
    weights = one.in_proj_weight, one.in_proj_bias, one.out_proj.weight, one.out_proj.bias
    return torch._native_multi_head_attention(query, key, key, SIZE, HEADS, *weights)[0]


def test_fused_function_with_separate_keys():
    attention, other = encoder().layers[0].self_attn, X.flip(2)
    record, (kept,) = watched(FunctionModule(across, attention=attention).eval(), X, other)
    assert record.sites[0].kernel == "native_multi_head_attention"
    expected = attention(X, other, other, average_attn_weights=False)[1]
    torch.testing.assert_close(kept.weights, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_fast_path_of_other_dtypes_is_proved(dtype):
    model, closed, x = encoder().to(dtype), padding(6, 4, 2), X.to(dtype)
    record, maps, _ = observe(model, x, src_key_padding_mask=closed)
    assert all(site.difference <= tolerance(dtype) for site in record.sites)
    for kept, weights in zip(maps, by_hand(model, x, closed), strict=True):
        torch.testing.assert_close(kept.weights[0].to(dtype), weights[0], atol=tolerance(dtype), rtol=0)


def test_dispatch_mode_sees_same_operators_and_record_is_empty():
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


PLAIN = [(torch.inference_mode, BaseTorchFunctionMode), (nullcontext, nullcontext)]


@pytest.mark.parametrize(("grad", "mode"), PLAIN)
def test_torch_slow_path_is_unchanged_by_recording(grad, mode):
    with grad(), mode():
        record = same(encoder(), X, src_key_padding_mask=padding(6, 4, 2))
    assert {site.kernel for site in record.sites} == {"multi_head_attention_forward"}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("context", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("made", ["attention", "layer"])
@pytest.mark.parametrize("texts", [1, 7])
def test_transposed_states_project_as_in_unrecorded_pass(made, context, grad, texts):
    layer = encoder().layers[0].requires_grad_(grad)
    states = torch.randn(texts, SIZE, 2).mT
    with context():
        record = same(layer, states) if made == "layer" else same(layer.self_attn, states, states, states)
    (site,) = record.sites
    assert site.site.name == ("self_attn" if made == "layer" else "")
    assert site.difference < 1e-5
