"""Digests of tensors, runs of unmasked keys, and places of pairs among tiles of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnscope.fused.request import Pairs, Runs

WORDS_PER_ROW = 1 << 16  # words of 64 bits in a row of those that are added up


def digest(tensor: Tensor) -> tuple[object, ...]:
    """Shape, type and two numbers that differ where contents do, at memory speed.

    The bytes are 64-bit words in rows of ``WORDS_PER_ROW``. One sums all words, each times a random odd
    number, modulo 2⁶⁴; the other does the same with the high halves of the columns' sums, because differences
    in high bits barely change a product. Axes along which a tensor only repeats itself are read once.
    """
    shape = tuple(tensor.shape)
    for axis, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[axis]:
            tensor = tensor.narrow(axis, 0, 1)
    data = tensor.detach().contiguous().flatten().view(torch.uint8).numpy()
    data = np.pad(data, (0, -len(data) % 8)) if len(data) % 8 else data
    words = data.view(np.int64)
    rows = words[: len(words) // WORDS_PER_ROW * WORDS_PER_ROW].reshape(-1, WORDS_PER_ROW)
    last = words[rows.size :]
    sums = rows @ _factors(0, WORDS_PER_ROW)
    total = int(sums @ _factors(1, len(rows))) + int(last @ _factors(0, WORDS_PER_ROW)[: len(last)])
    columns = np.zeros(min(len(words), WORDS_PER_ROW), np.int64)
    columns += rows.sum(0)[: len(columns)]
    columns[: len(last)] += last
    return shape, str(tensor.dtype), total % 2**64, int((columns >> 32) @ _factors(2, len(columns)))


@lru_cache(16)
def _factors(seed: int, count: int) -> NDArray[np.int64]:
    """Random odd numbers."""
    return np.random.default_rng(seed).integers(-(2**63), 2**63, size=count, dtype=np.int64) | 1


MASKED_BELOW = -3e4
"""An additive mask hides a key with -inf or about the lowest number of its type (-65504 in float16)."""

CLASSIC_MASKED = -1e4
"""The number with which the original BERT code masked a key; no other use of it is known."""

ROWS_PER_READ = 1024  # rows of a mask that are read together


def open_runs(mask: Tensor | None, queries: int, keys: int, causal: bool) -> Runs | None:
    """The runs of keys that a kernel's mask and causality leave.

    ``mask`` is bool (True: unmasked) or additive, ``[batch or 1, 1, query or 1, key]``; with ``causal`` row
    ``i`` sees keys up to ``i``, as in torch's ``scaled_dot_product_attention``. ``None`` if some row's
    unmasked keys are not one run, if masks differ between heads, or if a row has no unmasked key.
    """
    whole = torch.zeros(1, queries, dtype=torch.int64), torch.full((1, queries), keys)
    ends = whole if mask is None else _runs_of(mask, queries)
    if ends is None:
        return None
    low, high = ends
    if causal:
        high = torch.minimum(high, torch.arange(1, queries + 1))
    return Runs(low, high) if bool((high > low).all()) else None


def opens(mask: Tensor) -> Tensor:
    """Where a mask, bool or additive, masks no key, bool."""
    if mask.dtype == torch.bool:
        return mask
    return (mask > MASKED_BELOW) & (mask != CLASSIC_MASKED)


def is_plain(mask: Tensor) -> bool:
    """Whether an additive mask only masks keys, and adds nothing to other scores."""
    if mask.dtype == torch.bool:
        return True
    blocks = torch.split(mask, ROWS_PER_READ, -2)
    return all(bool(((block == 0) | ~opens(block)).all()) for block in blocks)


def _runs_of(mask: Tensor, queries: int) -> tuple[Tensor, Tensor] | None:
    """First and one past the last unmasked key of each row.  -> two of [batch or 1, row]"""
    if mask.shape[1] > 1:
        first = opens(mask[:, :1])
        for head in range(1, mask.shape[1]):
            if not torch.equal(opens(mask[:, head : head + 1]), first):
                return None
        mask = mask[:, :1]
    lows, highs = [], []
    for block in torch.split(mask[:, 0], ROWS_PER_READ, 1):  # [batch, row, key]
        open_ = opens(block).to(torch.uint8)
        count = open_.sum(-1, dtype=torch.int64)
        low = open_.argmax(-1)
        last = open_.shape[-1] - 1 - open_.flip(-1).argmax(-1)
        if bool((last - low + 1 != count).any()):
            return None
        lows.append(low)
        highs.append(last + 1)
    shape = mask.shape[0], queries
    return torch.cat(lows, 1).expand(shape), torch.cat(highs, 1).expand(shape)


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
    """Named keys of rows, several per row, masked ones left out; ordered by row."""

    name: Tensor  # the index of the name, [spot] int64, as the next two
    row: Tensor
    key: Tensor
    rows: int
    cache: dict[int, tuple[Tensor, Places]] = field(default_factory=dict)

    @classmethod
    def from_keys(cls, keys: Sequence[Tensor], runs: Runs, text: int) -> Spots:
        """The spots of some keys of a text, each [row], where open."""
        low, high = (ends[text % len(ends)] for ends in (runs.low, runs.high))
        each = torch.stack([*keys, low - 1], 1)  # [row, name]; the last row's are masked
        row, name = ((low[:, None] <= each) & (each < high[:, None])).nonzero(as_tuple=True)
        return cls(name, row, each[row, name], len(low))

    def places(self, rows: slice, keys: slice, width: int) -> tuple[Tensor, Places]:
        """Where the weights of a block's rows go in [name, row], and where they lie; both [spot]."""
        if rows.start not in self.cache:
            some = slice(*torch.searchsorted(self.row, torch.tensor([rows.start, rows.stop])).tolist())
            name, row, key = self.name[some], self.row[some], self.key[some]
            places = find_places(row - rows.start, key - keys.start, rows, keys, width)
            self.cache[rows.start] = name * self.rows + row, places
        return self.cache[rows.start]


