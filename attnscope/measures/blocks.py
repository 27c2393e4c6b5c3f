"""What a whole block makes of each key: with the residual, behind the norms.

Kobayashi et al. 2021, Incorporating Residual and Normalization Layers into Analysis of Masked Language
Models. What a block gives is a sum: of each head and key ``A[i, j] v_j W_O,h``, of the token itself the
residual, which is split evenly over the heads, and biases, which are no token's. A layer norm behind it takes
each of them alike: less its own mean, times the norm's weight over the spread of the whole. So does a norm
before the residual is added, of what the heads give alone.

ALTI, one layer of it: Ferrando et al. 2022, Measuring the Mixing of Contextual Information in the
Transformer. What the block gives is a sum of one vector a token, ``T_i(x_j) = Σ_h A[i, j] v_j W_O,h``, the
residual added to its own, and all of it behind the norm where there is one. A token's share is how much
nearer its vector brings the sum: ``max(0, ‖y_i‖₁ - ‖y_i - T_i(x_j)‖₁)``. Biases belong to no token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attnscope.capture.residuals import Norm, Residual
from attnscope.measures.weighing import Amounts, Values

ROWS = 32
"""Rows that are computed at a time."""

TILE, LARGE_TILE = 1 << 18, 1 << 24
"""Numbers of a tile of vectors: 1 MB of float32 stays in a processor's cache, 64 MB keep a GPU busy."""


def normed_weight(weight: Tensor, residual: Residual) -> Tensor:
    """An output projection with the norms behind it, but for the spread of each row.

    That of a norm behind the sum all of a row share; that of one before it ``spread_rows`` has.
    [head, size, width] -> [head, size, width]
    """
    weight = weight.double()
    for norm in (residual.inner, residual.norm):
        weight = weight if norm is None else norm.of(weight)
    return weight


def residual_part(residual: Residual, heads: int) -> Tensor:
    """What a head has of the residual, behind the norm.  -> [batch, query, width]"""
    before = residual.before.double()
    return (before if residual.norm is None else residual.norm.of(before)) / heads


def spread_rows(amounts: Amounts, inner: Norm) -> Amounts:
    """Amounts of rows that a norm makes larger or smaller before the residual is added."""
    spread = inner.spread[:, None]  # [batch, 1, query, 1]
    return lambda rows, which, heads: amounts(rows * spread[:, :, which].to(rows), which, heads)


def by_block_norm(values: Values, weight: Tensor, part: Tensor) -> Amounts:
    """The length of A[i, j] v_j behind projection and norm, the token's own with its part of the residual.

    ``weight`` is [head, size, width] and ``part`` [batch, query, width], both behind the norm.
    """
    lengths = values.lengths()  # [batch, head, key]
    read = torch.einsum("hsw,bqw->bhqs", weight.double(), part)
    along = (read * values.values).sum(-1)  # each own value's product with the residual's part
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
    crossed: bool = False  # whether the residual is of no key: then it is a last one

    @property
    def width(self) -> int:
        """How many numbers each key's vector has."""
        return self.weight.shape[-1]

    @cached_property
    def _moved(self) -> Tensor:
        """The values behind projection and norms, but for each row's spread.  -> [key, head, width]"""
        moved = self.values[0] @ self.weight.to(self.values)
        for norm in (self.residual.inner, self.residual.norm):
            moved = moved if norm is None else norm.of(moved)
        return moved.transpose(0, 1).contiguous()

    def __call__(self, rows: Tensor, which: slice, heads: object) -> Tensor:
        """What each key brings to each row.  [1, head, row, key] -> [1, 1, row, key (+ 1 if crossed)]"""
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
        """Write what each key brings to a few rows, which are the keys ``own``, or none.

        A vector of each row and key is needed, but only in tiles; where no head looks there is none.
        [row, key], [head, row, key], [row, width], [row, width]
        """
        length = whole.abs().sum(-1)
        if not own:
            brought[:, -1] = length - (before - whole).abs().sum(-1)
        moving = (weights != 0).any(0)  # [row, key]
        moving[range(len(own)), own] = True
        looked = moving.any(0)  # [key]
        weights = weights.permute(2, 1, 0).contiguous()  # [key, row, head]
        for start, stop in _tiles(looked.nonzero()[:, 0].tolist(), self._tile):
            left = torch.bmm(weights[start:stop], self._moved[start:stop])  # [key, row, width]
            for key in range(max(start, own.start), min(stop, own.stop)):
                left[key - start, key - own.start] += before[key - own.start]
            near = (length - left.sub_(whole).abs_().sum(-1)).mT  # [row, key]
            brought[:, start:stop] = near.where(moving[:, start:stop], 0)  # else a rounding stays

    @property
    def _tile(self) -> int:
        """How many keys make up a tile: as many as a processor holds beside itself, or a GPU at once."""
        numbers = TILE if self.values.device.type == "cpu" else LARGE_TILE
        return max(1, numbers // (ROWS * self.width))


def _tiles(keys: Sequence[int], size: int) -> Iterator[tuple[int, int]]:
    """Where tiles begin and end that hold all keys, at most so many each, and none between them in vain."""
    start = last = None
    for key in keys:
        if start is None or last is None or key != last + 1 or key - start >= size:
            if start is not None and last is not None:
                yield start, last + 1
            start = key
        last = key
    if start is not None and last is not None:
        yield start, last + 1
