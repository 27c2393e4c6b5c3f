"""Rows assembled from parts: windows, chunks, single heads or texts, each weight at its true place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.attention import RowSource


@dataclass(frozen=True, eq=False)
class Part:
    """Some weights, and where their rows and slots belong; -1: nowhere."""

    read: RowSource
    text: Tensor  # [batch, head, query]
    head: Tensor  # [batch, head, query]
    row: Tensor  # [batch, head, query]
    key: Tensor  # [batch, head, query or 1, slot]

    def is_alike(self, heads: int) -> bool:
        """Whether all heads have the same rows, slots and masks."""
        if self.head.shape[1] != heads or self.read.allowed(0, 1).shape[1] > 1:
            return False
        alike = all(bool((of == of[:, :1]).all()) for of in (self.text, self.row, self.key))
        return alike and bool((self.head == self.head[:1, :, :1]).all())


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
        taken = sorted(set(chosen))
        rows = self._gathered(start, stop, taken, of_mask=False)
        return rows if list(chosen) == taken else rows[:, [taken.index(head) for head in chosen]]

    def allowed(self, start: int, stop: int) -> Tensor:
        """Keys that a part had and its mask left open, bool.  -> [batch, head or 1, row, key]"""
        alike = all(part.is_alike(self.heads) for part in self.parts)
        return self._gathered(start, stop, range(1 if alike else self.heads), of_mask=True) > 0

    def _gathered(self, start: int, stop: int, heads: Sequence[int], of_mask: bool) -> Tensor:
        """The parts' entries for some rows and heads, at their keys.  -> [batch, head, row, key]"""
        device = self.parts[0].row.device
        number = torch.full((self.heads,), -1, device=device)
        number[list(heads)] = torch.arange(len(heads), device=device)
        count, wide = stop - start, self.keys + 1  # the last column is for slots that belong nowhere
        sums: Tensor | None = None
        for part in self.parts:
            mine = (part.row >= start) & (part.row < stop) & (number[part.head] >= 0)  # [batch, head, query]
            asked = mine.any(0).any(0).nonzero()[:, 0].tolist() or [0, -1]
            first, last = asked[0], asked[-1] + 1
            lanes = mine.any(0).any(-1).nonzero()[:, 0]
            mine = mine[:, lanes, first:last]
            if of_mask:
                values = part.read.allowed(first, last).float()
                values = values if values.shape[1] == 1 else values[:, lanes]
                values = values.expand(*mine.shape, -1)
            else:
                values = part.read.rows(first, last, lanes.tolist())
            if sums is None:
                sums = values.new_zeros(self.texts * len(heads) * count, wide)
            key = part.key if part.key.shape[2] == 1 else part.key[:, :, first:last]
            key = key[:, lanes].expand(*values.shape)[mine]  # [place, slot]
            column = torch.where(key < 0, self.keys, key)
            text, head, row = (of[:, lanes, first:last][mine] for of in (part.text, part.head, part.row))
            lane = (text * len(heads) + number[head]) * count + row - start
            whole = torch.equal(lane, torch.arange(len(sums), device=device))
            spread = sums if whole else values.new_zeros(len(lane), wide)
            spread.scatter_add_(-1, column, values[mine])
            if not whole:
                sums.index_add_(0, lane, spread)
        assert sums is not None
        return sums.view(self.texts, len(heads), count, wide)[..., :-1]
