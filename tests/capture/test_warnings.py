"""From Python, a recording that saw nothing says why, and one that failed says where."""

import threading
import warnings

import pytest
import torch
from torch import nn

from attnscope.capture import recorder, recording
from tests.capture import modules


def watch(model, *given):
    with torch.inference_mode(), recording(model) as record:
        model(*given)
    return record


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(modules.Fused()).eval()


X = torch.randn(1, 5, 16)


def test_a_model_without_attention_says_what_stands_in_its_place():
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Sequential(nn.Linear(16, 16), nn.GELU())])

        def forward(self, x):
            return self.layers[0](x)

    with pytest.warns(UserWarning, match=r"no attention was seen: in layers.0, .*GELU"):
        watch(Layers(), X)
    with pytest.warns(UserWarning, match=r"no attention was seen: its forward pass \(Linear\) computes none"):
        watch(nn.Linear(16, 16), X)


def test_a_model_that_was_not_called_or_elsewhere(model):
    with pytest.warns(UserWarning, match="it was not called while it was watched"), recording(model):
        pass
    thread = threading.Thread(target=model, args=(X,))
    with pytest.warns(UserWarning, match="ran on another thread"), recording(model):
        [step() for step in (thread.start, thread.join)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("inside", [True, False])
def test_a_traced_a_scripted_and_an_exported_model(model, inside):
    made = {
        "torch.jit": torch.jit.trace(model, (X,), check_trace=False),
        "torch.export": torch.export.export(model, (X,)).module(),
    }
    for name, other in made.items():
        whole = nn.Sequential(other) if inside else other
        with pytest.warns(UserWarning, match=rf"\({name}\), which .*: watch the original module"):
            watch(whole, X)
    with pytest.warns(UserWarning, match=r"torch.jit"):
        watch(torch.jit.script(nn.Sequential(nn.Linear(16, 16))), X)


def test_a_recording_that_failed_says_where(model, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(recorder, "sdpa_call", broken)
    with pytest.warns(
        UserWarning, match=r"no attention was seen: the recording failed in 0 \(ZeroDivisionError"
    ):
        watch(model, X)


def test_a_recording_that_saw_what_there_is_says_nothing(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert watch(model, X).sites


def test_a_block_that_ends_by_an_exception_says_nothing_of_its_own(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyError), recording(model):
            raise KeyError


def test_commands_say_it_in_their_own_way_alone():
    from attnscope.errors import ModelError
    from attnscope.models import load
    from attnscope.questions.overview import overview
    from attnscope.questions.selection import Selection

    linear = load("torch.nn:Identity")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ModelError, match="has no attention to show"):
            overview(linear, linear.prepare("The cat sat."), Selection())
