"""Whether a product weighs tokens, or what stands at one position: streams, experts, slots, channels.

Weights that a layer makes of one position's state are gates: their columns are outputs of that layer, and
what they weigh stands where they were made. Columns that are positions are tokens, whoever asks: another
position, or a query that the model learned, which stands nowhere. Sizes say nothing: a model may have as
many streams as a text has tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnscope.capture.lineage.follow import Lineage
from attnscope.capture.lineage.layout import Sides, find_positions, is_constant
from attnscope.capture.lineage.nodes import STRETCH, Node, Root, Spread, beginnings
from attnscope.capture.rows.weighing import ROUNDING, Weighing, is_mapped

MOST = 2**24
"""Weights up to which their labels are looked at."""


@dataclass(frozen=True)
class Standing:
    """What is known of weights: whether their columns are tokens, and asked by queries that were learned."""

    tokens: bool = True
    learned: bool = False


def judge(lineage: Lineage, weighing: Weighing, result: Tensor) -> Standing:
    """What weights weigh, as far as their lineage tells; what they made is placed by it, too."""
    origin, weights, gates = lineage.of(weighing.operand), weighing.weights, weighing.trail.gates
    unknown = Standing(tokens=not gates)
    if is_mapped(weights):
        return unknown
    if origin is not None and origin.right is not None and weighing.weighed is not None:
        own = lineage.of(weighing.weighed) is None and _weigh_places(origin.node, weighing)
        return Standing(tokens=not own and not gates)
    if origin is None or origin.right is not None or weights.numel() > MOST or weights.shape[-1] < 2:
        return unknown
    weighed = lineage.of(weighing.weighed)
    try:
        places = origin.node.labels("position").permute(weighing.axes)
        if not is_constant(places, -1):
            whole = not gates or bool(((weights.sum(-1) - 1).abs() < ROUNDING).all())
            stands = Standing(whole, learned=places.ndim < 2 or is_constant(places, -2))
        elif _all_differ(origin.node.labels("channel").permute(weighing.axes)):
            tokens = weighed is not None and _are_tokens(weighed.node, origin.node, weighing)
            stands = Standing(tokens and bool(((weights.sum(-1) - 1).abs() < ROUNDING).all()))
        else:
            inside = weighed is not None and _inside(weighed.node, weighing)
            stands = Standing(tokens=not (gates or inside))
    except (RuntimeError, TypeError, IndexError, ValueError):
        return unknown  # a function that moves numbers, and cannot move labels
    if not stands.tokens or stands.learned:
        _place(lineage, result, None if stands.learned or weighed is None else weighed.node)
    return stands


def asks_itself(lineage: Lineage, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether each query of one of torch's whole attentions stands where all its keys do."""
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    query, key = given[0], given[name != "_transformer_encoder_layer_fwd"]
    asking, answering = lineage.of(query), lineage.of(key)
    if asking is None or answering is None or key.ndim < 3 or query.is_nested:
        return False
    try:
        places, keys = (side.node.labels("position")[..., 0] for side in (asking, answering))
    except (RuntimeError, TypeError, IndexError, ValueError):
        return False
    axis = 0 if name == "multi_head_attention_forward" else 1  # of the keys
    few = key.shape[axis] < 2 or not is_constant(keys, axis)
    return not few and bool(((places == keys.narrow(axis, 0, 1)) & (places > 0)).all())


def doubt_axes(lineage: Lineage, query: Tensor, key: Tensor) -> Sides | None:
    """Where [batch, head, position, size] comes from, if its axes hold other things than a function said.

    More than the texts in that of the batch, or channels in that of positions; else None.
    """
    texts, batch = lineage.texts, len(query)
    many = bool(texts) and batch > texts[0] and batch not in texts
    if many or _asks_channels(lineage, query):
        return replace(Sides.of_kernel(lineage, (query, key), {}, batch), known=True)
    return None


def _asks_channels(lineage: Lineage, query: Tensor) -> bool:
    """Whether the numbers of each query are those of several positions, the same ones for all queries."""
    origin = lineage.of(query)
    places = None if origin is None else find_positions(origin.node)
    return places is not None and is_constant(places, -2) and not is_constant(places, -1)


def _weigh_places(query: Node, weighing: Weighing) -> bool:
    """Whether each position weighs numbers of its own, alike in heads and texts: learned for distances."""
    (root, *others), shape = beginnings(query), weighing.weights.shape
    if others or not isinstance(root, Root) or len(shape) < 3 or shape[-2] < 2 or shape.numel() > MOST:
        return False
    try:
        labels = query.labels("place").permute(weighing.axes)[..., 0]  # [..., query]
    except (RuntimeError, TypeError, IndexError, ValueError):
        return False
    places = root.split(labels - root.number * STRETCH)[1]
    each = all(is_constant(places, axis) for axis in range(1, places.ndim))
    return each and bool((labels > 0).all()) and not is_constant(places, 0)


def _are_tokens(weighed: Node, gates: Node, weighing: Weighing) -> bool:
    """Whether what is weighed stands at several positions of the text whose positions made the weights."""
    if {begin.number for begin in beginnings(weighed)} != {begin.number for begin in beginnings(gates)}:
        return False
    places = weighed.labels("position")
    return bool((places > 0).all()) and not is_constant(places, weighing.key_axis)


def _inside(weighed: Node, weighing: Weighing) -> bool:
    """Whether all that is weighed stands at one position."""
    places = weighed.labels("position")
    return bool((places > 0).all()) and is_constant(places, weighing.key_axis)


def _place(lineage: Lineage, result: Tensor, values: Node | None) -> None:
    """What was mixed at one position stands where the values do, what learned queries mixed nowhere."""
    origin = lineage.of(result)
    if origin is not None and origin.right is not None:
        sides = [side for side in (origin.node, origin.right) if isinstance(side, Spread)]
        lineage.place(result, next((side for side in sides if side.parent is values), None))


def are_gates(lineage: Lineage, tensor: Tensor) -> bool:
    """Whether each of a tensor's columns is an output of a layer, at one position."""
    origin = lineage.of(tensor)
    if origin is None or origin.right is not None or tensor.numel() > MOST or tensor.shape[-1] < 2:
        return False
    try:
        return is_constant(origin.node.labels("position"), -1) and _all_differ(origin.node.labels("channel"))
    except (RuntimeError, TypeError, IndexError, ValueError):
        return False


def _all_differ(labels: Tensor) -> bool:
    """Whether no two labels along the last axis are alike."""
    first = labels[(0,) * (labels.ndim - 1)]
    return len(torch.unique(first)) == len(first)
