"""Distances over many texts: their mean, how sure it is, and whether heads keep their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Average:
    """Distances averaged over texts, each text counting once.

    ``error`` is the standard error of the mean over texts. ``stability`` is the rank correlation
    (Spearman) of one text's distances with the mean of all other texts', averaged over the texts: 1 if
    every text puts the pairs in the same order, 0 if a text says nothing about the others.
    """

    mean: NDArray[np.float64]  # [...]
    error: NDArray[np.float64]  # [...]
    stability: float


def average_over_texts(each: Sequence[NDArray[np.float64]]) -> Average:
    """Average two or more texts' distances.  [text] of [...] -> Average"""
    texts = np.stack(each)
    count = len(texts)
    total = texts.sum(0)
    correlations = [_rank_correlation(text, (total - text) / (count - 1)) for text in texts]
    return Average(
        total / count,
        texts.std(0, ddof=1) / np.sqrt(count),
        float(np.mean(correlations)),
    )


def _rank_correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Spearman's, ties sharing their mean rank; of a symmetric table each pair once.  [...], [...]"""
    from scipy.stats import rankdata

    if one.ndim == 2 and np.array_equal(one, one.T):
        upper = np.triu_indices(len(one), 1)
        one, other = one[upper], other[upper]
    ranks = [rankdata(numbers.ravel()) for numbers in (one, other)]
    if min((rank.std() for rank in ranks if len(rank)), default=0.0) == 0:
        return 1.0 if np.array_equal(*ranks) else 0.0
    return float(np.corrcoef(*ranks)[0, 1])
