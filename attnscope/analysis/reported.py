"""What is wrong with the attention that a model itself reports, beside what was captured."""

from __future__ import annotations

import torch
from torch import Tensor

SAME = 1e-3
"""Sums of rows differ by less."""

ROUNDING = 1e-4
"""Two computations of one weight in float32 differ by less."""


def fault(own: Tensor, weights: Tensor, alive: Tensor) -> str | None:
    """What a model's own attention tensor for a call is instead of its weights, or None if it is them.

    ``own`` is one tensor of a model's ``output_attentions``, from the same input as ``weights``,
    [batch, head, query, key]. ``alive`` is true of the rows that see a key: no others are compared.
    It has the shape [batch or 1, head or 1, query, 1].
    """
    shape, heads = tuple(weights.shape), weights.shape[1]
    weights, alive = weights.to(own.device), alive.to(own.device)
    if tuple(own.shape) == shape and _close(own, weights, alive):
        return None
    if own.ndim == 4 and heads > 1 and bool((own == own[:, :1]).all()):  # one map, perhaps repeated
        own = own[:, 0]
    if tuple(own.shape) == (shape[0], *shape[2:]) and heads > 1:
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
