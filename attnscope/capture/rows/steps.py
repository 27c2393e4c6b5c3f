"""The steps of a generation as one attention per site: the whole text at once, one row per token."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention import Attention, Axis, HeldRows, Kind, OpenKeys, RowSource, Section
from attnscope.capture.placing.labels import label_axes
from attnscope.capture.record import Record, Replay, SiteRecord
from attnscope.capture.rows.scores import ScoredRows
from attnscope.fused.runs import digest

EARLIER = "rows begin at position {:,}: earlier tokens come from a cache, and their keys are in its order"
BEAMS = "beams changed places in the batch: each row is of a beam that remained at the end"
DRAFTS = "{:,} rows of rejected drafts are left out"


class StepChange(NamedTuple):
    """What becomes of the calls so far when the next one goes on from them."""

    texts: Tensor | None = None  # for each text the earlier one that it continues (beams); None: itself
    cut: int = 0  # the last rows that the cache has dropped (rejected drafts)
    places: tuple[int, ...] = ()  # of the next call's keys, where they overwrote others


@dataclass(eq=False)
class Steps:
    """An observer that holds a prefill and the cached steps after it, to join them site by site.

    It holds what a cache holds, and the queries: weights are computed when the joined attention is read,
    never all at once. Only a call that gave weights without queries and keys stores its weights.
    """

    _sites: dict[tuple[str, int], _SiteCalls] = field(default_factory=dict)
    _masks: dict[tuple[object, ...], Tensor] = field(default_factory=dict)

    def observe(self, attention: Attention, change: StepChange | None = None) -> None:
        """Hold one call."""
        key = attention.site.name, attention.site.call
        self._sites.setdefault(key, _SiteCalls(self._masks)).add(attention, change or StepChange())

    def change(self, attention: Attention) -> StepChange | None:
        """How a call goes on as the next step of its site, whose keys it has; None if it does not."""
        steps = self._sites.get((attention.site.name, attention.site.call))
        return StepChange() if steps is None else steps.change(attention)

    def drop_behind(self, rows: int) -> None:
        """Forget steps behind so many rows: generation on an Apple GPU learns one step late that it ended."""
        for steps in self._sites.values():
            while len(steps.calls) > 1 and sum(len(call.queries) for call in steps.calls) > rows:
                del steps.calls[-1], steps.spans[-1], steps.changes[-1], steps.shifts[-1]

    def joined(self, axes: Mapping[Kind, tuple[Axis, Axis]] | None = None) -> tuple[Attention, ...]:
        """One attention per site and call, in the order in which they first ran.

        Self-attention becomes a lower triangle over all positions: a step's row goes below the earlier ones,
        and its keys to their true positions, even if a sliding cache has dropped the first ones or a static
        cache has empty places. Cross-attention grows by rows alone, and attention that ran once stays as it
        is. Keys that a step no longer had are masked. Where beams changed places, or drafts were rejected,
        the rows are those that the last step continues. ``axes`` label them as in ``recording``.

        Raises ``ValueError`` if the steps of a site have different heads or batches.
        """
        sites = self._sites.values()
        changes = {each.counts: each.changes for each in sites if each.calls[0].offset is not None}
        joined = (each.joined(changes.get(each.counts, each.changes)) for each in sites)
        return tuple(label_axes(each, axes or {}) for each in joined)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the rows do not show: what was before the first one, beams and drafts that were dropped."""
        begins: dict[Kind, list[int]] = {}
        for each in self._sites.values():
            first = each.calls[0]
            learned = sum(part.length for part in first.sections if part.name and part.keys_only)
            begins.setdefault(first.site.kind, []).append(max(0, each.begin - learned))
        before = max(map(min, begins.values()), default=0)
        changes = max((each.changes for each in self._sites.values()), key=len, default=[])
        beams, drafts = any(each.texts is not None for each in changes), sum(each.cut for each in changes)
        sentences = ((before, EARLIER.format(before)), (beams, BEAMS), (drafts, DRAFTS.format(drafts)))
        return tuple(sentence for holds, sentence in sentences if holds)

    @property
    def beams(self) -> bool:
        """Whether the texts of the batch changed places, and all of them began as one."""
        for each in self._sites.values():
            first = each.calls[0].read
            began = first.call.query if isinstance(first, ScoredRows) else getattr(first, "weights", None)
            if any(change.texts is not None for change in each.changes) and began is not None:
                return torch.allclose(began, began[:1].expand_as(began), atol=1e-4)
        return False

    def replay(self, record: Record, axes: Mapping[Kind, tuple[Axis, Axis]] | None = None) -> Replay:
        """The result of ``joined`` with the recording's record, as one pass."""
        attentions = self.joined(axes)
        return Replay(attentions, replace(record, sites=list(map(SiteRecord.from_attention, attentions))))


