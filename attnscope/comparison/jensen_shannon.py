"""The Jensen-Shannon divergence between rows of attention, in nats.

``JS(P, Q) = H((P + Q) / 2) - (H(P) + H(Q)) / 2`` (Lin 1991, "Divergence measures based on the Shannon
entropy"), 0 for equal rows and log 2 for rows that share no key. Its square root is a metric. Clark et
al. 2019 ("What Does BERT Look At?") sum it over rows to compare heads; here it is averaged.

A row that sums to less than 1 leaves the rest on a sink that no token owns; the rest counts as one more
key. A row that sums to more than 1 is divided by its sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = math.log(2)
"""The divergence of two rows that share no key."""

BLOCK = 1 << 18
"""Weights that are compared with one head at a time: they and their logarithms stay in the cache."""

TINY = 1e-30
"""Stands for no attention: its ``p log p`` is nothing beside what float32 resolves."""


@dataclass(frozen=True, eq=False)
class Spread:
    """The divergence of pairs of heads over rows: its mean and its standard deviation, both in nats.

    ``rows`` is how many rows there were. The deviation of a single row is 0.
    """

    mean: NDArray[np.float64]  # [head, other]
    deviation: NDArray[np.float64]  # [head, other]
    rows: int

    def error(self, population: int) -> NDArray[np.float64]:
        """Standard error of the mean, of a sample from so many rows; 0 if it is all.  -> [head, other]"""
        return np.asarray(self.deviation * _missing(self.rows, population))


def divergence(one: Tensor, other: Tensor) -> Tensor:
    """Divergence of two rows, in nats.  [..., key], [..., key] -> [...]"""
    one, other = _halves(one), _halves(other)
    return (_entropy(one + other) - (_entropy(one + one) + _entropy(other + other)) / 2).clamp(min=0)


def measure_distances(rows: Tensor, others: Tensor | None = None) -> Spread:
    """Divergence of every head from every other one, over their rows.  [head, row, key] -> [head, head]

    With ``others``, ``[other, row, key]``: of every head from each of those.  -> [head, other]
    """
    import torch

    heads, count, keys = rows.shape
    size = heads if others is None else len(others)
    total, squares = torch.zeros(2, heads, size, dtype=torch.float64)
    step = max(1, BLOCK // max(1, size * keys))
    mixed, logs = torch.empty(2, size, step, keys + 1, device=rows.device)  # used again for every head
    for start in range(0, count, step):
        these = _halves(rows[:, start : start + step])  # [head, row, key + 1]
        those = these if others is None else _halves(others[:, start : start + step])
        own, their = _entropy(these + these), _entropy(those + those)  # [head, row], [other, row]
        for head in range(heads):
            first = head + 1 if others is None else 0
            both = torch.add(those[first:], these[head], out=mixed[first:, : these.shape[1]])
            entropy = _entropy(both, logs[first:, : these.shape[1]])  # [other, row]
            apart = (entropy - (their[first:] + own[head]) / 2).clamp(min=0).double()
            total[head, first:] += apart.sum(-1).cpu()
            squares[head, first:] += apart.square().sum(-1).cpu()
    if others is None:
        total, squares = total + total.T, squares + squares.T
    mean = total / max(count, 1)
    variance = (squares - count * mean.square()).clamp(min=0) / max(count - 1, 1)
    return Spread(mean.numpy(), variance.sqrt().numpy(), count)


def sampling_error(apart: Tensor, population: int) -> float:
    """Standard error of the mean of some rows' divergences, sampled from so many.  [row] -> number"""
    count = len(apart)
    deviation = float(apart.double().std()) if count > 1 else 0.0
    return deviation * _missing(count, population)


def _missing(rows: int, population: int) -> float:
    """The error of a mean over a deviation: none where every row was taken (sampling without replacement)."""
    return math.sqrt(max(0.0, 1 - rows / population) / rows)


def _halves(rows: Tensor) -> Tensor:
    """Half of each weight, the rest of the row as one more key.  [..., key] -> [..., key + 1]"""
    import torch

    rows = rows.clamp(min=0)
    sums = rows.sum(-1, keepdim=True)
    rest = (1 - sums).clamp(min=0)
    return torch.cat([rows / sums.clamp(min=1), rest], -1) / 2 + TINY


def _entropy(rows: Tensor, logs: Tensor | None = None) -> Tensor:
    """Shannon entropy in nats, of rows without a zero; ``logs`` is room to work in.  [..., key] -> [...]"""
    import torch

    return -torch.log(rows, out=logs).mul_(rows).sum(-1)
