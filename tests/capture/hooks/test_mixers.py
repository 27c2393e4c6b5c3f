"""Linear and state-space layers as signed matrices, against recurrences written out in float64."""

from importlib import import_module
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from transformers.modeling_utils import AttentionInterface

from attnscope.capture import recording
from attnscope.capture.hooks.mixers import CONTINUES, SCORES
from attnscope.capture.observers import Coarsen, SharedRows
from attnscope.capture.rows import mixing
from attnscope.errors import SelectionError
from attnscope.measures import Measurement
from tests.capture.observing import MapObserver
from tests.capture.tiny import FAMILIES, inputs
from tests.models.mixers import SIZE, UNSEEN, Attention, weights
from tests.tools.coverage.recipes import make

pytest.importorskip("transformers", "5.16", reason="before, kernels were no functions of their own")


def kernel_of(family, name):
    return getattr(import_module(f"transformers.models.{family}.modeling_{family}"), name)


chunk_kimi_delta_attention = kernel_of("kimi_linear", "chunk_kimi_delta_attention")
mamba_selective_scan = kernel_of("mamba", "mamba_selective_scan")
mamba2_chunk_scan = kernel_of("mamba2", "mamba2_chunk_scan")
torch_chunk_gated_delta_rule = kernel_of("qwen3_next", "torch_chunk_gated_delta_rule")

B, T, H, K, V = 2, 11, 3, 6, 4


def recurrence(step, query, tokens=T):
    """What a recurrence over states gives for one-hot values, of one head.  -> [query, key]"""
    state, rows = np.zeros((len(query[0]), tokens)), []
    for t in range(tokens):
        state = step(t, state, np.eye(tokens)[t])
        rows.append(query[t] @ state)
    return np.stack(rows)


def chunk_gla(q, k, v, g):
    state, out = v.new_zeros(*v.shape[::2], q.shape[-1], v.shape[-1]), []
    for t in range(v.shape[1]):
        state = state * g[:, t, :, :, None].exp() + k[:, t, :, :, None] * v[:, t, :, None]
        out.append((q[:, t, :, :, None] * state).sum(2))
    return torch.stack(out, 1), None


def chunk_rwkv7(r, w, k, v, a, b, initial_state=None):
    state, out = v.new_zeros(*v.shape[::2], r.shape[-1], v.shape[-1]), []
    for t in range(v.shape[1]):
        seen = (a[:, t, :, :, None] * state).sum(2, keepdim=True)
        state = state * w[:, t, :, :, None].exp() + b[:, t, :, :, None] * seen
        state = state + k[:, t, :, :, None] * v[:, t, :, None]
        out.append((r[:, t, :, :, None] * state).sum(2))
    return torch.stack(out, 1), None


def fused_chunk_gla(q, k, v, g):
    """Not linear: outputs are squashed."""
    return chunk_gla(q, k, v, g)[0].tanh(), None


class Mixing(nn.Module):
    """Runs one kernel by its name, with these arguments."""

    def __init__(self, kernel, **given):
        super().__init__()
        self.kernel, self.given = kernel, given

    def forward(self, x):
        made = globals()[self.kernel](**self.given)
        return made[0] if isinstance(made, tuple) else made


def noise(*shape, double=True):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1])).to(
        torch.float64 if double else torch.float32
    )


def observe(kernel, **given):
    """The record, the only map, and the output without a recording."""
    model, keep, x = nn.Sequential(Mixing(kernel, **given)).eval(), MapObserver(), torch.zeros(1)
    plain = model(x)
    with torch.inference_mode(), recording(model, [keep], warn=False, mixers=True) as record:
        out = model(x)
    assert torch.equal(out, plain)
    assert not record.failures, record.failures
    return record, keep.maps


def delta_rule():
    q, k, v, g, beta = (noise(B, T, H, size, double=False) for size in (K, K + 1, V, 2, 3))
    k, g, beta = k[..., :K] / k[..., :K].norm(dim=-1, keepdim=True), -g[..., 0].abs(), beta[..., 0].sigmoid()

    def matrix(b, h):
        def step(t, state, value):
            state = state * np.exp(float(g[b, t, h]))
            key = k[b, t, h].double().numpy()
            return state + float(beta[b, t, h]) * np.outer(key, value - key @ state)

        return recurrence(step, q[b, :, h].double().numpy() / K**0.5)

    return (
        torch_chunk_gated_delta_rule.__name__,
        {"query": q, "key": k, "value": v, "g": g, "beta": beta},
        matrix,
    )