@dataclass(eq=False)
class _SiteCalls:
    """The calls of one site; keys that they share are stored once."""

    masks: dict[tuple[object, ...], Tensor]  # copies by contents, of all sites: a model may overwrite its own
    calls: list[Attention] = field(default_factory=list)
    spans: list[tuple[_Keys, int, int] | None] = field(default_factory=list)  # where each call's keys are
    keys: dict[tuple[int, ...], _Keys] = field(default_factory=dict)  # by batch, heads and size
    changes: list[StepChange] = field(default_factory=list)  # what each call made of those before it
    shifts: list[int] = field(default_factory=list)  # the position of each call's first key
    latest: Tensor | None = None  # the last call's keys, or its values
    places: Sequence[int] = ()  # of these, by position
    end: int = 0  # the position behind the last row

    @property
    def counts(self) -> tuple[int, ...]:
        """The rows of each call; self- and cross-attention of one decoder have the same."""
        return tuple(len(call.queries) for call in self.calls)

    @property
    def begin(self) -> int:
        """The position of the first row, which a cache may hold already."""
        return self.shifts[0] + (self.calls[0].offset or 0)

    def change(self, attention: Attention) -> StepChange | None:
        """How a call goes on from the last one; None if it does not have its keys."""
        before, states = self.calls[-1], _states(attention)
        if self.latest is None or states is None:
            return None
        earlier, states = _alike(self.latest, states)
        count, end = attention.offset, (before.offset or 0) + len(before.queries)
        if count is None or before.offset is None:
            if count is before.offset and torch.equal(earlier, states):
                return StepChange()
        elif 0 < count <= end:
            begun, less = states[..., :count, :], end - count
            holds = isinstance(before.read, ScoredRows | HeldRows) and earlier.shape[:-2] == states.shape[:-2]
            rejected = range(
                min(less + 1, len(before.queries)) if holds and before.site.kind == "decoder" else 1
            )
            for cut in rejected if attention.window else reversed(rejected):  # a window drops the first ones
                if torch.equal(earlier[..., less - cut : end - cut, :], begun):
                    return StepChange(cut=cut)
            if holds and (texts := _texts_of(begun, earlier[..., less:end, :])) is not None:
                return StepChange(texts)
        places = self._overwritten(attention, earlier, states)
        return StepChange(places=places) if places else None

    def _overwritten(self, attention: Attention, earlier: Tensor, states: Tensor) -> tuple[int, ...]:
        """The places of keys some of which overwrote known ones; -1: of none. Empty: they are others."""
        stands = self.calls[0].offset is not None and len(attention.queries) < len(attention.keys)
        if not stands or states.shape[:-2] != earlier.shape[:-2]:
            return ()
        places_before = dict(zip(_numbers(earlier), self.places, strict=True))
        places = [places_before.get(numbers) for numbers in _numbers(states)]
        counts = attention.allowed(0, len(attention.queries))[0, 0].sum(0).tolist()  # by so many rows
        new = sorted([slot for slot, place in enumerate(places) if place is None], key=lambda at: -counts[at])
        places_now = [-1 if place is None or place >= self.end else place for place in places]
        rows = [*range(len(attention.queries), 0, -1)]  # all of them see the first one's own key
        twice = len({*places_now} - {-1}) < len(places_now) - places_now.count(-1)
        if [counts[slot] for slot in new] != rows or self.end - 1 not in places_now or twice:
            return ()
        for row, slot in enumerate(new):
            places_now[slot] = self.end + row
        return tuple(places_now)

    def add(self, attention: Attention, change: StepChange) -> None:
        read, span, states, count = attention.read, None, _states(attention), len(attention.queries)
        first = self.end - change.cut - (attention.offset or 0)  # the position of the first key
        if not self.calls:
            first = attention.keys.start if isinstance(attention.keys, range) else 0
        self._apply(change)
        if change.places:
            first = min(place for place in change.places if place >= 0)
            rows = _spread(read.rows(0, count, None), change.places, first)
            read = HeldRows(rows, _spread(read.allowed(0, count), change.places, first))
        elif isinstance(read, ScoredRows):
            call, key = read.without_padding, read.call.key
            shared = self.keys.setdefault((*key.shape[:-2], key.shape[-1]), _Keys())
            end = shared.take_in(key, count)
            span = shared, end - key.shape[-2], end
            none = key[..., :0, :].clone()
            masks = tuple(self._hold(mask) if isinstance(mask, Tensor) else mask for mask in call.masks)
            biases = tuple(self._hold(bias) for bias in call.biases)
            call = replace(call, query=call.query.clone(), key=none, value=none, masks=masks, biases=biases)
            read = ScoredRows(call)
        elif isinstance(read, HeldRows):
            opened = None if read.open_keys is None else read.open_keys.clone()
            read = HeldRows(read.weights.clone(), opened)
        if span is not None:
            self.latest = span[0].whole()[..., span[1] : span[2], :]
        else:
            self.latest = None if states is None else states.clone()
        keys = len(attention.keys)
        self.places = change.places or range(first, first + keys)
        self.end += count - change.cut if self.calls else first + (attention.offset or 0) + count
        self.calls.append(replace(attention, read=read, values=None))
        self.spans.append(span)
        self.changes.append(change)
        self.shifts.append(first if change.places or attention.offset is not None else 0)

    def _apply(self, change: StepChange) -> None:
        """Move what is held to where the cache has it now."""
        if change.texts is not None:
            for keys in self.keys.values():
                keys.store = keys.whole()[change.texts]
        if change.cut and self.spans[-1] is not None and self.places[-1] == self.end - 1:
            self.spans[-1][0].count -= change.cut

    def _hold(self, mask: Tensor) -> Tensor:
        return self.masks.setdefault(digest(mask), mask.clone())

    def joined(self, changes: Sequence[StepChange]) -> Attention:
        """One attention of all calls, which the ``changes`` made what they are."""
        first, begin, texts = self.calls[0], self.begin, None
        if len({(call.heads, call.batch) for call in self.calls}) > 1:
            raise ValueError(f"the steps of {first.site.name} differ in their heads or their batch")
        reads, counts = [call.read for call in self.calls], list(self.counts)
        for number, change in reversed([*enumerate(changes)]):
            read, span = reads[number], self.spans[number]
            if span is not None and isinstance(read, ScoredRows):
                keys, start, stop = span
                read = ScoredRows(replace(read.call, key=keys.whole()[..., start:stop, :]))
            if texts is not None or counts[number] < len(self.calls[number].queries):
                read = _narrow(read, texts, counts[number])
            reads[number] = read
            if change.texts is not None:
                texts = change.texts if texts is None else change.texts[texts]
            if change.cut:
                counts[number - 1] -= change.cut
        if len(reads) == 1 and begin == (first.offset or 0):
            return replace(first, read=reads[0])
        starts = [0, *accumulate(counts)]
        labels = first.keys if first.offset is None else range(begin + starts[-1])
        rows = SteppedRows(tuple(reads), tuple(starts), tuple(self.shifts), len(labels))
        errors = [call.difference for call in self.calls if call.difference is not None]
        return replace(
            first,
            queries=range(begin, begin + starts[-1]),
            keys=labels,
            offset=None if first.offset is None else begin,
            read=rows,
            difference=max(errors, default=None),
            sections=_grow(first.sections, len(labels)),
        )


