"""Maps that were put together from windows, blocks or chosen queries, against reports that are not."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def same_rows(own: Tensor, ours: Tensor, close: float) -> bool:
    """Whether every row of a map is one of a report, head by head, wherever they stand and their keys do.

    ``own`` is [..., query, key] with the heads somewhere before or in one axis with others, ``ours`` [batch,
    head, query, key]. Rows of zeros are of no query; the report may have rows of padding besides.
    """
    size, heads = own.shape[-1], ours.shape[1]
    if own.shape[-2:] == ours.shape[-2:]:
        return False  # no other layout
    ours = F.pad(ours, (0, max(0, size - ours.shape[-1])))
    axes = [axis for axis in range(own.ndim - 2) if own.shape[axis] == heads]
    ways = [list(zip(own.movedim(axis, 0), ours.transpose(0, 1), strict=True)) for axis in axes]
    return any(
        all(_are_among(mine, theirs, size, close) for theirs, mine in way)
        for way in (ways or [[(own, ours)]])
    )


def same_rows_reordered(own: Tensor, ours: Tensor, close: float) -> bool:
    """Whether the rows of each head are those of a map in another order, [batch, head, query, key]."""
    if own.shape != ours.shape or own.ndim != 4:
        return False
    gaps = (own[:, :, :, None].double() - ours[:, :, None].double()).abs().amax(-1)  # [batch, head, row, row]
    nearest = gaps.argmin(-1)
    return float(gaps.amin(-1).max()) <= close and all(
        len(set(head.tolist())) == len(head) for head in nearest.flatten(0, 1)
    )


def _are_among(mine: Tensor, theirs: Tensor, size: int, close: float) -> bool:
    """Whether every row of one tensor is among those of another, but for the order of its numbers."""
    one, other = (_rows(rows, size) for rows in (mine, theirs))
    if not 0 < len(one) <= len(other):
        return False
    along = torch.cos(torch.arange(size, dtype=torch.float64) + 1)
    other = other[(other.double() @ along).argsort()]
    near = torch.searchsorted(other.double() @ along, one.double() @ along)
    steps = (near[:, None] + torch.arange(-8, 9)).clamp(0, len(other) - 1)  # [row, neighbour]
    gaps = [(other[steps[:, step]] - one).abs().amax(-1) for step in range(steps.shape[1])]
    return float(torch.stack(gaps).amin(0).max()) <= close


def _rows(weights: Tensor, size: int) -> Tensor:
    """The rows that are not zero, their largest numbers in order.  -> [row, size]"""
    rows = weights.reshape(-1, weights.shape[-1]).sort(-1, descending=True).values[:, :size]
    return rows[rows.sum(-1) > 0]