def kimi():
    q, k, v, g, beta = (noise(B, T, H, size, double=False) for size in (K, K + 1, V, K + 2, 3))
    k, g, beta = k[..., :K] / k[..., :K].norm(dim=-1, keepdim=True), -g[..., :K].abs(), beta[..., 0].sigmoid()

    def matrix(b, h):
        def step(t, state, value):
            state = state * np.exp(g[b, t, h].double().numpy())[:, None]
            key = k[b, t, h].double().numpy()
            return state + float(beta[b, t, h]) * np.outer(key, value - key @ state)

        return recurrence(step, q[b, :, h].double().numpy() / K**0.5)

    return (
        chunk_kimi_delta_attention.__name__,
        {"query": q, "key": k, "value": v, "g": g, "beta": beta},
        matrix,
    )


def mamba2():
    x, dt, keys, queries = (noise(B, T, *size, double=False) for size in ((H, V), (H,), (1, K), (1, K + 1)))
    queries, a, d = queries[..., :K], -noise(H, double=False).abs(), noise(H, 1, double=False)[:, 0]

    def matrix(b, h):
        steps = np.log1p(np.exp(dt[b, :, h].double().numpy()))

        def step(t, state, value):
            kept = state * np.exp(steps[t] * float(a[h]))
            return kept + steps[t] * np.outer(keys[b, t, 0].double().numpy(), value)

        return recurrence(step, queries[b, :, 0].double().numpy()) + float(d[h]) * np.eye(T)

    given = {"hidden_states": x, "dt": dt, "A": a, "B": keys, "C": queries, "chunk_size": 4, "D": d}
    return mamba2_chunk_scan.__name__, {**given, "dt_softplus": True}, matrix


def mamba():
    channels = 5
    x, dt, gate = noise(B, channels, T, double=False), noise(B, channels, T + 1, double=False)[..., :T], None
    keys, queries = noise(B, K, T, double=False), noise(B, K, T + 2, double=False)[..., :T]
    a, d = -noise(channels, K, double=False).abs(), noise(channels, double=False)

    def matrix(b, _):
        steps, rows = np.log1p(np.exp(dt[b].double().numpy())), []
        for c in range(channels):

            def step(t, state, value, c=c):
                kept = state * np.exp(steps[c, t] * a[c].double().numpy())[:, None]
                return kept + steps[c, t] * np.outer(keys[b, :, t].double().numpy(), value)

            one = recurrence(step, queries[b].double().numpy().T)
            rows.append(one + float(d[c]) * np.eye(T))
        return np.mean(rows, 0)

    given = {"hidden_states": x, "dt": dt, "A": a, "B": keys, "C": queries, "D": d, "z": gate}
    return mamba_selective_scan.__name__, {**given, "delta_softplus": True}, matrix


def gla():
    q, k, v, g = (noise(B, T, H, size) for size in (K, K + 1, V, K + 2))
    k, g = k[..., :K], -g[..., :K].abs()

    def matrix(b, h):
        decay = g[b, :, h].cumsum(0).numpy()  # [token, size]
        both = q[b, :, h].numpy()[:, None] * k[b, :, h].numpy()[None] * np.exp(decay[:, None] - decay[None])
        return np.tril(both.sum(-1))

    return "chunk_gla", {"q": q, "k": k, "v": v, "g": g}, matrix


def rwkv7():
    r, w, k, v, a, b_ = (noise(B, T, H, size) for size in (K, K + 1, K + 2, V, K + 3, K + 4))
    w, k, a, b_ = -w[..., :K].abs(), k[..., :K], a[..., :K] / 3, b_[..., :K] / 3

    def matrix(b, h):
        rows = np.zeros((T, T))
        for j in range(T):
            vector = k[b, j, h].numpy()
            for i in range(j, T):
                if i > j:
                    move = np.diag(np.exp(w[b, i, h].numpy())) + np.outer(b_[b, i, h], a[b, i, h])
                    vector = move @ vector
                rows[i, j] = r[b, i, h].numpy() @ vector
        return rows

    return "chunk_rwkv7", {"r": r, "w": w, "k": k, "v": v, "a": a, "b": b_}, matrix


