"""Pairs of a row and an open key that carry the same label, a few rows at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from attnscope.fused.asked.places import Places, find_places
from attnscope.fused.request import Pairs
from attnscope.fused.runs import Runs

KEPT = 256
"""Pairs a row, on average, up to which all pairs of a text are kept: a kilobyte a row."""


@dataclass(frozen=True, eq=False)
class Matches:
    """The pairs of one text, without an N² table.

    Row ``i`` matches the keys ``order[low[i] : high[i]]``, ``order`` being the keys sorted by label and
    then by position, but for its own key unless ``itself``.
    """

    order: Tensor  # [key] int64
    low: Tensor  # [row] int64
    high: Tensor  # [row] int64
    count: Tensor  # [row] int64, matching keys of each row
    itself: bool
    kept: dict[tuple[int, ...], tuple[Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, pairs: Pairs, text: int, low: Tensor, high: Tensor) -> Matches:
        """The pairs of a text whose rows have the open keys ``low`` to ``high``, both [row]."""
        rows, keys = pairs.rows[text], pairs.keys[text]
        size = len(keys)
        position = torch.arange(size)
        high = torch.maximum(low, high if pairs.ahead else torch.minimum(high, position + 1))
        rank = torch.unique(torch.cat([rows, keys]), return_inverse=True)[1]
        place, order = (rank[size:] * (size + 1) + position).sort()  # by label, then by position
        base = rank[:size] * (size + 1)
        first, last = torch.searchsorted(place, base + low), torch.searchsorted(place, base + high)
        count = last - first
        if not pairs.itself:
            count = count - ((rows == keys) & (low <= position) & (position < high)).long()
        return cls(order, first, last, count, pairs.itself)

    def places(self, rows: slice, keys: slice, width: int) -> Places:
        """Where the pairs of some rows are, whose open keys are all in ``keys``, in tiles of ``width`` keys.

        Kept for the next head and layer while all pairs of the text are no more than ``KEPT`` a row.
        """
        block = rows.start, rows.stop
        if block in self.kept:
            return self.kept[block]
        row, key = self._find(rows)
        places = find_places(row, key - keys.start, rows, keys, width)
        if self.few:
            self.kept[block] = places
        return places

    def _find(self, rows: slice) -> tuple[Tensor, Tensor]:
        """The pairs of some rows, counted from the first of them.  -> row, key, both [pair]"""
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


def find_matches(asked: Mapping[str, Pairs], runs: Runs, batch: int) -> Mapping[str, Sequence[Matches]]:
    """The matches of each text of a batch, by the name of the pairs; none where texts have other lengths."""
    return {
        name: _of_batch(pairs, runs, batch)
        for name, pairs in asked.items()
        if pairs.rows.shape[1] == pairs.keys.shape[1] == runs.low.shape[1]
    }


def _of_batch(pairs: Pairs, runs: Runs, batch: int) -> list[Matches]:
    texts, masks = len(pairs.rows), len(runs.low)
    single = texts == masks == 1
    matches = [
        Matches.of(pairs, text % texts, runs.low[text % masks], runs.high[text % masks])
        for text in range(1 if single else batch)
    ]
    return matches * batch if single else matches
