"""Weights as a module's own code computed them, and how its axes become batch and heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.capture.rows.mapped import count_hidden
from attnscope.fused.runs import CLOSED_BELOW

FAR_BELOW = 5e3
ROUNDING = 0.01  # a row of 16-bit weights may sum to a little over 1


@dataclass(frozen=True, eq=False)
class Trail:
    """One tensor on the way from a softmax to the product that makes it attention."""

    path: tuple[str, ...]  # the modules that were running at the softmax, outermost first
    masked: Tensor | None  # bool, laid out as the tensor
    shapes: tuple[torch.Size, ...]  # every 4-D shape on the way
    mixed: bool = False  # whether a learned layer mixed heads behind the softmax (talking heads)


@dataclass(frozen=True, eq=False)
class Weighing:
    """Attention weights as they met the values, with whatever axes the module gave them."""

    trail: Trail
    weights: Tensor  # [..., query, key]
    masked: Tensor | None  # [..., query, key]
    grouped: bool = False  # whether neighbouring heads share their values along an axis of their own

    def with_heads(self, batch: int, heads: int | None = None) -> tuple[Tensor, Tensor | None]:
        """Weights and open keys with a batch and a head axis, whatever axes the module had.

        Five axes and more: those between the first and the queries are heads in groups that share their
        values; else all but the last of them are batch (windows, blocks), unless it is the second that has as
        many entries as the module says it has ``heads``. Three: [batch·head, query, key], split as a
        4-D shape on the weights' way says, else by the batch that the module was given.
        -> [batch, head, query, key]
        """
        weights, masked = self.weights, self.masked
        if weights.ndim == 5 and not self.grouped and weights.shape[1] == heads != weights.shape[2]:
            weights, masked = weights.transpose(1, 2), None if masked is None else masked.transpose(1, 2)
        size = weights.shape[-2:]
        if weights.ndim == 2:
            shape = (1, 1, *size)
        elif weights.ndim == 3:
            shape = (*self._split(batch), *size)
        elif weights.ndim > 4 and not self.grouped:
            shape = (-1, weights.shape[-3], *size)
        else:
            shape = (weights.shape[0], -1, *size)
        open_keys = None if masked is None else ~masked.expand(weights.shape).reshape(shape)
        return weights.reshape(shape), open_keys

    def _split(self, batch: int) -> tuple[int, int]:
        """Batch and heads of [batch·head, query, key] weights."""
        count, *size = self.weights.shape
        for shape in reversed(self.trail.shapes):
            if list(shape[2:]) == size and shape[0] * shape[1] == count:
                return shape[0], shape[1]
        return (batch, count // batch) if batch and count % batch == 0 else (count, 1)


def bare_weighing(weights: Tensor) -> Weighing:
    """Weights that came from elsewhere, with no mask known."""
    return Weighing(Trail((), None, ()), weights, None)


def masked_keys(scores: Tensor, axis: int) -> Tensor | None:
    """The scores that a mask closes, or None where all are open.

    Masked is -inf, what an additive mask means by a very low number, and whatever lies ``FAR_BELOW`` or more
    under the largest score of its row, where no float holds a weight. Inside of ``torch.vmap`` nobody can ask
    whether there is any.
    """
    scores = scores.detach()
    highest = scores.amax(axis, keepdim=True)
    masked = (scores <= CLOSED_BELOW) | (scores < highest - FAR_BELOW)
    return masked if count_hidden(masked) or bool(masked.any()) else None