@pytest.mark.parametrize("kernel", [delta_rule, kimi, mamba2, mamba, gla, rwkv7])
def test_matrix_is_that_of_recurrence_in_float64(kernel):
    name, given, matrix = kernel()
    record, [(site, weights, allowed, *_)] = observe(name, **given)
    [call] = record.sites
    assert (site.kind, call.source, site.name, site.layer) == ("mixer", "probe", "0", 0)
    assert call.difference < (1e-13 if weights.dtype == torch.float64 else 1e-6)
    expected = np.stack([[matrix(b, h) for h in range(call.heads)] for b in range(B)])
    bound = 1e-12 if weights.dtype == torch.float64 else 2e-6  # sums of T terms in float32
    np.testing.assert_allclose(weights.numpy(), expected, atol=bound * np.abs(expected).max(), rtol=0)
    assert torch.equal(allowed[0, 0], torch.ones(T, T, dtype=torch.bool).tril())
    assert SCORES in record.notes


def test_kernel_that_is_not_linear_is_named_and_not_shown():
    name, given, _ = gla()
    record, maps = observe(f"fused_{name}", **given)
    assert not maps
    assert not record.sites
    assert [each.name for each in record.without_attention] == ["0"]
    assert "misses its output" in record.without_attention[0].reason
    assert not any("matrix A" in note for note in record.notes)


def causal_conv1d_fn(hidden_states, weight, bias):
    """A convolution over each channel's last tokens.  [batch, channel, token] -> the same"""
    padded = nn.functional.pad(hidden_states, (weight.shape[1] - 1, 0))
    return nn.functional.conv1d(padded, weight[:, None], bias, groups=len(weight))


class Layer(nn.Module):
    """A convolution, and after it the parts that are given."""

    def __init__(self, *parts):
        super().__init__()
        weight, bias = noise(V, 3), noise(V)
        self.parts = nn.ModuleList(parts)
        self.conv = Mixing("causal_conv1d_fn", hidden_states=noise(B, V, T), weight=weight, bias=bias)

    def forward(self, x):
        made = self.conv(x)
        for part in self.parts:
            part(x)
        return made


def test_convolution_is_shown_where_it_is_all_the_mixing_of_a_layer():
    name, given, _ = gla()
    layers, keep = nn.ModuleList([Layer(), Layer(Mixing(name, **given))]), MapObserver()
    model = nn.Module()
    model.layers, model.forward = layers, lambda x: [layer(x) for layer in layers]
    with torch.inference_mode(), recording(model, [keep], warn=False, mixers=True) as record:
        model(torch.zeros(1))
    assert not record.failures
    assert [each.site.name for each in record.sites] == ["layers.0.conv", "layers.1.parts.0"]
    taps, weights = layers[0].conv.given["weight"].mean(0), keep.maps[0].weights
    expected = sum(torch.diag(taps[2 - back].expand(T - back), -back) for back in range(3))
    torch.testing.assert_close(weights, expected.expand(B, 1, T, T))  # its bias belongs to no token
    assert record.sites[0].kernel == f"short convolution, mean of {V} channels"
    assert record.sites[0].difference < 1e-13


def chunk_linear_attn(q, k, v):
    """Every token sees every other."""
    return torch.einsum("bqhd,bkhd,bkhc->bqhc", q, k, v)


def test_mixer_that_sees_later_tokens_has_no_masked_keys():
    q, k, v = (noise(B, T, H, size) for size in (K, K + 1, V))
    _, [each] = observe("chunk_linear_attn", q=q, k=k[..., :K], v=v)
    torch.testing.assert_close(each.weights, torch.einsum("bqhd,bkhd->bhqk", q, k[..., :K]))
    assert each.allowed.all()


def chunk_simple_gla(q, k, v, g):
    """What calls another kernel is one call."""
    return chunk_gla(q, k, 2 * v, g)


class Twice(Mixing):
    """Heads that a module computes one after the other."""

    def forward(self, x):
        first = super().forward(x)
        return torch.cat([first, super().forward(x)], 2)


def test_heads_of_several_calls_are_one_layer_without_inner_calls():
    _, given, matrix = gla()
    model, keep = nn.Sequential(Twice("chunk_simple_gla", **given)), MapObserver()
    with torch.inference_mode(), recording(model, [keep], warn=False, mixers=True) as record:
        model(torch.zeros(1))
    [call], [each] = record.sites, keep.maps
    assert call.heads == 2 * H
    assert call.difference < 1e-13
    expected = 2 * np.stack([[matrix(b, h) for h in [*range(H)] * 2] for b in range(B)])
    np.testing.assert_allclose(each.weights.numpy(), expected, atol=1e-12)


