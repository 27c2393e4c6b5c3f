"""The steps of a generation as one attention per site: the whole text at once, one row per token."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attnscope.attention import Attention, Axis, HeldRows, Kind, RowSource
from attnscope.capture.placing.kinds import label_axes
from attnscope.capture.record import Record, Replay, SiteRecord
from attnscope.capture.rows.scores import ScoredRows
from attnscope.fused.runs import digest


@dataclass(eq=False)
class Steps:
    """An observer that holds a prefill and the cached steps after it, to join them site by site.

    It holds what a cache holds, and the queries: weights are computed when the joined attention is read,
    never all at once. Only a call that gave weights without queries and keys stores its weights.
    """

    _sites: dict[tuple[str, int], _SiteCalls] = field(default_factory=dict)
    _masks: dict[tuple[object, ...], Tensor] = field(default_factory=dict)

    def observe(self, attention: Attention) -> None:
        """Hold one call."""
        key = attention.site.name, attention.site.call
        self._sites.setdefault(key, _SiteCalls(self._masks)).add(attention)

    def goes_on(self, attention: Attention) -> bool:
        """Whether a call is the next step of its site: its keys begin with the last ones."""
        steps = self._sites.get((attention.site.name, attention.site.call))
        return steps is None or steps.goes_on(attention)

    def drop_behind(self, rows: int) -> None:
        """Forget steps behind so many rows: generation on an Apple GPU learns one step late that it ended."""
        for steps in self._sites.values():
            while len(steps.calls) > 1 and sum(len(call.queries) for call in steps.calls) > rows:
                del steps.calls[-1], steps.spans[-1]

    def joined(self, axes: Mapping[Kind, tuple[Axis, Axis]] | None = None) -> tuple[Attention, ...]:
        """One attention per site and call, in the order in which they first ran.

        Self-attention becomes a lower triangle over all positions: a step's row goes below the earlier ones,
        and its keys to their true positions, even if a sliding cache has dropped the first ones or a static
        cache has empty places. Cross-attention grows by rows alone, and attention that ran once stays as it
        is. Keys that a step no longer had are masked. ``axes`` label them as in ``recording``.

        Raises ``ValueError`` if the steps of a site have different heads or batches.
        """
        return tuple(label_axes(steps.joined(), axes or {}) for steps in self._sites.values())

    def replay(self, record: Record, axes: Mapping[Kind, tuple[Axis, Axis]] | None = None) -> Replay:
        """The result of ``joined`` with the recording's record, as one pass."""
        attentions = self.joined(axes)
        return Replay(attentions, replace(record, sites=list(map(SiteRecord.of, attentions))))


@dataclass(eq=False)
class _SiteCalls:
    """The calls of one site; keys that they share are stored once."""

    masks: dict[tuple[object, ...], Tensor]  # copies by contents, of all sites: a model may overwrite its own
    calls: list[Attention] = field(default_factory=list)
    spans: list[tuple[_Keys, int, int] | None] = field(default_factory=list)  # where each call's keys are
    keys: dict[tuple[int, ...], _Keys] = field(default_factory=dict)  # by batch, heads and size
    latest: Tensor | None = None  # the last call's keys, or its values

    def goes_on(self, attention: Attention) -> bool:
        before, states, known = self.calls[-1], _states(attention), self.latest
        if known is None or states is None:
            return False
        if attention.offset is None or before.offset is None:
            return attention.offset is before.offset and _same_keys(known, states)
        count, end = attention.offset, before.offset + len(before.queries)
        return 0 < count <= end and _same_keys(known[..., end - count : end, :], states[..., :count, :])

    def add(self, attention: Attention) -> None:
        read, span = attention.read, None
        if isinstance(read, ScoredRows):
            call, key = read.call, read.call.key
            shared = self.keys.setdefault((*key.shape[:-2], key.shape[-1]), _Keys())
            end = shared.take_in(key, len(attention.queries))
            span = shared, end - key.shape[-2], end
            none = key[..., :0, :].clone()
            masks = tuple(self._hold(mask) if isinstance(mask, Tensor) else mask for mask in call.masks)
            biases = tuple(self._hold(bias) for bias in call.biases)
            call = replace(call, query=call.query.clone(), key=none, value=none, masks=masks, biases=biases)
            read = ScoredRows(call)
        elif isinstance(read, HeldRows):
            opened = None if read.open_keys is None else read.open_keys.clone()
            read = HeldRows(read.weights.clone(), opened)
        states = _states(attention)
        if span is not None:
            self.latest = span[0].whole()[..., span[1] : span[2], :]
        else:
            self.latest = None if states is None else states.clone()
        self.calls.append(replace(attention, read=read, values=None))
        self.spans.append(span)

    def _hold(self, mask: Tensor) -> Tensor:
        return self.masks.setdefault(digest(mask), mask.clone())

    def joined(self) -> Attention:
        first = self.calls[0]
        if len({(call.heads, call.batch) for call in self.calls}) > 1:
            raise ValueError(f"the steps of {first.site.name} differ in their heads or their batch")
        reads = [call.read for call in self.calls]
        for number, (read, span) in enumerate(zip(reads, self.spans, strict=True)):
            if span is not None and isinstance(read, ScoredRows):
                keys, start, stop = span
                reads[number] = ScoredRows(replace(read.call, key=keys.whole()[..., start:stop, :]))
        if len(reads) == 1:
            return replace(first, read=reads[0])
        starts, shifts = [0], []
        for call in self.calls:
            shifts.append(0 if call.offset is None else starts[-1] - call.offset)
            starts.append(starts[-1] + len(call.queries))
        labels = first.keys if first.offset is None else range(starts[-1])
        rows = SteppedRows(tuple(reads), tuple(starts), tuple(shifts), len(labels))
        errors = [call.difference for call in self.calls if call.difference is not None]
        worst = max(errors, default=None)
        return replace(first, queries=range(starts[-1]), keys=labels, read=rows, difference=worst)


