"""Show each row of an attention call to several observers at once, so that it is computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from attnscope.attention import Attention, Site

NEAR = 8
"""Rows between two wanted ones that are computed too: as many cost no more than another call."""


class Reading(Protocol):
    """One observer's reading of the rows of one call."""

    @property
    def step(self) -> int:
        """How many rows it reads at a time, at most."""
        ...

    @property
    def wanted(self) -> Sequence[int] | None:
        """The rows that it reads, ``None`` for all."""
        ...

    def add(self, rows: Any, allowed: Any, start: int) -> None:
        """Read the rows from ``start`` on, with others between them that are not wanted.

        [batch, head, row, key], and the keys left open, [batch or 1, head or 1, row, key]: tensors, or arrays
        where the attention has those.
        """
        ...

    def end(self) -> None:
        """All rows were read."""
        ...


class RowObserver(Protocol):
    """An observer that reads rows in their order."""

    def begin(self, attention: Attention) -> Reading | None:
        """Begin to read a call; ``None`` where no rows are needed."""
        ...


@dataclass(frozen=True, eq=False)
class SharedRows:
    """Computes rows in blocks, and shows each block to all observers that want one of its rows.

    ``select`` is asked once a call with its site and its number of heads, and names the heads that are
    shown, numbered anew from 0; for ``None`` or no head nothing is shown, nor computed. Without it, all are.
    """

    observers: Sequence[RowObserver]
    select: Callable[[Site, int], Sequence[int] | None] | None = None

    def observe(self, attention: Attention) -> None:
        """Read one call."""
        if self.select is not None:
            heads = self.select(attention.site, attention.heads)
            if not heads:
                return
            if list(heads) != list(range(attention.heads)):  # what is picked is copied
                attention = attention.only(heads)
        readings = [reading for each in self.observers if (reading := each.begin(attention)) is not None]
        if not readings:
            return
        step = max(1, min(reading.step for reading in readings))
        for start, stop in _blocks(len(attention.queries), readings, step):
            rows, allowed = attention.rows(start, stop), attention.allowed(start, stop)
            for reading in readings:
                reading.add(rows, allowed, start)
        for reading in readings:
            reading.end()


def rows_at_a_time(attention: Attention, weights: int) -> int:
    """How many rows of all heads make up so many weights, one at least."""
    return max(1, weights // max(1, attention.batch * attention.heads * len(attention.keys)))


def _blocks(size: int, readings: Sequence[Reading], step: int) -> Iterator[tuple[int, int]]:
    """Where blocks begin and end that hold all wanted rows, and few others."""
    wanted: set[int] = set()
    for reading in readings:
        if reading.wanted is None:
            yield from ((start, min(size, start + step)) for start in range(0, size, step))
            return
        wanted.update(reading.wanted)
    start = last = min(wanted, default=0)
    for row in sorted(wanted):
        if row - last > NEAR or row - start >= step:
            yield start, last + 1
            start = row
        last = row
    if wanted:
        yield start, last + 1
