"""Rows of a traced call, computed again in NumPy with the formula of ``AttentionCall``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from attnscope.axes.weights import Array
from attnscope.storage.trace.layout import Bias, Held, Joined, Rows, Scores, Stepped
from attnscope.storage.trace.masks import open_rows

Arrays = Mapping[str, Array]

CLOSED_BELOW, CLASSIC_CLOSED = -3e4, -1e4
"""An additive mask closes a key by a number up to the first one, or by the second, as BERT's code did."""


def rows_of(rows: Rows, arrays: Arrays, start: int, stop: int, heads: Sequence[int] | None = None) -> Array:
    """Weights of the queries ``start`` to ``stop``, of some heads or all.  -> [batch, head, row, key]"""
    if isinstance(rows, Held):
        held = to_float(arrays[rows.array])[:, :, start:stop]
        return held if heads is None else held[:, list(heads)]
    if isinstance(rows, Joined):
        owner = [
            (part, head) for part, count in zip(rows.parts, rows.counts, strict=True) for head in range(count)
        ]
        chosen = owner if heads is None else [owner[head] for head in heads]
        return np.concatenate([rows_of(part, arrays, start, stop, [head]) for part, head in chosen], 1)
    if isinstance(rows, Stepped):
        return _stack(rows, start, stop, lambda part, one, other: rows_of(part, arrays, one, other, heads))
    return _weigh(rows, arrays, start, stop, heads)


def allowed_of(rows: Rows, arrays: Arrays, start: int, stop: int) -> Array:
    """Keys that the masks left open, bool.  -> [batch or 1, head or 1, row, key]"""
    if isinstance(rows, Held):
        values = arrays[rows.array][:, :, start:stop]
        if rows.open is None:
            some: Array = (values != 0).any(1, keepdims=True)
            return some
        opened = open_rows(rows.open, arrays, start, stop)
        return np.broadcast_to(opened, (*opened.shape[:2], *values.shape[2:]))
    if isinstance(rows, Joined):
        masks = [allowed_of(part, arrays, start, stop) for part in rows.parts]
        shapes = [(len(mask), count, *mask.shape[2:]) for mask, count in zip(masks, rows.counts, strict=True)]
        return np.concatenate([np.broadcast_to(*pair) for pair in zip(masks, shapes, strict=True)], 1)
    if isinstance(rows, Stepped):
        return _stack(rows, start, stop, lambda part, one, other: allowed_of(part, arrays, one, other))
    opened = np.ones((1, 1, stop - start, key_of(rows, arrays).shape[2]), bool)
    if rows.diagonal is not None:
        opened = opened & _causal(rows.diagonal, opened.shape[-1], start, stop)
    for mask in rows.masks:
        opened = opened & open_rows(mask, arrays, start, stop)
    for bias in rows.biases:
        added = bias_rows(bias, arrays, start, stop)
        opened = opened & (added > CLOSED_BELOW) & (added != CLASSIC_CLOSED)
    return opened


def key_of(rows: Scores, arrays: Arrays) -> Array:
    """The keys of a call.  -> [batch, key_head, key, size]"""
    return arrays[rows.key][:, :, : rows.stop]


def bias_rows(bias: Bias, arrays: Arrays, start: int, stop: int) -> Array:
    """Some rows of what is added to the scores.  -> [batch or 1, head or 1, row or 1, key or 1]"""
    values = to_float(arrays[bias.array])
    if bias.open is not None:
        return np.where(open_rows(bias.open, arrays, start, stop), values.dtype.type(0), values)
    return values if values.shape[2] == 1 else values[:, :, start:stop]


def to_float(values: Array) -> Array:
    """Numbers in float32 at least; bfloat16, which NumPy has not, lies as its bits in uint16."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values if values.dtype == np.float64 else values.astype(np.float32, copy=False)


@np.errstate(all="ignore")  # a file may hold numbers that are none; they come out as such
def _weigh(rows: Scores, arrays: Arrays, start: int, stop: int, heads: Sequence[int] | None) -> Array:
    """Softmax of scaled products, capped, biased and masked.  -> [batch, head, row, key]"""
    query, key = to_float(arrays[rows.query][:, :, start:stop]), to_float(key_of(rows, arrays))
    chosen = list(range(query.shape[1]) if heads is None else heads)
    groups = query.shape[1] // key.shape[1]
    scale = rows.scale if isinstance(rows.scale, float) else to_float(arrays[rows.scale])
    query, key = query[:, chosen] * scale, key[:, [head // groups for head in chosen]]
    scores = query @ key.swapaxes(-1, -2)
    if rows.softcap is not None:
        scores = rows.softcap * np.tanh(scores / rows.softcap)
    for bias in rows.biases:
        scores = scores + _of_heads(bias_rows(bias, arrays, start, stop), chosen).astype(scores.dtype)
    for mask in rows.masks:
        scores = np.where(_of_heads(open_rows(mask, arrays, start, stop), chosen), scores, -np.inf)
    if rows.diagonal is not None:
        scores = np.where(_causal(rows.diagonal, scores.shape[-1], start, stop), scores, -np.inf)
    highest = scores.max(-1, keepdims=True, initial=-np.inf)
    sink = None
    if rows.sinks is not None:
        sink = to_float(arrays[rows.sinks]).astype(scores.dtype)
        sink = _of_heads(sink.reshape(1, -1, 1, 1) if sink.ndim == 1 else sink, chosen)
        highest = np.maximum(highest, sink)
    grown = np.exp(scores - np.where(np.isneginf(highest), 0, highest))
    total = grown.sum(-1, keepdims=True)
    total = total if sink is None else total + np.exp(sink - highest)
    weights: Array = np.divide(grown, total, out=np.zeros_like(grown), where=total != 0)
    return weights


def _of_heads(values: Array, heads: list[int]) -> Array:
    return values if values.shape[1] == 1 else values[:, heads]


def _causal(diagonal: int, keys: int, start: int, stop: int) -> Array:
    """-> [row, key]"""
    return np.arange(keys) <= np.arange(start, stop)[:, None] + diagonal


def _stack(rows: Stepped, start: int, stop: int, read: Callable[[Rows, int, int], Array]) -> Array:
    """Rows of several steps under each other, each step's keys where they belong.  -> [..., row, key]"""
    blocks: list[Array] = []
    for part, shift, begin, end in zip(rows.parts, rows.shifts, rows.starts, rows.starts[1:], strict=False):
        first, last = max(start, begin), min(stop, end)
        if first < last or not (blocks or end < rows.starts[-1]):
            block = read(part, first - begin, max(first, last) - begin)
            low, high = max(0, shift), min(rows.keys, shift + block.shape[-1])
            placed = np.zeros((*block.shape[:-1], rows.keys), block.dtype)
            placed[..., low:high] = block[..., low - shift : high - shift]
            blocks.append(placed)
    shape = np.broadcast_shapes(*(block.shape[:2] for block in blocks))
    return np.concatenate([np.broadcast_to(block, (*shape, *block.shape[2:])) for block in blocks], 2)