def _same_keys(one: Tensor, other: Tensor) -> bool:
    """Whether keys are the same, bit for bit; some kernels get them repeated for each query head."""
    if one.ndim != other.ndim or one.ndim < 3 or min(one.shape[-3], other.shape[-3]) < 1:
        return torch.equal(one, other)
    heads = max(one.shape[-3], other.shape[-3])
    one, other = (keys.repeat_interleave(heads // keys.shape[-3], -3) for keys in (one, other))
    return torch.equal(one, other)


def _states(attention: Attention) -> Tensor | None:
    """What tells whether a call continues another: its keys, or its values."""
    return attention.read.call.key if isinstance(attention.read, ScoredRows) else attention.values


@dataclass(eq=False)
class _Keys:
    """The keys of many calls concatenated, without what a call repeats from those before it."""

    store: Tensor | None = None  # [batch, key_head, key, size], with room for more
    count: int = 0

    def take_in(self, key: Tensor, queries: int) -> int:
        """Add a call's new keys; returns where they end, counted from the first."""
        size = key.shape[-2]
        more = next((more for more in (0, queries) if self._end_with(key, size - more)), size)
        end = self.count + more
        if self.store is None or end > self.store.shape[-2]:
            store = key.new_empty(*key.shape[:-2], end + end // 4, key.shape[-1])
            store[..., : self.count, :] = self.whole() if self.count else store[..., :0, :]
            self.store = store
        self.store[..., self.count : end, :] = key[..., size - more :, :]
        self.count = end
        return end

    def _end_with(self, key: Tensor, size: int) -> bool:
        """Whether the last keys so far are the first ones of these, bit for bit."""
        if not 0 < size <= self.count:
            return False
        return torch.equal(self.whole()[..., self.count - size :, :], key[..., :size, :])

    def whole(self) -> Tensor:
        """All keys.  -> [batch, key_head, key, size]"""
        assert self.store is not None
        return self.store[..., : self.count, :]


@dataclass(frozen=True, eq=False)
class SteppedRows:
    """The rows of several calls stacked, each call's keys moved to their true positions."""

    calls: tuple[RowSource, ...]
    starts: tuple[int, ...]  # the first rows of the calls, and the end of the last
    shifts: tuple[int, ...]  # the offsets of their keys
    keys: int

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """Weights of the queries ``start`` to ``stop``.  -> [batch, head, row, key]"""
        spans = self._spans(start, stop)
        return torch.cat([self._placed(self.calls[each].rows(*span, heads), each) for each, span in spans], 2)

    def allowed(self, start: int, stop: int) -> Tensor:
        """Keys that a call had and its mask leaves open, bool.  -> [batch or 1, head or 1, row, key]"""
        spans = self._spans(start, stop)
        parts = [self._placed(self.calls[each].allowed(*span), each) for each, span in spans]
        batch, heads = (max(part.shape[axis] for part in parts) for axis in (0, 1))
        return torch.cat([part.expand(batch, heads, -1, -1) for part in parts], 2)

    def _spans(self, start: int, stop: int) -> list[tuple[int, tuple[int, int]]]:
        """The calls of some rows, with the rows numbered within each call; at least one."""
        spans: list[tuple[int, tuple[int, int]]] = []
        number = min(bisect_right(self.starts, start) - 1, len(self.calls) - 1)
        while not spans or (number < len(self.calls) and self.starts[number] < stop):
            begin, end = self.starts[number], self.starts[number + 1]
            spans.append((number, (max(start, begin) - begin, min(stop, end) - begin)))
            number += 1
        return spans

    def _placed(self, block: Tensor, number: int) -> Tensor:
        """A call's keys at their positions; those outside are dropped.  -> [..., row, key]"""
        shift = self.shifts[number]
        start, stop = max(0, shift), min(self.keys, shift + block.shape[-1])
        if (shift, block.shape[-1]) == (0, self.keys):
            return block
        placed = block.new_zeros(*block.shape[:-1], self.keys)
        placed[..., start:stop] = block[..., start - shift : stop - shift]
        return placed
