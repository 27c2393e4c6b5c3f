"""Compiled models are captured uncompiled, however they were compiled, and stay compiled."""

import threading
from functools import partial

import pytest
import torch
from torch import nn

from attnscope.capture import recording
from attnscope.capture.hooks.functions import COMPILED
from tests.capture import modules
from tests.capture.observing import MapObserver, observe


class Counting:
    """A backend of ``torch.compile`` that runs graphs as they are, and counts its work."""

    def __init__(self):
        self.compiled = self.ran = 0

    def __call__(self, graph, _):
        self.compiled += 1

        def run(*given):
            self.ran += 1
            return graph.forward(*given)

        return run


def compiled(plain, how, backend):
    """What is called in the place of the plain model."""
    compile = partial(torch.compile, backend=backend)
    if how == "function":
        return compile(lambda *given, **more: plain(*given, **more))
    if how == "module":
        return compile(plain)
    if how == "method":
        plain.compile(backend=backend)
    for index, part in enumerate(plain if how in ("parts", "forward") else []):
        if how == "parts":
            plain[index] = compile(part)
        else:
            part.forward = compile(part.forward)
    if how == "own forward":
        plain.forward = compile(plain.forward)
    return plain


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


WAYS = ["module", "method", "function", "parts", "forward"]
CASES = [  # every way with warm and cold functions, and with each kind of attention
    *((modules.Fused, how, True) for how in WAYS),
    *((modules.softmaxed, how, False) for how in WAYS),
]


@pytest.mark.sweep(3)
@pytest.mark.parametrize(("made", "how", "warm"), CASES)
def test_compiled_models_are_captured_and_stay_compiled(made, how, warm):
    x, keep, backend = torch.randn(2, 5, 16), MapObserver(), Counting()
    plain = modules.blocks(made)
    _, expected, output = observe(plain, x)
    with torch.inference_mode():
        call = compiled(plain, how, backend)
        if warm:
            call(x)
        before = backend.compiled, backend.ran
        with recording(plain, [keep]) as record:
            assert torch.equal(call(x), output)
        assert (backend.compiled, backend.ran) == before
        assert torch.equal(call(x), output)
        assert backend.ran > before[1]
        if warm:
            assert backend.compiled == before[0]
    assert [kept.site.layer for kept in keep.maps] == [0, 1]
    for kept, own in zip(keep.maps, expected, strict=True):
        assert torch.equal(kept.weights, own.weights)
    assert record.failures == []
    assert record.notes == [COMPILED]


@pytest.mark.parametrize("how", ["module", "method", "forward"])
def test_compiled_part_beside_attention_is_noted(how):
    part = nn.Linear(16, 16).eval()
    if how == "forward":
        part.forward = torch.compile(part.forward, backend="eager")
    else:
        part = compiled(part, how, "eager")
    model = modules.FunctionModule(
        lambda m, x: m.part(m.blocks(x)), blocks=modules.blocks(modules.Fused), part=part
    )
    with torch.inference_mode(), recording(model) as record:
        model(torch.randn(2, 5, 16))
    assert len(record.sites) == 2
    assert record.notes == [COMPILED]


def inside_and_outside(m, x):
    """A model attends in its own forward, behind a module that attends."""
    return type(m.own).forward(m.own, m.inner(x))


def outer():
    return modules.FunctionModule(
        inside_and_outside, inner=modules.blocks(modules.Fused, 1)[0], own=modules.Fused()
    )


@pytest.mark.sweep
@pytest.mark.parametrize("watched", ["plain", "compiled"])
@pytest.mark.parametrize("how", ["module", "method", "function", "own forward"])
@pytest.mark.parametrize(
    ("root", "names"),
    [
        (modules.Fused, [""]),
        (modules.softmaxed, [""]),
        (lambda: nn.MultiheadAttention(16, 4, batch_first=True), [""]),
        (outer, ["inner.attention", ""]),
    ],
    ids=["sdpa", "softmax", "torch's", "inside and outside"],
)
def test_attention_in_the_compiled_root_forward_is_captured(root, names, how, watched):
    plain, x = root().eval(), torch.randn(2, 5, 16)
    given = {"average_attn_weights": False} if isinstance(plain, nn.MultiheadAttention) else {}
    texts = [x] * (3 if given else 1)
    with torch.inference_mode():
        _, weights = plain(*texts, **given)
        call = compiled(plain, how, "eager")
        model = call if watched == "compiled" and isinstance(call, nn.Module) else plain
        record, maps, _ = observe(model, call=lambda: [call(*texts, **given) for _ in range(2)])
    assert [(site.site.name, site.step) for site in record.sites] == [
        (name, step) for step in range(2) for name in names
    ]
    torch.testing.assert_close(maps[-1].weights, weights)


def test_models_compile_again_after_last_recording_of_all_threads():
    plain, x, backend = modules.blocks(modules.Fused), torch.randn(2, 5, 16), Counting()
    call = compiled(plain, "module", backend)
    inside, done = threading.Event(), threading.Event()

    def watch():
        with torch.inference_mode(), recording(modules.blocks(modules.Fused)):
            inside.set()
            done.wait(10)

    with torch.inference_mode():
        with recording(plain):
            thread = threading.Thread(target=watch)
            thread.start()
            inside.wait(10)
        call(x)
        assert backend.ran == 0
        done.set()
        thread.join()
        call(x)
    assert backend.ran == 1


def test_user_compiler_stance_returns_after_recording():
    plain, x = modules.blocks(modules.Fused), torch.randn(2, 5, 16)
    call = compiled(plain, "module", "eager")
    with torch.inference_mode(), torch.compiler.set_stance("fail_on_recompile"):
        with recording(plain) as record:
            call(x)
        assert len(record.sites) == 2
        with pytest.raises(RuntimeError, match="recompile"):
            call(x)
