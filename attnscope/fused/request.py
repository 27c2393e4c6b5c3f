"""What is asked of the fused pass beside the statistics that every row has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attnscope.axes import edges

if TYPE_CHECKING:
    from torch import Tensor


SHORTEST = 512
"""With fewer keys than this the kernel runs, and reading its rows beside it is cheap."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs that are asked for: each row with the open keys that carry its label.

    Row ``i`` and key ``i`` stand at the same position. ``itself`` says whether a row is paired with the key
    at its own position, ``ahead`` whether with keys after it.
    """

    rows: Tensor  # [text, row] int64
    keys: Tensor  # [text, key] int64
    itself: bool = True
    ahead: bool = True


@dataclass
class Request:
    """Sums of weights that are wanted, each under a name that the asker chooses.

    ``at`` asks for the weight on one key of every row: a function of the rows' positions gives the number of
    that key, ``[row] -> [row]``, or -1 for none; ``heavier`` asks, too, how many keys of the row have a
    greater weight than that one. ``gaps`` asks for weights summed over all rows, each times a number: a
    function of how far the key lies ahead of its row gives that number. ``pairs`` asks for the weights on
    pairs with equal labels, ``cells`` for a map of every head: so many cells of nearly equal size a side, or
    the positions where cells begin and end on both sides. ``map_alone`` wants nothing else, not even what
    every row has.
    """

    at: dict[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    gaps: dict[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    pairs: dict[str, Pairs] = field(default_factory=dict)
    cells: int | tuple[int, ...] | None = None
    heavier: bool = False
    map_alone: bool = False

    def edges(self, length: int) -> tuple[int, ...]:
        """Where the cells of an axis begin and end; one cell where no map of that length is asked for."""
        if isinstance(self.cells, tuple):
            return self.cells if self.cells[-1] == length else (0, length)
        return edges(length, self.cells or 1)
