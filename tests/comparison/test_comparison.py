"""Distances, clusters, projections, matches and alignments: known answers, properties, independent code."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon, pdist, squareform
from scipy.stats import spearmanr
from transformers.models.whisper.generation_whisper import _dynamic_time_warping

from attnscope.comparison import (
    MAX_DIVERGENCE,
    Distances,
    align_tokens,
    average_over_texts,
    divergence,
    embed_in_plane,
    find_shared_words,
    first_columns,
    group_heads,
    match_heads,
    measure_distances,
    silhouette,
)
from tests.measures.rounding import near


def clouds(sizes, far=10.0):
    """Points in clouds around far centres, and the cloud of each."""
    labels, centres = np.repeat(range(len(sizes)), sizes), far * np.eye(len(sizes), 5)
    return centres[labels] + np.random.default_rng(0).normal(size=(len(labels), 5)), labels


def squared(points):
    return squareform(pdist(points)) ** 2


def test_similar_heads_form_clusters_and_an_outlier_is_alone():
    points, labels = clouds([4, 6, 1])
    found = group_heads(squared(points))
    assert sorted(map(sorted, found.members)) == [
        np.flatnonzero(labels == cloud).tolist() for cloud in range(3)
    ]
    assert found.silhouette > 0.8


def test_silhouette_follows_its_definition():
    points, labels = clouds([3, 4, 1], far=2.0)
    distances = squareform(pdist(points))
    scores = [0]  # of the last, which is alone
    for i, label in enumerate(labels[:-1]):
        own = np.mean([distances[i, j] for j in range(8) if labels[j] == label and j != i])
        other = min(distances[i, labels == other].mean() for other in {0, 1, 2} - {label})
        scores.append((other - own) / max(own, other))
    assert silhouette(distances, labels) == pytest.approx(np.mean(scores))
    assert silhouette(np.ones((3, 3)) - np.eye(3), np.zeros(3, int)) == 0.0
    assert silhouette(np.zeros((4, 4)), np.array([0, 0, 1, 1])) == 0.0


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), scale=st.floats(1e-3, 1e3))
def test_clusters_are_scale_invariant_and_separated(seed, scale):
    distances = squared(np.random.default_rng(seed).normal(size=(15, 3)))
    found = group_heads(distances)
    assert group_heads(scale * distances).members == found.members
    median = np.median(distances[np.triu_indices(15, 1)])
    for i, group in enumerate(found.members):
        for other in found.members[:i]:
            assert distances[np.ix_(group, other)].mean() > 0.75 * median  # else they would have been joined


@pytest.mark.parametrize("count", [2, 12])
def test_embedding_recovers_plane_points_and_top_two_axes(count):
    random = np.random.default_rng(0)
    points = random.normal(size=(count, 2))
    found = embed_in_plane(squared(points))
    assert squared(found.points) == pytest.approx(squared(points), abs=1e-9)
    assert found.explained_variance == pytest.approx(1)
    points = random.normal(size=(count, 5)) * 1e-3
    values = np.linalg.svd(points - points.mean(0), compute_uv=False) ** 2
    assert embed_in_plane(squared(points)).explained_variance == pytest.approx(
        values[:2].sum() / values.sum()
    )


def test_shuffled_copy_is_matched_exactly():
    random = np.random.default_rng(1)
    points, shuffle = random.normal(size=(20, 6)), random.permutation(20)
    distances = ((points[:, None] - points[shuffle]) ** 2).sum(-1)
    assert [(row, shuffle[column]) for row, column in match_heads(distances)] == [(i, i) for i in range(20)]
    assert match_heads(np.array([[5.0, 1.0], [2.0, 3.0], [1.0, 9.0]])) == ((0, 1), (2, 0))


def test_alignment_separates_insertion_deletion_and_replacement():
    whole = *((i, i) for i in range(5)), (None, 5), (None, 6), (5, 7), (None, 8)
    assert align_tokens("abcdaf", "axcdayzf.") == whole
    assert align_tokens("abc", "axyc") == ((0, 0), (1, None), (None, 1), (None, 2), (2, 3))
    assert align_tokens("ab", "b") == ((0, None), (1, 0))


@settings(max_examples=50, deadline=None)
@given(one=st.lists(st.sampled_from("abc")), other=st.lists(st.sampled_from("abc")))
def test_alignment_has_every_token_once_in_order(one, other):
    steps = align_tokens(one, other)
    assert [i for i, _ in steps if i is not None] == list(range(len(one)))
    assert [j for _, j in steps if j is not None] == list(range(len(other)))
    assert align_tokens(one, one) == tuple((i, i) for i in range(len(one)))


def average(*tables):
    return average_over_texts([Distances(table, 0 * table) for table in tables])


def test_texts_count_equally_and_stability_is_rank_correlation():
    random = np.random.default_rng(0)
    tables = np.stack([squared(random.normal(size=(6, 3))) for _ in range(4)])
    found, upper = average(*tables), np.triu_indices(6, 1)
    assert found.mean == pytest.approx(tables.mean(0))
    assert found.error == pytest.approx(tables.std(0, ddof=1) / 2)
    others = [np.delete(tables, i, 0).mean(0) for i in range(4)]
    agreement = [
        spearmanr(one[upper], rest[upper]).statistic for one, rest in zip(tables, others, strict=True)
    ]
    assert found.stability == pytest.approx(np.mean(agreement))


TABLE, FLAT = np.array([[0, 1, 2.0], [1, 0, 3], [2, 3, 0]]), np.ones((3, 3)) - np.eye(3)


@pytest.mark.parametrize(
    ("one", "other", "stability"),
    [
        (TABLE, 2 * TABLE, 1),
        (FLAT, FLAT, 1),  # the same order, though it is none
        (FLAT, TABLE, 0),
        (np.zeros((1, 1)), np.zeros((1, 1)), 1),
        (np.array([[0, 1.0], [2, 3]]), np.array([[0, 2.0], [1, 3]]), 0.8),  # not symmetric: all of it counts
    ],
)
def test_stability_of_agreeing_and_constant_texts(one, other, stability):
    assert average(one, other).stability == pytest.approx(stability)


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("Oh , a cat was tired . Yes", "a cat is tired. Yes !", [(2, 3, 0, 1), (3, 4, 1, 2), (7, 8, 4, 5)]),
        ("a tired . b", "a tired. b", [(0, 1, 0, 1), (1, 3, 1, 2), (3, 4, 2, 3)]),
    ],
)
def test_shared_words_have_their_places_in_both_texts(one, other, shared):
    found = find_shared_words(one.split(), other.split())
    assert [(*(mine.start, mine.stop), *(their.start, their.stop)) for mine, their in found] == shared


@pytest.mark.parametrize("way", [align_tokens, find_shared_words])
def test_frequent_word_in_long_text_is_aligned(way):
    # difflib would take it for junk from 200 words on
    words = [word for number in range(150) for word in ("the", f"w{number}")]
    found = way(words, words[2:])
    pairs = found[2:] if way is align_tokens else [(one.start, other.start) for one, other in found]
    assert list(pairs) == [(number + 2, number) for number in range(len(words) - 2)]


def test_non_euclidean_distances_embed_approximately():
    found = embed_in_plane(
        np.array([[0, 1, 9.0], [1, 0, 1], [9, 1, 0]])
    )  # squares of 1, 1 and 3: no triangle
    assert found.explained_variance == pytest.approx(1.0)
    assert np.isfinite(found.points).all()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_or_equal_heads_embed_and_cluster(count):
    place, group = embed_in_plane(np.zeros((count, count))), group_heads(np.zeros((count, count)))
    assert (place.points.tolist(), place.explained_variance) == ([[0.0, 0.0]] * count, 1.0)
    assert (group.members, group.silhouette) == ((tuple(range(count)),), 0.0)


def heads(count, rows, keys, seed=0, sharpness=2.0):
    generator = torch.Generator().manual_seed(seed)
    return (sharpness * torch.randn(count, rows, keys, generator=generator)).softmax(-1)


@pytest.mark.parametrize("block", [1 << 18, 500])
@pytest.mark.parametrize(
    ("count", "rows", "keys", "sharpness"), [(5, 17, 23, 2), (3, 64, 300, 6), (4, 3, 2, 0.5)]
)
def test_distances_agree_with_scipy_for_any_block_size(count, rows, keys, sharpness, block, monkeypatch):
    monkeypatch.setattr("attnscope.comparison.BLOCK_WEIGHTS", block)
    weights, others = heads(count, rows, keys, sharpness=sharpness), heads(2, rows, keys, seed=1)
    one, two = weights.double().numpy(), others.double().numpy()
    apart, found = (
        jensenshannon(one[:, None], one, axis=-1) ** 2,
        measure_distances(weights, population=np.inf),
    )
    assert found.mean == near(apart.mean(-1), "entropy", keys + 1)
    assert found.error * rows**0.5 == pytest.approx(apart.std(-1, ddof=1), abs=1e-5)
    apart = jensenshannon(one[:, None], two, axis=-1) ** 2
    assert measure_distances(weights, others).mean == near(apart.mean(-1), "entropy", keys + 1)
    assert divergence(weights[0], others[1]).numpy() == near(apart[0, 1], "entropy", keys + 1)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([0.5, 0.0], [0.5, 0.5], jensenshannon([0.5, 0, 0.5], [0.5, 0.5, 0]) ** 2),
        ([0.0, 0.0], [0.5, 0.5], MAX_DIVERGENCE),
        ([1.2, 0.4], [0.75, 0.25], 0),  # scaled weights are compared by their shares
    ],
)
def test_sink_share_counts_as_a_key_in_distances(one, other, expected):
    assert measure_distances(torch.tensor([[one], [other]])).mean[0, 1] == pytest.approx(expected, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 9999), keys=st.integers(1, 12), sharpness=st.floats(0, 40))
def test_distance_is_symmetric_bounded_and_metric(seed, keys, sharpness):
    weights = heads(4, 3, keys, seed, sharpness)
    weights[3] = weights[2]
    apart = measure_distances(weights).mean
    assert apart[2, 3] == 0
    assert np.array_equal(apart, apart.T)
    assert measure_distances(weights, weights).mean == near(apart, "entropy", keys + 1)
    assert (apart >= 0).all()
    assert (apart <= MAX_DIVERGENCE + 1e-6).all()
    long, *way = (divergence(weights[one], weights[other]).sqrt() for one, other in ((0, 2), (0, 1), (1, 2)))
    assert (long <= sum(way) + 1e-3).all()
    root = np.sqrt(apart)  # the mean over rows is a squared Euclidean distance too
    assert (root[:, None, :] <= root[:, :, None] + root[None] + 1e-3).all()


def test_sampled_distance_error_equals_spread_of_samples():
    weights = heads(2, 400, 16, sharpness=3)
    weights[1, ::2] = weights[0, ::2]
    whole = measure_distances(weights).mean[0, 1]
    random = np.random.default_rng(0)
    rows = [random.choice(400, 50, replace=False) for _ in range(300)]
    samples = [measure_distances(weights[:, some], population=400) for some in rows]
    means, errors = np.array([(sample.mean[0, 1], sample.error[0, 1]) for sample in samples]).T
    assert means.mean() == pytest.approx(whole, rel=0.03)
    assert errors.mean() == pytest.approx(means.std(), rel=0.15)
    assert measure_distances(weights, population=400).error[0, 1] == 0


def theirs(cost):
    rows, columns = _dynamic_time_warping(cost)
    return columns[np.pad(np.diff(rows), (1, 0), constant_values=1).astype(bool)]


@pytest.mark.parametrize("ties", [False, True])
def test_monotone_path_equals_that_of_transformers(ties):
    for seed in range(50):
        random = np.random.default_rng(seed)
        cost = random.normal(size=random.integers(1, 30, 2))
        cost = np.round(cost) if ties else cost
        assert first_columns(cost).tolist() == theirs(cost).tolist()
