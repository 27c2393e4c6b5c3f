"""Numbers that depend on nothing but how far a key lies ahead of its row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.fused.runs import Runs


@dataclass(frozen=True, eq=False)
class Gaps:
    """The numbers of the gaps ``first``, ``first + 1`` and so on, which are those of all open pairs."""

    first: int
    numbers: Tensor  # [gap] float64

    @classmethod
    def of(cls, function: Callable[[Tensor], Tensor], runs: Runs, offset: int) -> Gaps:
        """The numbers that a function gives to whole gaps, for rows that begin at ``offset``."""
        position = torch.arange(runs.low.shape[-1]) + offset
        first, last = int((runs.low - position).min()), int((runs.high - 1 - position).max())
        return cls(first, function(torch.arange(first, last + 1)).double())

    @property
    def slope(self) -> float | None:
        """The factor, where every number is the gap times one factor: then sums have a closed form."""
        gap = torch.arange(self.first, self.first + len(self.numbers), dtype=torch.float64)
        largest = gap.abs().argmax()
        slope = float(self.numbers[largest] / gap[largest]) if gap[largest] else 0.0
        return slope if bool((self.numbers == slope * gap).all()) else None

    def table(self, positions: Tensor, keys: Tensor) -> Tensor:
        """The numbers of some rows and keys; any number for a pair that is not open.  -> [row, key]"""
        place = keys - (positions[:, None] + self.first)
        return self.numbers[place.clamp_(0, len(self.numbers) - 1)]
