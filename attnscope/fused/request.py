"""What is asked of the fused pass beside the statistics that every row has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from attnscope.fused.pairs import Pairs


@dataclass
class Request:
    """Sums of weights that are wanted, each under a name that the asker chooses.

    ``at`` asks for the weight on one key of every row: a function of the rows' positions gives the number of
    that key, ``[row] -> [row]``, or -1 for none. ``gaps`` asks for weights summed over all rows, each times a
    number: a function of how far the key lies ahead of its row gives that number. ``pairs`` asks for the
    weights on pairs with equal labels, ``cells`` for a map of every head with so many cells a side.
    """

    at: dict[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    gaps: dict[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    pairs: dict[str, Pairs] = field(default_factory=dict)
    cells: int | None = None
