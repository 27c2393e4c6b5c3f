"""The edges of grouping, planes, averages and alignment: few heads, equal heads, long texts."""

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform

from attnscope.comparison import (
    align_tokens,
    average_over_texts,
    embed_in_plane,
    find_shared_words,
    group_heads,
    silhouette,
)


def test_words_in_common_keep_their_places_in_both_texts():
    one = ["Oh", ",", "the", "cat", "was", "tired", ".", "Yes"]
    other = ["the", "cat", "is", "tired.", "Yes", "!"]
    assert find_shared_words(one, other) == (
        (range(2, 3), range(0, 1)),
        (range(3, 4), range(1, 2)),
        (range(7, 8), range(4, 5)),
    )
    assert find_shared_words(["a", "tired", ".", "b"], ["a", "tired.", "b"]) == (
        (range(0, 1), range(0, 1)),
        (range(1, 3), range(1, 2)),
        (range(3, 4), range(2, 3)),
    )


@pytest.mark.parametrize("way", [align_tokens, find_shared_words])
def test_a_word_that_is_everywhere_in_a_long_text_is_aligned_all_the_same(way):
    # difflib would take it for junk from 200 words on
    words = [word for number in range(150) for word in ("the", f"w{number}")]
    found = way(words, words[2:])
    pairs = found.pairs if way is align_tokens else [(one.start, other.start) for one, other in found]
    assert list(pairs) == [(number + 2, number) for number in range(len(words) - 2)]


def test_as_many_words_in_the_place_of_as_many_are_pairs_and_others_are_not():
    assert align_tokens(["a", "b", "c"], ["a", "x", "c"]).steps == ((0, 0), (1, 1), (2, 2))
    assert align_tokens(["a", "b", "c"], ["a", "x", "y", "c"]).steps == (
        (0, 0),
        (1, None),
        (None, 1),
        (None, 2),
        (2, 3),
    )
    assert align_tokens(["a", "b"], ["b"]).steps == ((0, None), (1, 0))


def test_points_of_a_plane_are_found_again_and_nothing_is_lost():
    points = np.random.default_rng(0).normal(size=(7, 2))
    found = embed_in_plane(squareform(pdist(points)) ** 2)
    assert pdist(found.points) == pytest.approx(pdist(points))
    assert found.explained_variance == pytest.approx(1.0)


def test_what_a_plane_keeps_is_the_share_of_its_two_axes():
    points = np.random.default_rng(1).normal(size=(9, 5)) * 1e-3
    centred = points - points.mean(0)
    values = np.sort(np.linalg.svd(centred, compute_uv=False) ** 2)[::-1]
    expected = values[:2].sum() / values.sum()
    assert embed_in_plane(squareform(pdist(points)) ** 2).explained_variance == pytest.approx(expected)


def test_distances_that_no_space_has_are_shown_as_far_as_they_go():
    distances = np.array([[0, 1, 9.0], [1, 0, 1], [9, 1, 0]])  # squares of 1, 1 and 3: no triangle
    found = embed_in_plane(distances)
    centre = np.eye(3) - 1 / 3
    values = np.linalg.eigvalsh(-centre @ distances @ centre / 2)
    assert values.min() < -0.1
    assert found.explained_variance == pytest.approx(1.0)
    assert np.isfinite(found.points).all()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_or_equal_heads_have_a_place_and_a_group(count):
    alike = np.zeros((count, count))
    assert embed_in_plane(alike).points.tolist() == [[0.0, 0.0]] * count
    assert embed_in_plane(alike).explained_variance == 1.0
    found = group_heads(alike)
    assert found.members == (tuple(range(count)),)
    assert found.silhouette == 0.0


def test_two_heads_stand_as_far_apart_as_they_are():
    found = embed_in_plane(np.array([[0, 0.5], [0.5, 0]]))
    assert pdist(found.points) == pytest.approx([np.sqrt(0.5)])


def test_one_group_or_equal_heads_have_no_silhouette():
    assert silhouette(np.ones((3, 3)) - np.eye(3), np.zeros(3, int)) == 0.0
    assert silhouette(np.zeros((4, 4)), np.array([0, 0, 1, 1])) == 0.0
    two = np.array([[0, 1, 4.0, 4], [1, 0, 4, 4], [4, 4, 0, 2], [4, 4, 2, 0]])
    assert silhouette(two, np.array([0, 0, 1, 1])) == pytest.approx((0.75 + 0.75 + 0.5 + 0.5) / 4)


def test_texts_that_agree_are_stable_and_those_that_say_nothing_are_not():
    table = np.array([[0, 1, 2.0], [1, 0, 3], [2, 3, 0]])
    assert average_over_texts([table, 2 * table]).stability == pytest.approx(1.0)
    flat = np.ones((3, 3)) - np.eye(3)
    assert average_over_texts([flat, flat]).stability == 1.0, "the same order, though it is none"
    assert average_over_texts([flat, table]).stability == 0.0
    assert average_over_texts([np.zeros((1, 1))] * 2).stability == 1.0


def test_a_table_that_is_not_symmetric_counts_whole():
    one = np.array([[0, 1.0], [2, 3]])
    other = np.array([[0, 2.0], [1, 3]])
    assert average_over_texts([one, other]).stability == pytest.approx(0.8)


def test_each_text_is_ranked_against_the_mean_of_all_others():
    texts = [np.array([1.0, 2, 3, 4]), np.array([1.0, 2, 4, 3]), np.array([4.0, 1, 2, 3])]
    from scipy.stats import spearmanr

    expected = np.mean(
        [spearmanr(text, np.mean([t for t in texts if t is not text], 0)).statistic for text in texts]
    )
    found = average_over_texts(texts)
    assert found.stability == pytest.approx(expected)
    assert found.mean == pytest.approx(np.mean(texts, 0))
    assert found.error == pytest.approx(np.std(texts, 0, ddof=1) / np.sqrt(3))
