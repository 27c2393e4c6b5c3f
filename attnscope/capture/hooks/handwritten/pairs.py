"""Additive attention: sums, or rows in a row, that hold numbers for each pair of a query and a key.

Attention scores are products of two activations or, in additive attention (Bahdanau), what a layer makes of
such pairs. A pair stands along two axes at once: one part is alike along the axis of the other part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from attnscope.capture.hooks.handwritten.parameters import is_parameter

PAIRING = frozenset(("add", "__add__", "__radd__", "sub", "__sub__", "__rsub__", "mul", "__mul__", "cat"))
"""Functions that put the parts of pairs together."""

# fmt: off
ACTIVATIONS = frozenset((
    "tanh", "relu", "leaky_relu", "elu", "selu", "gelu", "silu", "sigmoid", "softplus", "mish", "prelu",
    "relu_", "leaky_relu_", "elu_", "tanh_", "layer_norm", "group_norm",
))
# fmt: on
"""Functions that stand between the pairs and the layer that makes scores of them."""


class Pairs:
    """Knows pairs when they are made; ``repeated`` are the axes along which a tensor was repeated."""

    def __init__(self) -> None:
        self._repeated: Any = WeakTensorKeyDictionary()

    def repeat(self, source: Tensor, result: Tensor) -> None:
        """A tensor was repeated along axes on which it had one entry."""
        sizes = (1,) * (result.ndim - source.ndim) + tuple(source.shape)
        self._repeated[result] = {axis for axis, size in enumerate(sizes) if size == 1 < result.shape[axis]}

    def are_made(self, args: Sequence[Any], result: Tensor) -> bool:
        """Whether two activations, each alike along an axis of the other, became one tensor."""
        parts = args[0] if args and isinstance(args[0], (list, tuple)) else args[:2]
        if len(parts) != 2 or result.is_nested or result.ndim < 3 or not result.is_floating_point():
            return False
        if not all(isinstance(part, Tensor) and part.ndim and not is_parameter(part) for part in parts):
            return False
        ours, theirs = (self._alike(part, result) for part in parts)
        return bool(ours - theirs) and bool(theirs - ours)

    def _alike(self, part: Tensor, result: Tensor) -> set[int]:
        """The axes of a result along which one part of it is alike."""
        first = result.ndim - part.ndim
        alike = {axis for axis in range(first) if result.shape[axis] > 1}
        for axis, (size, stride) in enumerate(zip(part.shape, part.stride(), strict=True), first):
            if result.shape[axis] > 1 and (size == 1 or stride == 0):
                alike.add(axis)
        repeated: set[int] = self._repeated.get(part, set())
        return alike | repeated
