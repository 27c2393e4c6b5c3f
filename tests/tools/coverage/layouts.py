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
    if len(shape) == 4 and shape[:2] == weights.shape[:2] and shape[3] == keys and shape[2] < queries:
        yield "the rows of the global tokens", weights[:, :, : shape[2]]
    if len(shape) == 5 and shape[:2] == weights.shape[:2]:
        first = keys - shape[2] * shape[3]  # global tokens, which come before the others
        if queries == keys and shape[4] == first + shape[3]:
            yield "the blocks of the others", _blocks(weights, first, shape[3])
    if len(shape) == 4 and shape[:2] == weights.shape[:2] and shape[2] <= queries == keys:
        if shape[3] == 1:
            yield "the rows of the global token", weights[:, :, :1, : shape[2]].mT
        if shape[3] > 1 and shape[3] % 2 == 0:
            yield "windows, the global token in front", _windows(weights, shape[3] - 2)[:, :, : shape[2]]
        if shape[3] % 2 == 1:
            yield "windows", _band(weights, shape[3] - 1)[:, :, : shape[2]]


def _blocks(weights: Tensor, first: int, size: int) -> Tensor:
    """-> [batch, head, block, query, global + key]"""
    rows = weights[:, :, first:].unflatten(2, (-1, size))  # [batch, head, block, query, key]
    blocks = [
        torch.cat([rows[:, :, n, :, :first], rows[:, :, n, :, first + n * size : first + (n + 1) * size]], -1)
        for n in range(rows.shape[2])
    ]
    return torch.stack(blocks, 2)


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
