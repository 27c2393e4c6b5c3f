"""Short convolutions that are a layer's heads, against their own taps in NumPy's float64."""

import numpy as np
import pytest
import torch
from torch import nn

from attnscope.capture import recording
from attnscope.questions.sentences import site_title
from tests.capture.hooks import test_mixers as kernels
from tests.capture.hooks.test_mixers import B, Mixing, T, V, noise
from tests.capture.observing import MapObserver
from tests.models.mixers import SIZE, Attention
from tests.tools.coverage.recipes import make

pytest.importorskip("transformers.models.inkling2", reason="before, no family had several in a layer")


def toeplitz(taps):
    """The matrix of a causal convolution, whose last tap is of the token itself."""
    return sum(np.diag(np.full(T - back, tap), -back) for back, tap in enumerate(taps[::-1]))


class Around(nn.Module):
    """Convolutions of different sizes before and behind attention."""

    def __init__(self):
        super().__init__()
        self.before, self.behind = (
            Mixing("causal_conv1d_fn", hidden_states=noise(B, size, T), weight=noise(size, 3), bias=None)
            for size in (V, V + 1)
        )
        self.attention = Attention()

    def forward(self, x):
        return self.before(x), self.attention(x), self.behind(x)


@pytest.mark.parametrize("channel", [None, 3, V])
def test_convolutions_around_attention_are_heads_of_one_layer(channel):
    model, keep, one = nn.Sequential(Around()), MapObserver(), MapObserver(lambda site: [1])
    with (
        torch.inference_mode(),
        recording(model, [keep, one], warn=False, mixers=True, channel=channel) as record,
    ):
        model(torch.randn(B, T, SIZE))
    assert not record.failures
    assert record.matrices == ["0.before", "0.behind"]
    _, call = record.sites
    assert (call.site.name, call.site.kind, call.site.layer, call.heads) == ("0", "mixer", 0, 2)
    of = [f"mean of {V} channels", f"mean of {V + 1} channels"]
    if channel is not None:  # the narrower one lacks a channel of this number
        of = [of[0] if channel == V else f"channel {channel} of {V}", f"channel {channel} of {V + 1}"]
    titles = [f"short convolution, {of[0]} (before)", f"short convolution, {of[1]} (behind)"]
    assert [site_title(call, head) for head in range(2)] == titles
    note = f"H0 {titles[0]}; H1 {titles[1]}, each head as a signed matrix"
    assert any(note in each for each in record.notes)
    assert call.difference < 1e-13
    for head, part in enumerate((model[0].before, model[0].behind)):
        weight = part.given["weight"].numpy()
        expected = toeplitz(weight.mean(0) if channel is None or channel >= len(weight) else weight[channel])
        for found in (keep.maps[1].weights[:, head], *(one.maps[1].weights[:, 0] if head else ())):
            np.testing.assert_allclose(found.numpy(), np.broadcast_to(expected, found.shape), atol=1e-15)
    assert not keep.maps[1].allowed[:, :, np.triu_indices(T, 1)[0], np.triu_indices(T, 1)[1]].any()


def test_convolution_that_is_not_linear_names_its_layer(monkeypatch):
    plain = kernels.causal_conv1d_fn

    def causal_conv1d_fn(hidden_states, weight, bias):
        made = plain(hidden_states, weight, bias)
        return made.tanh() if len(weight) > V else made

    monkeypatch.setattr(kernels, "causal_conv1d_fn", causal_conv1d_fn)
    model = nn.Sequential(Around())
    with torch.inference_mode(), recording(model, [MapObserver()], warn=False, mixers=True) as record:
        model(torch.randn(B, T, SIZE))
    assert [each.name for each in record.without_attention] == ["0"]
    assert not record.matrices
    assert not any("matrix A" in note for note in record.notes)


INKLING = ("inkling_text", "inkling2_text", "inkling2_loop_text")

INKLING = ("inkling_text", "inkling2_text", "inkling2_loop_text")


def taps_of(part, given):
    """Those of each token's channels, its own first, in float64.  -> [batch, token, tap, channel]"""
    if not hasattr(part, "weight_proj"):
        weight = part.conv1d.weight[:, 0].detach().double().numpy().T[::-1]
        return np.broadcast_to(weight, (*given[0].shape[:2], *weight.shape))
    shares = given[1] @ part.weight_proj.weight.detach().double().numpy().T
    shares = shares.reshape(*shares.shape[:2], part.num_heads, part.conv_kernel_size).swapaxes(-2, -1)
    static = part.static_weight.detach().double().numpy()
    return static + shares.repeat(static.shape[1] // part.num_heads, -1)


@pytest.mark.sweep
@pytest.mark.parametrize("channel", [None, 2])
@pytest.mark.parametrize("family", INKLING)
def test_convolutions_of_inkling_are_their_taps_in_float64(family, channel):
    torch.manual_seed(0)
    model, _, given = make(family, [])
    keep, seen = MapObserver(), []
    for path, part in model.named_modules():
        if type(part).__name__.endswith("ShortConvolution"):
            part.register_forward_hook(lambda *call, path=path: seen.append((path, *call)))
    with torch.inference_mode(), recording(model, [keep], warn=False, mixers=True, channel=channel) as record:
        model(**{**given, "use_cache": False})
    assert not record.failures
    assert record.matrices == [path for path, *_ in seen]
    calls = [call for call in record.sites if call.site.kind == "mixer"]
    assert [call.heads for call in calls] == [4] * len(calls)
    assert max(call.difference for call in calls) < 1e-6
    maps = [head for each in keep.maps if each.site.kind == "mixer" for head in each.weights.unbind(1)]
    for found, (_, part, args, output) in zip(maps, seen, strict=True):
        values, *_ = args = [each.double().numpy() for each in args]
        each, count, dynamic = taps_of(part, args), values.shape[1], hasattr(part, "weight_proj")
        root = 1 if family == INKLING[0] else np.sqrt(each.shape[2] * (1 + dynamic) + 1)
        matrix = np.zeros((len(values), values.shape[2], count, count))
        for row in range(count):
            for back in range(min(each.shape[2], row + 1)):
                matrix[:, :, row, row - back] = each[:, row, back]
        whole = (matrix + np.eye(count)) / root  # with the residual
        again = np.einsum("bcqk,bkc->bqc", whole, values)
        np.testing.assert_allclose(output, again, atol=1e-5 * np.abs(again).max())
        shown = whole if dynamic else matrix
        expected = shown.mean(1) if channel is None else shown[:, channel]
        np.testing.assert_allclose(found.double(), expected, atol=1e-5 * np.abs(expected).max())
