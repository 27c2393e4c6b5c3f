"""What is wrong with the attention that a model itself reports, beside what was captured."""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.attention import Attention

SAME = 1e-3
"""Sums of rows differ by less."""

ROUNDING = 1e-4
"""Two computations of one weight in float32 differ by less."""


def fault(own: Tensor, attention: Attention) -> str | None:
    """What a model's own attention tensor for this call is instead of its weights, or None if it is them.

    ``own`` is one tensor of a model's ``output_attentions``, made from the same input. Call it from an
    observer: it reads all rows of ``attention``. Rows that see nothing are not compared.
    """
    shape = (attention.batch, attention.heads, len(attention.queries), len(attention.keys))
    weights = attention.weights().to(own.device)
    alive = attention.allowed(0, shape[2]).any(-1, keepdim=True)  # [batch or 1, head or 1, query, 1]
    alive = alive.to(own.device)
    if tuple(own.shape) == shape and _close(own, weights, alive):
        return None
    if own.ndim == 4 and attention.heads > 1 and bool((own == own[:, :1]).all()):  # one map, perhaps repeated
        own = own[:, 0]
    if tuple(own.shape) == (shape[0], *shape[2:]) and attention.heads > 1:
        mean = weights.mean(1)
        return "the mean over the heads" if _close(own, mean, alive.any(1)) else "one map for all heads"
    if tuple(own.shape) != shape:
        return f"a tensor of the shape {list(own.shape)}, where the weights are {list(shape)}"
    if bool((own < 0).any()):
        scores = torch.softmax(own.float(), -1)
        return (
            "scores from before the softmax"
            if _close(scores, weights, alive)
            else "no weights: some are negative"
        )
    if float(own.float().sum(-1).amax()) > 1 + SAME:
        return "no weights: rows sum to more than 1"
    return "other weights than those that were used"


def _close(one: Tensor, other: Tensor, alive: Tensor) -> bool:
    """Whether two tensors of weights differ by no more than rounding in the type of the first."""
    tolerance = max(ROUNDING, 4 * torch.finfo(one.dtype).eps)
    return bool((((one.float() - other.float()) * alive).abs() <= tolerance).all())
