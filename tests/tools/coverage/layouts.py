"""A captured map as a model's own report would lay it out, where that is not [batch, head, query, key].

A report that equals one of these holds the captured weights, though not as they are. Each layout is made
from the map alone, by the words of the model's own documentation.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor


def layouts(weights: Tensor, shape: torch.Size) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of ``shape`` that are made of a map, [batch, head, query, key]."""
    batch, heads, queries, keys = weights.shape
    if len(shape) == 3 and shape == (batch, queries, keys):
        yield "the mean over the heads", weights.mean(1)
    if len(shape) == 5 and shape[0] * shape[2] == batch and shape[1] == heads:
        yield "the windows behind the heads", weights.unflatten(0, (shape[0], shape[2])).transpose(1, 2)
    if len(shape) == 4 and shape == weights.shape and heads > 1:
        yield "the mean over the heads", weights.mean(1, keepdim=True).expand(shape)
    if len(shape) == 4 and shape[:3] == weights.shape[:3] and shape[3] < keys:
        yield "the keys of one of two sequences", weights[..., : shape[3]]
        yield "the keys of one of two sequences", weights[..., -shape[3] :]
    if len(shape) == 4 and shape[:2] == weights.shape[:2] and shape[2] <= queries == keys:
        if shape[3] == 1:
            yield "the rows of the global token", weights[:, :, :1, : shape[2]].mT
        if shape[3] > 1 and shape[3] % 2 == 0:
            yield "windows, the global token in front", _windows(weights, shape[3] - 2)[:, :, : shape[2]]
        if shape[3] % 2 == 1:
            yield "windows", _band(weights, shape[3] - 1)[:, :, : shape[2]]


def _band(weights: Tensor, reach: int) -> Tensor:
    """The keys up to ``reach / 2`` to either side of each query.  -> [batch, head, query, reach + 1]"""
    wide = F.pad(weights, (reach // 2, reach // 2))
    return torch.stack([wide[:, :, i, i : i + reach + 1] for i in range(weights.shape[2])], 2)


def _windows(weights: Tensor, reach: int) -> Tensor:
    """Token 0, which is global, and then the band without it; nothing for its own row."""
    others = weights.clone()
    others[..., 0] = 0
    laid = torch.cat([weights[..., :1], _band(others, reach)], -1)
    laid[:, :, 0] = 0
    return laid


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
