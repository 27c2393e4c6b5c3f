"""A failing recording never changes the model's result, and the record gives the reason."""

import threading
from functools import partial

import pytest
import torch
from torch import nn

from attnscope.capture import recorder, recording
from attnscope.capture.hooks import modules as stack
from attnscope.capture.hooks import softmax, torch_functions
from attnscope.capture.placing import chunked
from attnscope.capture.placing import kinds as sites
from attnscope.capture.record import FunctionObserver
from attnscope.errors import SizeError
from attnscope.fused.fused_pass import FusedPass
from tests.capture import modules
from tests.capture.observing import MapObserver, observe
from tests.capture.placing.mixing_modules import Chain
from tests.capture.placing.test_chunked import longformer, texts
from tests.capture.tiny import FAMILIES, inputs

pytestmark = pytest.mark.filterwarnings("ignore:the recording failed")


def broken(*_, **__):
    raise ZeroDivisionError("a mistake of ours.")


X = torch.randn(1, 5, 16)


def gpt2():
    return FAMILIES["gpt2"].build(), inputs("text")


def softmaxed():
    return modules.blocks(modules.softmaxed), {"input": X}


def projecting():
    model = modules.blocks(partial(nn.MultiheadAttention, 16, 4, batch_first=True), 1)
    model[0].forward = lambda x: model[0].attention(x, x, x)[0]
    return model, {"input": X}


def windows():
    return longformer(), texts()


PLACES = [  # what fails, where it stands, and a model that gets there
    (stack.ModuleStack, "_enter", gpt2),
    (recorder, "texts_in_batch", softmaxed),
    (recorder, "sdpa_call", gpt2),
    (recorder, "conclude", gpt2),
    (torch_functions, "capture_fast_path", projecting),
    (recorder.Frame, "from_arguments", gpt2),
    (sites.Sites, "begin_pass", gpt2),
    (recorder.Recorder, "add", gpt2),
    (recorder.Repeats, "on_capture", gpt2),
    (chunked, "is_chunked", gpt2),
    (chunked, "compare_rows", windows),
    (sites, "has_other_keys", gpt2),
    (softmax, "masked_keys", softmaxed),
    (softmax.Trails, "_start", softmaxed),
    (softmax.Trails, "_carry_on", softmaxed),
    (softmax.Trails, "_weighing", softmaxed),
    (softmax.Trails, "_mix", softmaxed),
    (FusedPass, "attend", gpt2),
]


@pytest.mark.parametrize(("owner", "name", "made"), PLACES, ids=[f"{p[1]}-{p[2].__name__}" for p in PLACES])
def test_model_output_is_unchanged_by_failing_recording(monkeypatch, owner, name, made):
    model, given = made()

    def run():
        output = model(**given)
        return output if isinstance(output, torch.Tensor) else output.last_hidden_state

    with torch.inference_mode():
        expected = run()
        with recording(model, fused=FusedPass() if owner is FusedPass else None) as record:
            monkeypatch.setattr(owner, name, broken)
            assert torch.equal(run(), expected)
    assert record.failures[0].reason == "ZeroDivisionError: a mistake of ours"
    assert "the recording failed in " in record.notes[0]
    assert len(record.failures) == len(set(record.failures))  # however many tensors it meets


