"""Weighings: rows of attention, weighted by the effect of the values behind them, or on a whole block.

A weighted row holds shares that sum to 1, so that every measure, role and baseline means the same as on
plain weights; the part that belongs to no key, the residual of cross attention, is missing from the sum.
A row without any effect is masked.

A block's output (Kobayashi et al. 2021, Incorporating Residual and Normalization Layers into Analysis of
Masked Language Models) is a sum: ``A[i, j] v_j W_O,h`` of each head and key, the token's own residual
(split evenly over the heads), and biases, which belong to no token. A layer norm after the sum acts on
each summand alike: minus the summand's mean, times the norm's weight over the standard deviation of the
whole. A norm before the residual is added acts on the heads' output alone in the same way.

ALTI, one layer of it (Ferrando et al. 2022, Measuring the Mixing of Contextual Information in the
Transformer): the output is one vector per token, ``T_i(x_j) = Σ_h A[i, j] v_j W_O,h``, plus the residual for
the token itself, all after the norm if there is one. A token's share is how much nearer its vector brings the
sum: ``max(0, ‖y_i‖₁ - ‖y_i - T_i(x_j)‖₁)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from attnscope.attention import RowSource
from attnscope.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.capture.projections import Norm, Residual


LEAST_TURN = 1e-6  # a cosine distance below this is rounding


@dataclass(frozen=True)
class Explanation:
    """A weighting in words: what a cell is the share of, the formula, and the paper."""

    share: str
    formula: str
    source: str


WEIGHTINGS: dict[str, Explanation] = {
    "norm": Explanation(
        "of its row in what the head adds: weight times the length of the key's value after the projection",
        "‖A[i, j] · v_j W_O,h‖₂, v_j with its bias, over the sum of its row; ‖A[i, j] · v_j‖₂ where no "
        "output projection is found, as the title says then",
        "Kobayashi et al. 2020, Attention is Not Only a Weight",
    ),
    "norm-residual": Explanation(
        "of its row in what the block gives: as norm, with an equal part of the residual in each head's cell "
        "of the token itself, and behind the norm, where one follows",
        "‖g(A[i, j] · v_j W_O,h + [i = j] · x_i / heads)‖₂ over the sum of its row, g(y) = (y - mean y) ⊙ γ "
        "where a layer norm follows, else y; a norm before the sum takes the first part alone; the title "
        "says which was found",
        "Kobayashi et al. 2021, Incorporating Residual and Normalization Layers, head by head",
    ),
    "zeroing": Explanation(
        "of its row in how far the head's output would turn without the key's value",
        "1 - cos(o_i, o_i - A[i, j] · v_j), o_i = Σ_j A[i, j] · v_j, behind W_O,h, over the sum of its row",
        "Mohebbi et al. 2023, Quantifying Context Mixing in Transformers, head by head",
    ),
    "gradient": Explanation(
        "of its row in what raises a prediction: weight times the slope of the prediction's score; rows that "
        "raise nothing are masked",
        "max(0, A[i, j] · ∂y/∂A[i, j]), ∂y/∂A[i, j] = ∂y/∂o_i · v_j, over the sum of its row",
        "Chefer et al. 2021, Generic Attention-model Explainability",
    ),
}

METHODS: dict[str, Explanation] = {
    "rollout": Explanation(
        "each layer keeps 50% of a token (residual) and mixes in 50% by the average head",
        "Â_l = 0.5 · mean_h A + 0.5 · I; Â_l Â_l-1 ... Â_0; cross attention: 0.5 of each token stays, too",
        "Abnar & Zuidema 2020, Quantifying Attention Flow in Transformers",
    ),
    "flow": Explanation(
        "the largest flow to each token of the text, where a layer lets through rollout's shares",
        "the maximum flow from a token of the last layer to each of the text, capacities Â_l, over their "
        "sum; cross attention: to the tokens of both texts, 0.5 of each token stays, too",
        "Abnar & Zuidema 2020, Quantifying Attention Flow in Transformers",
    ),
    "relevance": Explanation(
        "what raises a prediction: attention times its gradient, added up layer by layer",
        "R ← R + mean_h max(0, A · ∂y/∂A) R from R = I on, over its row's sum; cross attention: R ← R + "
        "S A E, S and E what both sides are made of (Chefer et al. have Sᵀ: later tokens would count)",
        "Chefer et al. 2021, Generic Attention-model Explainability",
    ),
    "alti": Explanation(
        "how near each token's vector brings the sum of residual and heads, multiplied through layers",
        "c_ij = max(0, ‖y_i‖₁ - ‖y_i - T_i(x_j)‖₁) over its row's sum, T_i(x_j) what y_i has of token j, "
        "both behind the norm of the sum, where one follows; C_l C_l-1 ... C_0; of cross "
        "attention the residual is one token more",
        "Ferrando et al. 2022, Measuring the Mixing of Contextual Information in the Transformer",
    ),
}
"""The same of the ways to follow attention through all layers, in ``questions/flow.py``."""


@dataclass(frozen=True, eq=False)
class Values:
    """The values of every head, and the metric that gives their length after the output projection."""

    values: Tensor  # [batch, head, key, size]
    metric: Tensor | None  # W_O,h W_O,hᵀ of each head, [head, size, size]; None: no projection is known

    @staticmethod
    def from_projection(values: Tensor, heads: int, weight: Tensor | None) -> Values:
        """Values, possibly shared by several heads, and their output projection, [head, size, width]."""
        values = values.detach().to(torch.promote_types(values.dtype, torch.float32))
        values = values.repeat_interleave(heads // values.shape[1], 1)
        return Values(values, None if weight is None else weight.double() @ weight.double().mT)

    def measured(self) -> Tensor:
        """The values times the metric: times another value, the product after the projection."""
        values = self.values.double()
        return values if self.metric is None else values @ self.metric

    def lengths(self) -> Tensor:
        """The length of each value after the projection.  -> [batch, head, key]"""
        return (self.measured() * self.values).sum(-1).clamp(min=0).sqrt()


Amounts: TypeAlias = "Callable[[Tensor, slice, list[int] | slice], Tensor]"
"""The effect of each key on some rows.  [batch, head, row, key], rows, heads -> the same shape"""


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """The weighted rows of a call: ``amounts`` of each row as shares of their sum."""

    raw: RowSource
    amounts: Amounts
    may_be_none: bool = False  # whether some rows may have no effect at all: they are masked
    beside: Tensor | None = None  # the effect on each row that belongs to no key, [batch, 1, query, 1]
    heads: tuple[int, ...] | None = None  # the shown heads, if not all
    _moving: dict[tuple[int, int], Tensor] = field(default_factory=dict, repr=False)  # of the last rows read

    def only(self, heads: Sequence[int]) -> WeightedRows:
        """The same rows of these heads alone; others are not computed."""
        return replace(self, heads=tuple(self._of(heads) or ()), _moving={})

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """The share of each key in the effect on its row.  -> [batch, head, row, key]"""
        shown = self._of(heads)
        with torch.no_grad():
            chosen = slice(None) if shown is None else shown
            amounts = self.amounts(self.raw.rows(start, stop, shown), slice(start, stop), chosen)
            total = amounts.sum(-1, keepdim=True)
            if heads is None:
                self._moving.clear()
                self._moving[start, stop] = total > 0
            if self.beside is not None:
                total = total + self.beside[:, :, start:stop].to(total)
            return amounts / total.where(total > 0, 1)

    def allowed(self, start: int, stop: int) -> Tensor:
        """Keys that the mask leaves open, bool.  -> [batch or 1, head or 1, row, key]"""
        allowed = self.raw.allowed(start, stop)
        if self.heads is not None and allowed.shape[1] > 1:
            allowed = allowed[:, self._of(None)]
        if not self.may_be_none:
            return allowed
        if (start, stop) not in self._moving:  # callers have usually just read these rows
            self.rows(start, stop, None)
        return allowed & self._moving[start, stop]

    def _of(self, heads: Sequence[int] | None) -> list[int] | None:
        """The numbers that the shown heads have in the call; ``None`` for all."""
        if self.heads is None:
            return None if heads is None else list(heads)
        return list(self.heads if heads is None else (self.heads[head] for head in heads))


def by_norm(values: Values) -> Amounts:
    """The length of A[i, j] v_j after the output projection."""
    lengths = values.lengths()

    def amounts(rows: Tensor, _: slice, heads: list[int] | slice) -> Tensor:
        return rows * lengths[:, heads, None].to(rows)

    return amounts


def by_zeroing(values: Values) -> Amounts:
    """The cosine distance between a head's output with and without v_j, after the output projection.

    Needs no vector per row and key: with ``o`` of length 1, the rest has the squared length ``1 - 2 A o·v
    + A² v·v`` and the product ``1 - A o·v`` with ``o``. Distances below ``LEAST_TURN`` count as 0: where all
    values are parallel, removing one changes no direction.
    """
    measured, lengths = values.measured(), values.lengths()
    vectors = values.values.to(measured)

    def amounts(weights: Tensor, _: slice, heads: list[int] | slice) -> Tensor:
        numbers = range(vectors.shape[1])[heads] if isinstance(heads, slice) else heads
        turned = torch.empty_like(weights)
        for place, head in enumerate(numbers):  # head by head, because they are float64
            turned[:, place] = turn(weights[:, place], head)
        return turned

    def turn(weights: Tensor, head: int) -> Tensor:
        """[batch, row, key] -> [batch, row, key]"""
        rows = weights.to(measured, copy=True)  # float64, because the rest is a small difference
        whole = rows @ vectors[:, head]  # [batch, row, size]
        along = whole @ measured[:, head].mT  # each value's product with the whole output
        square = torch.linalg.vecdot(rows, along)[..., None]  # the whole output's product with itself
        length = square.clamp(min=0).sqrt()
        along.mul_(rows).div_(square)
        left = rows.mul_(lengths[:, head, None]).div_(length).square_().sub_(along, alpha=2).add_(1)
        turned = along.neg_().add_(1).div_(left.clamp_(min=0).sqrt_()).neg_().add_(1)
        turned = turned.where(left > 0, 1.0)  # nothing is left
        return turned.where((weights > 0) & (turned > LEAST_TURN), 0.0)

    return amounts


def by_gradient(values: Values, slopes: Tensor) -> Amounts:
    """What raises a score: weight times gradient, where positive; ``slopes`` are those of heads' outputs."""

    def amounts(rows: Tensor, which: slice, heads: list[int] | slice) -> Tensor:
        slope = slopes[:, heads, which].to(rows) @ values.values[:, heads].to(rows).mT
        return (rows * slope).clamp(min=0)

    return amounts


