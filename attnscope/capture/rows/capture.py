"""One attention call as a kernel, a softmax or a module showed it, before it has a kind and a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnscope.attention import Attention, AttentionCall, HeldRows, RowSource, Site, Source
from attnscope.capture.rows.proof import compare_rows
from attnscope.capture.rows.scores import ScoredRows
from attnscope.capture.rows.weighing import Weighing

UNPLACED = Site("", 0, "cross", 0)


@dataclass(frozen=True, eq=False)
class Capture(Attention):
    """The contents of one attention call, whose site and labels are not known yet.

    ``crossed`` says whether queries and keys come from different sequences, None if unknown; ``apart``:
    queries have no positions among the keys. ``query_axis`` is the axis of the queries in the product of
    weights and values.
    """

    dtype: torch.dtype
    crossed: bool | None = None
    apart: bool = False
    query_axis: int | None = None

    @classmethod
    def of(
        cls, read: RowSource, source: Source, kernel: str, shape: Sequence[int], dtype: torch.dtype
    ) -> Capture:
        """A call of a module whose weights have this shape, [batch, head, query, key]."""
        batch, heads, queries, keys = shape
        axes = range(queries), range(keys)
        return cls(UNPLACED, source, kernel, batch, heads, heads, *axes, None, dtype, read)

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
        """Attention computed by a module's own code; ``heads`` is the module's declared number.

        ``learned`` queries have no position among the keys.
        """
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
