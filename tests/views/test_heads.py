"""Numbers of heads, as they are written."""

import numpy as np
import pytest

from attnscope.views.heads import number


@pytest.mark.parametrize(
    ("value", "largest", "text"),
    [
        (0.42, 1, "0.42"),
        (-0.001, 1, "0.00"),
        (12.84, 20, "12.8"),
        (np.nan, 1, ""),
        (-0.00144, 0.00144, "-0.0014"),
        (0.00003, 0.00144, "0.0000"),
        (0.03, 0.05, "0.030"),
        (0.0, 0.0, "0.00"),
    ],
)
def test_a_number_shows_two_figures_of_the_largest_beside_it(value, largest, text):
    assert number(value, largest) == text
