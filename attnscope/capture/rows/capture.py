"""One attention call as a kernel, a softmax or a module showed it, before it has a kind and a layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch

from attnscope.attention import Attention, AttentionCall, HeldRows, RowSource, Site, Source
from attnscope.capture.rows.scores import ScoredRows, compare_rows
from attnscope.fused.runs import CLOSED_BELOW

FAR_BELOW = 5e3
ROUNDING = 0.01  # a row of 16-bit weights may sum to a little over 1

TALKING = "a learned layer mixes its weights between heads before they meet the values (talking heads)"
SIGNED = "some of its weights are negative when they meet the values: no distribution over keys"
FACTORS = (
    "its weights are a product of several softmaxes, not all of which is a distribution over keys, as with "
    "landmarks: of it no more than one factor is shown"
)
MAPPED = "it attends inside of torch.vmap, which hides some of its axes: its weights are not shown"


@dataclass(frozen=True, eq=False)
class Trail:
    """One tensor on the path from a softmax to the product that makes it attention."""

    path: tuple[str, ...]  # the modules that were running at the softmax, outermost first
    masked: Tensor | None  # bool, with the tensor's axes
    reason: str = ""  # why what it became by now cannot be shown
    factors: bool = False  # whether several softmaxes were multiplied with each other
    softmax: int = 0  # number of the softmax in the recording; 0 for none

    def owner(self, path: Sequence[str]) -> str:
        """The innermost module around the softmax that still runs, when these run."""
        both = zip(self.path, path, strict=False)
        return ([""] + [ours for theirs, ours in both if theirs == ours])[-1]


@dataclass(frozen=True, eq=False)
class Weighing:
    """Attention weights as they met the values, in the module's own axes."""

    trail: Trail
    weights: Tensor  # [..., query, key]
    masked: Tensor | None  # [..., query, key]
    grouped: bool = False  # whether neighbouring heads share their values along a separate axis
    operand: Tensor | None = None  # the tensor that was multiplied
    axes: tuple[int, ...] = ()  # of the operand, in the order in which the weights have them
    weighed: Tensor | None = None  # the other factor
    made_axis: int = -2  # of the product: its queries
    values: Tensor | None = None  # [..., key, size], if the product had one such axis
    output: Tensor | None = None  # [..., query, size], the product

    def with_heads(self, batch: int, heads: int | None = None) -> tuple[Tensor, Tensor | None]:
        """Weights and open keys with a batch and a head axis, from any axes of the module.

        Five axes and more: those between the first and the queries are heads in groups that share their
        values; otherwise all but the last of them are batch (windows, blocks), unless the second has as
        many entries as the module's ``heads``. Three: [batch·head, query, key], split by the batch of the
        module's input. -> [batch, head, query, key]
        """
        weights = self._laid(self.weights, batch, heads)
        if self.masked is None:
            return weights, None
        return weights, ~self._laid(self.masked.expand(self.weights.shape), batch, heads)

    def arrange(self, labels: Tensor, batch: int, heads: int | None = None) -> Tensor:
        """A tensor in the operand's axes, rearranged as by ``with_heads``; the last two may be shorter."""
        return self._laid(labels.permute(self.axes), batch, heads)

    def _laid(self, tensor: Tensor, batch: int, heads: int | None) -> Tensor:
        """A tensor in the weights' axes, with a batch and a head axis."""
        lead = list(self.weights.shape[:-2])
        if len(lead) == 3 and not self.grouped and lead[1] == heads != lead[2]:  # the second are the heads
            tensor, lead = tensor.transpose(1, 2), [lead[0], lead[2], lead[1]]
        if len(lead) == 1:
            lead = [batch, lead[0] // batch] if batch and lead[0] % batch == 0 else [lead[0], 1]
        elif len(lead) > 2 and not self.grouped:
            lead = [math.prod(lead[:-1]), lead[-1]]
        first, *others = lead or [1]
        return tensor.reshape(first, math.prod(others), *tensor.shape[-2:])

    def product(self, batch: int, heads: int | None = None) -> tuple[Tensor, Tensor] | None:
        """The values and their mixtures, rearranged as by ``with_heads``, if they have such axes.

        -> [batch, head, key, size], [batch, head, query, size]
        """
        values, output, lead = self.values, self.output, self.weights.shape[:-2]
        if values is None or output is None or output.dtype != self.weights.dtype:
            return None
        if lead[1:] == (1,) and values.ndim == output.ndim == 4 and values.shape[1] == output.shape[1]:
            # one head weighs the values of all
            values, output = (part.transpose(1, 2).flatten(2).unsqueeze(1) for part in (values, output))
        if output.shape[:-1] != self.weights.shape[:-1] or values.ndim > output.ndim:
            return None
        values = values.expand(*lead, *values.shape[-2:])
        return self._laid(values, batch, heads), self._laid(output, batch, heads)


def masked_keys(scores: Tensor, axis: int) -> Tensor | None:
    """The scores that a mask closes, or None if all are open.

    Masked is -inf, the very low number of an additive mask, and whatever lies ``FAR_BELOW`` or more under the
    largest score of its row, where any weight underflows. Inside ``torch.vmap`` one cannot ask for any.
    """
    scores = scores.detach()
    highest = scores.amax(axis, keepdim=True)
    masked = (scores <= CLOSED_BELOW) | (scores < highest - FAR_BELOW)
    return masked if is_mapped(masked) or bool(masked.any()) else None


def is_mapped(*tensors: Tensor) -> bool:
    """Whether ``torch.vmap`` hides an axis of one of some tensors, so that their numbers cannot be read."""
    for tensor in tensors:
        while functorch.is_functorch_wrapped_tensor(tensor):
            if functorch.is_batchedtensor(tensor):
                return True
            tensor = functorch.get_unwrapped(tensor)
    return False


@dataclass(frozen=True, eq=False)
class Capture(Attention):
    """The contents of one attention call, whose site and labels are not known yet."""

    dtype: torch.dtype
    crossed: bool | None = None  # whether queries and keys come from different sequences, None if unknown
    apart: bool = False  # whether queries have no positions among the keys
    query_axis: int | None = None  # in the product of weights and values

    @classmethod
    def of(
        cls, read: RowSource, source: Source, kernel: str, shape: Sequence[int], dtype: torch.dtype
    ) -> Capture:
        """A call of a module whose weights have this shape, [batch, head, query, key]."""
        batch, heads, queries, keys = shape
        unplaced, axes = Site("", 0, "cross", 0), (range(queries), range(keys))
        return cls(unplaced, source, kernel, batch, heads, heads, *axes, None, dtype, read)

    @classmethod
    def of_call(cls, call: AttentionCall, kernel: str, learned: bool = False) -> Capture:
        """Attention recomputed from its queries and keys; ``learned`` queries have no position among them."""
        query, key = call.query, call.key
        terms = (query, key, *(t for t in (*call.biases, *call.masks) if isinstance(t, Tensor)))
        shape = max(t.shape[0] for t in terms if t.ndim == 4), *query.shape[1:3], key.shape[2]
        return replace(
            cls.of(ScoredRows(call), "recomputed", kernel, shape, query.dtype),
            key_heads=key.shape[1],
            crossed=True if learned else None,
            apart=learned,
            window=call.window,
            values=call.value,
        )

    @classmethod
    def of_weights(cls, weights: Tensor, open_keys: Tensor | None, source: Source, kernel: str) -> Capture:
        """Attention whose weights exist, [batch, head, query, key]; ``None``: no key is masked."""
        if open_keys is None:
            open_keys = torch.ones((), dtype=torch.bool, device=weights.device)
            open_keys = open_keys.expand(1, 1, *weights.shape[-2:])
        elif bool((open_keys == open_keys[:, :1]).all()):
            open_keys = open_keys[:, :1].clone()  # one mask for all heads, as almost always
        return cls.of(HeldRows(weights.detach(), open_keys), source, kernel, weights.shape, weights.dtype)

    @classmethod
    def of_weighing(
        cls, weighing: Weighing, batch: int, heads: int | None = None, learned: bool = False
    ) -> Capture:
        """Attention of a module's own code, which declares ``heads``; ``learned`` queries stand at no key."""
        capture = cls.of_weights(*weighing.with_heads(batch, heads), "softmax", "softmax")
        capture = replace(capture, query_axis=weighing.made_axis)
        capture = replace(capture, crossed=True, apart=True) if learned else capture
        product = weighing.product(batch, heads)
        return capture if product is None else capture.proved(*product)

    def proved(self, value: Tensor, output: Any) -> Capture:
        """The same call, checked if the kernel's output is [batch, head, query, size]."""
        shape = self.batch, self.heads, len(self.queries), value.shape[-1]
        if not isinstance(output, Tensor) or output.shape != shape or not output.numel():
            return self
        return replace(self, difference=compare_rows(self.read, value, output), values=value)
