"""Which numbers of a pass move when a token is another one, and where two tokens move the same number.

A number that two tokens move has heard of both: there tokens were mixed. Nothing need be known of how a
model lays its tokens out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope.analysis.audit.mend import mend

ROUNDING = 64
"""Two computations of one number differ by fewer of the smallest steps of single or double precision."""

COARSE_ROUNDING = 4
"""The same for types of sixteen bits, which sum in single precision and round once."""


class Place(NamedTuple):
    """What went into a call of a module, or came out of it."""

    module: str
    call: int
    end: str  # "in" or "out"


@dataclass(eq=False)
class Moves:
    """The numbers of a first pass, and which of them moved in later ones, each with one other token.

    ``mixed`` are the places where two passes moved one number, ``unclear`` those with other shapes than
    before, ``reached`` those where any number moved.
    """

    before: dict[Place, list[Tensor]] = field(default_factory=dict)
    moved: dict[Place, list[Tensor]] = field(default_factory=dict)
    mixed: set[Place] = field(default_factory=set)
    unclear: set[Place] = field(default_factory=set)
    reached: set[Place] = field(default_factory=set)

    def keep(self, place: Place, value: Any) -> None:
        """Keep the numbers of the first pass; models write into their tensors."""
        self.before[place] = [tensor.clone() for tensor in tensors_in(value)]

    def forget(self) -> None:
        """Begin anew: nothing moved yet."""
        for group in (self.moved, self.mixed, self.unclear, self.reached):
            group.clear()

    def compare(self, place: Place, value: Any) -> list[Tensor]:
        """Where the numbers moved in this pass, tensor by tensor; none where the shapes are others."""
        before, now = self.before.get(place), [*tensors_in(value)]
        if before is None or [tensor.shape for tensor in before] != [tensor.shape for tensor in now]:
            self.unclear.add(place)
            return []
        moved = [differ(*both) for both in zip(before, now, strict=True)]
        if not any(bool(each.any()) for each in moved):
            return moved
        self.reached.add(place)
        earlier = self.moved.setdefault(place, [torch.zeros_like(each) for each in moved])
        for mine, theirs in zip(moved, earlier, strict=True):
            if bool((mine & theirs).any()):
                self.mixed.add(place)
            theirs |= mine
        return moved

    def settle(self, place: Place, value: Any) -> list[Tensor]:
        """Compare what a module is given, and undo what is less than rounding: it could make more of that."""
        moved = self.compare(place, value)
        for mine, now, before in zip(moved, tensors_in(value), self.before.get(place, ()), strict=False):
            if now.is_contiguous() and not torch.equal(now.where(mine, before), now):
                mend(mine, now, before)
        return moved


def differ(before: Tensor, now: Tensor) -> Tensor:
    """Where two tensors of one shape differ by more than rounding, bool.  [...], [...] -> [...]

    Of a row with such a number, all that differ count: a token may move some of its features by little.
    """
    if torch.equal(before, now):
        return torch.zeros(before.shape, dtype=torch.bool, device=before.device)
    precision = torch.finfo(before.dtype)
    steps = ROUNDING if precision.bits >= 32 else COARSE_ROUNDING
    finite = before.abs().nan_to_num(0, 0, 0)
    rounding = steps * precision.eps * float(finite.amax())
    moved = ~torch.isclose(now, before, rtol=0, atol=rounding, equal_nan=True)
    if not moved.ndim:
        return moved
    other = ~torch.isclose(now, before, rtol=0, atol=0, equal_nan=True)
    return moved | (other & moved.any(-1, keepdim=True))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of real or complex numbers in tuples, lists and dictionaries, in their order."""
    if isinstance(value, Tensor):
        if value.is_floating_point() or value.is_complex():
            yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from tensors_in(each)


def with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same with other tensors in the places of those that ``tensors_in`` yields."""
    if isinstance(value, Tensor):
        return next(tensors) if value.is_floating_point() or value.is_complex() else value
    if isinstance(value, Mapping):
        for key in list(value):
            value[key] = with_tensors(value[key], tensors)  # type: ignore[index]
        return value
    if isinstance(value, (tuple, list)):
        parts = [with_tensors(each, tensors) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def copy_tensors(value: Any) -> Any:
    """The same with copies of its tensors: models write into what they are given."""
    return with_tensors(value, iter([tensor.clone() for tensor in tensors_in(value)]))
