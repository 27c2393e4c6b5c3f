"""Attention of one query, written as a sum of weights times values: pooling, a step of a decoder.

``(weights[..., None] * values).sum(1)`` and ``einsum("bn,bnd->bd", weights, values)`` are products of one row
of weights with the values. They are laid out as such a product by ``move``, which calls torch's functions so
that they are followed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from attnscope.capture.lineage.products import spell

TIMES = frozenset({"mul", "__mul__", "__rmul__", "multiply"})

Move = Callable[..., Tensor]
Product = tuple[Tensor, Tensor, Tensor]
"""Weights, values and what they gave: [..., 1, key], [..., key, size], [..., 1, size]."""


class Pooling:
    """Knows weighed values until they are summed."""

    def __init__(self) -> None:
        self._weighed: Any = WeakTensorKeyDictionary()

    def weigh(self, args: Sequence[Any], result: Any, weights: Tensor) -> None:
        """Values were multiplied with weights that are alike along one axis of theirs, the features."""
        others = [arg for arg in args if isinstance(arg, Tensor) and arg is not weights]
        if len(others) == 1 and others[0].shape == result.shape and weights.ndim == result.ndim:
            sizes = zip(weights.shape, result.shape, strict=True)
            alike = [axis for axis, (ours, theirs) in enumerate(sizes) if ours != theirs]
            if len(alike) == 1:
                self._weighed[result] = weights, others[0], alike[0]

    def summed(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor, move: Move
    ) -> Product | None:
        """The product behind a sum of weighed values over their keys."""
        given = dict(zip(("input", "dim"), args, strict=False)) | dict(kwargs)
        axis, known = given.get("dim", given.get("axis")), self._weighed.get(given.get("input"))
        axis = axis[0] if isinstance(axis, (list, tuple)) and len(axis) == 1 else axis
        if known is None or type(axis) is not int or axis % known[1].ndim == known[2]:
            return None
        weights, values, features = known
        keys = axis % values.ndim
        row = move("movedim", torch.movedim, weights, (features, keys), (-2, -1))
        laid = move("movedim", torch.movedim, values, (keys, features), (-2, -1))
        flat = result.squeeze(keys) if result.ndim == values.ndim else result
        return row, laid, flat.movedim(features - (features > keys), -1).unsqueeze(-2)

    def contracted(
        self, args: Sequence[Any], kwargs: dict[str, Any], result: Tensor, followed: Any, move: Move
    ) -> Product | None:
        """The product behind an einsum that leaves no query."""
        spelled = spell("einsum", args, kwargs, result)
        if spelled is None:
            return None
        (weights, values), (ours, theirs), out = spelled
        if weights not in followed:
            weights, values, ours, theirs = values, weights, theirs, ours
        keys = [letter for letter in ours if letter not in out]
        lead = [letter for letter in ours if letter in out]
        features = [letter for letter in theirs if letter not in ours]
        laid = [*lead, *keys, *features]
        if (
            len(keys) != 1
            or len(features) != 1
            or sorted(laid) != sorted(theirs)
            or list(out) != [*lead, *features]
        ):
            return None
        row = move("permute", Tensor.permute, weights, [ours.index(letter) for letter in (*lead, *keys)])
        values = move("permute", Tensor.permute, values, [theirs.index(letter) for letter in laid])
        return move("unsqueeze", Tensor.unsqueeze, row, -2), values, result.unsqueeze(-2)
