"""What another token moved, and what was before, put together in one tensor."""

from __future__ import annotations

import torch
from torch import Tensor


def mend(moved: Tensor, now: Tensor, before: Tensor) -> Tensor:
    """What was before where nothing moved, in the tensor that the recording follows if it can be written."""
    mended = torch.where(moved, now, before)
    spread = any(stride == 0 and size > 1 for stride, size in zip(now.stride(), now.shape, strict=True))
    return mended if spread else now.copy_(mended)


def put_rows(rows: Tensor, before: Tensor, now: Tensor) -> Tensor:
    """What was before, and of some rows what is now.  [...], [..., size], [..., size] -> [..., size]"""
    if before.shape[:-1] != rows.shape or now.shape != before.shape:
        return before
    return torch.where(rows[..., None], now, before)


def reach(given: list[Tensor], moved: Tensor) -> Tensor:
    """The rows and columns, of all axes, that a change of what was given has, if any axis is like its own."""
    reached = torch.zeros_like(moved)
    for each in given:
        if each.ndim != moved.ndim or not bool(each.any()):
            continue
        box, narrow = torch.ones_like(moved), False
        for axis, size in enumerate(moved.shape):
            if each.shape[axis] == size:
                along = each.movedim(axis, 0).flatten(1).any(1)
                box &= along.view(*(-1 if a == axis else 1 for a in range(moved.ndim)))
                narrow |= not bool(along.all())
        if narrow:
            reached |= box
    return reached
