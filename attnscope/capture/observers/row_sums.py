"""An observer that notes what the rows of each head sum to."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from attnscope.attention import Attention, Site
from attnscope.capture.observers.pool import BLOCK


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
        low, high = torch.inf, -torch.inf
        count = len(attention.queries)
        block = max(1, BLOCK // max(1, attention.batch * attention.heads * len(attention.keys)))
        for start in range(0, count, block):
            stop = min(start + block, count)
            sums = attention.rows(start, stop).float().sum(-1)  # [batch, head, row]
            alive = attention.allowed(start, stop).any(-1).expand_as(sums)
            if bool(alive.any()):
                low = min(low, float(sums[alive].min()))
                high = max(high, float(sums[alive].max()))
        self.sums.append(RowSum(attention.site, low, high))
