"""Observers of attention during a pass: several share each row; maps are pooled, heads and rows kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from math import inf
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np

from attnscope.attention import Attention, Axis, Site
from attnscope.axes import Array, Coarsening, Weights, label_map
from attnscope.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


TINIEST = 1e-30  # a row without weights has no shares
NEAR = 8  # unwanted rows between two wanted ones that are computed too: cheaper than another call


class Reading(Protocol):
    """One observer's reading of the rows of one call."""

    @property
    def step(self) -> int:
        """The most rows that it reads at a time."""

    @property
    def wanted(self) -> Sequence[int] | None:
        """The rows that it reads, ``None`` for all."""

    def add(self, rows: Any, allowed: Any, start: int) -> None:
        """Read the rows from ``start`` on, possibly with unwanted ones between them, and their unmasked keys.

        [batch, head, row, key], [batch or 1, head or 1, row, key]: tensors, or arrays if the attention has.
        """

    def end(self) -> None:
        """All rows were read."""


class RowObserver(ABC):
    """Reads rows in order, alone or together with other observers.

    Signed rows, of a mixer without softmax, come as shares: |A| over its row's sum; ``signed``: as they are.
    """

    signed = False

    @abstractmethod
    def begin(self, attention: Attention) -> Reading | None:
        """Begin to read a call; ``None`` if no rows are needed."""

    def observe(self, attention: Attention) -> None:
        """Read the rows of one call."""
        SharedRows([self]).observe(attention)


@dataclass(frozen=True, eq=False)
class SharedRows:
    """Computes rows in blocks, and shows each block to all observers that want one of its rows.

    ``select`` is called once per call with its site and number of heads, and names the heads to show,
    renumbered from 0; for ``None`` or no head nothing is shown or computed. Without it, all are.
    """

    observers: Sequence[RowObserver]
    select: Callable[[Site, int], Sequence[int] | None] | None = None

    def observe(self, attention: Attention) -> None:
        """Read one call."""
        if self.select is not None:
            heads = self.select(attention.site, attention.heads)
            if not heads:
                return
            if list(heads) != list(range(attention.heads)):  # indexing copies
                attention = attention.only(heads)
        pairs = [(each.begin(attention), each.signed) for each in self.observers]
        readings = [(reading, signed) for reading, signed in pairs if reading is not None]
        every, step = range(len(attention.queries)), min((each.step for each, _ in readings), default=1)
        wanted = set[int]().union(*(every if each.wanted is None else each.wanted for each, _ in readings))
        for start, stop in _blocks(sorted(wanted), max(1, step)):
            rows, allowed = attention.rows(start, stop), attention.allowed(start, stop)
            shares = rows
            if attention.source == "probe":
                sizes = abs(rows)
                shares = sizes / (sizes.sum(-1)[..., None] + TINIEST)
            for reading, signed in readings:
                reading.add(rows if signed else shares, allowed, start)
        for reading, _ in readings:
            reading.end()