@dataclass(frozen=True, eq=False)
class Gaps:
    """The factors of all gaps between rows and keys, from the lowest gap on."""

    numbers: Tensor  # [gap] float64
    rows: int
    slope: float | None  # set where each factor is the gap times this: sums have a closed form

    @classmethod
    def from_function(cls, function: Callable[[Tensor], Tensor], runs: Runs, keys: int) -> Gaps:
        """The factors that a function gives to whole gaps."""
        rows = runs.low.shape[-1]
        lowest = 1 - rows
        gap = torch.arange(lowest, keys)
        numbers = function(gap).double()
        position = torch.arange(rows)
        first, last = int((runs.low - position).min()), int((runs.high - 1 - position).max())
        open_, gap = numbers[first - lowest : last + 1 - lowest], gap[first - lowest : last + 1 - lowest]
        largest = gap.abs().argmax()
        slope = float(open_[largest] / gap[largest]) if gap[largest] else 0.0
        return cls(numbers, rows, slope if bool((open_ == slope * gap).all()) else None)

    def ahead_of(self, rows: slice, keys: slice, dtype: torch.dtype) -> Tensor:
        """The factors of some rows and keys, from the gap of the last row and the first key on.  -> [gap]"""
        first = keys.start + self.rows - rows.stop
        return self.numbers[first : first + rows.stop - rows.start + keys.stop - keys.start - 1].to(dtype)


CACHED_PAIRS_PER_ROW = 256  # all pairs of a text with up to this many per row are cached: a kilobyte a row


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
    cache: dict[tuple[int, ...], tuple[Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    def from_pairs(cls, pairs: Pairs, text: int, low: Tensor, high: Tensor) -> Matches:
        """The pairs of a text whose rows have the unmasked keys ``low`` to ``high``, both [row]."""
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
        """Where the pairs of some rows lie, with all unmasked keys in ``keys``, in tiles of ``width`` keys.

        Cached for the next head and layer while a text has at most ``CACHED_PAIRS_PER_ROW`` pairs per row.
        """
        block = rows.start, rows.stop
        if block in self.cache:
            return self.cache[block]
        low, count = self.low[rows], (self.high - self.low)[rows]
        row = torch.repeat_interleave(torch.arange(len(low)), count)  # counted from the first, as the key
        within = torch.arange(len(row)) - (count.cumsum(0) - count)[row]
        key = self.order[low[row] + within]
        if not self.itself:
            other = key != row + rows.start
            row, key = row[other], key[other]
        places = find_places(row, key - keys.start, rows, keys, width)
        if self.are_few:
            self.cache[block] = places
        return places

    @cached_property
    def are_few(self) -> bool:
        """Whether caching them takes memory linear in N."""
        return int(self.count.sum()) <= CACHED_PAIRS_PER_ROW * len(self.count)


NamedMatches: TypeAlias = Mapping[str, Sequence[Matches]]  # of each text, by the name of the pairs


def find_matches(request: Mapping[str, Pairs], runs: Runs, batch: int) -> NamedMatches:
    """The matches of each text of a batch, by name of the pairs; none if texts have other lengths."""
    matches_by_name = {}
    for name, pairs in request.items():
        if pairs.rows.shape[1] == pairs.keys.shape[1] == runs.low.shape[1]:
            texts, masks = len(pairs.rows), len(runs.low)
            matches = [
                Matches.from_pairs(pairs, text % texts, runs.low[text % masks], runs.high[text % masks])
                for text in range(1 if texts == masks == 1 else batch)
            ]
            matches_by_name[name] = matches * (batch // len(matches))
    return matches_by_name
