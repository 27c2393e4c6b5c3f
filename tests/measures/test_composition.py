"""Composition scores against the formula in NumPy, and the baseline against its closed form."""

import numpy as np
import pytest
import torch

from attnscope.measures.composition import Circuit, compose, compose_random

WIDTH = 12


def _layer(heads, size, seed):
    generator = torch.Generator().manual_seed(seed)
    return Circuit(*(torch.randn(heads, WIDTH, size, generator=generator) for _ in range(4)))


def _numpy(parts):
    return [part.double().numpy() for part in (parts.query, parts.key, parts.value, parts.output)]


@pytest.mark.parametrize("way", ["Q", "K", "V"])
def test_a_score_is_the_length_of_the_product_over_the_product_of_the_lengths(way):
    earlier, later = _layer(3, 4, 0), _layer(2, 5, 1)
    scores = compose(earlier, later)[way]
    _, _, value, output = _numpy(earlier)
    query, key, value2, output2 = _numpy(later)
    for one in range(3):
        wrote = value[one] @ output[one].T
        for other in range(2):
            qk, ov = query[other] @ key[other].T, value2[other] @ output2[other].T
            read = {"Q": qk, "K": qk.T, "V": ov}[way]
            expected = np.linalg.norm(wrote @ read) / (np.linalg.norm(wrote) * np.linalg.norm(read))
            assert float(scores[other, one]) == pytest.approx(expected, rel=1e-9)


def test_random_weights_stand_at_the_baseline():
    """The mean over many pairs of random heads, about one over the root of the width."""
    earlier, later = _layer(60, 3, 2), _layer(60, 3, 3)
    baseline, scatter = compose_random(earlier, later)
    assert (baseline, scatter) == compose_random(earlier, later)
    assert baseline == pytest.approx(WIDTH**-0.5, rel=0.1)
    for scores in compose(earlier, later).values():
        assert float(scores.mean()) == pytest.approx(baseline, rel=0.05)
        assert float(scores.std()) == pytest.approx(scatter, rel=0.2)


def test_a_head_that_reads_what_another_wrote_scores_one():
    direction, other = torch.eye(WIDTH)[:, :1][None], torch.eye(WIDTH)[:, 1:2][None]
    writer = Circuit(other, other, other, direction)
    assert float(compose(writer, Circuit(other, direction, other, other))["K"]) == pytest.approx(1)
    assert float(compose(writer, Circuit(other, direction, other, other))["Q"]) == pytest.approx(0)
