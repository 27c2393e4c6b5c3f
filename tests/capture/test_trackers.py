"""A recording without one of its trackers: it shows the same, or names what it misses, and nothing fails."""

import pytest
import torch

from attnscope.capture import Keep, recorder, recording
from attnscope.capture.hooks.softmax import Trails
from tests.capture import modules


def observe(made):
    model, keep = modules.blocks(made), Keep(lambda site: range(4))
    with torch.inference_mode(), recording(model, [keep], warn=False) as record:
        model(torch.randn(2, 6, 16))
    assert not record.failures
    return record, keep.maps


@pytest.mark.parametrize("made", [modules.Fused, modules.softmaxed])
@pytest.mark.parametrize("without", recorder.TRACKERS, ids=lambda tracker: tracker.__name__)
def test_a_recording_without_one_of_its_trackers(monkeypatch, made, without):
    expected, maps = observe(made)
    assert len(maps) == 2
    monkeypatch.setattr(recorder, "TRACKERS", [each for each in recorder.TRACKERS if each is not without])
    record, others = observe(made)
    if (without, made) == (Trails, modules.softmaxed):
        assert not others
        assert [layer.layer for layer in record.without_attention] == [0, 1]
        return
    assert record == expected
    for one, other in zip(maps, others, strict=True):
        assert torch.equal(one.weights, other.weights)
