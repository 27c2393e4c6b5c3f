"""What a weight is worth: rows of attention, weighed by what the values behind them do.

A row of any weighing is a row of shares: it sums to 1, so that every measure, role and baseline means on it
what it means on the weights themselves; what is no key's, the residual of cross attention, is missing from
the sum. A row in which nothing moves at all is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from attnscope.attention import RowSource

if TYPE_CHECKING:
    from torch import Tensor

STILL = 1e-6
"""A cosine distance that is no more than rounding."""


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
    "norm-residual": Explanation(
        "of its row in what the block gives: as norm, with an equal part of the residual in each head's cell "
        "of the token itself, and behind the layer norm, where one follows",
        "‖g(A[i, j] · v_j W_O,h + [i = j] · x_i / heads)‖₂ over the sum of its row, g(y) = (y - mean y) ⊙ γ "
        "where a layer norm follows, else y",
        "Kobayashi et al. 2021, Incorporating Residual and Normalization Layers, head by head",
    ),
    "zeroing": Explanation(
        "of its row in how far the head's output would turn without the key's value",
        "1 - cos(o_i, o_i - A[i, j] · v_j), o_i = Σ_j A[i, j] · v_j, behind W_O,h, over the sum of its row",
        "Mohebbi et al. 2023, Quantifying Context Mixing in Transformers, head by head",
    ),
    "gradient": Explanation(
        "of its row in what raises a prediction: weight times the slope of the prediction's score",
        "max(0, A[i, j] · ∂y/∂A[i, j]), ∂y/∂A[i, j] = ∂y/∂o_i · v_j, over the sum of its row",
        "Chefer et al. 2021, Generic Attention-model Explainability",
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
        values = self.values.double()
        return values if self.metric is None else values @ self.metric

    def lengths(self) -> Tensor:
        """How long each value is behind the projection.  -> [batch, head, key]"""
        return (self.measured() * self.values).sum(-1).clamp(min=0).sqrt()


def _gram(weight: Tensor) -> Tensor:
    """[head, size, width] -> [head, size, size]"""
    return weight.double() @ weight.double().mT


Amounts: TypeAlias = "Callable[[Tensor, slice, list[int] | slice], Tensor]"
"""What some rows of some heads move.  [batch, head, row, key], rows, heads -> the same shape"""


@dataclass(frozen=True, eq=False)
class WeighedRows:
    """The rows of a call, weighed: ``amounts`` of each, as shares of their sum."""

    raw: RowSource
    amounts: Amounts
    may_be_none: bool = False  # whether there may be rows in which nothing is moved: they are closed
    beside: Tensor | None = None  # what moves each row and is no key's, [batch, 1, query, 1]

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """The share of each key in what moves its row.  -> [batch, head, row, key]"""
        amounts = self._amounts(start, stop, heads)
        total = amounts.sum(-1, keepdim=True)
        if self.beside is not None:
            total = total + self.beside[:, :, start:stop].to(total)
        return amounts / total.where(total > 0, 1)

    def allowed(self, start: int, stop: int) -> Tensor:
        """Keys that the mask left open, bool.  -> [batch or 1, head or 1, row, key]"""
        allowed = self.raw.allowed(start, stop)
        if not self.may_be_none:
            return allowed
        return allowed & (self._amounts(start, stop, None) > 0).any(-1, keepdim=True)

    def _amounts(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        import torch

        with torch.no_grad():
            chosen = slice(None) if heads is None else list(heads)
            return self.amounts(self.raw.rows(start, stop, heads), slice(start, stop), chosen)


def by_norm(values: Values) -> Amounts:
    """A[i, j] times the length of v_j behind the output projection."""
    lengths = values.lengths()

    def amounts(rows: Tensor, _: slice, heads: list[int] | slice) -> Tensor:
        return rows * lengths[:, heads, None].to(rows)

    return amounts


def by_zeroing(values: Values) -> Amounts:
    """The cosine distance between what a head gives with and without v_j, behind the output projection.

    A turn of less than ``STILL`` is none: where all values point one way, taking one away turns nothing.
    """
    import torch

    measured = values.measured()
    squares = (measured * values.values).sum(-1)  # [batch, head, key]

    def amounts(weights: Tensor, _: slice, heads: list[int] | slice) -> Tensor:
        rows = weights.double()  # what is left are small differences
        whole = rows @ values.values[:, heads].to(rows)  # [batch, head, row, size]
        along = whole @ measured[:, heads].to(rows).mT  # each value's product with the whole
        square = (rows * along).sum(-1, keepdim=True)  # of the whole with itself
        value = squares[:, heads, None]
        left = square - 2 * rows * along + rows.square() * value  # of what is left with itself
        product = square * left.clamp(min=0)
        cosine = (square - rows * along) / product.sqrt()
        sine = rows.square() * (square * value - along.square()).clamp(min=0) / product  # squared
        turned = torch.where(cosine > 0, sine / (1 + cosine), 1 - cosine)  # exact also where it is small
        turned = turned.where(product > 0, 1.0)  # nothing is left
        return turned.where((rows > 0) & (turned > STILL), 0.0).to(weights)

    return amounts


def by_gradient(values: Values, slopes: Tensor) -> Amounts:
    """What raises a score: weight times slope, where that is positive.

    ``slopes`` are those of the score by what each head gives, [batch, head, query, size].
    """

    def amounts(rows: Tensor, which: slice, heads: list[int] | slice) -> Tensor:
        slope = slopes[:, heads, which].to(rows) @ values.values[:, heads].to(rows).mT
        return (rows * slope).clamp(min=0)

    return amounts
