"""What one pass over blocks finds out about a layer's attention while it computes the layer's output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from attnscope.attention import RowSource
from attnscope.fused.matches import Matches
from attnscope.fused.runs import Runs


@dataclass(frozen=True, eq=False)
class Map:
    """Every head pooled: sums of the weights in each cell, and how many pairs of a cell are open.

    ``total`` is ``[batch, head, row cell, key cell]``, ``pairs`` ``[batch or 1, row cell, key cell]``. Cell
    ``c`` of an axis covers the positions ``edges[c]`` to ``edges[c + 1]``.
    """

    total: Tensor
    pairs: Tensor
    cells: int  # asked for, a side
    row_edges: tuple[int, ...]
    key_edges: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Statistics:
    """Figures of every row and every head. Position ``i`` of a row is its number plus ``offset``.

    Row figures are ``[batch, head, row]``: ``entropy`` in nats, ``confidence`` (the largest weight),
    ``total`` (the row's sum, less than 1 with a sink), ``own``, ``previous``, ``following``, ``first``: the
    weights on the keys i, i-1, i+1 and 0 (0 where that key is closed).
    Sums over all rows: ``column`` ``[batch, head, key]`` of the weights on each key, ``distance``
    ``[batch, head]`` of ``A |i - j|``, and ``matched`` of the weights on matching pairs, by name, beside the
    pairs themselves, one ``Matches`` a text.
    """

    runs: Runs
    offset: int
    entropy: Tensor
    confidence: Tensor
    total: Tensor
    own: Tensor
    previous: Tensor
    following: Tensor
    first: Tensor
    column: Tensor
    distance: Tensor
    matched: Mapping[str, tuple[Tensor, Sequence[Matches]]] = field(default_factory=dict)
    map: Map | None = None


@dataclass(frozen=True, eq=False)
class StreamedRows:
    """Rows computed when asked for, of a call whose figures are known already."""

    read: RowSource
    statistics: Statistics

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """Weights of the queries ``start`` to ``stop``.  -> [batch, head, row, key]"""
        return self.read.rows(start, stop, heads)

    def allowed(self, start: int, stop: int) -> Tensor:
        """Keys that the mask left open, bool.  -> [batch or 1, head or 1, row, key]"""
        return self.read.allowed(start, stop)
