"""An observer that keeps some rows of every head, with their keys summed in groups if that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnscope.attention import Attention, Axis, Site
from attnscope.axes import Array
from attnscope.capture.observers.shared_rows import SharedRows, rows_at_a_time

BLOCK = 1 << 22
"""Weights computed at a time: 16 MB of float32."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Which rows to keep: each the mean over some queries. ``across`` adds up keys, ``[key group, key]``."""

    queries: Sequence[Sequence[int]]
    across: Array | None = None


@dataclass(frozen=True, eq=False)
class Sampled:
    """Rows of every head of one attention call.

    ``broken`` counts the weights that were not finite numbers; they count as 0. ``highest`` is the largest
    sum of a row before its keys were summed in groups.
    """

    site: Site
    values: Tensor  # float32, [batch, head, row, key or key group]
    queries: Axis
    keys: Axis
    broken: int
    highest: float


@dataclass(eq=False)
class Sample:
    """Keeps the rows that ``choose`` names, of every head of every call that it has an answer for.

    ``choose`` is asked once a call; ``None`` keeps nothing of it. Only the queries that it names are
    computed, and those that lie close between them, so memory and time are those of the rows that are kept.
    """

    choose: Callable[[Attention], Rows | None]
    maps: list[Sampled] = field(default_factory=list)

    def observe(self, attention: Attention) -> None:
        """Compute and keep the chosen rows of one call in ``maps``."""
        SharedRows([self]).observe(attention)

    def begin(self, attention: Attention) -> _Reading | None:
        """Begin to read a call, if it was chosen."""
        chosen = self.choose(attention)
        return None if chosen is None else _Reading(self, attention, chosen)


class _Reading:
    """The chosen rows of one call, as they come."""

    def __init__(self, observer: Sample, attention: Attention, chosen: Rows) -> None:
        self.observer, self.attention, self.chosen = observer, attention, chosen
        self.step = rows_at_a_time(attention, BLOCK)
        self.wanted = sorted({query for queries in chosen.queries for query in queries})
        self.across = None if chosen.across is None else torch.from_numpy(chosen.across)
        self.blocks: list[Tensor] = []
        self.broken, self.highest = 0, 0.0

    def add(self, rows: Tensor, allowed: Tensor, start: int) -> None:
        """Keep the chosen ones of these rows."""
        here = [query - start for query in self.wanted if start <= query < start + rows.shape[2]]
        if not here:
            return
        rows = rows[:, :, here].float()
        finite = rows.isfinite()
        if not finite.all():
            self.broken += int((~finite).sum())
            rows = rows.where(finite, 0)
        self.highest = max(self.highest, float(rows.sum(-1).max()))
        self.blocks.append(rows if self.across is None else rows @ self.across.to(rows).mT)

    def end(self) -> None:
        """Average the rows that belong together, and keep them."""
        values = torch.cat(self.blocks, 2)  # [batch, head, wanted query, key group]
        if [list(queries) for queries in self.chosen.queries] != [[query] for query in self.wanted]:
            values = _averaging(self.chosen.queries, self.wanted).to(values) @ values
        call = self.attention
        self.observer.maps.append(
            Sampled(call.site, values, call.queries, call.keys, self.broken, self.highest)
        )


def _averaging(parts: Sequence[Sequence[int]], wanted: Sequence[int]) -> Tensor:
    """What averages the queries of each row.  -> [row, wanted query]"""
    place = {query: number for number, query in enumerate(wanted)}
    matrix = torch.zeros(len(parts), len(wanted))
    for row, queries in enumerate(parts):
        matrix[row, [place[query] for query in queries]] = 1 / len(queries)
    return matrix