def _grow(sections: tuple[Section, ...], size: int) -> tuple[Section, ...]:
    """The sections of the first keys when all stand there; none where these follow learned ones."""
    *parts, last = sections or (Section(0, "none"),)
    more = last._replace(length=size - sum(part.length for part in parts))
    return () if last.name else (*parts, more)


def _narrow(read: RowSource, texts: Tensor | None, rows: int) -> RowSource:
    """The first rows of some texts."""

    def part(tensor: Tensor, keys: int | None = None) -> Tensor:
        tensor = tensor[texts] if texts is not None and tensor.ndim == 4 and len(tensor) > 1 else tensor
        return tensor[..., :rows, :keys]

    def narrow_mask(mask: OpenKeys, keys: int) -> OpenKeys:
        return part(mask, keys) if isinstance(mask, Tensor) else lambda *span: part(mask(*span), keys)

    if isinstance(read, HeldRows):
        return HeldRows(part(read.weights), None if read.open_keys is None else part(read.open_keys))
    assert isinstance(read, ScoredRows)
    call, keys = read.call, read.call.key.shape[-2]
    return ScoredRows(
        replace(
            call,
            query=part(call.query),
            biases=tuple(part(bias, keys) for bias in call.biases),
            masks=tuple(narrow_mask(mask, keys) for mask in call.masks),
            sinks=part(call.sinks) if call.sinks is not None and call.sinks.ndim == 4 else call.sinks,
        )
    )


