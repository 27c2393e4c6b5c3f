"""Digests of tensors (models reuse them with new contents), and the runs of keys a mask leaves open."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

WORDS = 1 << 16  # words of 64 bits in a row of those that are added up


def digest(tensor: Tensor) -> tuple[object, ...]:
    """Shape, type and two numbers that differ where contents do, at memory speed.

    The bytes are 64-bit words in rows of ``WORDS``. One number sums all words, each times a random odd
    number, modulo 2⁶⁴; the other does the same with the high halves of the columns' sums, because differences
    in high bits barely change a product. Axes along which a tensor only repeats itself are read once.
    """
    shape = tuple(tensor.shape)
    for axis, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[axis]:
            tensor = tensor.narrow(axis, 0, 1)
    data = tensor.detach().contiguous().flatten().view(torch.uint8).numpy()
    return shape, str(tensor.dtype), *_sums(data)


def _sums(data: NDArray[np.uint8]) -> tuple[int, int]:
    """The sum of all words, each times a factor of its place; and the same for high halves of column sums."""
    data = np.pad(data, (0, -len(data) % 8)) if len(data) % 8 else data
    words = data.view(np.int64)
    rows = words[: len(words) // WORDS * WORDS].reshape(-1, WORDS)
    last = words[rows.size :]
    weighed = rows @ _factors(0, WORDS)
    total = int(weighed @ _factors(1, len(rows))) + int(last @ _factors(0, WORDS)[: len(last)])
    columns = np.zeros(min(len(words), WORDS), np.int64)
    columns += rows.sum(0)[: len(columns)]
    columns[: len(last)] += last
    return total % 2**64, int((columns >> 32) @ _factors(2, len(columns)))


@lru_cache(16)
def _factors(seed: int, count: int) -> NDArray[np.int64]:
    """Random odd numbers."""
    return np.random.default_rng(seed).integers(-(2**63), 2**63, size=count, dtype=np.int64) | 1


CLOSED_BELOW = -3e4
"""An additive mask closes a key with -inf or about the lowest number of its type (-65504 in float16)."""

CLASSIC_CLOSED = -1e4
"""The number with which the original BERT code masked a key; no other use of it is known."""

ROWS = 1024  # rows of a mask that are read together


@dataclass(frozen=True, eq=False)
class Runs:
    """Row ``i`` attends to the keys ``low[i] <= j < high[i]``; int64, ``[batch or 1, row]``."""

    low: Tensor
    high: Tensor

    @property
    def count(self) -> Tensor:
        """Number of open keys ``n_i``.  -> [batch or 1, row]"""
        return self.high - self.low


def open_runs(mask: Tensor | None, queries: int, keys: int, causal: bool) -> Runs | None:
    """The runs that a kernel's mask and causality leave open.

    ``mask`` is bool (True is open) or additive, ``[batch or 1, 1, query or 1, key]``; with ``causal`` row
    ``i`` sees keys up to ``i``, as in torch's ``scaled_dot_product_attention``. ``None`` if some row's
    open keys are not one run, if masks differ between heads, or if a row has no open key.
    """
    row = torch.arange(queries)
    low, high = torch.zeros(1, queries, dtype=torch.int64), torch.full((1, queries), keys)
    if mask is not None:
        ends = _runs_of(mask, queries)
        if ends is None:
            return None
        low, high = ends
    if causal:
        high = torch.minimum(high, row + 1)
    return Runs(low, high) if bool((high > low).all()) else None


def opens(mask: Tensor) -> Tensor:
    """Where a mask, bool or additive, leaves keys open, bool."""
    if mask.dtype == torch.bool:
        return mask
    return (mask > CLOSED_BELOW) & (mask != CLASSIC_CLOSED)


def is_plain(mask: Tensor) -> bool:
    """Whether an additive mask only opens and closes keys and adds nothing to open scores."""
    if mask.dtype == torch.bool:
        return True
    blocks = torch.split(mask, ROWS, -2)
    return all(bool(((block == 0) | ~opens(block)).all()) for block in blocks)


def _runs_of(mask: Tensor, queries: int) -> tuple[Tensor, Tensor] | None:
    """First and one past the last open key of each row.  -> two of [batch or 1, row]"""
    while mask.ndim < 4:
        mask = mask[None]
    if mask.shape[1] > 1:
        first = opens(mask[:, :1])
        for head in range(1, mask.shape[1]):
            if not torch.equal(opens(mask[:, head : head + 1]), first):
                return None
        mask = mask[:, :1]
    lows, highs = [], []
    for block in torch.split(mask[:, 0], ROWS, 1):  # [batch, row, key]
        open_ = opens(block).to(torch.uint8)
        count = open_.sum(-1, dtype=torch.int64)
        low = open_.argmax(-1)
        last = open_.shape[-1] - 1 - open_.flip(-1).argmax(-1)
        if bool((last - low + 1 != count).any()):
            return None
        lows.append(low)
        highs.append(last + 1)
    shape = mask.shape[0], queries
    return torch.cat(lows, 1).expand(shape), torch.cat(highs, 1).expand(shape)
