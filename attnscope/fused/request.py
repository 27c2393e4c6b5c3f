"""What the fused pass is asked for beyond the statistics of every row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attnscope.axes import edges

if TYPE_CHECKING:
    from torch import Tensor


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
