"""A recording restores the model, observes only its own thread, and changes no output."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack
from transformers.modeling_utils import AttentionInterface

from attnscope.capture import recording
from attnscope.capture.record import FunctionObserver
from attnscope.errors import SizeError
from tests.capture import modules
from tests.capture.observing import MapObserver, observe
from tests.capture.tiny import FAMILIES, inputs


def traces(model):
    """All that a recording could leave: hooks, attributes, patches, modes, flags."""
    own = [vars(module) for module in model.modules()]
    return (
        [sorted(each) for each in own],
        [len(hooks) for each in own for name, hooks in each.items() if "hooks" in name],
        dict(vars(AttentionInterface)),
        nn.Module.__dict__["__call__"],
        len(_get_current_function_mode_stack()),
        torch.backends.mha.get_fastpath_enabled(),
        torch.overrides.has_torch_function,
    )


@pytest.fixture
def bert():
    return FAMILIES["bert"].build()


@pytest.mark.parametrize("error", [SizeError, MemoryError, KeyboardInterrupt, SystemExit])
def test_model_is_restored_after_an_exception(bert, error):
    def fail(attention):
        if attention.site.layer == 1:
            raise error

    before = traces(bert)
    with pytest.raises(error), recording(bert, [FunctionObserver(fail)]):
        bert(**inputs("text"))
    assert traces(bert) == before


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_aborted_pass_does_not_disturb_the_next(bert, error):
    def fail(*_):
        raise error

    with torch.inference_mode(), recording(bert) as record:
        handle = bert.encoder.layer[2].attention.register_forward_hook(fail)
        with pytest.raises(error):
            bert(**inputs("text"))
        handle.remove()
        count = len(record.sites)
        bert(**inputs("text"))
    again = record.sites[count:]
    assert [site.site.layer for site in again] == [0, 1, 2]
    assert [site.site.call for site in again] == [0, 0, 0]


def test_nested_recordings_restore_the_model(bert):
    before = traces(bert)
    with torch.inference_mode(), recording(bert) as outer:
        bert(**inputs("text"))
        with recording(bert) as inner:
            bert(**inputs("text"))
        assert traces(bert) != before
        bert(**inputs("text"))
    assert (len(outer.sites), len(inner.sites)) == (9, 3)
    assert traces(bert) == before


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_overlapping_recordings_may_end_in_any_order(name):
    model, kept = FAMILIES[name].build(), [MapObserver(), MapObserver()]
    before, (one, other) = traces(model), (recording(model, [each]) for each in kept)
    with torch.inference_mode():
        plain = model(**inputs("text"))[0]
        one.__enter__(), other.__enter__()
        model(**inputs("text"))
        one.__exit__(None, None, None)
        second = model(**inputs("text"))[0]
        other.__exit__(None, None, None)
    assert torch.equal(plain, second)
    assert [len(each.maps) for each in kept] == [3, 6]
    assert all(torch.equal(a.weights, b.weights) for a, b in zip(kept[0].maps * 2, kept[1].maps, strict=True))
    assert traces(model) == before


def test_other_model_is_not_recorded(bert):
    other = FAMILIES["llama"].build()
    with torch.inference_mode(), recording(bert) as record:
        other(**inputs("text"))
        modules.Fused()(torch.randn(1, 5, 16))
    assert record.sites == []


def test_attention_of_an_observer_is_not_recorded(bert):
    def attend(attention):
        with torch.inference_mode():
            modules.Fused()(torch.randn(1, 5, 16))
            bert.encoder.layer[0].attention.self(torch.randn(1, 5, 32))

    with (
        torch.inference_mode(),
        recording(bert) as outer,
        recording(bert, [FunctionObserver(attend)]) as record,
    ):
        bert(**inputs("text"))
    assert len(record.sites) == len(outer.sites) == 3


def in_threads(*works):
    """Run functions at once, each in a thread of its own, and raise what any of them raised."""
    gate = threading.Barrier(len(works))
    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(lambda work=work: (gate.wait(), work())) for work in works]:
            done.result()


@pytest.mark.parametrize("shared", [True, False])
def test_two_threads_record_and_a_third_is_unobserved(bert, shared):
    models = [bert, bert if shared else FAMILIES["llama"].build()]
    before = [traces(model) for model in models]
    records, kept = [], []

    def record(model, length):
        keep = MapObserver(lambda site: [0])
        for _ in range(10):
            with torch.inference_mode(), recording(model, [keep]) as record:
                model(**inputs("text", length=length))
            records.append((length, record))
        kept.append(keep)

    def unobserved():
        for _ in range(20):
            with torch.inference_mode():
                bert(**inputs("text", length=7))

    in_threads(lambda: record(models[0], 9), lambda: record(models[1], 11), unobserved)
    assert len(records) == 20
    for length, seen in records:
        assert [site.queries for site in seen.sites] == [length] * 3
    assert {kept_map.weights.shape[-1] for keep in kept for kept_map in keep.maps} == {9, 11}
    assert [traces(model) for model in models] == before


def test_torch_fused_layer_stays_fused_on_every_thread(monkeypatch):
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    fused, kernel = [], torch._transformer_encoder_layer_fwd

    def counted(*given):
        fused.append(threading.get_ident())
        return kernel(*given)

    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", counted)
    both = threading.Barrier(2)

    def recorded():
        with torch.inference_mode(), recording(nn.Sequential(layer)) as record:
            layer(torch.randn(2, 5, 16))
            both.wait()
            both.wait()
        assert len(record.sites) == 1

    def plain():
        both.wait()  # while the other thread records
        with torch.inference_mode():
            layer(torch.randn(2, 5, 16))
        both.wait()

    in_threads(recorded, plain)
    assert len(set(fused)) == 2


def test_output_dtype_is_unchanged_by_recording():
    record, _, output = observe(FAMILIES["llama"].build().to(torch.bfloat16), **inputs("text"))
    assert output.last_hidden_state.dtype == torch.bfloat16
    assert {site.dtype for site in record.sites} == {"bfloat16"}


def test_gradients_are_unchanged_by_recording():
    model, slopes = FAMILIES["bert"].build(), []
    for watch in (nullcontext(), recording(model)):
        model.zero_grad()
        with watch:
            model(**inputs("text")).last_hidden_state.sum().backward()
        slopes.append(model.embeddings.word_embeddings.weight.grad.clone())
    assert torch.equal(*slopes)
