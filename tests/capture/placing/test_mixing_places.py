"""Every kind of mixing in every place of a model is shown exactly, or named."""

from functools import partial

import pytest
import torch
from torch import nn

from tests.capture.modules import FunctionModule
from tests.capture.observing import check_kept, observe
from tests.capture.placing.mixing_modules import (
    COUNT,
    HEADS,
    NAMED,
    PLACED,
    SHOWN,
    SIZE,
    STATES,
    Chain,
    Stream,
    attend,
    join,
    two_hops,
)


class Attention(Stream):
    """A module that attends, and says so, and asks another one first."""

    def __init__(self, inner):
        super().__init__(attend)
        self.inner = inner

    def forward(self, x):
        return super().forward(join(x, self.inner(x)))


def around(run, way):
    return FunctionModule(run, before=Stream(attend), part=Stream(way))


def in_its_own_forward(model, x):
    """No module is called."""
    return model.part.forward(join(x, model.before(x)))


def twice(model, x):
    return join(join(x, model.part(x)), model.part(x / 2))


def without_a_residual(model, x):
    return model.part(model.before(x))


PLACES = {
    "the model itself": (Stream, [""]),
    "in a sequence": (lambda way: nn.Sequential(nn.Linear(SIZE, SIZE), Stream(way)), ["1"]),
    "in a list": (lambda way: Chain(layers=[Stream(way), Stream(way)]), ["layers.0", "layers.1"]),
    "beside attention": (lambda way: Chain(first=Stream(attend), second=Stream(way)), ["second"]),
    "before attention": (lambda way: Chain(first=Stream(way), second=Stream(attend)), ["first"]),
    "among layers that attend": (
        lambda way: Chain(layers=[Stream(attend), Stream(way), Stream(attend)]),
        ["layers.1"],
    ),
    "in another list": (
        lambda way: Chain(one=[Stream(attend), Stream(attend)], other=[Stream(way), Stream(way)]),
        ["other.0", "other.1"],
    ),
    "inside of attention": (lambda way: nn.Sequential(Attention(Stream(way))), ["0.inner"]),
    "in the model's own forward": (partial(around, in_its_own_forward), [""]),
    "in a module that runs twice": (partial(around, twice), ["part"]),
    "behind attention without a residual": (partial(around, without_a_residual), ["part"]),
    "beside torch's own attention": (
        lambda way: Chain(
            first=nn.TransformerEncoderLayer(SIZE, HEADS, 8, batch_first=True), second=Stream(way)
        ),
        ["second"],
    ),
}


EACH_REASON = {reason: way for way, reason in NAMED}
OTHERS = [place for place in PLACES if "sequence" not in place]
CELLS = [
    *((way, reason, "in a sequence") for way, reason in NAMED if EACH_REASON[reason] is not way),
    *((way, reason, place) for reason, way in EACH_REASON.items() for place in OTHERS),
]


@pytest.mark.parametrize(
    ("way", "place"),
    [*((way, place) for way in SHOWN for place in PLACES), *((way, "in a sequence") for way in PLACED)],
)
def test_weights_are_exact_in_every_place(way, place):
    torch.manual_seed(0)
    record, maps, _ = observe(model := PLACES[place][0](way), STATES)
    check_kept(model, maps, {"part": ""} if place == "in the model's own forward" else None)
    assert not record.without_attention
    assert all(site.difference < 1e-6 for site in record.sites)


@pytest.mark.sweep(10)
@pytest.mark.parametrize(("way", "reason", "place"), CELLS)
def test_mixing_without_weights_is_named_in_every_place(way, reason, place):
    torch.manual_seed(0)
    make, paths = PLACES[place]
    record, maps, _ = observe(model := make(way), STATES)
    check_kept(model, maps, {"part": ""} if place == "in the model's own forward" else None)
    named = {(layer.name, layer.reason) for layer in record.without_attention}
    named |= {place for places in record.places.values() for place in places}
    assert named == {(path, reason) for path in paths}


def test_keys_unreachable_in_two_steps_are_masked():
    (kept,) = observe(Stream(two_hops), STATES)[1]
    past = torch.ones(COUNT, COUNT, dtype=torch.bool).tril()
    assert torch.equal(kept.allowed, past.expand_as(kept.allowed))
