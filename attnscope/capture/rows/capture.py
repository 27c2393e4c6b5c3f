"""One attention call as a kernel, a softmax or a module showed it, before it has a kind and a layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._C import _functorch as functorch

from attnscope.attention import Attention, AttentionCall, HeldRows, Kind, RowSource, Site, Source
from attnscope.capture.hooks.modules import Call
from attnscope.capture.lineage.functions import Product
from attnscope.capture.lineage.nodes import CallOrigin
from attnscope.capture.rows.scores import ScoredRows, compare_rows

FAR_BELOW = 5e3  # no mask lowers a score by less
FARTHEST = 1e6  # nothing but a mask lowers a score by more
ROUNDING = 0.01  # a row of 16-bit weights may sum to a little over 1

TALKING = (
    "a learned layer mixes its weights between heads before they are applied to the values (talking heads)"
)
SIGNED = "some of its weights are negative: they are not a distribution over keys"
FACTORS = (
    "its weights are the product of several softmaxes, not all over keys (as with landmarks): at most one "
    "factor is shown"
)
MAPPED = "it runs inside torch.vmap, which hides some of its axes: its weights are not shown"


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of queries and keys, on their way to a softmax."""

    product: Product  # of queries and keys
    scale: float = 1.0
    terms: tuple[Tensor, ...] = ()  # what was added
    softmax_input: Tensor | None = None

    def added(self, softmax_input: Tensor) -> Tensor:
        """What all terms together add to the scaled product, which gives the softmax's input."""
        product = self.product
        spelled = f"{product.left_axes},{product.right_axes}->{product.out}"
        return softmax_input - self.scale * torch.einsum(spelled, product.left, product.right)


@dataclass(frozen=True, eq=False)
class Trail:
    """One tensor on the path from a softmax to the product that makes it attention."""

    path: tuple[str, ...]  # the modules that were running at the softmax, outermost first
    masked: Tensor | None  # bool, with the tensor's axes
    reason: str = ""  # why what it became by now cannot be shown
    factors: bool = False  # whether several softmaxes were multiplied with each other
    softmax: int = 0  # number of the softmax in the recording; 0 for none
    scores: Scores | None = None  # what it was made of, if that is known and it was not moved since
    before: Tensor | None = None  # the same before dropout, if that was on

    def owner(self, path: Sequence[str]) -> str:
        """The innermost module around the softmax that still runs, when these run."""
        both = zip(self.path, path, strict=False)
        return ([""] + [here for there, here in both if there == here])[-1]