def _spread(block: Tensor, places: Sequence[int], first: int) -> Tensor:
    """Columns at their places, counted from the first; what has none is left out.  -> [..., row, key]"""
    spread = block.new_zeros(*block.shape[:-1], 1 + max(places) - first)
    slots = [slot for slot, place in enumerate(places) if place >= 0]
    spread[..., [places[slot] - first for slot in slots]] = block[..., slots]
    return spread


def _numbers(keys: Tensor) -> list[bytes]:
    """Each key's numbers, in all texts and heads."""
    rows = keys.detach().movedim(-2, 0).flatten(1).cpu().contiguous().view(torch.uint8).numpy()
    return [row.tobytes() for row in rows]


def _texts_of(keys: Tensor, before: Tensor) -> Tensor | None:
    """For each text the known one that has its keys; None if one has none.  -> [text]"""
    texts = [next((at for at, one in enumerate(before) if torch.equal(one, text)), None) for text in keys]
    return None if None in texts else torch.tensor(texts, device=before.device)


def _alike(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Two calls' keys, of as many heads: some kernels get them repeated for each query head."""
    if one.ndim != other.ndim or one.ndim < 3 or min(one.shape[-3], other.shape[-3]) < 1:
        return one, other
    heads = max(one.shape[-3], other.shape[-3])
    one, other = (keys.repeat_interleave(heads // keys.shape[-3], -3) for keys in (one, other))
    return one, other


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
        return torch.cat([self._place(self.calls[each].rows(*span, heads), each) for each, span in spans], 2)

    def allowed(self, start: int, stop: int) -> Tensor:
        """Unmasked keys that a call had, bool.  -> [batch or 1, head or 1, row, key]"""
        spans = self._spans(start, stop)
        parts = [self._place(self.calls[each].allowed(*span), each) for each, span in spans]
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

    def _place(self, block: Tensor, number: int) -> Tensor:
        """A call's keys at their positions; those outside are dropped.  -> [..., row, key]"""
        shift = self.shifts[number]
        start, stop = max(0, shift), min(self.keys, shift + block.shape[-1])
        if (shift, block.shape[-1]) == (0, self.keys):
            return block
        placed = block.new_zeros(*block.shape[:-1], self.keys)
        placed[..., start:stop] = block[..., start - shift : stop - shift]
        return placed