def test_kernel_that_continues_a_state_is_named():
    name, given, _ = rwkv7()
    record, maps = observe(name, **given, initial_state=torch.ones(B, H, K, V))
    assert not maps
    assert record.without_attention[0].reason == CONTINUES.format("linear attention (RWKV-7)")


def test_rows_in_blocks_and_of_some_heads_are_the_same(monkeypatch):
    name, given, _ = gla()
    _, [whole] = observe(name, **given)
    monkeypatch.setattr(mixing, "BLOCK_BYTES", 4 * B * T * 2)  # two rows of one head
    blocks = []

    class Some:
        def observe(self, attention):
            one = attention.only([2])
            blocks.append(torch.cat([one.rows(at, min(at + 2, T)) for at in range(0, T, 2)], 2))

    model = nn.Sequential(Mixing(name, **given))
    with torch.inference_mode(), recording(model, [Some()], warn=False, mixers=True):
        model(torch.zeros(1))
    assert torch.equal(blocks[0][:, 0], whole.weights[:, 2])


def test_unread_mixer_costs_no_run_of_its_kernel(monkeypatch):
    name, given, _ = gla()
    runs, kernel = [], globals()[name]
    monkeypatch.setitem(globals(), name, lambda q, k, v, g: runs.append(1) or kernel(q, k, v, g))
    model = nn.Sequential(Mixing(name, **given))
    shared = SharedRows([Measurement()], lambda site, count: [])
    with torch.inference_mode(), recording(model, [shared], warn=False, mixers=True) as record:
        model(torch.zeros(1))
    assert len(runs) == 1
    assert record.sites[0].unproved == "none of its rows was read"


def test_scores_are_of_absolute_weights_over_their_sum():
    name, given, matrix = gla()
    measured, maps = Measurement(["entropy", "previous"]), Coarsen(lambda _: None)
    model = nn.Sequential(Mixing(name, **given))
    with torch.inference_mode(), recording(model, [SharedRows([measured, maps])], warn=False, mixers=True):
        model(torch.zeros(1))
    shares = np.abs([[matrix(b, h) for h in range(H)] for b in range(B)])
    shares /= shares.sum(-1, keepdims=True)
    entropy = -np.where(shares > 0, shares * np.log(np.where(shares > 0, shares, 1)), 0).sum(-1)
    for head in measured.scores():
        assert head.scores["entropy"].value == pytest.approx(entropy[:, head.head, 1:].mean(), abs=1e-6)
        before = shares[:, head.head].diagonal(-1, 1, 2)
        assert head.scores["previous"].value == pytest.approx(before.mean(), abs=1e-6)


MIXED = [
    *("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", "kimi_linear", "bailing_hybrid"),
    *("mamba2", "bamba", "falcon_h1", "granitemoehybrid", "nemotron_h", "zamba2", "mamba", "falcon_mamba"),
    *("jamba", "zamba", "lara_mini", "qwen4_exp", "glm5_next", "minimax", "rwkv", "lfm2_moe"),
    *("recurrent_gemma", "inkling_text", "inkling2_text", "inkling2_loop_text"),
]


@pytest.mark.sweep
@pytest.mark.parametrize("family", MIXED)
def test_every_family_is_shown_exactly(family):
    torch.manual_seed(0)
    model, _, given = make(family, failures := [])
    assert given is not None, failures
    keep = MapObserver()
    with torch.inference_mode():
        plain = model(**{**given, "use_cache": False})[0]
        with recording(model, [keep], warn=False, mixers=True) as record:
            assert torch.equal(model(**{**given, "use_cache": False})[0], plain)
    assert not record.failures
    calls = [call for call in record.sites if call.site.kind == "mixer"]
    assert calls
    assert max(call.difference for call in calls) < 1e-6
    layers = {int(next(part for part in call.site.name.split(".") if part.isdigit())) for call in calls}
    assert {call.site.layer for call in calls} == layers
    for each in keep.maps:
        later = torch.ones(each.weights.shape[-2:], dtype=torch.bool).triu(1)
        assert each.site.kind != "mixer" or not each.weights[..., later].any()


def sigmoids(module, query, key, value, attention_mask, scaling=None, **options):
    """Attention by sigmoids, which is no softmax; its product is of three factors, which none follows."""
    with torch._C.DisableTorchFunction():
        groups = query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
        rows = (query @ key.mT).sigmoid().tril()
        WEIGHTS.append(rows)
        return (rows @ value).transpose(1, 2).contiguous(), None


WEIGHTS = []


