"""What is wrong with the attention that a model itself reports, beside what was captured."""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.attention import Attention

SAME = 1e-3


def fault(own: Tensor, attention: Attention) -> str | None:
    """What a model's own attention tensor for this call is instead of its weights, or None if it is them.

    ``own`` is one tensor of a model's ``output_attentions``, made from the same input. Call it from an
    observer: it reads all rows of ``attention``. Rows that see nothing are not compared.
    """
    shape = (attention.batch, attention.heads, len(attention.queries), len(attention.keys))
    if own.ndim == 4 and attention.heads > 1 and bool((own == own[:, :1]).all()):  # one map, perhaps repeated
        own = own[:, 0]
    weights = attention.weights()
    alive = attention.allowed(0, shape[2]).any(-1, keepdim=True)  # [batch or 1, head or 1, query, 1]
    if tuple(own.shape) == (shape[0], *shape[2:]) and attention.heads > 1:
        mean = weights.mean(1)
        return "the mean over the heads" if _close(own, mean, alive.any(1)) else "one map for all heads"
    if tuple(own.shape) != shape:
        return f"a tensor of the shape {list(own.shape)}, where the weights are {list(shape)}"
    if _close(own, weights, alive):
        return None
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
    return bool((((one.float() - other.float()) * alive).abs() <= SAME).all())
