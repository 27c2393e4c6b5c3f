"""What a weight is worth: rows of attention, weighed by what the values behind them do.

A row of any weighing is a row of shares: it sums to 1, so that every measure, role and baseline means on it
what it means on the weights themselves. A row in which nothing moves at all stays 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from attnscope.attention import RowSource


@dataclass(frozen=True)
class Explanation:
    """A weighing in words: what a cell is the share of, the formula, and who proposed it."""

    share: str
    formula: str
    source: str


WEIGHINGS: dict[str, Explanation] = {
    "norm": Explanation(
        "of its row in what the head adds: weight times the length of the key's value behind the projection",
        "‖A[i, j] · v_j W_O,h‖₂, v_j with its bias, over the sum of its row",
        "Kobayashi et al. 2020, Attention is Not Only a Weight",
    ),
}


@dataclass(frozen=True, eq=False)
class Values:
    """The values of every head, and the metric in which their length is that of what they add.

    ``metric`` is ``W_O,h W_O,hᵀ`` of each head, ``None`` where no output projection is known.
    """

    values: Tensor  # [batch, head, key, size]
    metric: Tensor | None  # [head, size, size]

    @staticmethod
    def of(values: Tensor, heads: int, weight: Tensor | None) -> Values:
        """The values of heads that may share them, and their output projection, [head, size, width]."""
        values = values.detach().float().repeat_interleave(heads // values.shape[1], 1)
        return Values(values, None if weight is None else _gram(weight))

    def measured(self) -> Tensor:
        """The values, each times the metric, so that a product with another is that behind the projection."""
        return self.values if self.metric is None else self.values @ self.metric.to(self.values)

    def lengths(self) -> Tensor:
        """How long each value is behind the projection.  -> [batch, head, key]"""
        return (self.measured() * self.values).sum(-1).clamp(min=0).sqrt()


def _gram(weight: Tensor) -> Tensor:
    """[head, size, width] -> [head, size, size]"""
    return weight.double() @ weight.double().mT


Amounts: TypeAlias = Callable[[Tensor, slice, "list[int] | slice"], Tensor]
"""What some rows of some heads move.  [batch, head, row, key], rows, heads -> the same shape"""


@dataclass(frozen=True, eq=False)
class WeighedRows:
    """The rows of a call, weighed: ``amounts`` of each, as shares of their sum."""

    raw: RowSource
    amounts: Amounts

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """The share of each key in what moves its row.  -> [batch, head, row, key]"""
        with torch.no_grad():
            chosen = slice(None) if heads is None else list(heads)
            amounts = self.amounts(self.raw.rows(start, stop, heads), slice(start, stop), chosen)
            total = amounts.sum(-1, keepdim=True)
            return amounts / total.where(total > 0, 1)

    def allowed(self, start: int, stop: int) -> Tensor:
        """Keys that the mask left open, bool.  -> [batch or 1, head or 1, row, key]"""
        return self.raw.allowed(start, stop)


def by_norm(values: Values) -> Amounts:
    """A[i, j] times the length of v_j behind the output projection."""
    lengths = values.lengths()

    def amounts(rows: Tensor, _: slice, heads: list[int] | slice) -> Tensor:
        return rows * lengths[:, heads, None].to(rows)

    return amounts
