"""Functions that mix tokens with no weights to show: why a module is named that holds one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from attnscope.capture.lineage.follow import Lineage
from attnscope.capture.lineage.functions import PRODUCTS
from attnscope.capture.lineage.layout import find_positions, is_constant
from attnscope.capture.lineage.nodes import Origin, beginnings, comes_from_projection
from attnscope.capture.lineage.products import spell
from attnscope.capture.lineage.roots import Root

SUMMED = "it sums products of two states over tokens (linear attention): no weights from token to token"
RUNNING = "it adds up what tokens hold, one after another (a running sum): no weights from token to token"
CHOSEN = "each query takes the values at its highest score, by number: hard attention without weights"


def find_mixing(
    lineage: Lineage, name: str, args: Sequence[Any], kwargs: dict[str, Any], result: Any
) -> str | None:
    """How a function mixes tokens, if it does so in one of these ways."""
    if name in PRODUCTS:
        spelled = spell(name, args, kwargs, result)
        if spelled is None:
            return None
        (left, right), (ours, theirs), out = spelled
        gone = [letter for letter in ours if letter in theirs and letter not in out]
        if len(gone) != 1:
            return None
        both = ((left, ours.index(gone[0])), (right, theirs.index(gone[0])))
        return SUMMED if all(_varies(lineage.of(side), axis) for side, axis in both) else None
    given = dict(zip(("input", "dim"), args, strict=False)) | kwargs
    source, axis = given.get("input"), given.get("dim")
    if name == "cumsum" and isinstance(source, Tensor) and type(axis) is int:
        return RUNNING if _varies(lineage.of(source), axis) else None
    if lineage.choices.take(name, args, kwargs) and _varies(lineage.of(source), None):
        return CHOSEN
    return None


def _varies(origin: Origin | None, axis: int | None) -> bool:
    """Whether what was projected stands at several positions along an axis, or any."""
    if origin is None or origin.right is not None or not comes_from_projection(origin.node):
        return False
    begun = [begin for begin in beginnings(origin.node) if isinstance(begin, Root)]
    if any(len(begin.shape) > 3 and begin.channel_axis == -1 for begin in begun):
        return False  # of a picture, nobody knows which axis its features are
    places = find_positions(origin.node)
    if places is None:
        return False
    axes = range(places.ndim) if axis is None else (axis,)
    return any(places.shape[each] > 1 and not is_constant(places, each) for each in axes)
