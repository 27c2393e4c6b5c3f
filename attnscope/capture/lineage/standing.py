"""Whether a product weighs tokens, or things within one position: streams, experts, slots, channels.

Weights that a layer computes from one position's state are gates: their columns are outputs of that
layer, and what they weigh has the same position. Columns that are positions are tokens, whatever queries
them: another position, or a learned query, which has no position. Sizes say nothing: a model may have as
many streams as a text has tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attnscope.capture.lineage.follow import Lineage
from attnscope.capture.lineage.layout import (
    UNMOVABLE,
    find_positions,
    is_constant,
    order_of,
    origin_of_kernel,
)
from attnscope.capture.lineage.nodes import STRETCH, Contracted, Node, QueryKeyOrigin, beginnings
from attnscope.capture.rows.weighing import ROUNDING, Weighing, is_mapped

MOST = 2**24
"""Most weights whose labels are computed."""


@dataclass(frozen=True)
class Standing:
    """What is known about weights: whether columns are tokens, and whether queries are learned."""

    tokens: bool = True
    learned: bool = False


def judge(lineage: Lineage, weighing: Weighing, result: Tensor) -> Standing:
    """What weights weigh, as far as their lineage tells; sets the origin of their product, too."""
    origin, weights = lineage.of(weighing.operand), weighing.weights
    trail = weighing.trail
    if origin is None or trail.mixed or trail.signed or is_mapped(weights):
        return Standing()
    weighed = lineage.of(weighing.weighed)
    if origin.right is not None:
        unmade = weighed is None and weighing.weighed is not None
        return Standing(tokens=not (unmade and _weigh_distances(origin.node, weighing)))
    # not from a product of queries and keys
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
        # a mix within one position keeps the values' origin; a mix by learned queries has none
        sides = [side for side in (made.node, made.right) if isinstance(side, Contracted)]
        place = None if stands.learned or weighed is None else weighed.node
        lineage.place(result, next((side for side in sides if side.parent is place), None))
    return stands


def doubt_axes(lineage: Lineage, query: Tensor, key: Tensor) -> QueryKeyOrigin | None:
    """The origin of [batch, head, position, size] if its axes are not what the function says.

    More than texts in the batch axis; or channels, texts or reordered tokens in the position axis.
    Otherwise None.
    """
    texts, batch = lineage.texts, len(query)
    doubt, rows = bool(texts) and batch > texts[0] and batch not in texts, set()
    for states in (query, key):
        origin = lineage.of(states)
        places = None if origin is None else find_positions(origin.node)
        if origin is not None and places is not None:
            doubt |= states is query and is_constant(places, -2) and not is_constant(places, -1)
            rows.add(order_of(places[0, 0, :, 0], origin.node, batch > 1))
    doubt |= rows == {"texts"} or ("another order" in rows and rows <= {"order", "another order"})
    return origin_of_kernel(lineage, (query, key), {}, batch) if doubt else None


def _weigh_distances(query: Node, weighing: Weighing) -> bool:
    """Whether each position weighs its own numbers, equally in heads and texts: learned for distances."""
    (root, *others), shape, labels = beginnings(query), weighing.weights.shape, find_positions(query)
    if others or labels is None or len(shape) < 3 or shape[-2] < 2 or shape.numel() > MOST:
        return False
    labels = labels.floor().permute(weighing.axes)[..., 0]  # [..., query]
    places = root.split(labels - root.number * STRETCH)[1]
    each = all(is_constant(places, axis) for axis in range(1, places.ndim))
    return each and bool((labels > 0).all()) and not is_constant(places, 0)