BLOCK_ROWS = 32  # rows that are computed at a time

CPU_TILE, GPU_TILE = 1 << 18, 1 << 24
"""Numbers in a tile of vectors: 1 MB of float32 stays in a processor's cache, 64 MB keep a GPU busy."""


def normed(vectors: Tensor, residual: Residual) -> Tensor:
    """Vectors after the norms before and behind the sum, without each row's standard deviation.

    That of a norm after the sum is common to a row; that of one before it is in ``spread_rows``.
    """
    for norm in (residual.inner, residual.norm):
        vectors = vectors if norm is None else norm.apply(vectors)
    return vectors


def residual_part(residual: Residual, heads: int) -> Tensor:
    """Each head's part of the residual, after the norm.  -> [batch, query, width]"""
    before = residual.before.double()
    return (before if residual.norm is None else residual.norm.apply(before)) / heads


def spread_rows(amounts: Amounts, inner: Norm) -> Amounts:
    """Scale amounts of rows by a norm that stands before the residual is added."""
    spread = inner.spread[:, None]  # [batch, 1, query, 1]
    return lambda rows, which, heads: amounts(rows * spread[:, :, which].to(rows), which, heads)


def by_block_norm(values: Values, weight: Tensor, part: Tensor) -> Amounts:
    """The length of A[i, j] v_j after projection and norm; the token's own includes its part of the residual.

    ``weight`` is [head, size, width] and ``part`` [batch, query, width], both after the norm.
    """
    lengths = values.lengths()  # [batch, head, key]
    read = torch.einsum("hsw,bqw->bhqs", weight.double(), part)
    along = (read * values.values).sum(-1)  # product of each value with the residual's part
    square = part.square().sum(-1)[:, None]  # [batch, 1, query]

    def amounts(rows: Tensor, which: slice, heads: list[int] | slice) -> Tensor:
        moved = rows * lengths[:, heads, None].to(rows)
        own = rows.diagonal(which.start, -2, -1).double()  # [batch, head, row]
        length = lengths[:, heads, which]
        both = (own * length).square() + 2 * own * along[:, heads, which] + square[..., which]
        moved.diagonal(which.start, -2, -1).copy_(both.clamp(min=0).sqrt())
        return moved

    return amounts


