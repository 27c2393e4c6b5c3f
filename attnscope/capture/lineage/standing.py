"""Whether a product weighs tokens, or things within one position: streams, experts, slots, channels.

Weights that a layer computes from one position's state are gates: their columns are outputs of that
layer, and what they weigh has the same position. Columns that are positions are tokens, whatever queries
them: another position, or a learned query, which has no position. Sizes say nothing: a model may have as
many streams as a text has tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.capture.lineage.follow import Lineage
from attnscope.capture.lineage.layout import in_order, origin_of_kernel
from attnscope.capture.lineage.nodes import (
    STRETCH,
    Contracted,
    Node,
    Origin,
    QueryKeyOrigin,
    is_constant,
)
from attnscope.capture.rows.capture import ROUNDING, Weighing, is_mapped

MOST = 2**24  # most weights whose labels are computed
IN_ROW = frozenset({"order", "another order"})


@dataclass(frozen=True, eq=False)
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
    places = None if weights.numel() > MOST or weights.shape[-1] < 2 else origin.node.positions
    if places is None:
        return Standing(tokens=False)
    places, stands = places.permute(weighing.axes), Standing(tokens=False)
    if not is_constant(places, -1):
        whole = bool(((weights.sum(-1) - 1).abs() < ROUNDING).all())
        stands = Standing(whole, learned=places.ndim < 2 or is_constant(places, -2))
    made = lineage.of(result)
    if (not stands.tokens or stands.learned) and made is not None and made.right is not None:
        # a mix within one position keeps the values' origin; a mix by learned queries has none
        sides = [side for side in (made.node, made.right) if isinstance(side, Contracted)]
        place = None if stands.learned or weighed is None else weighed.node
        lineage.place(result, next((side for side in sides if side.parent is place), None))
    return stands


def doubt_axes(
    lineage: Lineage, query: Origin | None, key: Origin | None, batch: int, projects: bool = False
) -> QueryKeyOrigin | None:
    """The origin of [text, head, position, size] if its axes may not be what the function says; or None.

    More than texts in the batch axis; or channels, texts or reordered tokens in the position axis. Of
    torch's own modules (``projects``), which know no heads before, any that begin alike.
    """
    texts, orders = lineage.texts, set()
    doubt = bool(texts) and batch > texts[0] and batch not in texts
    for origin in (query, key):
        places = None if origin is None else origin.node.positions
        if origin is not None and places is not None:
            doubt |= origin is query and is_constant(places, -2) and not is_constant(places, -1)
            orders.add(_order(places[0, 0, :, 0], origin.node, batch > 1))
    if projects:
        doubt = orders in ({"texts"}, {"one position"}) or (bool(orders) and orders <= IN_ROW)
    else:
        doubt |= orders == {"texts"} or ("another order" in orders and orders <= IN_ROW)
    return origin_of_kernel(lineage, query, key, batch) if doubt else None


def _order(row: Tensor, node: Node, several: bool) -> str:
    """Whether positions are in order, in another one, of several texts, or alike; or a part of a text's.

    Texts are only told apart if there are ``several``.
    """
    if bool(((row <= 0) | (row % 1 != 0)).any()):
        return "unknown"
    for root in node.roots if several else ():
        text, _ = root.split(row[row // STRETCH == root.number])
        if len(torch.unique(text)) > 1:
            return "texts"
    if len(row) > 1 and is_constant(row, 0):
        return "one position"
    steps = row.sort().values.diff()
    if not bool(((steps == 1) | (steps > STRETCH / 2)).all()):
        return "unknown"
    return "order" if in_order(row) else "another order"


def _weigh_distances(query: Node, weighing: Weighing) -> bool:
    """Whether each position weighs its own numbers, equally in heads and texts: learned for distances."""
    (root, *others), shape, labels = query.roots, weighing.weights.shape, query.positions
    if others or labels is None or len(shape) < 3 or shape[-2] < 2 or shape.numel() > MOST:
        return False
    labels = labels.floor().permute(weighing.axes)[..., 0]  # [..., query]
    places = root.split(labels)[1]
    each = all(is_constant(places, axis) for axis in range(1, places.ndim))
    return each and bool((labels > 0).all()) and not is_constant(places, 0)
