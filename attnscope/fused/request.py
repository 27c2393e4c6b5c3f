"""What the fused pass is asked for, and what it returns beside a layer's output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from attnscope.axes import edges
from attnscope.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self


SHORTEST = 512  # below this many keys the kernel runs, and reading its rows beside it is cheap


@dataclass(frozen=True, eq=False)
class Pairs:
    """Requested pairs: each row with the unmasked keys that carry its label; row ``i`` is at key ``i``."""

    rows: Tensor  # [text, row] int64
    keys: Tensor  # [text, key] int64
    itself: bool = True  # whether a row is paired with the key at its own position
    ahead: bool = True  # whether with keys after it


@dataclass
class Request:
    """Requested sums of weights, each under a name that the caller chooses.

    ``at``: the weight on one key of every row, whose number is a function of the rows' positions, [row] ->
    [row], -1 for none; ``heavier``: how many keys of the row have a greater weight. ``gaps``: all weights,
    each times a factor, a function of how far the key lies ahead of its row. ``pairs``: the weights on pairs
    with equal labels. ``cells``: a map of every head, of so many nearly equal cells per side, or of cells
    with these edges; ``map_alone``: no statistics of rows beside it.
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
        """Number of unmasked keys ``n_i``.  -> [batch or 1, row]"""
        return self.high - self.low


@dataclass(frozen=True, eq=False)
class Map:
    """Every head pooled: sums of the weights in each cell, and how many pairs of a cell are open."""

    total: Tensor  # [batch, head, row cell, key cell]
    pairs: Tensor  # [batch or 1, row cell, key cell]
    row_edges: tuple[int, ...]  # cell c of an axis covers the positions edges[c] to edges[c + 1]
    key_edges: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class PairSums:
    """The weights on matching pairs, and the number of matching keys of each row."""

    pairs: Pairs
    count: Tensor  # [batch, row] int64
    total: Tensor  # [batch, head] float64


@dataclass(frozen=True, eq=False, kw_only=True)
class MapAlone:
    """The map of every head, and nothing else."""

    runs: Runs
    map: Map | None = None

    def only(self, heads: Sequence[int]) -> Self:
        """The same for some heads, renumbered from 0."""
        map_ = None if self.map is None else replace(self.map, total=self.map.total[:, list(heads)])
        return replace(self, map=map_)


@dataclass(frozen=True, eq=False, kw_only=True)
class Statistics(MapAlone):
    """Sums of the weights of every head. Requested sums are named as in the ``Request``."""

    entropy: Tensor  # of each row in nats, [batch, head, row], as the next three
    largest: Tensor
    top: Tensor  # the largest score before the softmax
    total: Tensor  # less than 1 with a sink
    column: Tensor  # the weights on each key over all rows, [batch, head, key]
    at: Mapping[str, Tensor] = field(default_factory=dict)  # [batch, head, row], 0 where the key is masked
    heavier: Mapping[str, Tensor] = field(default_factory=dict)  # likewise
    gaps: Mapping[str, Tensor] = field(default_factory=dict)  # over all rows, [batch, head] float64
    pairs: Mapping[str, PairSums] = field(default_factory=dict)

    @property
    def positions(self) -> Tensor:
        """Position of each row on the key axis.  -> [row]"""
        return torch.arange(self.entropy.shape[-1])

    def only(self, heads: Sequence[int]) -> Self:
        """The same for some heads, renumbered from 0."""
        chosen = list(heads)

        def some(sums: Any) -> Any:
            if isinstance(sums, Mapping):
                return {name: some(each) for name, each in sums.items()}
            return replace(sums, total=some(sums.total)) if isinstance(sums, PairSums) else sums[:, chosen]

        own = [each.name for each in fields(self) if each.name not in ("runs", "map")]
        return replace(super().only(heads), **{name: some(getattr(self, name)) for name in own})
