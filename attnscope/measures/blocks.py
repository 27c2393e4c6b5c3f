"""What each key contributes to a whole block: with the residual, after the norms.

Kobayashi et al. 2021, Incorporating Residual and Normalization Layers into Analysis of Masked Language
Models. A block's output is a sum: ``A[i, j] v_j W_O,h`` of each head and key, the token's own residual
(split evenly over the heads), and biases, which belong to no token. A layer norm after the sum acts on
each summand alike: minus the summand's mean, times the norm's weight over the standard deviation of the
whole. A norm before the residual is added acts on the heads' output alone in the same way.

ALTI, one layer of it: Ferrando et al. 2022, Measuring the Mixing of Contextual Information in the
Transformer. A block's output is a sum of one vector per token, ``T_i(x_j) = Σ_h A[i, j] v_j W_O,h``, plus
the residual for the token itself, all after the norm if there is one. A token's share is how much nearer
its vector brings the sum: ``max(0, ‖y_i‖₁ - ‖y_i - T_i(x_j)‖₁)``. Biases belong to no token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attnscope.capture.residuals import Norm, Residual
from attnscope.measures.weighing import Amounts, Values

ROWS = 32  # rows that are computed at a time

TILE, LARGE_TILE = 1 << 18, 1 << 24
"""Numbers in a tile of vectors: 1 MB of float32 stays in a processor's cache, 64 MB keep a GPU busy."""


def normed_weight(weight: Tensor, residual: Residual) -> Tensor:
    """An output projection followed by the norms, without each row's standard deviation.

    That of a norm after the sum is common to a row; that of one before it is in ``spread_rows``. [head,
    size, width] -> [head, size, width]
    """
    weight = weight.double()
    for norm in (residual.inner, residual.norm):
        weight = weight if norm is None else norm.of(weight)
    return weight


def residual_part(residual: Residual, heads: int) -> Tensor:
    """Each head's part of the residual, after the norm.  -> [batch, query, width]"""
    before = residual.before.double()
    return (before if residual.norm is None else residual.norm.of(before)) / heads


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

    @property
    def width(self) -> int:
        """The size of each key's vector."""
        return self.weight.shape[-1]

    @cached_property
    def _moved(self) -> Tensor:
        """Values after projection and norms, without rows' deviations.  -> [key, head, width]"""
        moved = self.values[0] @ self.weight.to(self.values)
        for norm in (self.residual.inner, self.residual.norm):
            moved = moved if norm is None else norm.of(moved)
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
                weights, before = weights * spread, norm.of(before) * spread
            whole = self.residual.result[0, which].to(weights)  # [row, width]
            brought = weights.new_zeros(weights.shape[1], weights.shape[2] + self.crossed)
            for start in range(0, len(whole), ROWS):
                part = slice(start, start + ROWS)
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
        for start in range(0, len(weights), self._tile):
            stop = min(start + self._tile, len(weights))
            if not bool(looked[start:stop].any()):
                continue
            left = torch.bmm(weights[start:stop], self._moved[start:stop])  # [key, row, width]
            for key in range(max(start, own.start), min(stop, own.stop)):
                left[key - start, key - own.start] += before[key - own.start]
            near = (length - left.sub_(whole).abs_().sum(-1)).mT  # [row, key]
            brought[:, start:stop] = near.where(moving[:, start:stop], 0)  # rounding would remain otherwise

    @property
    def _tile(self) -> int:
        """Keys per tile: as many as fit a processor's cache, or keep a GPU busy."""
        numbers = TILE if self.values.device.type == "cpu" else LARGE_TILE
        return max(1, numbers // (ROWS * self.width))
