"""Which head of another model does the same."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def matches(distances: NDArray[np.float64]) -> tuple[tuple[int, int], ...]:
    """Pairs of heads, each head in one pair at most, with the smallest sum of distances.  [head, other]

    The assignment problem, solved exactly. Of the model with more heads some stay without a partner.
    Pairs come in the order of the first model's heads.
    """
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(distances)
    return tuple((int(row), int(column)) for row, column in zip(rows, columns, strict=True))