def rows_at_a_time(attention: Attention, weights: int, columns: int = 1) -> int:
    """How many rows of all heads, or of ``columns`` if there are more, have this many weights; at least one.

    A GPU spends its time on starting what small blocks need: there, as many as a thousandth of its bytes.
    """
    if attention.values is not None and attention.values.device.type == "cuda":
        memory = torch.cuda.get_device_properties(attention.values.device).total_memory
        weights = max(weights, memory >> 10)
    return max(1, weights // max(1, attention.batch * max(attention.heads, columns) * len(attention.keys)))


def _blocks(wanted: Sequence[int], step: int) -> Iterator[tuple[int, int]]:
    """Begins and ends of blocks that contain all wanted rows, which ascend, and few others."""
    start = last = wanted[0] if wanted else 0
    for row in wanted:
        if row - last > NEAR or row - start >= step:
            yield start, last + 1
            start = row
        last = row
    if wanted:
        yield start, last + 1


BLOCK = 1 << 23  # weights computed at a time: 32 MB of float32


@dataclass(frozen=True, eq=False)
class CoarseMap:
    """The heads of one attention call with fewer rows and columns: tensors, or arrays if the rows were."""

    site: Site
    values: Tensor | Array  # [batch, head, row, column], 0 where a whole cell is masked
    open: Tensor | Array  # False there, bool, [batch or 1, head or 1, row, column]
    queries: Coarsening
    keys: Coarsening
    tokens: bool  # whether keys are tokens, not bare positions
    broken: int = 0  # NaN or infinite weights; they count as 0, and as masked

    @property
    def mean(self) -> Array:
        """The mean over the texts of the batch that have the row.  -> [head, row, column]"""
        there = _array(self.open).any(-1, keepdims=True)
        count = np.broadcast_to(there, (len(self.values), *there.shape[1:])).sum(0)  # [head or 1, row, 1]
        mean: Array = _array(self.values).sum(0) / np.maximum(count, 1).astype(np.float32)
        return mean

    @property
    def opened(self) -> Array:
        """Where the mask leaves something open in any text of the batch.  -> [head or 1, row, column]"""
        opened: Array = _array(self.open).max(0)
        return opened

    def only(self, head: int) -> CoarseMap:
        """One head alone."""
        opened = self.open if self.open.shape[1] == 1 else self.open[:, head : head + 1]
        return replace(self, values=self.values[:, head : head + 1], open=opened)

    def label(self) -> tuple[Weights, float]:
        """The mean over the batch with its labels, and the share of weight on left-out keys."""
        return label_map(self.mean, self.opened, self.queries, self.keys)


def _array(values: Tensor | Array) -> Array:
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()


How: TypeAlias = Literal["share", "mean", "max"]
"""What a cell holds: the share of its queries' attention that its keys get, or the mean or the largest of the
weights of its unmasked pairs."""

Axes: TypeAlias = "tuple[Coarsening, Coarsening]"  # how to coarsen the queries and the keys of a call


@dataclass(eq=False)
class Coarsen(RowObserver):
    """Keeps every head of every call in ``maps``, keys summed and queries averaged.

    Left-out keys are one more column. Rows are read in blocks, so memory is that of the result; a map that
    the fused pass made in the same cells is reused.
    """

    axes: Callable[[Attention], Axes | None]  # how to coarsen a call; None to skip it
    how: How = "share"
    maps: list[CoarseMap] = field(default_factory=list)
    signed: bool = False

    def begin(self, attention: Attention) -> Reading | None:
        """Begin to read a call; ``None`` if its map exists already, or is not wanted."""
        axes = self.axes(attention)
        if axes is None:
            return None
        queries, keys = axes

        def keep(values: Any, opened: Any, broken: int) -> None:
            tokens = not isinstance(attention.keys, range)
            self.maps.append(CoarseMap(attention.site, values, opened, queries, keys, tokens, broken))

        fused_map = None if attention.statistics is None else attention.statistics.map
        edges = queries.edges, keys.edges
        if fused_map is None or self.how == "max" or (fused_map.row_edges, fused_map.key_edges) != edges:
            wanted = sorted(queries.tokens(*range(len(queries.places)))) if queries.partial else None
            return CellReading(attention, queries.averaging(), keys.summing(), wanted, keep, self.how)
        pairs = fused_map.pairs[:, None]  # [batch or 1, 1, row, column]
        count = pairs.clamp(min=1)
        if self.how == "share":
            count = pairs.new_tensor(fused_map.row_edges).diff()[:, None]
        keep(fused_map.total / count, pairs > 0, 0)
        return None


@dataclass(eq=False)
class CellReading:
    """One call, its rows summed as they come: tensors, or arrays if the attention has arrays."""

    attention: Attention
    down: Array | None  # averages queries, [row, query]; None leaves them
    across: Array | None  # sums keys, [column, key]; None leaves them
    wanted: Sequence[int] | None  # the rows that count
    keep: Callable[[Any, Any, int], None]  # the cells, which of them are open, NaN or infinite weights
    how: How = "share"
    broken: int = 0
    values: Any = None  # [batch, head, row, column]
    open: Any = None  # the share of its pairs that are open, [batch or 1, head or 1, row, column]
    blind: Any = None  # the share of its queries that see no key, [batch or 1, head or 1, row, 1]

    def __post_init__(self) -> None:
        attention, down, across = self.attention, self.down, self.across
        self.step = rows_at_a_time(attention, BLOCK)
        self.shape = (
            len(attention.queries) if down is None else len(down),
            len(attention.keys) if across is None else len(across),
        )
        self.kind: Any = np if attention.arrays else import_module("torch")

    def add(self, rows: Any, allowed: Any, start: int) -> None:
        """Add a block of rows."""
        places = list(range(start, start + rows.shape[2]))
        if self.wanted is not None:
            places = [row for row in self.wanted if row in range(start, start + rows.shape[2])]
            here = [row - start for row in places]
            rows, allowed = rows[:, :, here], allowed[:, :, here]
        blind = self.kind.asarray(~allowed.any(-1), dtype=self.kind.float32)[..., None]
        rows = self.kind.asarray(rows, dtype=self.kind.float32)
        finite = self.kind.isfinite(rows)
        if not finite.all():
            self.broken += int((~finite).sum())
            allowed = allowed & finite
        rows = self.kind.where(allowed, rows, 0)
        opened = self.kind.asarray(allowed, dtype=self.kind.float32)
        if self.values is None:
            self.values, self.open = (self._zeros(each) for each in (rows, opened))
            self.blind = self.open[..., :1] * 0
        elif len(opened) > len(self.open) or opened.shape[1] > self.open.shape[1]:
            self.open = self.open + self._zeros(opened)  # broken in this block alone
        groups, down = slice(start, start + rows.shape[2]), None
        if self.down is not None:
            part = self.down[:, places]
            touched = np.flatnonzero(part.any(1))
            if not len(touched):
                return
            groups = slice(int(touched[0]), int(touched[-1]) + 1)
            down = self.kind.asarray(part[groups], device=rows.device)
        if self.how == "max":
            largest = self._largest(rows, down)
            self.values[:, :, groups] = self.kind.maximum(self.values[:, :, groups], largest)
        else:
            self.values[:, :, groups] += self._coarser(rows, down)
            self.blind[:, :, groups] += blind if down is None else down @ blind
        self.open[:, :, groups] += self._coarser(opened, down)

    def end(self) -> None:
        """Hand the cells over."""
        if self.values is None:
            heads = self.attention.batch, self.attention.heads
            self.values, self.open = (
                self.kind.zeros((*lead, *self.shape), dtype=self.kind.float32) for lead in (heads, (1, 1))
            )
        if self.how == "mean":
            self.values /= self.kind.where(self.open > 0, self.open, 1)
        elif self.how == "share" and self.blind is not None:
            self.values /= self.kind.where(self.open.any(-1)[..., None], 1 - self.blind, 1)
        self.keep(self.values, self.open > 0, self.broken)

    def _zeros(self, block: Any) -> Any:
        shape = *block.shape[:2], *self.shape
        return self.kind.zeros(shape, dtype=self.kind.float32, device=block.device)

    def _coarser(self, rows: Any, down: Any) -> Any:
        """[..., row, key] -> [..., row group, column]"""
        rows = rows if down is None else down @ rows
        return rows if self.across is None else rows @ self.kind.asarray(self.across, device=rows.device).T

    def _largest(self, rows: Tensor, down: Tensor | None) -> Tensor:
        """The largest weight of each cell.  [..., row, key] -> [..., row group, column]"""
        if down is not None:
            rows = torch.stack([rows[:, :, part > 0].amax(2) for part in down], 2)
        if self.across is None:
            return rows
        column = torch.from_numpy(self.across.argmax(0)).to(rows.device).expand_as(rows)
        return rows.new_zeros(*rows.shape[:3], len(self.across)).scatter_reduce(-1, column, rows, "amax")


@dataclass(frozen=True, eq=False)
class Rows:
    """Which rows to keep, each the mean over some queries. ``across`` sums keys, ``[key group, key]``."""

    queries: Sequence[Sequence[int]]
    across: Array | None = None


@dataclass(frozen=True, eq=False)
class Sampled:
    """Rows of every head of one attention call."""

    site: Site
    values: Tensor  # float32, [batch, head, row, key or key group]
    queries: Axis
    keys: Axis
    broken: int  # NaN or infinite weights; they count as 0


@dataclass(eq=False)
class Sample(RowObserver):
    """Keeps the rows that ``choose`` names, of every head; only these and rows between them are read."""

    choose: Callable[[Attention], Rows | None]  # None skips a call
    maps: list[Sampled] = field(default_factory=list)
    signed: bool = False

    def begin(self, attention: Attention) -> CellReading | None:
        """Begin to read a call, if it was chosen."""
        rows = self.choose(attention)
        if rows is None:
            return None
        down = np.zeros((len(rows.queries), len(attention.queries)), np.float32)
        for row, queries in enumerate(rows.queries):
            down[row, list(queries)] = 1 / len(queries)

        def keep(values: Tensor, opened: Tensor, broken: int) -> None:
            self.maps.append(Sampled(attention.site, values, attention.queries, attention.keys, broken))

        wanted = np.flatnonzero(down.any(0)).tolist()
        return CellReading(attention, down, rows.across, wanted, keep)


@dataclass(eq=False)
class RowSums:
    """The smallest and the largest row sum of every call, over its rows with an unmasked key, read in blocks.

    Less than 1: the rest went to a sink without a token. Not 1 and no sink: the model scales its weights
    after the softmax.
    """

    ranges: dict[Site, tuple[float, float]] = field(default_factory=dict)

    def observe(self, attention: Attention) -> None:
        """Read the rows of one call."""
        low, high = inf, -inf
        for start, stop in _blocks(range(len(attention.queries)), rows_at_a_time(attention, BLOCK)):
            sums = attention.rows(start, stop).float().sum(-1)  # [batch, head, row]
            sums = sums[attention.allowed(start, stop).any(-1).expand_as(sums)]
            if len(sums):
                low, high = min(low, float(sums.min())), max(high, float(sums.max()))
        self.ranges[attention.site] = low, high
