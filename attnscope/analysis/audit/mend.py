"""What another token moved, and what was before, put together in one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


def mend(moved: Tensor, now: Tensor, before: Tensor) -> Tensor:
    """What was before where nothing moved, in the tensor that the recording follows if it can be written."""
    mended = torch.where(moved, now, before)
    spread = any(stride == 0 and size > 1 for stride, size in zip(now.stride(), now.shape, strict=True))
    return mended if spread else now.copy_(mended)


@dataclass(frozen=True)
class Share:
    """What one pass moved in a module that mixes tokens: the places of its inputs by axis, and its output."""

    given: list[list[Tensor]]  # of each input, of each axis, bool
    amount: Tensor  # [...], as the output


def project(moved: Tensor) -> list[Tensor]:
    """Which places of each axis moved.  [...] -> [place], ..."""
    return [moved.movedim(axis, 0).unsqueeze(-1).flatten(1).any(1) for axis in range(moved.ndim)]


def share_out(shares: Mapping[int, Share]) -> Tensor:
    """For each number of an output, the one pass whose token it shall stand for, or -1.  -> [...]

    Tokens lie along an axis on which no two passes moved one place of the input; if the output has that axis,
    it is shared out likewise. Otherwise each place goes to the pass that moved it the most, where the places
    are those of the axes on which some passes moved nothing in common. Passes that moved nothing own nothing.
    """
    some = next(iter(shares.values())).amount
    owners = torch.full(some.shape, -1, device=some.device)
    shares = {number: share for number, share in shares.items() if bool(share.amount.any())}
    if not shares:
        return owners
    passes, amount = list(shares), torch.stack([share.amount for share in shares.values()])  # [pass, ...]
    for alike in zip(*(share.given for share in shares.values()), strict=True):
        if len(alike[0]) != owners.ndim:
            continue
        boxes = [torch.ones_like(owners, dtype=torch.bool) for _ in passes]
        for axis, size in enumerate(owners.shape):
            along = torch.stack([places[axis] for places in alike])  # [pass, place]
            if along.shape[1] == size > 1 and int(along.sum(0).amax()) == 1:
                for box, places in zip(boxes, along, strict=True):
                    box &= places.view(*(-1 if other == axis else 1 for other in range(owners.ndim)))
        if not all(bool(box.all()) for box in boxes):
            for number, box in zip(passes, boxes, strict=True):
                owners[box] = number
            return owners
    projected = [project(each > 0) for each in amount]
    places = [
        axis
        for axis in range(owners.ndim)
        if any(not bool((one[axis] & other[axis]).any()) for one in projected for other in projected)
    ]
    rest = [axis + 1 for axis in range(owners.ndim) if axis not in places]
    strength = amount.sum(rest, keepdim=True) if rest else amount
    numbers = torch.tensor(passes, device=amount.device)
    return numbers[strength.argmax(0)].expand_as(owners) if places else owners
