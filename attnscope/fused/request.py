"""What the fused pass is asked for, and what it returns beside a layer's output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from attnscope.axes import edges

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self


SHORTEST = 512  # below this many keys the kernel runs, and reading its rows beside it is cheap


@dataclass(frozen=True, eq=False)
class Pairs:
    """Requested pairs: each row with the open keys that carry its label.

    Row ``i`` and key ``i`` have the same position. ``itself`` pairs a row with the key at its own
    position, ``ahead`` with keys after it.
    """

    rows: Tensor  # [text, row] int64
    keys: Tensor  # [text, key] int64
    itself: bool = True
    ahead: bool = True


@dataclass
class Request:
    """Requested sums of weights, each under a name that the caller chooses.

    ``at`` asks for the weight on one key of every row: a function of the rows' positions gives that key's
    number, ``[row] -> [row]``, or -1 for none; ``heavier`` also counts the keys of the row with a greater
    weight than that one. ``gaps`` asks for weights summed over all rows, each times a factor: a function of
    how far the key lies ahead of its row. ``pairs`` asks for the weights on pairs with equal labels,
    ``cells`` for a map of every head: a number of nearly equal cells per side, or the positions where cells
    begin and end on both sides. ``map_alone`` asks for the map alone, without the statistics of every row.
    """

    at: dict[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    gaps: dict[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    pairs: dict[str, Pairs] = field(default_factory=dict)
    cells: int | tuple[int, ...] | None = None
    heavier: bool = False
    map_alone: bool = False

    def edges(self, length: int) -> tuple[int, ...]:
        """Where the cells of an axis begin and end; a single cell if no map of that length is requested."""
        if isinstance(self.cells, tuple):
            return self.cells if self.cells[-1] == length else (0, length)
        return edges(length, self.cells or 1)


@dataclass(frozen=True, eq=False)
class Runs:
    """Row ``i`` attends to the keys ``low[i] <= j < high[i]``; int64, ``[batch or 1, row]``."""

    low: Tensor
    high: Tensor

    @property
    def count(self) -> Tensor:
        """Number of open keys ``n_i``.  -> [batch or 1, row]"""
        return self.high - self.low


@dataclass(frozen=True, eq=False)
class Map:
    """Every head pooled: sums of the weights in each cell, and how many pairs of a cell are open.

    ``total`` is ``[batch, head, row cell, key cell]``, ``pairs`` ``[batch or 1, row cell, key cell]``.
    Cell ``c`` of an axis covers the positions ``edges[c]`` to ``edges[c + 1]``.
    """

    total: Tensor
    pairs: Tensor
    row_edges: tuple[int, ...]
    key_edges: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class PairSums:
    """The weights on matching pairs, and the number of matching keys of each row."""

    pairs: Pairs
    count: Tensor  # [batch, row] int64
    total: Tensor  # [batch, head] float64


@dataclass(frozen=True, eq=False, kw_only=True)
class MapAlone:
    """The map of every head, and nothing else. Row ``i`` has the position ``i + offset``."""

    runs: Runs
    offset: int = 0
    map: Map | None = None

    def only(self, heads: Sequence[int]) -> Self:
        """The same for some heads, renumbered from 0."""
        map_ = None if self.map is None else replace(self.map, total=self.map.total[:, list(heads)])
        return replace(self, map=map_)


@dataclass(frozen=True, eq=False, kw_only=True)
class Statistics(MapAlone):
    """Sums of the weights of every head.

    For each row, ``[batch, head, row]``: ``entropy`` in nats, the ``largest`` weight, the ``top`` score
    before the softmax, the ``total`` of weights (less than 1 with a sink), the weight on its key ``at``
    (0 where that key is masked), and how many keys are ``heavier`` than that one. Over all rows:
    ``column`` ``[batch, head, key]`` of the weights on each key, ``gaps`` ``[batch, head]`` float64, and
    ``pairs``. Requested sums are named as in the ``Request``.
    """

    entropy: Tensor
    largest: Tensor
    top: Tensor
    total: Tensor
    column: Tensor
    at: Mapping[str, Tensor] = field(default_factory=dict)
    heavier: Mapping[str, Tensor] = field(default_factory=dict)
    gaps: Mapping[str, Tensor] = field(default_factory=dict)
    pairs: Mapping[str, PairSums] = field(default_factory=dict)

    @property
    def positions(self) -> Tensor:
        """Position of each row on the key axis.  -> [row]"""
        import torch

        return torch.arange(self.entropy.shape[-1]) + self.offset

    def only(self, heads: Sequence[int]) -> Self:
        """The same for some heads, renumbered from 0."""
        some = list(heads)
        return replace(
            super().only(heads),
            entropy=self.entropy[:, some],
            largest=self.largest[:, some],
            top=self.top[:, some],
            total=self.total[:, some],
            column=self.column[:, some],
            at={name: each[:, some] for name, each in self.at.items()},
            heavier={name: each[:, some] for name, each in self.heavier.items()},
            gaps={name: each[:, some] for name, each in self.gaps.items()},
            pairs={name: replace(each, total=each.total[:, some]) for name, each in self.pairs.items()},
        )
