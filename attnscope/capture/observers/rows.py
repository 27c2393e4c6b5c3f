"""An observer that keeps some rows of every head, optionally with keys summed in groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from attnscope.attention import Attention, Axis, Site
from attnscope.axes import Array
from attnscope.capture.observers.coarsen import BLOCK, CellReading, RowObserver, rows_at_a_time


@dataclass(frozen=True, eq=False)
class Rows:
    """Which rows to keep, each the mean over some queries. ``across`` sums keys, ``[key group, key]``."""

    queries: Sequence[Sequence[int]]
    across: Array | None = None


@dataclass(frozen=True, eq=False)
class Sampled:
    """Rows of every head of one attention call.

    ``broken`` is the number of NaN or infinite weights; they count as 0.
    """

    site: Site
    values: Tensor  # float32, [batch, head, row, key or key group]
    queries: Axis
    keys: Axis
    broken: int


@dataclass(eq=False)
class Sample(RowObserver):
    """Keeps the rows that ``choose`` names, of every head of every chosen call.

    ``choose`` is called once per call; ``None`` skips it. Only the named queries and those between close
    ones are computed, so memory and time are those of the kept rows.
    """

    choose: Callable[[Attention], Rows | None]
    maps: list[Sampled] = field(default_factory=list)

    def begin(self, attention: Attention) -> CellReading | None:
        """Begin to read a call, if it was chosen."""
        chosen = self.choose(attention)
        if chosen is None:
            return None
        down = np.zeros((len(chosen.queries), len(attention.queries)), np.float32)
        for row, queries in enumerate(chosen.queries):
            down[row, list(queries)] = 1 / len(queries)

        def keep(values: Tensor, opened: Tensor, broken: int) -> None:
            self.maps.append(Sampled(attention.site, values, attention.queries, attention.keys, broken))

        wanted = np.flatnonzero(down.any(0)).tolist()
        return CellReading(attention, down, chosen.across, wanted, keep)


@dataclass(frozen=True, eq=False)
class Kept:
    """The weights of some heads of one attention call.

    ``allowed`` has one entry in its head axis if all heads share a mask.
    """

    site: Site
    heads: tuple[int, ...]
    weights: Tensor  # [batch, head, query, key], one entry a kept head
    allowed: Tensor  # bool, [batch or 1, kept head or 1, query, key]
    queries: Axis
    keys: Axis
    offset: int | None


@dataclass(eq=False)
class Keep:
    """Keeps whole maps of the heads that ``select`` names, in ``maps``, in the order they ran.

    ``select`` is called once per call; None or an empty answer skips it. A kept head costs its N²
    numbers, the others nothing.
    """

    select: Callable[[Site], Sequence[int] | None]
    maps: list[Kept] = field(default_factory=list)

    def observe(self, attention: Attention) -> None:
        """Compute and keep the chosen heads."""
        heads = tuple(self.select(attention.site) or ())
        if not heads:
            return
        weights = attention.weights(heads)
        allowed = attention.allowed(0, len(attention.queries))
        if allowed.shape[1] > 1:
            allowed = allowed[:, list(heads)]
        shape = (*allowed.shape[:2], *weights.shape[2:])
        self.maps.append(
            Kept(
                site=attention.site,
                heads=heads,
                weights=weights.detach().clone(),
                allowed=allowed.expand(shape).clone(),
                queries=attention.queries,
                keys=attention.keys,
                offset=attention.offset,
            )
        )


@dataclass(frozen=True)
class RowSum:
    """The smallest and the largest row sum of one attention call, over its rows with an open key.

    Less than 1: the rest went to a sink without a token. Not 1 and no sink: the model scales its weights
    after the softmax.
    """

    site: Site
    low: float
    high: float


@dataclass(eq=False)
class RowSums(RowObserver):
    """Records the range of row sums of every call in ``sums``; computes all rows once, in blocks."""

    sums: list[RowSum] = field(default_factory=list)

    def begin(self, attention: Attention) -> _Sums:
        """Begin to read a call."""
        return _Sums(self.sums, attention.site, rows_at_a_time(attention, BLOCK))


@dataclass(eq=False)
class _Sums:
    sums: list[RowSum]
    site: Site
    step: int
    wanted: None = None
    low: float = torch.inf
    high: float = -torch.inf

    def add(self, rows: Tensor, allowed: Tensor, start: int) -> None:
        sums = rows.float().sum(-1)  # [batch, head, row]
        alive = allowed.any(-1).expand_as(sums)
        if bool(alive.any()):
            self.low = min(self.low, float(sums[alive].min()))
            self.high = max(self.high, float(sums[alive].max()))

    def end(self) -> None:
        self.sums.append(RowSum(self.site, self.low, self.high))
