"""Whether a product weighs tokens, or what stands at one position: streams, experts, slots, channels.

Weights that a layer makes of one position's state are gates: their columns are outputs of that layer, and
what they weigh stands where they were made. Columns that are positions are tokens, whoever asks: another
position, or a query that the model learned, which stands nowhere. Sizes say nothing: a model may have as
many streams as a text has tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from attnscope.capture.lineage.follow import Lineage
from attnscope.capture.lineage.layout import UNMOVABLE, find_positions, is_constant, origin_of_kernel
from attnscope.capture.lineage.nodes import STRETCH, Contracted, Node, QueryKeyOrigin, beginnings
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
    origin, weights = lineage.of(weighing.operand), weighing.weights
    trail = weighing.trail
    if origin is None or trail.mixed or trail.signed or is_mapped(weights):
        return Standing()
    weighed = lineage.of(weighing.weighed)
    if origin.right is not None:
        unmade = weighed is None and weighing.weighed is not None
        return Standing(tokens=not (unmade and _weigh_distances(origin.node, weighing)))
    # no product of queries and keys began these
    if weights.numel() > MOST or weights.shape[-1] < 2:
        return Standing(tokens=False)
    try:
        places = origin.node.labels("position").permute(weighing.axes)
        if is_constant(places, -1):
            stands = Standing(tokens=False)
        else:
            whole = bool(((weights.sum(-1) - 1).abs() < ROUNDING).all())
            stands = Standing(whole, learned=places.ndim < 2 or is_constant(places, -2))
    except UNMOVABLE:
        return Standing(tokens=False)
    made = lineage.of(result)
    if (not stands.tokens or stands.learned) and made is not None and made.right is not None:
        # what was mixed at one position stands where the values do, what learned queries mixed nowhere
        sides = [side for side in (made.node, made.right) if isinstance(side, Contracted)]
        place = None if stands.learned or weighed is None else weighed.node
        lineage.place(result, next((side for side in sides if side.parent is place), None))
    return stands


def doubt_axes(lineage: Lineage, query: Tensor, key: Tensor) -> QueryKeyOrigin | None:
    """Where [batch, head, position, size] comes from, if its axes hold other things than a function said.

    More than the texts in that of the batch, or channels in that of positions; else None.
    """
    texts, batch = lineage.texts, len(query)
    asked = lineage.of(query)
    places = None if asked is None else find_positions(asked.node)
    channels = places is not None and is_constant(places, -2) and not is_constant(places, -1)
    if channels or (texts and batch > texts[0] and batch not in texts):
        return replace(origin_of_kernel(lineage, (query, key), {}, batch), known=True)
    return None


def _weigh_distances(query: Node, weighing: Weighing) -> bool:
    """Whether each position weighs numbers of its own, alike in heads and texts: learned for distances."""
    (root, *others), shape, labels = beginnings(query), weighing.weights.shape, find_positions(query)
    if others or labels is None or len(shape) < 3 or shape[-2] < 2 or shape.numel() > MOST:
        return False
    labels = labels.floor().permute(weighing.axes)[..., 0]  # [..., query]
    places = root.split(labels - root.number * STRETCH)[1]
    each = all(is_constant(places, axis) for axis in range(1, places.ndim))
    return each and bool((labels > 0).all()) and not is_constant(places, 0)
