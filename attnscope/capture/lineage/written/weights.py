"""Attention weights that no softmax made: exponentials over their sum, sigmoids, rectified scores.

A product of two projected activations is scores, whatever becomes of it entry by entry, as long as the
entries stay in their places. Where scores meet values along the axis of their keys, they are weights, if none
is negative: shown as they are, rows that need not sum to 1. Graphs and parallel streams are mixed alike, so
values are projected, too, and the module's name or its class's says attention, or all rows sum to 1, or
queries and keys stand at several positions each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnscope.capture.hooks.handwritten.parameters import is_parameter
from attnscope.capture.hooks.modules import PLAIN, Call
from attnscope.capture.lineage.follow import Lineage
from attnscope.capture.lineage.layout import find_positions, is_constant
from attnscope.capture.lineage.nodes import Node, Origin, comes_from_projection, is_mixed
from attnscope.capture.lineage.products import spell
from attnscope.capture.rows.mapped import count_hidden
from attnscope.capture.rows.weighing import ROUNDING, Trail, Weighing

MOST = 2**27
"""Weights up to which their labels are looked at."""


@dataclass(frozen=True, eq=False)
class Written:
    """Such weights as they met their values, in a module that runs.

    ``order`` are the axes of what they gave, as [..., query, size]; none if it has others.
    """

    weighing: Weighing
    call: Call
    order: tuple[int, ...] = ()
    named: bool = False  # whether the module's name or its class's says attention
    tokens: bool = False  # whether queries and keys stand at several positions each
    made: bool = False  # whether keys were made of several tokens each
    rectified: bool = False  # whether a zero is no mask
    mapped: bool = False  # whether torch.vmap hides some of its axes, so that nobody can ask for the sign

    @property
    def sums_to_one(self) -> bool:
        """Whether the weights of each row do."""
        return float((self.weighing.weights.float().sum(-1) - 1).abs().amax()) <= ROUNDING

    @property
    def signed(self) -> bool:
        """Whether some of them are negative."""
        return float(self.weighing.weights.amin()) < 0

    @property
    def alone(self) -> bool:
        """Whether there is one key: that is a part of something, or no attention."""
        return self.weighing.weights.shape[-1] < 2

    @property
    def size(self) -> int:
        """How many numbers each query was given."""
        assert self.weighing.output is not None
        return self.weighing.output.shape[-1]

    def rows(self, places: Tensor, numbers: Tensor, each: bool) -> Tensor | None:
        """Numbers that are alike within each row, from where the entries of the product went.

        None where some rows are not there, and ``each`` has a number of its own.  -> [..., query, 1]
        """
        lead = self.weighing.weights.shape[:-1]
        rows = numbers.new_full((lead.numel(),), torch.nan if each else float(numbers.flatten()[0]))
        rows[(places // self.size).flatten()] = numbers.flatten()
        return None if bool(rows.isnan().any()) else rows.view(*lead, 1)

    def lay(self, places: Tensor, entries: Tensor) -> Tensor:
        """Entries laid out as the product gave them, NaN where there are none.  -> [..., query, size]"""
        assert self.weighing.output is not None
        laid = entries.new_full((self.weighing.output.numel(),), torch.nan)
        laid[places.flatten()] = entries.flatten()
        return laid.view(self.weighing.output.shape)


def innermost(calls: Sequence[Call]) -> Call | None:
    """The innermost of the modules that run, but for those that hold one function."""
    return next((call for call in reversed(calls) if not isinstance(call.module, PLAIN)), None)


def find_written(
    lineage: Lineage,
    calls: Sequence[Call],
    name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    result: Tensor,
) -> Written | None:
    """The weights among the factors of a product, if there are any that no softmax made, of any sign."""
    inner = innermost(calls)
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
        if not 0 < operand.numel() <= MOST:
            continue
        weighed = lineage.of(values)
        if len(keys) != 1 or not queries or weighed is None or weighed.right is not None:
            continue  # a power of scores weighs no values
        if not all(comes_from_projection(node) for node in (origin.node, origin.right, weighed.node)):
            continue
        if len(queries) > 1:  # heads that share their values
            queries = [letter for letter in queries if _varies(origin.node, letters.index(letter))]
            if len(queries) != 1:
                continue
        if count_hidden(operand, values):
            return Written(Weighing(Trail((), None, ()), operand, None), inner, mapped=True)
        shared = [letter for letter in letters if letter not in (*keys, *queries)]
        axes = tuple(letters.index(letter) for letter in (*shared, *queries, *keys))
        weights = operand.detach().permute(axes)
        tokens = _are_tokens(origin, axes)
        if not tokens and not bool(weights.any()):
            continue
        made = weights.shape[-1] > 1 and is_constant(origin.right.labels("place").permute(axes), -1)
        if made and not is_mixed(origin.right, origin.node):
            continue
        masked = closed_keys(weights, origin.rectified)
        shapes = (operand.shape,) if operand.ndim == 4 else ()
        found = Weighing(
            Trail(tuple(call.name for call in calls), masked, shapes),
            weights,
            masked,
            grouped=weights.ndim > 4 and any(letter not in others for letter in shared),
            operand=operand,
            axes=axes,
        )
        rest = [letter for letter in others if letter not in letters]
        if len(rest) != 1 or set(out) != {*shared, *queries, *rest} or name == "baddbmm":
            return Written(found, inner, (), named, tokens, made, origin.rectified)
        laid = values.permute(
            [others.index(letter) for letter in (*shared, *keys, *rest) if letter in others]
        )
        for place, letter in enumerate(shared):
            laid = laid if letter in others else laid.unsqueeze(place)
        order = tuple(out.index(letter) for letter in (*shared, *queries, *rest))
        found = replace(found, values=laid.detach(), output=result.detach().permute(order))
        return Written(found, inner, order, named, tokens, made, origin.rectified)
    return None


def closed_keys(weights: Tensor, rectified: bool) -> Tensor | None:
    """The keys to which no head gives any weight, laid out as the weights; None where there are none.

    Of ``rectified`` scores, zeros are masked where no query looks at what comes after it.
    """
    closed = weights == 0
    if rectified:
        after = torch.ones(weights.shape[-2:], dtype=torch.bool, device=weights.device).triu(1)
        causal = weights.shape[-2] == weights.shape[-1] > 2 and bool(closed[..., after].all())
        return after.expand_as(weights) if causal else None
    closed = closed.all(-3, keepdim=True).expand_as(weights) if weights.ndim > 3 else closed
    return closed if bool(closed.any()) else None


def _are_tokens(origin: Origin, axes: tuple[int, ...]) -> bool:
    """Whether queries and keys, as far as there are several, stand at several positions."""
    assert origin.right is not None
    sides = ((origin.node, axes[-2]), (origin.right, axes[-1]))
    return all(_varies(side, axis, one=True) for side, axis in sides)


def _varies(node: Node, axis: int, one: bool = False) -> bool:
    """Whether a side of scores stands at several positions along an axis; ``one``: or at all there is."""
    labels = find_positions(node)
    return labels is not None and (not is_constant(labels, axis) or (one and labels.shape[axis] < 2))
