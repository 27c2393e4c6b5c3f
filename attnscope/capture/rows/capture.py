"""One attention call as a kernel, a softmax or a module showed it, before it has a kind and a layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnscope.attention import AttentionCall, HeldRows, RowSource, Source
from attnscope.capture.record import FUSED, CallFacts
from attnscope.capture.rows.proof import compare_rows
from attnscope.capture.rows.scores import ScoredRows
from attnscope.capture.rows.weighing import Weighing


@dataclass(frozen=True, eq=False, kw_only=True)
class Capture(CallFacts):
    """The contents of one attention call.

    ``crossed`` says whether queries and keys come from different sequences, None if unknown; ``apart``:
    queries have no positions among the keys. ``statistics`` are present if the fused pass computed the
    call. ``values`` are what the weights were multiplied with, None if that was not seen. ``query_axis``
    is the axis of the queries in the product of weights and values.
    """

    dtype: torch.dtype
    read: RowSource
    crossed: bool | None = None
    apart: bool = False
    statistics: Any = None
    values: Tensor | None = None  # [batch, key_head, key, size]
    query_axis: int | None = None

    @classmethod
    def of_call(cls, call: AttentionCall, kernel: str, learned: bool = False) -> Capture:
        """Attention recomputed from its queries and keys; ``learned`` queries have no position among them."""
        terms = (call.query, call.key, *(t for t in (*call.biases, *call.masks) if isinstance(t, Tensor)))
        return cls(
            source="recomputed",
            kernel=kernel,
            batch=max(term.shape[0] for term in terms if term.ndim == 4),
            heads=call.query.shape[1],
            key_heads=call.key.shape[1],
            queries=call.query.shape[2],
            keys=call.key.shape[2],
            dtype=call.query.dtype,
            read=ScoredRows(call),
            crossed=True if learned else None,
            window=call.window,
            apart=learned,
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
        batch, heads, queries, keys = weights.shape
        return cls(
            source=source,
            kernel=kernel,
            batch=batch,
            heads=heads,
            key_heads=heads,
            queries=queries,
            keys=keys,
            dtype=weights.dtype,
            read=HeldRows(weights.detach(), open_keys),
        )

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

    def fused(self, statistics: Any) -> Capture:
        """The same call, computed by the fused pass."""
        return replace(self, source="kernel", kernel=FUSED, statistics=statistics)

    def proved(self, value: Tensor, output: Any) -> Capture:
        """The same call, checked if the kernel's output is [batch, head, query, size]."""
        shape = self.batch, self.heads, self.queries, value.shape[-1]
        if not isinstance(output, Tensor) or output.shape != shape or not output.numel():
            return self
        return replace(self, difference=compare_rows(self.read, value, output), values=value)
