"""What tells tensors of other contents apart: models write new numbers into tensors that they used before."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

WORDS = 1 << 16


def digest(tensor: Tensor) -> tuple[object, ...]:
    """Shape, type and two numbers that differ where contents do, but for one case in four billion.

    The bytes are words of 64 bits, each multiplied by a random odd number and added up, modulo 2⁶⁴; once
    from the first byte on and once from the fifth, so that a difference in the high bits of a word counts as
    much as one in its low bits. Axes along which a tensor only repeats itself are read once.
    """
    shape = tuple(tensor.shape)
    for axis, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[axis]:
            tensor = tensor.narrow(axis, 0, 1)
    data = tensor.detach().contiguous().flatten().view(torch.uint8).numpy()
    shifted = data[4 : len(data) // 8 * 8 - 4]
    return shape, str(tensor.dtype), _sum(data), _sum(shifted), bytes(data[-8:])


def mask_digest(mask: Tensor) -> tuple[object, ...]:
    """The digest of a mask; where each head has its own, of the first head and of some rows of the others."""
    if mask.ndim < 4 or mask.shape[1] == 1 or mask.stride(1) == 0:
        return digest(mask)
    return digest(mask[:, :1]), digest(mask[:, 1:, ::32])


def _sum(data: NDArray[np.uint8]) -> int:
    """The sum of all words, each times a number that stands for its place."""
    data = np.pad(data, (0, -len(data) % 8)) if len(data) % 8 else data
    words = data.view(np.int64)
    whole = len(words) // WORDS * WORDS
    rows = words[:whole].reshape(-1, WORDS) @ _factors(0, WORDS)
    last = words[whole:] @ _factors(0, WORDS)[: len(words) - whole]
    return (int(rows @ _factors(1, len(rows))) + int(last)) % 2**64


@lru_cache(8)
def _factors(seed: int, count: int) -> NDArray[np.int64]:
    """Random odd numbers."""
    return np.random.default_rng(seed).integers(-(2**63), 2**63, size=count, dtype=np.int64) | 1
