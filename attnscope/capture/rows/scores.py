"""Rows of attention, computed beside the kernel from what the kernel itself received."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from attnscope.attention import RowSource
from attnscope.fused.runs import CLASSIC_CLOSED, CLOSED_BELOW

OpenKeys: TypeAlias = "Tensor | Callable[[int, int], Tensor]"
"""Keys left open: a bool tensor that broadcasts to [batch, head, query, key], or a function of rows."""


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Rows of ``softmax(scale·QKᵀ)`` with what kernels put between the product and the softmax.

    ``query`` is [batch, head, query, size] and ``key`` [batch, key_head, key, size]; query head ``h``
    reads key head ``h // (heads / key_heads)``. The scores pass, in this order: ``softcap`` (``c·tanh(s/c)``,
    Gemma-2), the ``added`` terms (position bias, additive masks), the ``opened`` masks, and ``sinks`` (a
    logit a head [head] or row that takes part in the softmax and owns no key). A row without an open key is
    zero, as in torch's ``scaled_dot_product_attention``. The arithmetic is in float32, or float64 for
    float64 inputs: kernels accumulate so, whatever the type of their inputs.
    """

    query: Tensor  # [batch, head, query, size]
    key: Tensor  # [batch, key_head, key, size]
    scale: float | Tensor
    added: tuple[Tensor, ...] = ()
    opened: tuple[OpenKeys, ...] = ()
    softcap: float | None = None
    sinks: Tensor | None = None

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """Weights of the queries ``start`` to ``stop``.  -> [batch, head, row, key]"""
        chosen = None if heads is None else list(heads)
        with torch.no_grad(), torch.autocast(self.query.device.type, enabled=False):
            scores = self._product(start, stop, chosen)
            if self.softcap is not None:
                scores = self.softcap * torch.tanh(scores / self.softcap)
            for term in self.added:
                scores = scores + _block(term, start, stop, chosen).to(scores.dtype)
            for mask in self.opened:
                scores = scores.masked_fill(~_block(mask, start, stop, chosen), -torch.inf)
            if self.sinks is not None:
                return self._with_sink(scores, chosen)
            if not self.added and not self.opened:
                return torch.softmax(scores, -1)
            dead = scores.amax(-1, keepdim=True) == -torch.inf  # [batch, head, row, 1]
            return torch.softmax(scores, -1).masked_fill(dead, 0.0)  # [batch, head, row, key]

    def allowed(self, start: int, stop: int) -> Tensor:
        """Keys that the masks left open, bool.  -> [batch or 1, head or 1, row, key]"""
        size = (1, 1, stop - start, self.key.shape[-2])
        mask = torch.ones((), dtype=torch.bool, device=self.query.device).expand(size)
        for opened in self.opened:
            mask = mask & _block(opened, start, stop, None)
        for term in self.added:
            block = _block(term, start, stop, None)
            mask = mask & (block > CLOSED_BELOW) & (block != CLASSIC_CLOSED)
        return mask

    def _product(self, start: int, stop: int, heads: list[int] | None) -> Tensor:
        """Scaled products of queries and keys.  -> [batch, head, row, key]"""
        kind = torch.float64 if self.query.dtype == torch.float64 else torch.float32
        query = self.query[:, :, start:stop]
        groups = self.query.shape[1] // self.key.shape[1]
        key = self.key
        if heads is not None:
            query = query[:, heads]
            key = key[:, [head // groups for head in heads]]
        elif groups > 1:
            batch, _, count, size = query.shape
            query = query.reshape(batch, self.key.shape[1], groups, count, size)
            key = key.unsqueeze(2)
        scores = (query.to(kind) * self.scale) @ key.to(kind).mT
        return scores.flatten(1, 2) if scores.ndim == 5 else scores

    def _with_sink(self, scores: Tensor, heads: list[int] | None) -> Tensor:
        """Softmax over the keys and the sink, without the sink's column."""
        assert self.sinks is not None
        sinks = self.sinks.reshape(1, -1, 1, 1) if self.sinks.ndim == 1 else self.sinks
        sinks = sinks if heads is None or sinks.shape[1] == 1 else sinks[:, heads]
        column = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
        return torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]


@dataclass(frozen=True, eq=False)
class LazyRows:
    """A row source that is built when the first row is read; most layers are never read in full."""

    build: Callable[[], RowSource]

    @cached_property
    def _source(self) -> RowSource:
        return self.build()

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """Rows of the source.  -> [batch, head, row, key]"""
        return self._source.rows(start, stop, heads)

    def allowed(self, start: int, stop: int) -> Tensor:
        """Open keys of the source.  -> [batch or 1, head or 1, row, key]"""
        return self._source.allowed(start, stop)


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
        """Open keys, one mask a head.  -> [batch, head, row, key]"""
        masks = [
            part.allowed(start, stop).expand(-1, count, -1, -1)
            for part, count in zip(self.parts, self.counts, strict=True)
        ]
        batch = max(mask.shape[0] for mask in masks)
        return torch.cat([mask.expand(batch, -1, -1, -1) for mask in masks], 1)


def causal_rows(keys: int, device: torch.device, offset: int = 0) -> Callable[[int, int], Tensor]:
    """The mask under which row ``i`` sees the keys ``j <= i + offset``.  -> [1, 1, row, key]"""

    def opened(start: int, stop: int) -> Tensor:
        row = torch.arange(start, stop, device=device)[:, None]
        return (torch.arange(keys, device=device) <= row + offset)[None, None]

    return opened


def _block(mask: OpenKeys, start: int, stop: int, heads: list[int] | None) -> Tensor:
    """Some rows of a mask or bias, its axes broadcasting as before.  -> 4 axes"""
    if not isinstance(mask, Tensor):
        return mask(start, stop)
    while mask.ndim < 4:
        mask = mask.unsqueeze(0)
    if mask.shape[2] != 1:
        mask = mask[:, :, start:stop]
    return mask if heads is None or mask.shape[1] == 1 else mask[:, heads]