@dataclass(frozen=True, eq=False)
class Weighing:
    """Attention weights as they were applied to the values, in the module's own axes."""

    trail: Trail
    weights: Tensor  # [..., query, key]
    masked: Tensor | None  # [..., query, key]
    grouped: bool = False  # whether neighbouring heads share their values along a separate axis
    operand: Tensor | None = None  # the tensor that was multiplied
    axes: tuple[int, ...] = ()  # of the operand, in the order in which the weights have them
    factor: Tensor | None = None  # the other one
    query_axis: int = -2  # of the product: its queries
    values: Tensor | None = None  # [..., key, size], if the product had one such axis
    result: Tensor | None = None  # the product
    product_axes: tuple[int, ...] = ()  # its axes in the order [..., query, size]

    def with_heads(self, batch: int, heads: int | None = None) -> tuple[Tensor, Tensor | None]:
        """Weights and unmasked keys with a batch and a head axis, from any axes of the module.

        Five axes and more: those between the first and the queries are heads in groups that share their
        values; otherwise all but the last of them are batch (windows, blocks), unless the second has as
        many entries as the module's ``heads``. Three: [batch·head, query, key], split by the batch of the
        module's input. -> [batch, head, query, key]
        """
        weights = self._arrange(self.weights, batch, heads)
        if self.masked is None:
            return weights, None
        return weights, ~self._arrange(self.masked.expand(self.weights.shape), batch, heads)

    def arrange(self, labels: Tensor, batch: int, heads: int | None = None) -> Tensor:
        """A tensor in the operand's axes, rearranged as by ``with_heads``; the last two may be shorter."""
        return self._arrange(labels.permute(self.axes), batch, heads)

    def _arrange(self, tensor: Tensor, batch: int, heads: int | None) -> Tensor:
        return arrange_heads(tensor, self.weights.shape[:-2], self.grouped, batch, heads)

    @property
    def _is_shared(self) -> bool:
        """Whether one head's values serve all."""
        values, result = self.values, self.result
        if values is None or result is None or self.weights.shape[1:-2] != (1,):
            return False
        return values.ndim == result.ndim == 4 and values.shape[1] == result.shape[self.product_axes[1]]

    def layout(self, batch: int, heads: int | None = None) -> Layout | None:
        """How the product is rearranged as by ``with_heads``, [batch, head, query, size], if it can be."""
        values, result, lead = self.values, self.result, self.weights.shape[:-2]
        if values is None or result is None or values.ndim > result.ndim:
            return None
        if not self._is_shared and result.permute(self.product_axes).shape[:-1] != self.weights.shape[:-1]:
            return None
        return partial(
            arrange_product,
            axes=self.product_axes,
            shared=self._is_shared,
            heads=partial(arrange_heads, lead=lead, grouped=self.grouped, batch=batch, heads=heads),
        )

    def product(self, batch: int, heads: int | None = None) -> tuple[Tensor, Tensor] | None:
        """The values and their mixtures, rearranged as by ``with_heads``, if they have such axes.

        -> [batch, head, key, size], [batch, head, query, size]
        """
        values, result, arrange = self.values, self.result, self.layout(batch, heads)
        if values is None or result is None or arrange is None or result.dtype != self.weights.dtype:
            return None
        values = side_by_side(values) if self._is_shared else values
        values = values.expand(*self.weights.shape[:-2], *values.shape[-2:])
        return self._arrange(values, batch, heads), arrange(result)

    def call(self, batch: int, heads: int | None = None) -> AttentionCall | None:
        """The queries, keys and values as a kernel would receive them, with all else as a bias."""
        scores, both = self.trail.scores, self.product(batch, heads)
        if scores is None or scores.softmax_input is None or both is None:
            return None
        *lead, query, key = (scores.product.out[axis] for axis in self.axes)
        sides = list[Tensor]()
        for side, axes, _, others in scores.product.sides:
            own, size = (
                [x for x in axes if x in some] for some in ((query, key), {*others} - {*scores.product.out})
            )
            order = *lead, *own, *size
            if len(own) != 1 or len(size) != 1:
                return None
            here = side.permute([axes.index(axis) for axis in order if axis in axes])
            here = here[tuple(slice(None) if axis in axes else None for axis in order)]
            here = self._arrange(here.expand(*self.weights.shape[:-2], -1, -1), batch, heads)
            sides.insert(own == [key] and len(sides), here)
        scores_in = self._arrange(
            scores.softmax_input.permute(self.axes).expand(self.weights.shape), batch, heads
        )
        call = AttentionCall(sides[0], sides[1], both[0], scores.scale)
        bias = scores_in - ScoredRows(call).scores(0, scores_in.shape[2], None)
        return replace(call, biases=(bias,))


Layout: TypeAlias = Callable[[Tensor], Tensor]  # of a product -> [batch, head, query, size]


