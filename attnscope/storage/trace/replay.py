"""A trace shown to observers like a model's pass: the same calls, with bit-identical rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.attention import Attention, AttentionCall, HeldRows, OpenKeys, RowSource, Site, tensor_of
from attnscope.axes import Array
from attnscope.capture.record import Record, Replay, SiteRecord
from attnscope.lazy import torch
from attnscope.storage.trace import layout
from attnscope.storage.trace.file import Trace

if TYPE_CHECKING:
    from torch import Tensor

CACHED_CALLS = 2  # calls whose tensors are cached
SHARED_FIELDS = {each.name for each in fields(Attention)} & {each.name for each in fields(layout.TracedCall)}
"""What a traced call says as ``Attention`` does; its axes are numbers."""


def replay(trace: Trace, *, arrays: bool = False) -> Replay:
    """The calls of a trace, read on demand: bit-identical tensors, or NumPy ``arrays`` without torch."""
    description = trace.description
    source_of = _Sources(trace).source
    attentions = tuple(
        Attention(
            site=Site(call.name, call.call, call.kind, call.layer),
            queries=trace.axis(call.queries),
            keys=trace.axis(call.keys),
            read=_Rows(trace, call, None if arrays else partial(source_of, number)),
            arrays=arrays,
            **{name: getattr(call, name) for name in SHARED_FIELDS - {"queries", "keys"}},
        )
        for number, call in enumerate(description.calls)
    )
    sites = list(map(SiteRecord.from_attention, attentions, (call.step for call in description.calls)))
    without, failures = list(description.without_attention), list(description.failures)
    return Replay(attentions, Record(sites, without, failures, list(description.changes)))


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of one call: those of a ``source``, which is made on demand, or NumPy arrays without one."""

    trace: Trace
    call: layout.TracedCall
    source: Callable[[], RowSource] | None

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Any:
        """Weights of the queries ``start`` to ``stop``.  -> [batch, head, row, key]"""
        if self.source is not None:
            return self.source().rows(start, stop, heads)
        return layout.traced_rows(self.call.rows, self.trace.arrays, start, stop, heads)

    def allowed(self, start: int, stop: int) -> Any:
        """Keys that the masks leave open, bool.  -> [batch or 1, head or 1, row, key]"""
        if self.source is not None:
            return self.source().allowed(start, stop)
        return layout.allowed_of(self.call.rows, self.trace.arrays, start, stop)


class _Sources:
    """The rows of a trace's calls in the form of capture; those of the last calls are cached."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.source = lru_cache(maxsize=CACHED_CALLS)(self._source)
        self._bias = lru_cache(maxsize=CACHED_CALLS)(self._make_bias)

    def _source(self, number: int) -> RowSource:
        call = self.trace.description.calls[number]
        return self._rows(call.rows, self.trace.size(call)[0])

    def _rows(self, rows: layout.TracedRows, queries: int) -> RowSource:
        from attnscope.capture.rows.scores import JoinedHeads, ScoredRows
        from attnscope.capture.rows.steps import SteppedRows

        arrays = self.trace.arrays
        if isinstance(rows, layout.TracedWeights):
            opened = None if rows.open is None else _tensor(layout.unpack_rows(rows.open, arrays, 0, queries))
            return HeldRows(_tensor(arrays[rows.array]), opened)
        if isinstance(rows, layout.TracedHeads):
            return JoinedHeads(tuple(self._rows(part, queries) for part in rows.parts), rows.counts)
        if isinstance(rows, layout.TracedSteps):
            sizes = np.diff(rows.starts).tolist()
            parts = tuple(self._rows(part, size) for part, size in zip(rows.parts, sizes, strict=True))
            return SteppedRows(parts, rows.starts, rows.shifts, rows.keys)
        key = _tensor(layout.key_of(rows, arrays))
        call = AttentionCall(
            query=_tensor(arrays[rows.query]),
            key=key,
            value=key[..., :0],
            scale=rows.scale if isinstance(rows.scale, float) else _tensor(arrays[rows.scale]),
            biases=tuple(self._bias(bias, queries) for bias in rows.biases),
            masks=tuple(self._mask(mask, queries) for mask in rows.masks),
            diagonal=rows.diagonal,
            softcap=rows.softcap,
            sinks=None if rows.sinks is None else _tensor(arrays[rows.sinks]),
        )
        return ScoredRows(call)

    def _mask(self, mask: layout.Mask, queries: int) -> OpenKeys:
        """A mask common to all heads as a function of rows, any other as a tensor."""
        arrays = self.trace.arrays
        if arrays[mask.array].shape[1] == 1:
            return lambda start, stop: _tensor(layout.unpack_rows(mask, arrays, start, stop))
        return _tensor(layout.unpack_rows(mask, arrays, 0, queries))

    def _make_bias(self, bias: layout.Bias, queries: int) -> Tensor:
        values = self.trace.arrays[bias.array]
        return _tensor(values if bias.open is None else layout.bias_rows(bias, self.trace.arrays, 0, queries))


def _tensor(array: Array) -> Tensor:
    """An array as a tensor; uint16 holds the bits of bfloat16."""
    if array.dtype != np.uint16:
        return tensor_of(array)
    return tensor_of(array).view(torch.bfloat16)
