"""Some rows of every head, kept without computing the others."""

import numpy as np
import torch

from attnscope.attention import Attention, HeldRows, Site
from attnscope.capture.observers import Rows, Sample


class Counting(HeldRows):
    """Rows that note which of them were read."""

    def __init__(self, weights):
        super().__init__(weights)
        object.__setattr__(self, "read", [])

    def rows(self, start, stop, heads):
        self.read.append((start, stop))
        return super().rows(start, stop, heads)


def attention(size=24, heads=3, seed=0):
    weights = torch.randn(1, heads, size, size, generator=torch.Generator().manual_seed(seed)).softmax(-1)
    return Attention(
        site=Site("layer.0", 0, "encoder", 0), source="kernel", kernel="eager", batch=1, heads=heads,
        key_heads=heads, queries=range(size), keys=range(size), offset=0, dtype=torch.float32,
        read=Counting(weights),
    )  # fmt: skip


def test_the_rows_that_are_named_are_kept_and_none_far_from_them_is_read():
    seen = attention()
    sample = Sample(lambda _: Rows([[1], [2], [7], [23]]))
    sample.observe(seen)
    assert torch.equal(sample.maps[0].values, seen.read.weights[:, :, [1, 2, 7, 23]])
    assert seen.read.read == [(1, 8), (23, 24)]


def test_rows_are_averaged_and_keys_added_up():
    seen = attention()
    across = np.zeros((2, 24), np.float32)
    across[0, :5] = across[1, 7:9] = 1
    sample = Sample(lambda _: Rows([[0, 3], [5]], across))
    sample.observe(seen)
    weights = seen.read.weights[0, 2]
    expected = torch.stack([(weights[0] + weights[3]) / 2, weights[5]])
    expected = torch.stack([expected[:, :5].sum(-1), expected[:, 7:9].sum(-1)], -1)
    assert torch.allclose(sample.maps[0].values[0, 2], expected, atol=1e-6)


def test_blocks_change_nothing(monkeypatch):
    seen = attention()
    whole = Sample(lambda _: Rows([[query] for query in range(24)]))
    whole.observe(seen)
    assert seen.read.read == [(0, 24)]
    monkeypatch.setattr("attnscope.capture.observers.BLOCK", 3 * 24 * 10)
    parts = Sample(lambda _: Rows([[query] for query in range(24)]))
    parts.observe(seen)
    assert seen.read.read[1:] == [(0, 10), (10, 20), (20, 24)]
    assert torch.equal(parts.maps[0].values, whole.maps[0].values)


def test_weights_that_are_no_numbers_count_as_none_and_are_counted():
    seen = attention()
    seen.read.weights[0, 1, 4, 3:5] = torch.nan
    sample = Sample(lambda _: Rows([[4]]))
    sample.observe(seen)
    (kept,) = sample.maps
    assert kept.broken == 2
    assert kept.values.isfinite().all()


def test_a_call_without_an_answer_is_left_alone():
    seen = attention()
    sample = Sample(lambda _: None)
    sample.observe(seen)
    assert (sample.maps, seen.read.read) == ([], [])
