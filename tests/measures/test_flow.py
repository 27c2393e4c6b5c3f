"""What flows through layers and what heads compose, against NumPy written out, and linear programming."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from attnscope.measures.flow import add_up_relevance, as_shares, max_flow, roll_out, with_residual
from attnscope.questions.composition import Circuit, compose, compose_random


def _weights(layers, size, *, causal=False):
    random = np.random.default_rng(0)
    weights = random.random((layers, size, size)) ** 4
    return [as_shares(np.tril(each) if causal else each) for each in weights]


@pytest.mark.parametrize("causal", [False, True])
def test_rollout_is_the_product_of_half_weights_and_half_identity(causal):
    weights = _weights(4, 6, causal=causal)
    expected = np.eye(6)
    steps = [("encoder", with_residual(each)) for each in weights]
    for ours, one in zip(roll_out(steps, 0, 6), weights, strict=True):
        expected = (0.5 * one + 0.5 * np.eye(6)) @ expected
        np.testing.assert_allclose(ours, expected, atol=1e-12)
        np.testing.assert_allclose(ours.sum(-1), 1)


def test_a_row_without_attention_keeps_its_token():
    weights = np.array([[0.2, 0.2], [0.0, 0.0]])
    np.testing.assert_allclose(with_residual(weights), [[0.75, 0.25], [0.0, 1.0]])


def test_a_row_across_without_attention_is_the_residual_alone():
    weights = np.array([[0.2, 0.2], [0.0, 0.0]])
    np.testing.assert_allclose(with_residual(weights, crossed=True), [[0.25, 0.25, 0.5], [0, 0, 1]])
    np.testing.assert_allclose(
        as_shares(np.pad(weights, ((0, 0), (0, 1))), crossed=True), [[0.5, 0.5, 0], [0, 0, 1]]
    )


def test_relevance_is_added_up_from_the_identity():
    weights = _weights(3, 5)
    relevance = np.eye(5)
    steps = [("encoder", each) for each in weights]
    for ours, one in zip(add_up_relevance(steps, 0, 5), weights, strict=True):
        relevance = relevance + one @ relevance
        np.testing.assert_allclose(ours, relevance / relevance.sum(-1, keepdims=True), atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_the_largest_flow_is_that_of_linear_programming(causal):
    matrices = [with_residual(each) for each in _weights(3, 4, causal=causal)]
    steps = [("encoder", matrix) for matrix in matrices]
    edges = [
        ((layer + 1, q), (layer, k), matrix[q, k])
        for layer, matrix in enumerate(matrices)
        for q in range(4)
        for k in range(4)
    ]
    for row in range(4):
        expected = np.array([programmed(edges, (3, row), (0, key)) for key in range(4)])
        np.testing.assert_allclose(max_flow(steps, 0, 4, row), expected / expected.sum(), atol=1e-6)


def test_the_largest_flow_across_goes_to_both_texts_and_is_that_of_linear_programming():
    random = np.random.default_rng(1)
    other, own = 4, 3
    encoder = [with_residual(each) for each in _weights(2, other)]
    decoder = [with_residual(each) for each in _weights(2, own, causal=True)]
    cross = [with_residual(random.random((own, other)) ** 4, crossed=True) for _ in range(2)]
    steps = [("encoder", each) for each in encoder]
    for side, across in zip(decoder, cross, strict=True):
        steps += [("decoder", side), ("cross", across)]
    edges = [
        (("e", layer + 1, q), ("e", layer, k), encoder[layer][q, k])
        for layer in range(2)
        for q in range(other)
        for k in range(other)
    ]
    for layer in range(2):
        before, between, behind = 2 * layer, 2 * layer + 1, 2 * layer + 2
        for q in range(own):
            edges += [(("d", between, q), ("d", before, k), decoder[layer][q, k]) for k in range(own)]
            edges += [(("d", behind, q), ("e", 2, k), cross[layer][q, k]) for k in range(other)]
            edges += [(("d", behind, q), ("d", between, q), 0.5)]
    sinks = [("e", 0, key) for key in range(other)] + [("d", 0, key) for key in range(own)]
    for row in range(own):
        expected = np.array([programmed(edges, ("d", 4, row), sink) for sink in sinks])
        np.testing.assert_allclose(max_flow(steps, own, other, row), expected / expected.sum(), atol=1e-6)


def programmed(edges, source, sink):
    """The largest flow from a node above to one below, as a linear programme over the edges."""
    inner = sorted({node for edge in edges for node in edge[:2]} - {source, sink})
    kept = np.array([[(start == node) - (end == node) for start, end, _ in edges] for node in inner], float)
    gain = [(end == source) - (start == source) + 0.0 for start, end, _ in edges]
    bounds = [(0, capacity) for _, _, capacity in edges]
    return -linprog(gain, A_eq=kept, b_eq=np.zeros(len(kept)), bounds=bounds).fun


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
