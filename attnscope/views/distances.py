"""Distances between heads: a table with similar heads side by side, and a plane with every head on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnscope.axes import Array
from attnscope.views.table import Titled


@dataclass(frozen=True, eq=False)
class DistanceMap(Titled):
    """Distances between the heads of the rows and those of the columns, in nats.

    ``groups`` are the sizes of the groups along both axes, in order; empty where rows and columns are the
    heads of two models. ``top`` is the distance at the far end of the colour bar. If ``matched``, the
    diagonal pairs each row with its column, nearest first; then smaller tables show fewer pairs instead
    of averages.
    """

    values: Array  # [row, column]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    groups: tuple[int, ...] = ()
    top: float = 1.0
    matched: bool = False

    def nearness(self) -> Array:
        """1 for equal heads, 0 for the largest distance.  [row, column]"""
        return np.clip(1 - self.values / self.top, 0, 1)

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each group begins."""
        return tuple(int(start) for start in np.cumsum((0, *self.groups))[:-1])

    def fit(self, rows: int, columns: int) -> DistanceMap:
        """The same table on at most so many cells; a cell is then the mean of several heads.

        A matched table keeps as many heads as fit.
        """
        block = max(-(-len(self.rows) // max(rows, 1)), -(-len(self.columns) // max(columns, 1)), 1)
        if block == 1:
            return self
        if self.matched:
            kept = min(rows, columns)
            note = f"the first {kept} of {len(self.rows):,} rows and {len(self.columns):,} columns"
            values, named, groups = self.values[:kept, :kept], slice(kept), self.groups
        else:
            down, across = (np.arange(0, len(names), block) for names in (self.rows, self.columns))
            sums = np.add.reduceat(np.add.reduceat(self.values, down, 0), across, 1)
            sizes = np.diff([*down, len(self.rows)]), np.diff([*across, len(self.columns)])
            note = f"a cell is the mean over {block} × {block} heads; a wider picture has one for each"
            values, named, groups = sums / np.outer(*sizes), slice(None, None, block), ()
        notes, rows_, columns_ = (*self.notes, note), self.rows[named], self.columns[named]
        return replace(self, values=values, rows=rows_, columns=columns_, groups=groups, notes=notes)


def distance_map(
    values: Array,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    groups: Sequence[Sequence[int]] = (),
    **more: Any,
) -> DistanceMap:
    """Build the view of a table ``[row, column]``; ``groups`` of head numbers order both axes.

    Full colour is distance 0, none is the largest one in the table. ``more`` are other fields.
    """
    order = [head for group in groups for head in group]
    if groups:
        values = values[np.ix_(order, order)]
        rows = columns = [rows[head] for head in order]
    top = float(values.max(initial=0)) or 1.0
    sizes = tuple(len(group) for group in groups)
    return DistanceMap(values, tuple(rows), tuple(columns), sizes, top, **more)


@dataclass(frozen=True, eq=False)
class HeadDistances(Titled):
    """All heads compared with all others: the table, and every head as a point on a plane, with its layer.

    Similar heads lie near each other; the axes have no unit.
    """

    table: DistanceMap
    points: Array  # [head, 2]
    names: tuple[str, ...]
    layers: tuple[int, ...]
