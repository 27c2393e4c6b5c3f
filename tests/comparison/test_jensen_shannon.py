"""Distances between heads: known answers, laws, and an independent computation."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from attnscope.comparison import LARGEST, divergence, measure_distances


def heads(count, rows, keys, seed=0, sharpness=2.0):
    generator = torch.Generator().manual_seed(seed)
    return (sharpness * torch.randn(count, rows, keys, generator=generator)).softmax(-1)


def pattern(offset, size=9):
    """A head that looks at the token ``offset`` away, in rows that have one on both sides."""
    rows = torch.zeros(size - 2, size)
    rows[range(size - 2), [i + 1 + offset for i in range(size - 2)]] = 1
    return rows


def test_two_copies_of_a_head_are_at_no_distance():
    rows = heads(2, 40, 33)
    rows[1] = rows[0]
    assert measure_distances(rows).mean[0, 1] == 0


def test_a_previous_and_a_next_token_head_are_as_far_apart_as_heads_can_be():
    spread = measure_distances(torch.stack([pattern(-1), pattern(1), pattern(0)]))
    assert spread.mean[0, 1] == pytest.approx(math.log(2), abs=1e-6)
    assert spread.mean[1, 2] == pytest.approx(LARGEST, abs=1e-6)
    assert spread.deviation == pytest.approx(np.zeros((3, 3)), abs=1e-6)


@pytest.mark.parametrize(
    ("count", "rows", "keys", "sharpness"), [(5, 17, 23, 2), (3, 64, 300, 6), (4, 3, 2, 0.5)]
)
def test_agrees_with_scipy(count, rows, keys, sharpness):
    weights = heads(count, rows, keys, sharpness=sharpness)
    apart = jensenshannon(weights[:, None].double().numpy(), weights.double().numpy(), axis=-1) ** 2
    found = measure_distances(weights)
    assert found.mean == pytest.approx(apart.mean(-1), abs=1e-6)
    assert found.deviation == pytest.approx(apart.std(-1, ddof=1), abs=1e-5)
    others = heads(2, rows, keys, seed=1)
    apart = jensenshannon(weights[:, None].double().numpy(), others.double().numpy(), axis=-1) ** 2
    assert measure_distances(weights, others).mean == pytest.approx(apart.mean(-1), abs=1e-6)
    assert divergence(weights[0], others[1]).numpy() == pytest.approx(apart[0, 1], abs=1e-6)


def test_blocks_change_nothing(monkeypatch):
    weights = heads(6, 40, 31)
    whole = measure_distances(weights)
    monkeypatch.setattr("attnscope.comparison.BLOCK", 500)
    parts = measure_distances(weights)
    assert parts.mean == pytest.approx(whole.mean, abs=1e-9)
    assert parts.deviation == pytest.approx(whole.deviation, abs=1e-9)


def test_what_a_row_leaves_to_a_sink_counts_as_a_key():
    rows = torch.tensor([[[0.5, 0.0]], [[0.5, 0.5]]])
    expected = jensenshannon([0.5, 0, 0.5], [0.5, 0.5, 0]) ** 2
    assert measure_distances(rows).mean[0, 1] == pytest.approx(expected, abs=1e-6)
    nothing = torch.tensor([[[0.0, 0.0]], [[0.5, 0.5]]])
    assert measure_distances(nothing).mean[0, 1] == pytest.approx(math.log(2), abs=1e-6)


def test_scaled_weights_are_compared_by_their_shares():
    rows = torch.tensor([[[1.2, 0.4]], [[0.75, 0.25]]])
    assert measure_distances(rows).mean[0, 1] == pytest.approx(0, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 9999), keys=st.integers(1, 12), sharpness=st.floats(0, 40))
def test_it_is_symmetric_bounded_and_its_root_obeys_the_triangle_inequality(seed, keys, sharpness):
    weights = heads(4, 3, keys, seed, sharpness)
    apart = measure_distances(weights).mean
    assert np.array_equal(apart, apart.T)
    assert measure_distances(weights, weights).mean == pytest.approx(apart, abs=1e-6)
    assert (apart >= 0).all()
    assert (apart <= LARGEST + 1e-6).all()
    one, two, three, _ = (weights[head] for head in range(4))
    long = divergence(one, three).sqrt()
    way = divergence(one, two).sqrt() + divergence(two, three).sqrt()
    assert (long <= way + 1e-3).all()
    root = np.sqrt(apart)  # the mean over rows is a squared Euclidean distance too
    assert (root[:, None, :] <= root[:, :, None] + root[None] + 1e-3).all()


def test_the_error_of_an_even_sample_of_rows_is_what_samples_scatter():
    weights = heads(2, 400, 16, sharpness=3)
    weights[1, ::2] = weights[0, ::2]
    whole = measure_distances(weights).mean[0, 1]
    random = np.random.default_rng(0)
    samples = [measure_distances(weights[:, random.choice(400, 50, replace=False)]) for _ in range(300)]
    scatter = np.std([sample.mean[0, 1] for sample in samples])
    told = np.mean([sample.error(400)[0, 1] for sample in samples])
    assert np.mean([sample.mean[0, 1] for sample in samples]) == pytest.approx(whole, rel=0.03)
    assert told == pytest.approx(scatter, rel=0.15)
    assert measure_distances(weights).error(400)[0, 1] == 0
