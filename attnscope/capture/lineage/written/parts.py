"""What products gave to a tensor that is a sum of them: where entries stand, and how they are scaled."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from attnscope.capture.lineage.layout import is_constant
from attnscope.capture.lineage.written.weights import Written
from attnscope.capture.record import tolerance
from attnscope.capture.rows.proof import few
from attnscope.capture.rows.weighing import ROUNDING, Weighing


@dataclass(frozen=True, eq=False)
class Part:
    """What one product gave to a tensor: which of its entries stands where, and what it was multiplied by."""

    written: Written
    places: Tensor  # laid out as the tensor
    scale: Tensor  # laid out as the tensor


@dataclass(eq=False)
class Sum:
    """A tensor that is a sum of products, ``scaled`` if rows were multiplied, each by a number of its own.

    ``lost`` if rows were scaled and nobody knows by what. ``earlier`` is what it was before its rows were
    multiplied, which may have been a gate and no division.
    """

    tensor: Tensor
    parts: tuple[Part, ...]
    scaled: bool = False
    lost: bool = False
    earlier: Sum | None = None

    def scale(self, factor: Tensor, scaled: bool) -> tuple[Part, ...] | None:
        """The parts times a factor; None where it is not alike within rows."""
        if factor.ndim and scaled:
            places, size = self.parts[0].places, self.parts[0].written.size
            for axis in range(places.ndim):
                if not is_constant(places % size, axis) and not is_constant(factor, axis):
                    return None
        return tuple(replace(part, scale=part.scale * factor) for part in self.parts)


def gives(weighing: Weighing) -> bool:
    """Whether weights times values, where they are known, still give in a few rows what the module made."""
    weights, value, output = weighing.weights, weighing.values, weighing.output
    if value is None or output is None:
        return True
    chosen = list(few(weights.shape[-2]))
    gap = (weights[..., chosen, :] @ value - output[..., chosen, :]).nan_to_num(0.0)
    return float(gap.abs().amax()) <= tolerance(weights.dtype) * float(value.abs().amax())


def is_whole(weighing: Weighing) -> bool:
    """Whether the weights of each row sum to 1."""
    return bool(((weighing.weights.float().sum(-1) - 1).abs() < ROUNDING).all())
