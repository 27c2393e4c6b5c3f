"""Pairs of a row and an open key that hold the same token, a few rows at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from attnscope.capture.runs import Runs

KEPT = 64
"""Pairs a row, on average, up to which all pairs of a text are kept."""


@dataclass(frozen=True, eq=False)
class Matches:
    """For each row of one text, the open keys that match it, without an N² table.

    Row ``i`` matches the keys ``order[low[i] : high[i]]``, ``order`` being the keys sorted by token and
    then by position. ``itself`` says whether a row may match the key at its own position.
    """

    order: Tensor  # [key] int64
    low: Tensor  # [row] int64
    high: Tensor  # [row] int64
    count: Tensor  # [row] int64, matching keys of each row
    itself: bool
    kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    def duplicates(cls, ids: Tensor, runs: Runs, text: int) -> Matches:
        """Other open keys with the row's own token.  ids [key] -> for rows at the same positions"""
        return cls._of(ids, ids, runs.low[text], runs.high[text], itself=False)

    @classmethod
    def inductions(cls, ids: Tensor, runs: Runs, text: int) -> Matches:
        """Open keys that follow an earlier occurrence of the row's token.  ids [key]"""
        before = torch.cat([ids.new_full((1,), int(ids.min()) - 1), ids[:-1]])
        row = torch.arange(len(ids))
        return cls._of(ids, before, runs.low[text], torch.minimum(runs.high[text], row + 1), itself=True)

    @classmethod
    def _of(cls, rows: Tensor, keys: Tensor, low: Tensor, high: Tensor, itself: bool) -> Matches:
        size, high = len(keys), torch.maximum(low, high)
        rank = torch.unique(torch.cat([rows, keys]), return_inverse=True)[1]
        position = torch.arange(size)
        place, order = (rank[len(rows) :] * (size + 1) + position).sort()  # by token, then by position
        base = rank[: len(rows)] * (size + 1)
        first, last = torch.searchsorted(place, base + low), torch.searchsorted(place, base + high)
        count = last - first
        if not itself:
            count = count - ((low <= position) & (position < high)).long()
        return cls(order, first, last, count, itself)

    def pairs(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """The pairs of the rows ``start`` to ``stop``, rows counted from ``start``.  -> row, key, both [pair]

        Kept for the next head and layer while all pairs of the text are no more than ``KEPT`` a row.
        """
        if (start, stop) in self.kept:
            return self.kept[start, stop]
        low, count = self.low[start:stop], (self.high - self.low)[start:stop]
        row = torch.repeat_interleave(torch.arange(stop - start), count)
        within = torch.arange(len(row)) - (count.cumsum(0) - count)[row]
        key = self.order[low[row] + within]
        if not self.itself:
            other = key != row + start
            row, key = row[other], key[other]
        if self.few:
            self.kept[start, stop] = row, key
        return row, key

    @cached_property
    def few(self) -> bool:
        """Whether there are no more than ``KEPT`` pairs a row, so that keeping them grows with N alone."""
        return int(self.count.sum()) <= KEPT * len(self.count)