def arrange_heads(
    tensor: Tensor, lead: Sequence[int], grouped: bool, batch: int, heads: int | None
) -> Tensor:
    """A tensor in the axes of weights, which begin with ``lead``, with a batch and a head axis."""
    if len(lead) == 3 and not grouped and lead[1] == heads != lead[2]:  # the second are the heads
        tensor, lead = tensor.transpose(1, 2), [lead[0], lead[2], lead[1]]
    if len(lead) == 1:
        lead = [batch, lead[0] // batch] if batch and lead[0] % batch == 0 else [lead[0], 1]
    elif len(lead) > 2 and not grouped:
        lead = [math.prod(lead[:-1]), lead[-1]]
    first, *others = lead or [1]
    return tensor.reshape(first, math.prod(others), *tensor.shape[-2:])


def arrange_product(result: Tensor, axes: Sequence[int], shared: bool, heads: Layout) -> Tensor:
    """A product, or what else has its axes, with a batch and a head axis."""
    output = result.permute(*axes)
    return heads(side_by_side(output) if shared else output)


def side_by_side(values: Tensor) -> Tensor:
    """[batch, head, position, size] -> [batch, 1, position, head·size]"""
    return values.transpose(1, 2).flatten(2).unsqueeze(1)


def masked_keys(
    scores: Tensor, axis: int, weights: Tensor, added: Callable[[Tensor], Tensor] | None = None
) -> Tensor | None:
    """The scores that a mask hides, or None if none.

    Masked is -inf, what has no weight because it lies far below the largest score of its row, and a row of
    such numbers. Scores of queries and keys may be low, too: what was ``added`` to them tells, or else
    whether another head, on the second of four axes, gives the key weight. ``torch.vmap`` tells nothing.
    """
    scores = scores.detach()
    highest = scores.amax(axis, keepdim=True)
    below = highest - scores
    masked = (scores == -torch.inf) | ((weights == 0) & (below > FAR_BELOW))
    if is_mapped(masked):
        return masked
    doubtful = masked & (below < FARTHEST)
    if added is not None and bool((doubtful | (highest < -FAR_BELOW)).any()):
        terms = added(scores)
        most = terms.amax(axis, keepdim=True)
        masked &= ~doubtful | (terms < most - FAR_BELOW)
        masked |= most < -FAR_BELOW  # a row without an unmasked key
    elif added is None:
        if masked.ndim == 4 and axis % 4 != 1:
            masked &= ~doubtful | masked.all(1, keepdim=True)
        masked |= highest < -FARTHEST
    return masked if bool(masked.any()) else None


def is_mapped(*tensors: Tensor) -> bool:
    """Whether ``torch.vmap`` hides an axis of one of some tensors, so that their numbers cannot be read."""
    for tensor in tensors:
        while functorch.is_functorch_wrapped_tensor(tensor):
            if functorch.is_batchedtensor(tensor):
                return True
            tensor = functorch.get_unwrapped(tensor)
    return False


@dataclass(frozen=True, eq=False)
class CapturedCall(Attention):
    """An attention call on its way to the observers; its site and labels are not known yet."""

    dtype: torch.dtype
    name: str = ""  # the path of the module at which it was captured
    modules: tuple[Call, ...] = ()  # those that were running, outermost first
    origin: CallOrigin | None = None  # of its queries and keys; None if nothing asks for it
    softmax: int = 0  # the number of the softmax behind its weights, 0 for a kernel
    is_cross: bool | None = None  # whether queries and keys come from different sequences, None if unknown
    kind: Kind | None = None  # if known: of a mixer
    probe: RowSource | None = None  # its rows by identity values, if these are asked for
    separate_axes: bool = False  # whether queries have no positions among the keys
    query_axis: int | None = None  # in the product of weights and values
    layout: Layout | None = None  # of that product
    dropout: bool = False  # whether dropout was on: weights are those before it

    @classmethod
    def from_rows(
        cls, read: RowSource, source: Source, kernel: str, shape: Sequence[int], dtype: torch.dtype
    ) -> CapturedCall:
        """A call of a module whose weights have this shape, [batch, head, query, key]."""
        batch, heads, queries, keys = shape
        unplaced, axes = Site("", 0, "cross", 0), (range(queries), range(keys))
        return cls(unplaced, source, kernel, batch, heads, heads, *axes, None, dtype, read)

    @classmethod
    def from_call(cls, call: AttentionCall, kernel: str, learned: bool = False) -> CapturedCall:
        """Attention recomputed from its queries and keys; ``learned`` queries have no position among them."""
        query, key = call.query, call.key
        terms = (query, key, *(t for t in (*call.biases, *call.masks) if isinstance(t, Tensor)))
        shape = max(t.shape[0] for t in terms if t.ndim == 4), *query.shape[1:3], key.shape[2]
        return replace(
            cls.from_rows(ScoredRows(call), "recomputed", kernel, shape, query.dtype),
            key_heads=key.shape[1],
            is_cross=True if learned else None,
            separate_axes=learned,
            window=call.window,
            values=call.value,
            dropout=bool(call.dropout),
        )

    @classmethod
    def from_weights(
        cls, weights: Tensor, open_keys: Tensor | None, source: Source, kernel: str
    ) -> CapturedCall:
        """Attention whose weights exist, [batch, head, query, key]; ``None``: no key is masked."""
        if open_keys is None:
            open_keys = torch.ones((), dtype=torch.bool, device=weights.device)
            open_keys = open_keys.expand(1, 1, *weights.shape[-2:])
        elif bool((open_keys == open_keys[:, :1]).all()):
            open_keys = open_keys[:, :1].clone()  # one mask for all heads, as almost always
        return cls.from_rows(
            HeldRows(weights.detach(), open_keys), source, kernel, weights.shape, weights.dtype
        )

    @classmethod
    def from_weighing(
        cls, weighing: Weighing, batch: int, heads: int | None = None, learned: bool = False
    ) -> CapturedCall:
        """Attention of a module's own code, which declares ``heads``; ``learned`` queries stand at no key."""
        capture = cls.from_weights(*weighing.with_heads(batch, heads), "softmax", "softmax")
        layout = weighing.layout(batch, heads)
        capture = replace(
            capture,
            query_axis=weighing.query_axis,
            layout=layout,
            softmax=weighing.trail.softmax,
            is_cross=True if learned else None,
            separate_axes=learned,
        )
        product = weighing.product(batch, heads)
        if product is None or not isinstance(capture.read, HeldRows):
            return capture
        if weighing.trail.before is not None:
            return replace(capture, values=product[0], dropout=True)
        if weighing.trail.scores is not None:
            capture = replace(capture, read=replace(capture.read, call=partial(weighing.call, batch, heads)))
        return capture.with_difference(*product)

    def with_difference(self, value: Tensor, output: Any) -> CapturedCall:
        """The same call, checked if the kernel's output is [batch, head, query, size]."""
        shape = self.batch, self.heads, len(self.queries), value.shape[-1]
        if not isinstance(output, Tensor) or output.shape != shape or not output.numel():
            return self
        return replace(self, difference=compare_rows(self.read, value, output), values=value)
