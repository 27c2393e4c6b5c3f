"""What tells tensors of other contents apart: models write new numbers into tensors that they used before."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

WORDS = 1 << 16
"""Words of 64 bits in a row of those that are added up."""


def digest(tensor: Tensor) -> tuple[object, ...]:
    """Shape, type and two numbers that differ where contents do, at the speed of reading them.

    The bytes are words of 64 bits, in rows of ``WORDS``. One number adds up all of them, each times a random
    odd number, modulo 2⁶⁴; the other does the same to the high halves of the columns' sums, as differences in
    high bits leave little in a product. Axes along which a tensor only repeats itself are read once.
    """
    shape = tuple(tensor.shape)
    for axis, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[axis]:
            tensor = tensor.narrow(axis, 0, 1)
    data = tensor.detach().contiguous().flatten().view(torch.uint8).numpy()
    return shape, str(tensor.dtype), *_sums(data)


def _sums(data: NDArray[np.uint8]) -> tuple[int, int]:
    """All words, each times a number that stands for its place; and so the high halves of column sums."""
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
