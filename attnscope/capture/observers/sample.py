"""An observer that keeps some rows of every head, with their keys folded if that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnscope.attention import Attention, Axis, Site

BLOCK = 1 << 22
"""Weights computed at a time: 16 MB of float32."""


NEAR = 8
"""Rows between two wanted ones that are computed too: as many cost no more than another call."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Which rows to keep: each the mean over some queries. ``across`` adds up keys, ``[key group, key]``."""

    queries: Sequence[Sequence[int]]
    across: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Sampled:
    """Rows of every head of one attention call.

    ``broken`` counts the weights that were not finite numbers; they count as 0. ``highest`` is the largest
    sum of a row before its keys were folded.
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
        chosen = self.choose(attention)
        if chosen is None:
            return
        wanted = sorted({query for queries in chosen.queries for query in queries})
        step = max(1, BLOCK // max(1, attention.batch * attention.heads * len(attention.keys)))
        blocks, broken, highest = [], 0, 0.0
        for run in _runs(wanted, step):
            rows = attention.rows(run[0], run[-1] + 1)[:, :, [query - run[0] for query in run]].float()
            finite = rows.isfinite()
            if not finite.all():
                broken += int((~finite).sum())
                rows = rows.where(finite, 0)
            highest = max(highest, float(rows.sum(-1).max()))
            blocks.append(rows if chosen.across is None else rows @ chosen.across.to(rows).mT)
        values = torch.cat(blocks, 2)  # [batch, head, wanted query, key group]
        if [list(queries) for queries in chosen.queries] != [[query] for query in wanted]:
            values = _averaging(chosen.queries, wanted).to(values) @ values
        self.maps.append(Sampled(attention.site, values, attention.queries, attention.keys, broken, highest))


def _runs(wanted: Sequence[int], step: int) -> Iterator[list[int]]:
    """Queries that are near each other, from the first to the last at most ``step`` rows."""
    run = [wanted[0]]
    for query in wanted[1:]:
        if query - run[-1] > NEAR or query - run[0] >= step:
            yield run
            run = []
        run.append(query)
    yield run


def _averaging(parts: Sequence[Sequence[int]], wanted: Sequence[int]) -> Tensor:
    """What averages the queries of each row.  -> [row, wanted query]"""
    place = {query: number for number, query in enumerate(wanted)}
    matrix = torch.zeros(len(parts), len(wanted))
    for row, queries in enumerate(parts):
        matrix[row, [place[query] for query in queries]] = 1 / len(queries)
    return matrix
