"""The heads of one attention call with fewer rows and columns, and its making from rows that are arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from attnscope.attention import Attention, Site
from attnscope.axes import Array, Coarsening, Weights, label_map
from attnscope.capture.observers.shared_rows import rows_at_a_time

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 1 << 23
"""Weights computed at a time: 32 MB of float32."""


@dataclass(frozen=True, eq=False)
class CoarseMap:
    """The heads of one attention call with fewer rows and columns: tensors, or arrays if the rows were.

    ``open`` is False where everything in a cell is masked; its value is 0 there. ``broken`` counts the
    weights that were not finite numbers; they count as 0, and as masked. ``tokens`` says whether keys are
    tokens, not bare positions.
    """

    site: Site
    values: Tensor | Array  # [batch, head, row, column]
    open: Tensor | Array  # bool, [batch or 1, head or 1, row, column]
    queries: Coarsening
    keys: Coarsening
    tokens: bool
    broken: int = 0

    @property
    def mean(self) -> Array:
        """The mean over the batch, as figures are over all of it.  -> [head, row, column]"""
        return _array(self.values.mean(0))

    @property
    def opened(self) -> Array:
        """Where the mask leaves something open in any of the batch.  -> [head or 1, row, column]"""
        return _array(np.any(self.open, 0) if isinstance(self.open, np.ndarray) else self.open.any(0))

    def label(self) -> tuple[Weights, float]:
        """The mean over the batch with its labels, and the share of attention that was left aside."""
        return label_map(self.mean, self.opened, self.queries, self.keys)


class ReadArrays:
    """One call whose rows come as arrays: keys summed and queries averaged, as its blocks come."""

    def __init__(
        self, keep: Callable[[CoarseMap], None], attention: Attention, queries: Coarsening, keys: Coarsening
    ) -> None:
        self.keep, self.attention, self.queries, self.keys = keep, attention, queries, keys
        self.step = rows_at_a_time(attention, BLOCK)
        self.wanted: Sequence[int] | None = None
        if queries.partial:
            self.wanted = sorted(queries.tokens(*range(len(queries.places))))
        self.down, self.across = queries.averaging(), keys.summing()
        rows = queries.size if self.down is None else len(self.down)
        columns = keys.size if self.across is None else len(self.across)
        heads = attention.batch, attention.heads
        self.values = np.zeros((*heads, rows, columns), np.float32)
        self.open = np.zeros((*heads, rows, columns), np.float32)
        self.broken = 0

    def add(self, rows: Array, allowed: Array, start: int) -> None:
        """Add a block of rows."""
        rows, finite = rows.astype(np.float32, copy=False), np.isfinite(rows)
        if not finite.all():
            self.broken += int((~finite).sum())
            allowed = allowed & finite
        stop = start + rows.shape[2]
        groups = slice(start, stop) if self.down is None else slice(None)
        down = None if self.down is None else self.down[:, start:stop]
        self.values[:, :, groups] += self._coarser(np.where(allowed, rows, 0), down)
        self.open[:, :, groups] += self._coarser(allowed.astype(np.float32), down)

    def end(self) -> None:
        """Keep the map."""
        tokens = not isinstance(self.attention.keys, range)
        opened = self.open > 0
        self.keep(
            CoarseMap(self.attention.site, self.values, opened, self.queries, self.keys, tokens, self.broken)
        )

    def _coarser(self, rows: Array, down: Array | None) -> Array:
        """[..., row, key] -> [..., row group, column]"""
        rows = rows if down is None else down @ rows
        return rows if self.across is None else rows @ self.across.T


def _array(values: Tensor | Array) -> Array:
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()
