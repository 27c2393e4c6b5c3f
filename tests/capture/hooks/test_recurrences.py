"""Mixers of whole models against their recurrences, written out in NumPy's float64."""

from importlib import import_module

import numpy as np
import pytest
import torch

from attnscope.capture import recording
from tests.capture.hooks.test_mixers import recurrence
from tests.capture.observing import MapObserver
from tests.tools.coverage.recipes import make


def lightning(model, _):
    """MiniMax: a state decays by its head's slope, and gains the outer product of key and value."""
    seen = []

    def record(module, _, states):
        heads, layer = module.num_attention_heads, module.layer_idx
        q, k, _ = np.split(states.unflatten(-1, (heads, -1)).double().numpy(), 3, -1)
        factor = 1 - layer / (module.num_hidden_layers - 1 + 1e-5) + 1e-5
        keep = np.exp(-(2.0 ** (-8 / heads * (np.arange(heads) + 1))) * factor)

        def matrix(b, h):
            def step(t, state, value):
                return keep[h] * state + np.outer(k[b, t, h], value)

            return recurrence(step, q[b, :, h], q.shape[1])

        seen.append(np.array([[matrix(b, h) for h in range(heads)] for b in range(len(q))]))

    for part in model.modules():
        if type(part).__name__ == "MiniMaxLightningAttention":
            part.act_fn.register_forward_hook(lambda _, given, out, part=part: record(part, given, out))
    return seen


def wkv(_, patch):
    """RWKV-4: sums of exp(key) · value over those of exp(key), both decaying; the own token has a bonus."""
    module, seen = import_module("transformers.models.rwkv.modeling_rwkv"), []
    kernel = module.rwkv_linear_attention

    def record(time_decay, time_first, key, value, **more):
        decay, bonus, keys = (each.double().numpy() for each in (time_decay, time_first, key))
        keep, count = np.exp(-np.exp(decay)), keys.shape[1]
        above, below = np.zeros((2, len(keys), keys.shape[2], count))
        rows = []
        for t in range(count):
            one, own, later = np.eye(count)[t], np.exp(bonus + keys[:, t]), np.exp(keys[:, t])
            added = (above + own[..., None] * one) / (below + own[..., None])  # [text, channel, key]
            rows.append(added.mean(1))
            above = keep[:, None] * above + later[..., None] * one
            below = keep[:, None] * below + later[..., None]
        seen.append(np.stack(rows, 1)[:, None])
        return kernel(time_decay, time_first, key, value, **more)

    patch.setattr(module, "rwkv_linear_attention", record)
    return seen


def gated(_, patch):
    """RecurrentGemma: each channel's state is the last, times its gate, and the token's own value."""
    module, seen = import_module("transformers.models.recurrent_gemma.modeling_recurrent_gemma"), []
    scan = module.RecurrentGemmaRglru._rnn_scan

    def record(self, hidden_states, recurrent_gate, reset, recurrent_states, **more):
        gates, count = (recurrent_gate * ~reset).double().numpy(), recurrent_gate.shape[1]
        state, rows = np.zeros((len(gates), gates.shape[2], count)), []
        for t in range(count):
            state = gates[:, t, :, None] * state + np.eye(count)[t]
            rows.append(state.mean(1))
        seen.append(np.stack(rows, 1)[:, None])
        return scan(self, hidden_states, recurrent_gate, reset, recurrent_states, **more)

    patch.setattr(module.RecurrentGemmaRglru, "_rnn_scan", record)
    return seen


FAMILIES = {"minimax": lightning, "rwkv": wkv, "recurrent_gemma": gated}


@pytest.mark.parametrize("family", FAMILIES)
def test_mixer_of_a_model_is_its_recurrence(family, monkeypatch):
    torch.manual_seed(0)
    model, _, given = make(family, [])
    given = {**given, "use_cache": False}
    with monkeypatch.context() as patch, torch.inference_mode():
        seen = FAMILIES[family](model, patch)
        model(**given)
        expected = [*seen]
    keep = MapObserver()
    with torch.inference_mode(), recording(model, [keep], warn=False, mixers=True) as record:
        model(**given)
    assert not record.failures
    maps = [each.weights.double().numpy() for each in keep.maps if each.site.kind == "mixer"]
    assert maps
    for found, matrix in zip(maps, expected, strict=True):
        np.testing.assert_allclose(found, matrix, atol=1e-5 * np.abs(matrix).max())
    assert max(call.difference for call in record.sites if call.site.kind == "mixer") < 1e-5
