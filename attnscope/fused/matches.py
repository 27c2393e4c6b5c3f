"""Pairs of a row and an open key that hold the same token, a few rows at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from attnscope.fused.runs import Runs

KEPT = 256
"""Pairs a row, on average, up to which all pairs of a text are kept: a kilobyte a row."""


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
    kept: dict[tuple[int, ...], tuple[Tensor, Tensor]] = field(default_factory=dict)
    latest: dict[str, tuple[tuple[int, int], Tensor, Tensor]] = field(default_factory=dict)

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

    def places(self, rows: slice, keys: slice) -> tuple[Tensor, Tensor]:
        """The pairs in a tile: how many each row has, and their places in the flattened tile, row by row.

        -> [row] int64, [pair] int32. Kept for the next head and layer while all pairs of the text are no more
        than ``KEPT`` a row.
        """
        tile = rows.start, rows.stop, keys.start, keys.stop
        if tile in self.kept:
            return self.kept[tile]
        row, key = self._pairs(rows)
        inside = (keys.start <= key) & (key < keys.stop)
        row, key = row[inside], key[inside]
        count = torch.bincount(row, minlength=rows.stop - rows.start)
        found = count, (row * (keys.stop - keys.start) + key - keys.start).int()
        if self.few:
            self.kept[tile] = found
        return found

    def _pairs(self, rows: slice) -> tuple[Tensor, Tensor]:
        """The pairs of some rows, counted from the first of them.  -> row, key, both [pair]

        The latest answer is kept: each chunk of keys asks for the same rows.
        """
        latest = self.latest.get("rows")
        if latest is None or latest[0] != (rows.start, rows.stop):
            latest = self.latest["rows"] = (rows.start, rows.stop), *self._find(rows)
        return latest[1], latest[2]

    def _find(self, rows: slice) -> tuple[Tensor, Tensor]:
        low, count = self.low[rows], (self.high - self.low)[rows]
        row = torch.repeat_interleave(torch.arange(len(low)), count)
        within = torch.arange(len(row)) - (count.cumsum(0) - count)[row]
        key = self.order[low[row] + within]
        if self.itself:
            return row, key
        other = key != row + rows.start
        return row[other], key[other]

    @cached_property
    def few(self) -> bool:
        """Whether there are no more than ``KEPT`` pairs a row, so that keeping them grows with N alone."""
        return int(self.count.sum()) <= KEPT * len(self.count)