@dataclass(frozen=True, eq=False)
class Contributions:
    """One call of one text: its values, its output projection, and the states around it."""

    values: Tensor  # [1, head, key, size]
    weight: Tensor  # [head, size, width]
    residual: Residual
    crossed: bool = False  # whether the residual belongs to no key: then it becomes a last one

    @cached_property
    def _moved(self) -> Tensor:
        """Values after projection and norms, without rows' deviations.  -> [key, head, width]"""
        moved = normed(self.values[0] @ self.weight.to(self.values), self.residual)
        return moved.transpose(0, 1).contiguous()

    def __call__(self, rows: Tensor, which: slice, heads: object) -> Tensor:
        """What each key contributes to each row.  [1, head, row, key] -> [1, 1, row, key (+ 1 if crossed)]"""
        with torch.no_grad():
            weights = rows[0].to(self._moved)
            before = self.residual.before[0, which].to(self._moved)  # [row, width]
            inner, norm = self.residual.inner, self.residual.norm
            if inner is not None:
                weights = weights * inner.spread[0, which].to(weights)
            if norm is not None:
                spread = norm.spread[0, which].to(weights)
                weights, before = weights * spread, norm.apply(before) * spread
            whole = self.residual.result[0, which].to(weights)  # [row, width]
            brought = weights.new_zeros(weights.shape[1], weights.shape[2] + self.crossed)
            for start in range(0, len(whole), BLOCK_ROWS):
                part = slice(start, start + BLOCK_ROWS)
                first = which.start + start
                own = range(0) if self.crossed else range(first, first + len(whole[part]))
                self._add(brought[part], weights[:, part], before[part], whole[part], own)
            return brought.clamp_(min=0)[None, None]

    def _add(self, brought: Tensor, weights: Tensor, before: Tensor, whole: Tensor, own: range) -> None:
        """Write what each key contributes to a few rows, whose own keys are ``own``, if any.

        A vector per row and key is needed, but only in tiles, and none where no head attends. [row, key],
        [head, row, key], [row, width], [row, width]
        """
        length = whole.abs().sum(-1)
        if not own:
            brought[:, -1] = length - (before - whole).abs().sum(-1)
        moving = (weights != 0).any(0)  # [row, key]
        moving[range(len(own)), own] = True
        looked = moving.any(0)  # [key]
        weights = weights.permute(2, 1, 0).contiguous()  # [key, row, head]
        numbers = CPU_TILE if weights.device.type == "cpu" else GPU_TILE
        step = max(1, numbers // (BLOCK_ROWS * self.weight.shape[-1]))  # keys of a tile
        for start in range(0, len(weights), step):
            stop = min(start + step, len(weights))
            if not bool(looked[start:stop].any()):
                continue
            left = weights[start:stop].bmm(self._moved[start:stop])  # [key, row, width]
            for key in range(max(start, own.start), min(stop, own.stop)):
                left[key - start, key - own.start] += before[key - own.start]
            near = (length - left.sub_(whole).abs_().sum(-1)).mT  # [row, key]
            brought[:, start:stop] = near.where(moving[:, start:stop], 0)  # rounding would remain otherwise
