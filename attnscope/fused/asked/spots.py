"""One key of every row, where the row may look at it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.fused.runs import Runs


@dataclass(frozen=True, eq=False)
class Spots:
    """The rows between the first and the last whose key is open, and these keys.

    ``place`` reads the keys out of a tensor: a slice where they are neighbours or one and the same, so that
    nothing is copied. ``closed`` are those of the rows whose own key is masked, ``None`` if there are none.
    """

    rows: slice
    keys: Tensor  # [row] int64
    place: Tensor | slice
    closed: Tensor | None  # [row] bool

    @classmethod
    def of(cls, key: Tensor, runs: Runs, text: int) -> Spots:
        """The open ones of some keys, one for each row of a text.  [row] -> [some rows]"""
        low, high = (ends[text % len(ends)] for ends in (runs.low, runs.high))
        open_ = (low <= key) & (key < high)
        some = open_.nonzero()
        if not len(some):
            return cls(slice(0, 0), key[:0], slice(0, 0), None)
        rows = slice(int(some[0]), int(some[-1]) + 1)
        open_ = open_[rows]
        keys = torch.where(open_, key[rows], key[rows.start])
        first, last = int(keys[0]), int(keys[-1])
        place: Tensor | slice = keys
        if bool((keys == first).all()):
            place = slice(first, first + 1)
        elif bool((keys.diff() == 1).all()):
            place = slice(first, last + 1)
        return cls(rows, keys, place, None if bool(open_.all()) else ~open_)
