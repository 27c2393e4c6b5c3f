"""Where in a model attention can hide × how its numbers can lie: each cell is shown exactly, or named."""

import pytest
import torch
from torch import nn

from tests.capture.observing import observe
from tests.capture.placing.ways import HEADS, NAMED, PLACED, SHOWN, SIZE, STATES, Chain, Stream, attend, join


class Attention(Stream):
    """A module that attends, and says so, and asks another one first."""

    def __init__(self, inner):
        super().__init__(attend)
        self.inner = inner

    def forward(self, x):
        return super().forward(join(x, self.inner(x)))


class Outside(nn.Module):
    """A model that runs a part's code in its own forward, where no module is called."""

    def __init__(self, part):
        super().__init__()
        self.before, self.part = Stream(attend), part

    def forward(self, x):
        return self.part.forward(join(x, self.before(x)))


class Twice(nn.Module):
    """One module that is called twice."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return join(join(x, self.part(x)), self.part(x / 2))


class Bare(nn.Module):
    """Attention, and something behind it, without a residual."""

    def __init__(self, part):
        super().__init__()
        self.before, self.part = Stream(attend), part

    def forward(self, x):
        return self.part(self.before(x))


PLACES = {
    "the model itself": (lambda way: Stream(way), [""]),
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
    "in the model's own forward": (lambda way: Outside(Stream(way)), [""]),
    "in a module that runs twice": (lambda way: Twice(Stream(way)), ["part"]),
    "behind attention without a residual": (lambda way: Bare(Stream(way)), ["part"]),
    "beside torch's own attention": (
        lambda way: Chain(
            first=nn.TransformerEncoderLayer(SIZE, HEADS, 8, batch_first=True), second=Stream(way)
        ),
        ["second"],
    ),
}


def check_shown(model, maps, moved):
    """Every map of a module is what it kept itself."""
    for path, stream in model.named_modules():
        if isinstance(stream, Stream):
            shown = [kept.weights for kept in maps if kept.site.name == moved.get(path, path)]
            kept = stream.kept[len(stream.kept) // 2 :]  # of the recorded pass
            assert len(shown) == len(kept), path
            for mine, theirs in zip(shown, kept, strict=True):
                torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=0)


EACH_REASON = {reason: way for way, reason in NAMED}
CELLS = [
    *((way, reason, "in a sequence") for way, reason in NAMED if EACH_REASON[reason] is not way),
    *(
        (way, reason, place)
        for reason, way in EACH_REASON.items()
        for place in PLACES
        if "sequence" not in place
    ),
]


@pytest.mark.parametrize(
    ("way", "place"),
    [*((way, place) for way in SHOWN for place in PLACES), *((way, "in a sequence") for way in PLACED)],
)
def test_weights_are_shown_exactly_wherever_they_are(way, place):
    torch.manual_seed(0)
    record, maps, _ = observe(model := PLACES[place][0](way), STATES)
    check_shown(model, maps, {"part": ""} if place == "in the model's own forward" else {})
    assert not record.without_attention
    assert all(site.difference < 1e-6 for site in record.sites)


@pytest.mark.parametrize(("way", "reason", "place"), CELLS)
def test_what_has_no_weights_to_show_is_named_with_its_reason_wherever_it_is(way, reason, place):
    torch.manual_seed(0)
    make, paths = PLACES[place]
    record, maps, _ = observe(model := make(way), STATES)
    check_shown(model, maps, {})
    named = {(layer.name, layer.reason) for layer in record.without_attention}
    named |= {place for places in record.places.values() for place in places}
    assert named == {(path, reason) for path in paths}
