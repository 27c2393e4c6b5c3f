"""Numbers that depend on nothing but how far a key lies ahead of its row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.fused.runs import Runs


@dataclass(frozen=True, eq=False)
class Gaps:
    """The numbers of all gaps between rows and keys, from the lowest on; ``slope`` as ``of`` finds it.

    ``slope`` is the factor where the number of every open pair is its gap times that factor: then sums have a
    closed form. It is ``None`` elsewhere.
    """

    numbers: Tensor  # [gap] float64
    rows: int
    slope: float | None

    @classmethod
    def of(cls, function: Callable[[Tensor], Tensor], runs: Runs, offset: int, keys: int) -> Gaps:
        """The numbers that a function gives to whole gaps, for rows that begin at ``offset``."""
        rows = runs.low.shape[-1]
        lowest = 1 - rows - offset
        gap = torch.arange(lowest, keys - offset)
        numbers = function(gap).double()
        position = torch.arange(rows) + offset
        first, last = int((runs.low - position).min()), int((runs.high - 1 - position).max())
        open_, gap = numbers[first - lowest : last + 1 - lowest], gap[first - lowest : last + 1 - lowest]
        largest = gap.abs().argmax()
        slope = float(open_[largest] / gap[largest]) if gap[largest] else 0.0
        return cls(numbers, rows, slope if bool((open_ == slope * gap).all()) else None)

    def ahead_of(self, rows: slice, keys: slice, dtype: torch.dtype) -> Tensor:
        """The numbers of some rows and keys, from that of the last row and the first key on.  -> [gap]"""
        first = keys.start + self.rows - rows.stop
        return self.numbers[first : first + rows.stop - rows.start + keys.stop - keys.start - 1].to(dtype)
