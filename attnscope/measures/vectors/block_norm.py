"""How long each vector is that a whole block adds up, head by head: with its residual, behind its norm.

Kobayashi et al. 2021, Incorporating Residual and Normalization Layers into Analysis of Masked Language
Models. What a block gives is a sum: of each head and key ``A[i, j] v_j W_O,h``, of the token itself the
residual, which is split evenly over the heads, and biases, which are no token's. A layer norm behind it takes
each of them alike: less its own mean, times the norm's weight over the spread of the whole. So does a norm
before the residual is added, of what the heads give alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.capture.residuals import Norm, Residual
from attnscope.measures.vectors.weighing import Amounts, Values


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