def test_kernel_runs_once_despite_failures(monkeypatch):
    calls = []

    class Counting(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func.__name__ == "scaled_dot_product_attention":
                calls.append(func)
            return func(*args, **(kwargs or {}))

    model, given = gpt2()
    for name in ("sdpa_call", "conclude", "replace"):
        calls.clear()
        with monkeypatch.context() as patch, torch.inference_mode(), Counting(), recording(model):
            patch.setattr(recorder, name, broken)
            model(**given)
        assert len(calls) == 3


def test_layer_with_failing_observer_is_named():
    def fail(attention):
        if attention.site.layer == 1:
            raise ValueError("it cannot be read")

    model, given = gpt2()
    keep = MapObserver()
    with torch.inference_mode():
        expected = model(**given).last_hidden_state
        with recording(model, [FunctionObserver(fail), keep]) as record:
            assert torch.equal(model(**given).last_hidden_state, expected)
    assert [site.site.layer for site in record.sites] == [0, 2]
    assert [kept.site.layer for kept in keep.maps] == [0, 2]
    assert record.warnings == [
        "the recording failed in h.1.attn (ValueError: it cannot be read), so its attention is missing"
    ]
    assert record.without_attention == []


def test_kernel_errors_reach_the_model():
    def run(m, query, key):
        with pytest.raises(RuntimeError):
            m.kernel(query, key, key)
        return query

    query, key = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 7)
    assert torch.equal(observe(modules.FunctionModule(run, kernel=modules.Kernel()), query, key)[2], query)


def test_memory_error_ends_the_pass(monkeypatch):
    model, given = gpt2()
    monkeypatch.setattr(recorder, "conclude", lambda *_: bytearray(1 << 62))
    with pytest.raises(MemoryError), torch.inference_mode(), recording(model):
        model(**given)


def test_endless_attention_calls_end_the_pass(monkeypatch):
    monkeypatch.setattr("attnscope.capture.tracker.MOST_CALLS", 5)
    model = FAMILIES["albert"].build()
    model.config.num_hidden_layers = 10**9
    with pytest.raises(SizeError, match="attends more than 5 times in one pass"), recording(model):
        model(torch.tensor([[5, 6, 7]]))


def watch(model, *given):
    with torch.inference_mode(), recording(model) as record:
        model(*given)
    return record


@pytest.fixture
def model():
    return nn.Sequential(modules.Fused()).eval()


def test_model_uncalled_or_on_another_thread_warns(model):
    with pytest.warns(UserWarning, match="it was not called during the recording"), recording(model):
        pass
    thread = threading.Thread(target=model, args=(X,))
    with pytest.warns(UserWarning, match="ran on another thread"), recording(model):
        [step() for step in (thread.start, thread.join)]


NOTHING = {  # what is said of a model that is made of a plain one, or has no attention
    r"its layers hold .*GELU": lambda plain: Chain(layers=[nn.Sequential(nn.Linear(16, 16), nn.GELU())]),
    r"its forward pass \((Linear|Sequential)\) computes none": lambda plain: nn.Linear(16, 16),
    r"\(torch.jit\), which .*: record the original module": lambda plain: torch.jit.trace(plain, (X,)),
    r"\(torch.jit\)": lambda plain: torch.jit.script(nn.Sequential(nn.Linear(16, 16))),
    r"\(torch.export\), which .*: record the original module": (
        lambda plain: torch.export.export(plain, (X,)).module()
    ),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("told", NOTHING)
def test_recording_without_attention_warns_with_reason(model, told, inside):
    made = NOTHING[told](model)
    with pytest.warns(UserWarning, match=f"no attention was seen: .*{told}"):
        watch(nn.Sequential(made) if inside else made, X)


def test_failed_recording_warns_with_its_place(model, monkeypatch):
    monkeypatch.setattr(recorder, "sdpa_call", broken)
    with pytest.warns(UserWarning, match=r"no attention was seen: the recording failed in 0 \(ZeroDivision"):
        watch(model, X)


@pytest.mark.filterwarnings("error")
def test_complete_or_failing_recording_does_not_warn(model):
    assert watch(model, X).sites
    with pytest.raises(KeyError), recording(model):
        raise KeyError


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
def test_output_with_nan_is_noted_once(value):
    model = nn.Sequential(*(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True) for _ in range(2))).eval()
    model[1].norm2.bias.data[3] = value  # behind all attention
    with recording(model, warn=False) as record:
        for _ in range(2):
            model(torch.zeros(1, 5, 16))
    assert record.notes == ["the model's own output contains NaN"] * (value != value)
