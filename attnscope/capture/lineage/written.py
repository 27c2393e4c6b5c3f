"""Attention weights that no softmax made: exponentials over their sum, sigmoids, rectified scores.

A product of two projected activations is scores, whatever becomes of it entry by entry, as long as the
entries stay in their places. Where scores meet values along the axis of their keys, they are weights, if none
is negative: shown as they are, rows that need not sum to 1. Graphs and parallel streams are mixed alike, so
values are projected, too, and the module's name or its class's says attention, or all rows sum to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from attnscope.capture.hooks.handwritten.parameters import is_parameter
from attnscope.capture.hooks.modules import PLAIN, Call
from attnscope.capture.lineage.follow import Lineage
from attnscope.capture.lineage.layout import is_constant
from attnscope.capture.lineage.nodes import comes_from_projection
from attnscope.capture.lineage.products import spell
from attnscope.capture.rows.mapped import count_hidden
from attnscope.capture.rows.weighing import ROUNDING, Trail, Weighing

MOST = 2**27
"""Weights up to which their labels are looked at."""


def find_written(
    lineage: Lineage,
    calls: Sequence[Call],
    name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    result: Tensor,
) -> Weighing | None:
    """The weights among the factors of a product, if there are any that no softmax made."""
    inner = next((call for call in reversed(calls) if not isinstance(call.module, PLAIN)), None)
    if inner is None:
        return None
    named = "att" in f"{inner.name} {type(inner.module).__name__}".lower()
    factors = [arg for given in args for arg in (given if isinstance(given, (list, tuple)) else (given,))]
    if not any(origin.right is not None for origin in map(lineage.of, factors) if origin is not None):
        return None
    spelled = spell(name, args, kwargs, result)
    if spelled is None:
        return None
    (left, right), (ours, theirs), out = spelled
    for operand, values, letters, others in ((left, right, ours, theirs), (right, left, theirs, ours)):
        origin = lineage.of(operand)
        keys = [letter for letter in letters if letter in others and letter not in out]
        queries = [letter for letter in letters if letter not in others and letter in out]
        if origin is None or origin.right is None or is_parameter(values):
            continue
        if not 0 < operand.numel() <= MOST or count_hidden(operand, values):
            continue  # inside of torch.vmap nobody can ask for the sign
        weighed = lineage.of(values)
        if len(keys) != 1 or len(queries) != 1 or weighed is None or weighed.right is not None:
            continue  # a power of scores weighs no values
        if not all(comes_from_projection(node) for node in (origin.node, origin.right, weighed.node)):
            continue
        shared = [letter for letter in letters if letter not in (*keys, *queries)]
        axes = tuple(letters.index(letter) for letter in (*shared, *queries, *keys))
        weights = operand.detach().permute(axes)
        if float(weights.amin()) < 0 or float(weights.amax()) <= 0:
            continue
        if not named and float((weights.float().sum(-1) - 1).abs().amax()) > ROUNDING:
            continue
        if is_constant(origin.right.labels("place").permute(axes), -1):
            continue
        closed = weights == 0
        closed = closed.all(-3, keepdim=True).expand_as(weights) if weights.ndim > 3 else closed
        shapes = (operand.shape,) if operand.ndim == 4 else ()
        masked = closed if bool(closed.any()) else None
        found = Weighing(
            Trail(tuple(call.name for call in calls), masked, shapes),
            weights,
            masked,
            operand=operand,
            axes=axes,
        )
        rest = [letter for letter in others if letter not in letters]
        if len(rest) != 1 or set(out) != {*shared, *queries, *rest}:
            return found
        laid = values.permute(
            [others.index(letter) for letter in (*shared, *keys, *rest) if letter in others]
        )
        for place, letter in enumerate(shared):
            laid = laid if letter in others else laid.unsqueeze(place)
        mixed = result.permute([out.index(letter) for letter in (*shared, *queries, *rest)])
        return replace(found, values=laid.detach(), output=mixed.detach())
    return None
