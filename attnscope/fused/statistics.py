"""What the fused pass returns about a layer's attention beside its output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnscope.fused.request import Pairs
from attnscope.fused.runs import Runs

if TYPE_CHECKING:
    from typing_extensions import Self


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
