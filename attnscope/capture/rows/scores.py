"""Rows of attention: computed beside the kernel, assembled from parts, and checked against its output."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from attnscope.attention import AttentionCall, HeldRows, OpenKeys, RowSource, SomeHeads
from attnscope.capture.record import beyond_rounding, tolerance
from attnscope.fused.runs import opens

MadeRows: TypeAlias = Callable[[int, int], Tensor]  # a mask computed on demand, row by row

SHORT = 1 << 21
"""Weights of a call whose rows are computed once, for the check and for observers: 8 MB of float32."""

MOST_IN_WINDOWS = 1 << 24
"""Weights in windows that are read at once: 64 MB of float32."""


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Rows of a call's weights, computed beside the kernel with the formula of ``AttentionCall``.

    A row without an unmasked key is zero, as in torch's own kernel. The arithmetic is in
    float32, or float64 for float64 inputs: kernels accumulate so, whatever the type of their inputs.
    """

    call: AttentionCall
    padding: Tensor | None = None  # rows of padding, which have weights, as in the kernel: [batch or 1, row]
    _by_places: dict[tuple[int, ...], Tensor] = field(default_factory=dict, repr=False)
    _all: list[Tensor] = field(default_factory=list, repr=False)  # of a short call: all rows, until let go

    def free(self) -> None:
        """Free all rows; observers have read them."""
        self._all.clear()

    def all_rows(self) -> Tensor | None:
        """All rows of a short call, which observers read next; ``None`` for a long one."""
        call = self.call
        if not self._all and math.prod(call.query.shape[:3]) * call.key.shape[2] <= SHORT:
            self._all.append(self.rows(0, call.query.shape[2], None))
        return self._all[0] if self._all else None

    def pick(self, places: tuple[int, ...]) -> Tensor:
        """Weights of a few queries, computed once and together.  -> [batch, head, place, key]"""
        call = self.call
        if places not in self._by_places and (whole := self.all_rows()) is not None:
            self._by_places[places] = whole[:, :, list(places)]
        if places not in self._by_places:
            call_of_rows = replace(
                call,
                query=call.query[:, :, list(places)],
                biases=tuple(_pick(bias, places) for bias in call.biases),
                masks=tuple(_pick(mask, places) for mask in self._masks()),
                diagonal=None,
            )
            self._by_places[places] = ScoredRows(call_of_rows).rows(0, len(places), None)
        return self._by_places[places]

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """Weights of the queries ``start`` to ``stop``.  -> [batch, head, row, key]"""
        call = self.call
        if self._all:
            whole = self._all[0][:, :, start:stop]
            return whole if heads is None else whole[:, list(heads)]
        with torch.no_grad(), torch.autocast(call.query.device.type, enabled=False):
            scores = self.scores(start, stop, heads)
            if call.sinks is not None:
                sinks = call.sinks.reshape(1, -1, 1, 1) if call.sinks.ndim == 1 else call.sinks
                sinks = sinks if heads is None or sinks.shape[1] == 1 else sinks[:, list(heads)]
                column = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
                return torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]
            if not call.biases and not self._masks():
                return torch.softmax(scores, -1)
            dead = scores.amax(-1, keepdim=True) == -torch.inf  # [batch, head, row, 1]
            rows = torch.softmax(scores, -1)  # [batch, head, row, key]
            return rows.masked_fill(dead, 0.0) if bool(dead.any()) else rows

    def scores(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """The input of the softmax, -inf where a mask hides a key.  -> [batch, head, row, key]"""
        call, chosen = self.call, None if heads is None else list(heads)
        with torch.no_grad(), torch.autocast(call.query.device.type, enabled=False):
            scores = self._product(start, stop, chosen)
            if call.softcap is not None:
                scores = call.softcap * torch.tanh(scores / call.softcap)
            for bias in call.biases:
                scores = scores + _block(bias, start, stop, chosen).to(scores.dtype)
            for mask in self._masks():
                opened = _block(mask, start, stop, chosen)  # mostly one for all heads: a sum is faster there
                masked = torch.zeros_like(opened, dtype=scores.dtype).masked_fill_(~opened, -torch.inf)
                scores = scores + masked
            return scores

    def allowed(self, start: int, stop: int) -> Tensor:
        """Unmasked keys, bool.  -> [batch or 1, head or 1, row, key]"""
        size = (1, 1, stop - start, self.call.key.shape[-2])
        open_keys = torch.ones((), dtype=torch.bool, device=self.call.query.device).expand(size)
        for mask in self._masks():
            open_keys = open_keys & _block(mask, start, stop, None)
        for bias in self.call.biases:
            open_keys = open_keys & opens(_block(bias, start, stop, None))
        return open_keys if self.padding is None else open_keys & ~self.padding[:, None, start:stop, None]

    @property
    def without_padding(self) -> AttentionCall:
        """The call with a mask for rows of padding, too."""
        masks = () if self.padding is None else (~self.padding[:, None, :, None],)
        return replace(self.call, masks=(*self.call.masks, *masks))

    def _masks(self) -> tuple[OpenKeys, ...]:
        """The masks, and causality as one more."""
        call = self.call
        if call.diagonal is None:
            return call.masks
        return (*call.masks, open_gaps(call.key, call.diagonal, lambda gap: gap <= 0))

    def _product(self, start: int, stop: int, heads: list[int] | None) -> Tensor:
        """Scaled products of queries and keys.  -> [batch, head, row, key]"""
        query, key = self.call.query, self.call.key
        kind = torch.float64 if query.dtype == torch.float64 else torch.float32
        groups = query.shape[1] // key.shape[1]
        query = query[:, :, start:stop]
        if heads is not None:
            query, key = query[:, heads], key[:, [head // groups for head in heads]]
        elif groups > 1:
            key = key.repeat_interleave(groups, 1)
        # rows of a live call and of its trace, of all heads and of some, agree bit for bit: a product may
        # depend on memory layout
        query, key = query.to(kind), key.to(kind).contiguous()
        return (query * self.call.scale).contiguous() @ key.mT


@dataclass(frozen=True, eq=False)
class RealRows:
    """The rows of another source, of which those of padding see nothing."""

    all: RowSource
    real: Tensor  # bool, [batch or 1, 1, row, 1]

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """The same rows.  -> [batch, head, row, key]"""
        return self.all.rows(start, stop, heads)

    def allowed(self, start: int, stop: int) -> Tensor:
        """Unmasked keys of real rows, bool.  -> [batch or 1, head or 1, row, key]"""
        return self.all.allowed(start, stop) & self.real[:, :, start:stop]


@dataclass(frozen=True, eq=False)
class OnePart:
    """One text, or another part, of the batch of another source of rows."""

    all: RowSource
    part: int
    count: int  # of parts

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """Rows of this part, in pieces, as all parts are computed.  -> [1, head, row, key]"""
        step = max(1, (stop - start) // self.count)
        pieces = [
            self.all.rows(at, min(at + step, stop), heads)[self.part : self.part + 1].clone()
            for at in range(start, max(stop, start + 1), step)
        ]
        return torch.cat(pieces, 2)

    def allowed(self, start: int, stop: int) -> Tensor:
        """The mask of its rows, bool.  -> [1, head or 1, row, key]"""
        mask = self.all.allowed(start, stop)
        return mask if len(mask) == 1 else mask[self.part : self.part + 1]


@dataclass(frozen=True, eq=False)
class MeanRows:
    """The mean of the rows of several passes."""

    passes: tuple[RowSource, ...]

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """Mean weights; a masked key has 0 in a pass.  -> [batch, head, row, key]"""
        total = sum(each.rows(start, stop, heads).float() for each in self.passes)
        assert isinstance(total, Tensor)
        return total / len(self.passes)

    def allowed(self, start: int, stop: int) -> Tensor:
        """Keys that are open in any pass, bool.  -> [batch or 1, head or 1, row, key]"""
        first, *others = (each.allowed(start, stop) for each in self.passes)
        for mask in others:
            first = first | mask
        return first


@dataclass(frozen=True, eq=False)
class JoinedHeads:
    """Several row sources of one shape as the heads of one layer, in their order."""

    parts: tuple[RowSource, ...]
    counts: tuple[int, ...]  # heads of each part

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """Rows of the chosen heads.  -> [batch, head, row, key]"""
        owner = [(part, head) for part, count in enumerate(self.counts) for head in range(count)]
        chosen = range(len(owner)) if heads is None else heads
        heads_of_parts = [owner[head] for head in chosen]
        return torch.cat([self.parts[part].rows(start, stop, [head]) for part, head in heads_of_parts], 1)

    def allowed(self, start: int, stop: int) -> Tensor:
        """Open keys, one mask per head.  -> [batch, head, row, key]"""
        masks = [
            part.allowed(start, stop).expand(-1, count, -1, -1)
            for part, count in zip(self.parts, self.counts, strict=True)
        ]
        batch = max(map(len, masks))
        return torch.cat([mask.expand(batch, -1, -1, -1) for mask in masks], 1)


def open_gaps(key: Tensor, offset: int, opened: Callable[[Tensor], Tensor]) -> MadeRows:
    """The mask that opens row ``i`` to key ``j`` by their gap ``j - i - offset``.  -> [1, 1, row, key]"""

    def open_keys(start: int, stop: int) -> Tensor:
        row = torch.arange(start, stop, device=key.device)[:, None] + offset
        return opened(torch.arange(key.shape[-2], device=key.device) - row)[None, None]

    return open_keys


def _pick(mask: OpenKeys, places: tuple[int, ...]) -> Tensor:
    """The rows of a mask or bias for some queries, its axes broadcasting as before.  -> 4 axes"""
    parts = [_block(mask, place, place + 1, None) for place in places]
    return parts[0] if isinstance(mask, Tensor) and mask.shape[-2:-1] == (1,) else torch.cat(parts, 2)


def _block(mask: OpenKeys, start: int, stop: int, heads: list[int] | None) -> Tensor:
    """Some rows of a mask or bias, its axes broadcasting as before.  -> 4 axes"""
    if not isinstance(mask, Tensor):
        return mask(start, stop)
    while mask.ndim < 4:
        mask = mask.unsqueeze(0)
    if mask.shape[2] != 1:
        mask = mask[:, :, start:stop]
    return mask if heads is None or mask.shape[1] == 1 else mask[:, heads]


@dataclass(frozen=True, eq=False)
class Part:
    """Some weights, and where their rows and slots belong; -1: nowhere."""

    read: RowSource
    text: Tensor  # [batch, head, query]
    head: Tensor  # [batch, head, query]
    row: Tensor  # [batch, head, query]
    key: Tensor  # [batch, head, query or 1, slot]

    def is_alike(self, heads: int) -> bool:
        """Whether all heads have the same rows and slots."""
        alike = all(bool((of == of[:, :1]).all()) for of in (self.text, self.row, self.key))
        return alike and self.head.shape[1] == heads and bool((self.head == self.head[:1, :, :1]).all())


@dataclass(frozen=True, eq=False)
class WindowRows:
    """Rows with the keys of their own window alone, which are the same in all heads and texts."""

    part: Part
    texts: int
    columns: Tensor  # the key of each slot, -1 for none, [row, slot]
    order: Tensor  # where each row stands among those of the windows, [row]

    @classmethod
    def from_part(cls, part: Part, texts: int, heads: int, keys: int) -> WindowRows | None:
        """Put the rows of windows in order; ``None`` if a row or a key of it is double, or heads differ."""
        count, slots, device = len(part.text), part.key.shape[-1], part.row.device
        if slots >= keys or count % texts or part.row.numel() * slots > MOST_IN_WINDOWS:
            return None
        text = torch.arange(texts, device=device).repeat_interleave(count // texts)
        row = part.row[:, 0].reshape(texts, -1)  # [text, window·query]
        columns = part.key[:, 0].expand(-1, part.row.shape[2], -1).reshape(texts, -1, slots)
        order = row[0].argsort()[int((row[0] < 0).sum()) :]  # without the rows of padding
        ascending = part.key[:, 0].sort(-1).values  # [text·window, query or 1, slot]
        if not (part.is_alike(heads) and torch.equal(part.head[0, :, 0], torch.arange(heads, device=device))):
            return None
        plain = (
            (part.text[:, 0] == text[:, None]).all()
            & (row == row[:1]).all()
            & (columns == columns[:1]).all()
            & (row[0, order] == torch.arange(len(order), device=device)).all()
            & ((ascending.diff() > 0) | (ascending[..., 1:] < 0)).all()
        )
        return cls(part, texts, columns[0, order], order) if bool(plain) else None

    def weights(self) -> Tensor:
        """All rows.  -> [text, head, row, slot]"""
        rows = self._in_order(self.part.read.rows(0, self.part.row.shape[2], None))
        return rows.masked_fill_(self.columns < 0, 0.0)

    @cached_property
    def allowed(self) -> Tensor:
        """Unmasked slots, bool.  -> [text, head or 1, row, slot]"""
        allowed = self.part.read.allowed(0, self.part.row.shape[2])
        allowed = self._in_order(allowed.expand(len(self.part.text), -1, -1, -1)) & (self.columns >= 0)
        return allowed[:, :1] if bool((allowed == allowed[:, :1]).all()) else allowed

    def _in_order(self, values: Tensor) -> Tensor:
        """[text·window, head, query, slot] -> [text, head, row, slot]"""
        of_texts = values.reshape(self.texts, -1, *values.shape[1:])  # [text, window, head, query, slot]
        return of_texts.transpose(1, 2).flatten(2, 3)[:, :, self.order]


@dataclass(frozen=True, eq=False)
class PlacedRows:
    """Rows of several parts; entries of several parts for one row and key are added."""

    parts: tuple[Part, ...]
    texts: int
    heads: int
    keys: int

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """Weights of the queries ``start`` to ``stop``.  -> [batch, head, row, key]"""
        chosen = range(self.heads) if heads is None else heads
        distinct = sorted(set(chosen))
        rows = self._gathered(start, stop, distinct, of_mask=False)
        return rows if list(chosen) == distinct else rows[:, [distinct.index(head) for head in chosen]]

    @cached_property
    def windows(self) -> WindowRows | None:
        """The same rows with the keys of their own windows alone; ``None`` if they have others."""
        if len(self.parts) > 1:
            return None
        return WindowRows.from_part(self.parts[0], self.texts, self.heads, self.keys)

    def allowed(self, start: int, stop: int) -> Tensor:
        """Unmasked keys that a part had, bool.  -> [batch, head or 1, row, key]"""
        if self.windows is not None and stop <= len(self.windows.order):
            opened, column = self.windows.allowed[:, :, start:stop], self.windows.columns[start:stop]
            column = column.where(column >= 0, self.keys).expand(opened.shape)
            return opened.new_zeros(*opened.shape[:3], self.keys + 1).scatter_(-1, column, opened)[..., :-1]
        alike = all(
            part.is_alike(self.heads) and part.read.allowed(0, 1).shape[1] == 1 for part in self.parts
        )
        return self._gathered(start, stop, range(1 if alike else self.heads), of_mask=True) > 0

    def _gathered(self, start: int, stop: int, heads: Sequence[int], of_mask: bool) -> Tensor:
        """The parts' entries for some rows and heads, at their keys.  -> [batch, head, row, key]"""
        device = self.parts[0].row.device
        number = torch.full((self.heads,), -1, device=device)
        number[list(heads)] = torch.arange(len(heads), device=device)
        count, wide = stop - start, self.keys + 1  # the last column is for slots that belong nowhere
        sums: Tensor | None = None
        for part in self.parts:
            in_rows = (part.row >= start) & (part.row < stop)
            inside = in_rows & (number[part.head] >= 0)  # [batch, head, query]
            rows_inside = inside.any(0).any(0).nonzero()[:, 0].tolist() or [0, -1]
            first, last = rows_inside[0], rows_inside[-1] + 1
            lanes = inside.any(0).any(-1).nonzero()[:, 0]
            inside = inside[:, lanes, first:last]
            if of_mask:
                values = part.read.allowed(first, last).float()
                values = values if values.shape[1] == 1 else values[:, lanes]
                values = values.expand(*inside.shape, -1)
            else:
                values = part.read.rows(first, last, lanes.tolist())
            if sums is None:
                sums = values.new_zeros(self.texts * len(heads) * count, wide)
            key = part.key if part.key.shape[2] == 1 else part.key[:, :, first:last]
            key = key[:, lanes].expand(*values.shape)[inside]  # [place, slot]
            column = torch.where(key < 0, self.keys, key)
            text, head, row = (of[:, lanes, first:last][inside] for of in (part.text, part.head, part.row))
            lane = (text * len(heads) + number[head]) * count + row - start
            whole = torch.equal(lane, torch.arange(len(sums), device=device))
            spread = sums if whole else values.new_zeros(len(lane), wide)
            spread.scatter_add_(-1, column, values[inside])
            if not whole:
                sums.index_add_(0, lane, spread)
        assert sums is not None
        return sums.view(self.texts, len(heads), count, wide)[..., :-1]


SOME = 64  # about this many keys are enough for the magnitude of the values


def sampled(rows: RowSource, queries: int) -> tuple[list[int], Tensor]:
    """The first, the middle and the last row, and their weights.  -> [batch, head, row, key]"""
    places = sorted({0, queries // 2, queries - 1})
    if isinstance(rows, ScoredRows):
        return places, rows.pick(tuple(places))
    return places, torch.cat([rows.rows(row, row + 1, None) for row in places], 2)


@torch.no_grad()
def compare_rows(
    rows: RowSource,
    value: Tensor,
    output: Tensor,
    finish: Callable[[Tensor, Sequence[int]], Tensor] | None = None,
) -> float:
    """The largest error of a few rows of weights @ values against the output, relative to the largest value.

    ``value`` is [batch, key_head, key, size] and ``output`` [batch, head, query, size]. NaNs and infinities
    of the kernel are ignored. The magnitude of the values is estimated from some of them and from these rows:
    reading all would cost one more pass over memory. ``finish`` is what a kernel does with the heads of a few
    rows, [batch, head, row, size], before it returns [batch, row, size].
    """
    places, weights = sampled(rows, output.shape[2])
    mixed = mix(weights, value)  # [batch, head, row, size]
    mixed = mixed if finish is None else finish(mixed, places).unsqueeze(1)
    expected = output[:, :, places]
    gap = (mixed - expected).abs().where(expected.isfinite(), 0)
    worst = float(gap.nan_to_num(torch.inf).amax())
    some = [expected]
    if finish is None:
        some.append(value[:, :, :: max(1, len(value) * value.shape[2] // SOME)])
    largest = max(float(part.nan_to_num(0.0, 0.0, 0.0).abs().amax()) for part in some)
    return worst / largest if largest else worst


def join_differences(differences: Sequence[float | None], dtype: torch.dtype) -> float | None:
    """The error of parts of one attention: None if one is unknown, unless another is wrong."""
    most = max((each for each in differences if each is not None), default=None)
    return most if None not in differences or beyond_rounding(most, dtype) else None


def mix(weights: Tensor, values: Tensor) -> Tensor:
    """Weights times values, which several heads may share.

    [batch, head, row, key], [batch, key_head, key, size] -> [batch, head, row, size]
    """
    batch, heads, count, keys = weights.shape
    values = values.to(weights.dtype)
    grouped = weights.reshape(batch, values.shape[1], -1, keys)  # [batch, key_head, group·row, key]
    return (grouped @ values).view(batch, heads, count, -1)


ReadScores: TypeAlias = Callable[[int, int, "Sequence[int] | None"], Tensor]
"""The input of the softmax, for some queries and heads.  -> [batch, head, row, key]"""


def call_behind(read: RowSource) -> AttentionCall | None:
    """The queries and keys behind rows, where they are known; see ``find_scores`` for whether they fit."""
    if isinstance(read, JoinedHeads):
        calls = [call for part in read.parts if (call := call_behind(part)) is not None]
        alike = len(calls) == len(read.parts) and all(
            call.scale == calls[0].scale and len(call.biases) == 1 and not call.masks for call in calls
        )
        if not alike:
            return None
        parts = zip(*((call.query, call.key, call.value, call.biases[0]) for call in calls), strict=True)
        query, key, value, bias = (torch.cat(part, 1) for part in parts)
        return AttentionCall(query, key, value, calls[0].scale, (bias,))
    behind = read.call if isinstance(read, (ScoredRows, HeldRows)) else None
    return behind if behind is None or isinstance(behind, AttentionCall) else behind()


def find_scores(read: RowSource) -> ReadScores | None:
    """The scores behind rows; ``None`` if only weights are known, or if rows are not a softmax of scores."""
    if hasattr(read, "source"):  # rows of a trace are read on demand
        read = read.source()
    if isinstance(read, ScoredRows):
        return read.scores
    if isinstance(read, SomeHeads):
        scores, chosen = find_scores(read.all), read.chosen
        return scores and (lambda start, stop, heads: scores(start, stop, chosen))
    call = call_behind(read)
    if call is None:
        return None
    computed, count = ScoredRows(call), call.query.shape[2]
    (_, computed_weights), (_, weights) = sampled(computed, count), sampled(read, count)
    gap = float((computed_weights - weights).abs().amax())
    return computed.scores if gap <= tolerance(weights.dtype) else None
