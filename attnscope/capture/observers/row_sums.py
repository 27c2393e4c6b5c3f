"""An observer that notes what the rows of each head sum to."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnscope.attention import Attention, Site
from attnscope.capture.observers.coarse_map import BLOCK
from attnscope.capture.observers.shared_rows import SharedRows, rows_at_a_time


@dataclass(frozen=True)
class RowSum:
    """The smallest and the largest row sum of one attention call, over its rows with an open key.

    Less than 1: the rest went to a sink that no token owns. Not 1 and no sink: the model scales its weights
    after the softmax.
    """

    site: Site
    low: float
    high: float


@dataclass(eq=False)
class RowSums:
    """Notes the range of row sums of every call in ``sums``; computes all rows once, in blocks."""

    sums: list[RowSum] = field(default_factory=list)

    def observe(self, attention: Attention) -> None:
        """Sum every row of every head."""
        SharedRows([self]).observe(attention)

    def begin(self, attention: Attention) -> _Reading:
        """Begin to read a call."""
        return _Reading(self.sums, attention.site, rows_at_a_time(attention, BLOCK))


@dataclass(eq=False)
class _Reading:
    sums: list[RowSum]
    site: Site
    step: int
    wanted: None = None
    low: float = torch.inf
    high: float = -torch.inf

    def add(self, rows: Tensor, allowed: Tensor, start: int) -> None:
        sums = rows.float().sum(-1)  # [batch, head, row]
        alive = allowed.any(-1).expand_as(sums)
        if bool(alive.any()):
            self.low = min(self.low, float(sums[alive].min()))
            self.high = max(self.high, float(sums[alive].max()))

    def end(self) -> None:
        self.sums.append(RowSum(self.site, self.low, self.high))
