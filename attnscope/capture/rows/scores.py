"""Rows of attention, computed beside the kernel from the kernel's own arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attnscope.attention import AttentionCall, OpenKeys, RowSource
from attnscope.fused.runs import opens

SHORT = 1 << 21
"""Weights of a call whose rows are computed once, for the check and for observers: 8 MB of float32."""


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Rows of a call's weights, computed from its queries and keys with the formula of ``AttentionCall``.

    A row without an open key is zero, as in torch's ``scaled_dot_product_attention``. The arithmetic is in
    float32, or float64 for float64 inputs: kernels accumulate so, whatever the type of their inputs.
    """

    call: AttentionCall
    _picked: dict[tuple[int, ...], Tensor] = field(default_factory=dict, repr=False)
    _whole: list[Tensor] = field(default_factory=list, repr=False)  # of a short call: all rows, until let go

    def let_go(self) -> None:
        """Free all rows; observers have read them."""
        self._whole.clear()

    def pick(self, places: tuple[int, ...]) -> Tensor:
        """Weights of a few queries, computed once and together.  -> [batch, head, place, key]"""
        call = self.call
        if places not in self._picked and math.prod(call.query.shape[:3]) * call.key.shape[2] <= SHORT:
            self._whole[:] = [self.rows(0, call.query.shape[2], None)]  # observers read them next
            self._picked[places] = self._whole[0][:, :, list(places)]
        if places not in self._picked:
            picked = replace(
                call,
                query=call.query[:, :, list(places)],
                biases=tuple(_pick(bias, places) for bias in call.biases),
                masks=tuple(_pick(mask, places) for mask in self._masks()),
                diagonal=None,
            )
            self._picked[places] = ScoredRows(picked).rows(0, len(places), None)
        return self._picked[places]

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """Weights of the queries ``start`` to ``stop``.  -> [batch, head, row, key]"""
        call = self.call
        if self._whole:
            whole = self._whole[0][:, :, start:stop]
            return whole if heads is None else whole[:, list(heads)]
        with torch.no_grad(), torch.autocast(call.query.device.type, enabled=False):
            scores = self.scores(start, stop, heads)
            if call.sinks is not None:
                return _with_sink(scores, call.sinks, None if heads is None else list(heads))
            if not call.biases and not self._masks():
                return torch.softmax(scores, -1)
            dead = scores.amax(-1, keepdim=True) == -torch.inf  # [batch, head, row, 1]
            rows = torch.softmax(scores, -1)  # [batch, head, row, key]
            return rows.masked_fill(dead, 0.0) if bool(dead.any()) else rows

    def scores(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """The input of the softmax, -inf where a mask closes a key.  -> [batch, head, row, key]"""
        call, chosen = self.call, None if heads is None else list(heads)
        with torch.no_grad(), torch.autocast(call.query.device.type, enabled=False):
            scores = self._product(start, stop, chosen)
            if call.softcap is not None:
                scores = call.softcap * torch.tanh(scores / call.softcap)
            for bias in call.biases:
                scores = scores + _block(bias, start, stop, chosen).to(scores.dtype)
            for mask in self._masks():
                opened = _block(mask, start, stop, chosen)  # mostly one for all heads: a sum is faster there
                scores = scores + torch.zeros_like(opened, dtype=scores.dtype).masked_fill_(
                    ~opened, -torch.inf
                )
            return scores

    def allowed(self, start: int, stop: int) -> Tensor:
        """Keys that the masks leave open, bool.  -> [batch or 1, head or 1, row, key]"""
        size = (1, 1, stop - start, self.call.key.shape[-2])
        open_keys = torch.ones((), dtype=torch.bool, device=self.call.query.device).expand(size)
        for mask in self._masks():
            open_keys = open_keys & _block(mask, start, stop, None)
        for bias in self.call.biases:
            open_keys = open_keys & opens(_block(bias, start, stop, None))
        return open_keys

    def _masks(self) -> tuple[OpenKeys, ...]:
        """The masks, and causality as one more."""
        call = self.call
        if call.diagonal is None:
            return call.masks
        return (*call.masks, causal_rows(call.key.shape[-2], call.key.device, call.diagonal))

    def _product(self, start: int, stop: int, heads: list[int] | None) -> Tensor:
        """Scaled products of queries and keys.  -> [batch, head, row, key]"""
        query, key = self.call.query, self.call.key
        kind = torch.float64 if query.dtype == torch.float64 else torch.float32
        groups = query.shape[1] // key.shape[1]
        query = query[:, :, start:stop]
        if heads is not None:
            query = query[:, heads]
            key = key[:, [head // groups for head in heads]]
        elif groups > 1:
            batch, _, count, size = query.shape
            query = query.reshape(batch, key.shape[1], groups, count, size)
            key = key.unsqueeze(2)
        # rows of a live call and of its trace agree bit for bit: a product may depend on memory layout
        query, key = query.to(kind).contiguous(), key.to(kind).contiguous()
        scores = (query * self.call.scale) @ key.mT
        return scores.flatten(1, 2) if scores.ndim == 5 else scores


def _with_sink(scores: Tensor, sinks: Tensor, heads: list[int] | None) -> Tensor:
    """Softmax over the keys and the sink, without the sink's column."""
    sinks = sinks.reshape(1, -1, 1, 1) if sinks.ndim == 1 else sinks
    sinks = sinks if heads is None or sinks.shape[1] == 1 else sinks[:, heads]
    column = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]


@dataclass(frozen=True, eq=False)
class JoinedHeads:
    """Several row sources of one shape as the heads of one layer, in their order."""

    parts: tuple[RowSource, ...]
    counts: tuple[int, ...]  # heads of each part

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """Rows of the chosen heads.  -> [batch, head, row, key]"""
        owner = [(part, head) for part, count in enumerate(self.counts) for head in range(count)]
        chosen = range(len(owner)) if heads is None else heads
        picked = [owner[head] for head in chosen]
        return torch.cat([self.parts[part].rows(start, stop, [head]) for part, head in picked], 1)

    def allowed(self, start: int, stop: int) -> Tensor:
        """Open keys, one mask per head.  -> [batch, head, row, key]"""
        masks = [
            part.allowed(start, stop).expand(-1, count, -1, -1)
            for part, count in zip(self.parts, self.counts, strict=True)
        ]
        batch = max(mask.shape[0] for mask in masks)
        return torch.cat([mask.expand(batch, -1, -1, -1) for mask in masks], 1)


def causal_rows(keys: int, device: torch.device, offset: int = 0) -> Callable[[int, int], Tensor]:
    """The mask under which row ``i`` sees the keys ``j <= i + offset``.  -> [1, 1, row, key]"""

    def open_keys(start: int, stop: int) -> Tensor:
        row = torch.arange(start, stop, device=device)[:, None]
        return (torch.arange(keys, device=device) <= row + offset)[None, None]

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
