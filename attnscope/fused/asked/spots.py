"""One key of every row, where the row may look at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnscope.fused.asked.places import Places, find_places
from attnscope.fused.runs import Runs


@dataclass(frozen=True, eq=False)
class Spots:
    """The open ones of some rows' keys, several for each row: ``name`` says which of them it is.

    Ordered by row.
    """

    name: Tensor  # [spot] int64, as the next two
    row: Tensor
    key: Tensor
    rows: int
    kept: dict[int, tuple[Tensor, Places]] = field(default_factory=dict)

    @classmethod
    def of(cls, keys: Sequence[Tensor], runs: Runs, text: int) -> Spots:
        """The open ones of some keys, each [row], of a text."""
        low, high = (ends[text % len(ends)] for ends in (runs.low, runs.high))
        each = torch.stack([*keys, low - 1], 1)  # [row, name], of which the last is closed
        row, name = ((low[:, None] <= each) & (each < high[:, None])).nonzero(as_tuple=True)
        return cls(name, row, each[row, name], len(low))

    def places(self, rows: slice, keys: slice, width: int) -> tuple[Tensor, Places]:
        """Where the weights of a block's rows go in [name, row], and where they are; all [spot]."""
        if rows.start not in self.kept:
            some = slice(*torch.searchsorted(self.row, torch.tensor([rows.start, rows.stop])).tolist())
            name, row, key = self.name[some], self.row[some], self.key[some]
            places = find_places(row - rows.start, key - keys.start, rows, keys, width)
            self.kept[rows.start] = name * self.rows + row, places
        return self.kept[rows.start]
