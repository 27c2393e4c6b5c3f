"""The way forward through a matrix, against transformers' own and against every way there is."""

from itertools import product

import numpy as np
import pytest
from transformers.models.whisper.generation_whisper import _dynamic_time_warping

from attnscope.comparison import first_columns, most_on_way


def theirs(cost):
    rows, columns = _dynamic_time_warping(cost)
    return columns[np.pad(np.diff(rows), (1, 0), constant_values=1).astype(bool)]


@pytest.mark.parametrize("ties", [False, True])
def test_the_cheapest_way_is_that_of_transformers(ties):
    for seed in range(50):
        random = np.random.default_rng(seed)
        cost = random.normal(size=random.integers(1, 30, 2))
        cost = np.round(cost) if ties else cost
        assert first_columns(cost).tolist() == theirs(cost).tolist()


def ways(rows, columns):
    """All cells of every way from the first cell to the last."""
    if (rows, columns) == (1, 1):
        yield [(0, 0)]
        return
    for down, right in ((1, 0), (0, 1), (1, 1)):
        if rows > down and columns > right:
            for way in ways(rows - down, columns - right):
                yield [*way, (rows - 1, columns - 1)]


def test_what_a_way_collects_is_the_most_of_all_ways():
    random = np.random.default_rng(0)
    for rows, columns in product(range(1, 5), range(1, 6)):
        weights = random.random((2, 3, rows, columns))
        most = max(sum(weights[..., i, j] for i, j in way).tolist()[1][2] for way in ways(rows, columns))
        found = most_on_way(weights)
        assert found.shape == (2, 3)
        assert found[1, 2] == pytest.approx(most)


def test_even_rows_give_a_way_all_its_cells():
    assert most_on_way(np.full((4, 10), 0.1)) == pytest.approx(13 * 0.1)
