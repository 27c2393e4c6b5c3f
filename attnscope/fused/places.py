"""Where a block's pairs lie among its weights, which are stored tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from attnscope.fused.request import Pairs
from attnscope.fused.runs import Runs

Places = tuple[Tensor, Tensor]  # places in [tile, row] and among the weights of all tiles, both [pair]


def find_places(row: Tensor, key: Tensor, rows: slice, keys: slice, width: int) -> Places:
    """Flat positions of pairs, counted from the first row and key, in tiles of ``width`` keys."""
    count, size = rows.stop - rows.start, keys.stop - keys.start
    tile = key // width
    first = tile * width
    wide = (size - first).clamp(max=width)  # keys of the pair's tile
    return tile * count + row, first * count + row * wide + key - first


@dataclass(frozen=True, eq=False)
class Spots:
    """Named keys of rows, several per row, masked ones left out; ``name`` is the index of the name.

    Ordered by row.
    """

    name: Tensor  # [spot] int64, as the next two
    row: Tensor
    key: Tensor
    rows: int
    kept: dict[int, tuple[Tensor, Places]] = field(default_factory=dict)

    @classmethod
    def of(cls, keys: Sequence[Tensor], runs: Runs, text: int) -> Spots:
        """The spots of some keys of a text, each [row], where open."""
        low, high = (ends[text % len(ends)] for ends in (runs.low, runs.high))
        each = torch.stack([*keys, low - 1], 1)  # [row, name]; the last row's are closed
        row, name = ((low[:, None] <= each) & (each < high[:, None])).nonzero(as_tuple=True)
        return cls(name, row, each[row, name], len(low))

    def places(self, rows: slice, keys: slice, width: int) -> tuple[Tensor, Places]:
        """Where the weights of a block's rows go in [name, row], and where they lie; both [spot]."""
        if rows.start not in self.kept:
            some = slice(*torch.searchsorted(self.row, torch.tensor([rows.start, rows.stop])).tolist())
            name, row, key = self.name[some], self.row[some], self.key[some]
            places = find_places(row - rows.start, key - keys.start, rows, keys, width)
            self.kept[rows.start] = name * self.rows + row, places
        return self.kept[rows.start]


@dataclass(frozen=True, eq=False)
class Gaps:
    """The factors of all gaps between rows and keys, from the lowest gap on.

    ``slope`` is set where the factor of every open pair is its gap times ``slope``: then sums have a
    closed form. Otherwise it is ``None``.
    """

    numbers: Tensor  # [gap] float64
    rows: int
    slope: float | None

    @classmethod
    def of(cls, function: Callable[[Tensor], Tensor], runs: Runs, offset: int, keys: int) -> Gaps:
        """The factors that a function gives to whole gaps, for rows that begin at ``offset``."""
        rows = runs.low.shape[-1]
        lowest = 1 - rows - offset
        gap = torch.arange(lowest, keys - offset)
        numbers = function(gap).double()
        position = torch.arange(rows) + offset
        first, last = int((runs.low - position).min()), int((runs.high - 1 - position).max())
        open_, gap = numbers[first - lowest : last + 1 - lowest], gap[first - lowest : last + 1 - lowest]
        largest = gap.abs().argmax()
        slope = float(open_[largest] / gap[largest]) if gap[largest] else 0.0
        return cls(numbers, rows, slope if bool((open_ == slope * gap).all()) else None)

    def ahead_of(self, rows: slice, keys: slice, dtype: torch.dtype) -> Tensor:
        """The factors of some rows and keys, from the gap of the last row and the first key on.  -> [gap]"""
        first = keys.start + self.rows - rows.stop
        return self.numbers[first : first + rows.stop - rows.start + keys.stop - keys.start - 1].to(dtype)


KEPT = 256  # up to this many pairs per row on average, all pairs of a text are kept: a kilobyte per row


@dataclass(frozen=True, eq=False)
class Matches:
    """The pairs of one text, without an N² table.

    Row ``i`` matches the keys ``order[low[i] : high[i]]``, ``order`` being the keys sorted by label, then
    by position; its own key is excluded unless ``itself``.
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
        """Where the pairs of some rows lie, whose open keys are all in ``keys``, in tiles of ``width`` keys.

        Kept for the next head and layer while a text has at most ``KEPT`` pairs per row.
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
        """Whether there are at most ``KEPT`` pairs per row, so that keeping them takes memory linear in N."""
        return int(self.count.sum()) <= KEPT * len(self.count)


def find_matches(asked: Mapping[str, Pairs], runs: Runs, batch: int) -> Mapping[str, Sequence[Matches]]:
    """The matches of each text of a batch, by name of the pairs; none if texts have other lengths."""
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