def each_channel():
    """A scan, and the matrix of each of its channels by the recurrence."""
    name, given, _ = mamba()
    given |= {"z": noise(B, 5, T, double=False)}

    def matrix(b, c):
        dt, a, gate = (given[each].double().numpy() for each in ("dt", "A", "z"))
        steps = np.log1p(np.exp(dt[b, c]))

        def step(t, state, value):
            kept = state * np.exp(steps[t] * a[c])[:, None]
            return kept + steps[t] * np.outer(given["B"][b, :, t].double().numpy(), value)

        one = recurrence(step, given["C"][b].double().numpy().T) + float(given["D"][c]) * np.eye(T)
        return one * (gate[b, c] / (1 + np.exp(-gate[b, c])))[:, None]

    return name, given, np.array([[matrix(b, c) for c in range(5)] for b in range(B)])


def scanned(channel=None):
    name, given, expected = each_channel()
    model, keep = nn.Sequential(Mixing(name, **given)).eval(), MapObserver()
    with torch.inference_mode(), recording(model, [keep], warn=False, mixers=True, channel=channel) as record:
        model(torch.zeros(1))
    assert not record.failures, record.failures
    return record, keep.maps[0].weights[:, 0].double().numpy(), expected


def test_gated_scan_is_mean_of_its_channels_without_a_run(monkeypatch):
    monkeypatch.setattr(mixing.MixingRows, "_run", None)  # of the kernel
    record, found, expected = scanned()
    np.testing.assert_allclose(found, expected.mean(1), rtol=1e-6, atol=1e-6)
    assert record.sites[0].kernel == "state space (Mamba), mean of 5 channels"
    assert record.sites[0].difference < 1e-6


@pytest.mark.parametrize("channel", [0, 3])
def test_one_channel_of_a_scan_is_its_own_matrix(channel):
    record, found, expected = scanned(channel)
    np.testing.assert_allclose(found, expected[:, channel], rtol=1e-6, atol=1e-6)
    assert record.sites[0].kernel == f"state space (Mamba), channel {channel} of 5"
    with pytest.raises(SelectionError, match="no channel 5: the layers have channels 0-4"):
        scanned(5)


@pytest.mark.parametrize("channel", [None, 2])
def test_scan_that_misses_the_output_gives_way_to_identity_values(channel, monkeypatch):
    runs, real = [], mixing.Scan.blocks

    def wrong(self, channels):
        runs.append(channels)
        for rows, keys, left, right in real(self, channels):
            yield rows, keys, left * 1.001, right

    monkeypatch.setattr(mixing.Scan, "blocks", wrong)
    record, found, expected = scanned(channel)
    assert runs
    np.testing.assert_allclose(
        found, expected.mean(1) if channel is None else expected[:, 2], rtol=1e-6, atol=1e-6
    )
    assert record.sites[0].difference < 1e-6


@pytest.mark.parametrize("channel", [None, 1])
def test_rows_of_a_scan_in_blocks_are_the_same(channel, monkeypatch):
    monkeypatch.setattr(mixing, "BLOCK_BYTES", 4 * B * T * 3)  # three rows
    name, given, expected = each_channel()
    model, found = nn.Sequential(Mixing(name, **given)).eval(), []

    class Parts:
        def observe(self, attention):
            found.extend(attention.rows(row, row + 1)[:, 0, 0].double().numpy() for row in range(T))

    with torch.inference_mode(), recording(model, [Parts()], warn=False, mixers=True, channel=channel):
        model(torch.zeros(1))
    expected = expected.mean(1) if channel is None else expected[:, channel]
    np.testing.assert_allclose(np.stack(found, 1), expected, rtol=1e-6, atol=1e-6)


