"""Windows measured with their own keys alone, next to the same rows with all keys."""

from dataclasses import replace

import pytest
import torch
from transformers import SwinConfig, SwinModel

from attnscope.attention import HeldRows, Token
from attnscope.capture import recording
from attnscope.capture.record import FunctionObserver
from attnscope.measures import DEFAULT, Measurement
from tests.measures.rounding import near

SWIN = {"patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
MORE = ("sink_rate", "window=2+3", "offset=-16", "[B]")  # of those without a need for every key
TEXT = tuple(
    Token("ABC."[at % 4 if at % 11 else 1], at % 7, special=not at % 11, segment=at // 100)
    for at in range(256)
)


def measure_swin(size, texts=1, names=(*DEFAULT, *MORE)):
    """A Swin with random weights, measured in windows, and with all keys; the reads of its layers."""
    torch.manual_seed(0)
    model = SwinModel(SwinConfig(image_size=size, **SWIN)).eval()
    windows, whole, reads = Measurement(names), Measurement(names), []
    for measurement in (windows, whole):
        measurement.label({"encoder": ((TEXT,), (TEXT,))})

    def observe(attention):
        reads.append(attention.read)
        held = HeldRows(attention.weights(), attention.allowed(0, len(attention.queries)))
        whole.observe(replace(attention, read=held))

    with torch.inference_mode(), recording(model, [windows, FunctionObserver(observe)], warn=False):
        model(torch.rand(texts, 3, size, size))
    return windows, whole, reads


@pytest.mark.parametrize(("size", "texts"), [(64, 1), (64, 2), (56, 1)])  # 56: windows with padding
def test_scores_of_windows_equal_those_of_all_keys(size, texts):
    windows, whole, reads = measure_swin(size, texts)
    assert [read.windows is not None for read in reads[:2]] == [True, True]
    for one, other in zip(windows.scores(), whole.scores(), strict=True):
        assert (one.site, one.head, one.absent) == (other.site, other.head, other.absent)
        assert list(one.scores) == list(other.scores)
        for name, score in one.scores.items():
            same = other.scores[name]
            assert (score.rows, score.texts) == (same.rows, same.texts)
            assert score.value == near(same.value, name, 256), name
            assert score.baseline == near(same.baseline, name, 256), name


@pytest.mark.parametrize(("layer", "shift"), [(0, 0), (1, 2)])
def test_keys_of_a_window_are_open_to_its_rows(layer, shift):
    *_, reads = measure_swin(64)
    row, column = (torch.arange(256) // 16 - shift) % 16 // 4, (torch.arange(256) - shift) % 16 // 4
    window = 4 * row + column  # of each patch
    opened = reads[layer].allowed(0, 256)
    assert opened.shape == (1, 1, 256, 256)
    assert torch.equal(opened[0, 0], window[:, None] == window)


def test_windows_with_a_measure_of_every_key_are_read_with_all_keys():
    windows, whole, _ = measure_swin(64, names=("coverage90", "monotonic", "entropy"))
    assert windows.scores() == whole.scores()