def test_matrix_memory_is_its_formula():
    torch.manual_seed(0)
    model, _, given = make("xlstm", [])
    seen, keep = [], MapObserver()
    for part in model.modules():
        if type(part).__name__ == "xLSTMBackend":
            part.register_forward_pre_hook(lambda _, __, named: seen.append(named), with_kwargs=True)
    with torch.inference_mode(), recording(model, [keep], warn=False, mixers=True) as record:
        model(**{**given, "use_cache": False})
    assert not record.failures
    assert len(keep.maps) == len(record.sites) > 0
    for found, named in zip(keep.maps, seen[:: len(seen) // len(keep.maps)], strict=False):
        query, key, gate, forget = (named[each].double() for each in ("query", "key", "igate", "fgate"))
        decay = torch.nn.functional.logsigmoid(forget).cumsum(-1)  # Beck et al. 2024, equations 19 to 27
        logs = (decay[..., :, None] - decay[..., None, :] + gate[..., None, :]).tril()
        logs = logs.masked_fill(torch.ones_like(logs).triu(1).bool(), -torch.inf)
        most = logs.amax(-1, keepdim=True)
        scores = query @ key.mT / key.shape[-1] ** 0.5 * (logs - most).exp()
        norm = scores.sum(-1, keepdim=True).abs().maximum((-most).exp())
        np.testing.assert_allclose(found.weights.double(), scores / (norm + 1e-6), atol=2e-6)


def test_attention_function_without_formula_is_shown_by_identity_values():
    AttentionInterface.register("sigmoids", sigmoids)
    model = FAMILIES["llama"].build("sigmoids")
    ids = torch.randint(4, 99, (1, 9))
    with torch.inference_mode(), recording(model, [], warn=False) as named:
        model(input_ids=ids)
    assert not named.sites
    keep = MapObserver()
    with torch.inference_mode(), recording(model, [keep], warn=False, mixers=True) as record:
        WEIGHTS.clear()
        model(input_ids=ids)
    own = [WEIGHTS[0], *(each for before, each in pairwise(WEIGHTS) if not torch.equal(before, each))]
    assert not record.failures
    assert [(call.source, call.site.kind, call.site.layer) for call in record.sites] == [
        ("probe", "decoder", layer) for layer in range(3)
    ]
    for each, rows in zip(keep.maps, own, strict=True):
        torch.testing.assert_close(each.weights, rows, atol=1e-6, rtol=0)


def test_attention_function_that_is_not_linear_is_no_matrix():
    AttentionInterface.register(
        "squashed", lambda *args, **kwargs: (sigmoids(*args, **kwargs)[0].tanh(), None)
    )
    model = FAMILIES["llama"].build("squashed")
    with torch.inference_mode(), recording(model, [MapObserver()], warn=False, mixers=True) as record:
        model(input_ids=torch.randint(4, 99, (1, 9)))
    assert not record.sites
    assert all("misses its output" in each.reason for each in record.without_attention)
    assert not any("matrix A" in note for note in record.notes)


@pytest.mark.parametrize("family", ["gpt2", "gpt-oss", "gemma2", "t5"])
def test_identity_values_give_rows_of_softmax(family):
    errors = []

    class Compare:
        def observe(self, attention):
            size = len(attention.queries)
            both = attention.probe.rows(0, size, None), attention.rows(0, size)
            errors.append(float(torch.sub(*both).abs().max()))

    model, given = FAMILIES[family].build(), inputs(FAMILIES[family].inputs)
    with torch.inference_mode(), recording(model, [Compare()], warn=False, mixers=True) as record:
        model(**given)
    assert len(errors) == len(record.sites) > 0
    assert max(errors) < 1e-6


@torch.library.custom_op("attnscope_tests::mix_tokens_first", mutates_args=())
def mix_tokens_first(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    return ((q @ k.mT).sigmoid() @ v).transpose(1, 2).contiguous()


@torch.library.custom_op("attnscope_tests::scale", mutates_args=())
def scale(a: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A matrix that leaves each token where it is."""
    return a + b + 2 * v


def directly(m, q, k, v):
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0]


def tokens_first(m, q, k, v):
    return mix_tokens_first(*(each.transpose(1, 2).contiguous() for each in (q, k, v))).transpose(1, 2)


OPERATORS = {
    "a custom operator": (UNSEEN["a custom operator"], lambda q, k: weights(q, k)),
    "tokens first": (tokens_first, lambda q, k: (q @ k.mT).sigmoid()),
    "an operator of torch, called directly": (directly, lambda q, k: weights(q, k)),
    "one that mixes no tokens": (lambda m, q, k, v: scale(q, k, v), None),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operator_is_shown_by_identity_values(name):
    mix, expected = OPERATORS[name]
    module, keep, x = Attention(mix).eval(), MapObserver(), torch.randn(1, 7, SIZE)
    model = nn.Sequential(module)
    with torch.inference_mode(), recording(model, [keep], warn=False, mixers=True) as record:
        model(x)
    assert not record.failures
    assert not record.without_attention
    assert len(record.sites) == (expected is not None)
    if expected is not None:
        q, k, _ = module.heads(x)
        torch.testing.assert_close(keep.maps[0].weights, expected(q, k), atol=1e-6, rtol=0)
