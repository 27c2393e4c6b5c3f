"""The layout of one captured call: for each row its text, head and position, for each slot its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from attnscope.capture.lineage.follow import Lineage
from attnscope.capture.lineage.nodes import (
    STRETCH,
    Contracted,
    Node,
    Origin,
    QueryKeyOrigin,
    Root,
    beginnings,
    outputs,
)
from attnscope.capture.rows.weighing import Weighing

Order: TypeAlias = Literal["order", "another order", "texts", "one position", "unknown"]
"""The order of positions in a row: in order, in another order, of several texts, or all equal."""

UNMOVABLE = RuntimeError, TypeError, IndexError, ValueError
"""Exceptions of a function that can move numbers but not labels."""


def origin_of_kernel(
    lineage: Lineage, args: Sequence[Any], kwargs: Mapping[str, Any], batch: int
) -> QueryKeyOrigin:
    """Query and key origins of torch's own kernel, whose arguments may come from anywhere."""
    given = dict(zip(("query", "key"), args, strict=False)) | dict(kwargs)
    query, key = (lineage.of(given[name]) for name in ("query", "key"))
    axes = given["query"].ndim
    scores = any(side is not None and side.right is not None for side in (query, key))
    # what was given as heads begins with torch's axes
    if key is None or scores or (axes > 3 and isinstance((query or key).node, Root)):
        return QueryKeyOrigin(None, None, 0, Tensor.detach, False, axes, lineage.texts)

    def arrange(labels: Tensor) -> Tensor:
        return labels.reshape(batch, -1, *labels.shape[-2:])

    asking, state = (None, 0) if query is None else (query.node, query.state)
    return QueryKeyOrigin(asking, key.node, state, arrange, False, axes, lineage.texts)


def origin_of_states(
    lineage: Lineage, query: Tensor, key: Tensor, heads: int, keys: int, batch_first: bool
) -> QueryKeyOrigin | None:
    """Query and key origins of one of torch's complete attentions, which projects states itself.

    None if the origin of the states is unknown, or if the function adds keys of another origin.
    """
    asking, answering = lineage.of(query), lineage.of(key)
    along = 1 if batch_first and key.ndim > 2 else 0
    if answering is None or query.is_nested or key.shape[along] != keys:
        return None
    axes = ((0, 0), (1, 2)) if batch_first else ((1, 0), (0, 2))
    rows = set()
    for origin in (asking, answering):
        places = None if origin is None else find_positions(origin.node)
        if origin is not None and places is not None:
            texts = places[..., 0] if batch_first or places.ndim < 3 else places[..., 0].mT
            row = texts.reshape(-1, texts.shape[-1])[0]
            rows.add(order_of(row, origin.node, len(texts) > 1).replace("another order", "order"))
    if len(rows) != 1 or rows == {"unknown"}:
        return None

    def project(states: Tensor, origin: Origin) -> Node:
        """[text, position, width] -> [text, head, position, size]"""
        kept, *sizes = (axes if states.ndim > 2 else ((0, 2),)), 1, heads, 1, states.shape[-1] // heads
        for before, after in kept:
            sizes[after] = states.shape[before]
        return Contracted(origin.node, kept, torch.Size(sizes), (1, 3))

    query_node = None if asking is None else project(query, asking)
    state = 0 if asking is None else asking.state
    return QueryKeyOrigin(
        query_node, project(key, answering), state, Tensor.detach, False, texts=lineage.texts
    )


def origin_of_weighing(lineage: Lineage, weighing: Weighing, batch: int, heads: int | None) -> QueryKeyOrigin:
    """Query and key origins of weights that come from a product of both."""
    weights = lineage.of(weighing.operand)
    arrange = partial(weighing.arrange, batch=batch, heads=heads)
    if weights is None or weights.right is None:
        return QueryKeyOrigin(None, None, 0, arrange, True, texts=lineage.texts)
    return QueryKeyOrigin(weights.node, weights.right, weights.state, arrange, True, texts=lineage.texts)


@dataclass(frozen=True, eq=False)
class Layout:
    """The places of a call's rows and slots, -1 for none; position numbers are unique within a text."""

    text: Tensor  # [batch, head, query]
    head: Tensor  # [batch, head, query]: the first channel of its projection
    query: Tensor  # [batch, head, query]: position
    key: Tensor  # [batch, head, query or 1, key]: position
    texts: int
    positions: int  # of one text
    outputs: int  # of the projection that the queries come from
    channels: bool = False  # whether its queries are channels of one position
    inside: bool = False  # whether each query and its keys are of one position: streams, heads, experts

    @property
    def usual(self) -> bool:
        """Whether it is [text, head, position, position], in order."""
        lane, keys = self.query[:1, :1], self.key[:1, :1, :1]
        texts = torch.arange(self.texts, device=lane.device)
        return (
            len(self.text) == self.texts
            and bool((self.text == texts[:, None, None]).all())
            and bool((self.head[:1, :, :1] == self.head[:, :, :1]).all())
            and len(torch.unique(self.head[0, :, 0])) == self.head.shape[1]
            and self.key.shape[2] == 1
            and all(in_order(row) for row in (lane[0, 0], keys[0, 0, 0]))
            and bool((self.query == lane).all())
            and bool((self.key == keys).all())
        )

    @property
    def sequences(self) -> int:
        """How many roots its keys have."""
        return len(torch.unique(self.key[self.key >= 0] // STRETCH))

    @property
    def apart(self) -> bool:
        """Whether queries and keys have different roots, so that no query has a place among the keys."""
        return not bool(torch.isin(self.query // STRETCH, torch.unique(self.key // STRETCH)).any())

    @property
    def of_itself(self) -> bool:
        """Whether the querying positions are exactly the key positions, in one order."""
        return torch.equal(self.query[0, 0], self.key[0, 0, 0])

    @property
    def whole(self) -> bool:
        """Whether every position of every text has a query."""
        return len(self.text) == self.texts and self.query.shape[-1] >= self.positions

    @property
    def complete(self) -> bool:
        """Whether all key positions have queries, from all outputs of their projection or a third of them."""
        heads, rows, slots = self.head[0, :, 0], self.query[0, 0], self.key[0, 0, 0]
        if len(rows) != len(slots) and bool(torch.isin(rows // STRETCH, slots // STRETCH).any()):
            return False
        each = int(heads.diff().abs().min()) if len(heads) > 1 else 0
        return self.whole and len(heads) * each in (self.outputs, self.outputs / 3)


def survey(origin: QueryKeyOrigin) -> Layout | None:
    """The layout of a call, or None if its queries and keys cannot be followed."""
    if origin.query is None or origin.key is None:
        return None
    query, key = origin.query.labels("position"), origin.key.labels("position")
    channel = origin.query.labels("channel")
    if origin.scored:
        if query.shape[-1] > 1 and not is_constant(query, -1) and is_constant(key, -1):
            query, key, channel = key, query, origin.key.labels("channel")
        if not is_constant(query, -1):
            return None
        query, channel = origin.arrange(query[..., :1]), origin.arrange(channel[..., :1])
        key = origin.arrange(key[..., :1, :] if is_constant(key, -2) else key)
    else:
        query, key, channel = (origin.arrange(labels[..., :1]) for labels in (query, key, channel))
        key = key.mT
        if key.shape[1] != query.shape[1]:
            key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    query, channel, single = query[..., 0], channel[..., 0], query % 1 == 0
    alone = bool(single.all()) and bool((key % 1 == 0).all())
    query, key = query.floor(), key.floor()
    begun = {root.number: root for root in (*beginnings(origin.query), *beginnings(origin.key))}
    texts, asked, swapped = _split(query, begun)
    if bool((channel[query > 0] == 0).any()) or not len(texts):
        return None
    if query.shape[-1] > 1 and is_constant(query, -1) and not is_constant(channel, -1):
        return Layout(texts, channel, asked, key, 0, 0, 0, channels=True)
    answered, answering, _ = _split(key, begun, swapped)
    if key.shape[-1] > 1:
        here = (answering == asked[..., None]) & (answered == texts[..., None]) | (asked < 0)[..., None]
        if bool(here.all()) and alone and bool((query > 0).all()) and bool((key > 0).all()):
            return Layout(texts, channel, asked, answering, 0, 0, 0, inside=True)
        if is_constant(key, -1) and bool((key > 0).any()):
            return None  # each key is made of all tokens (Linformer), and has no position
    roots = [begun[int(number)] for number in torch.unique(query[query > 0] // STRETCH)]
    if not roots or bool((texts[asked >= 0] < 0).any()):
        return None
    count = max(root.shape[1] if swapped else root.texts for root in roots)
    if origin.texts and count not in (1, *origin.texts):
        return None  # their root has more than texts in its first axis: heads, windows, frames
    positions = sum(root.shape[0] if swapped else root.positions for root in roots)
    return Layout(texts, channel, asked, answering, count, positions, outputs(origin.query))


def looks_inside(origin: QueryKeyOrigin) -> bool:
    """Whether queries of unknown origin, such as learned ones, each attend within one position."""
    if origin.query is not None or origin.key is None or origin.scored:
        return False
    labels = find_positions(origin.key)
    if labels is None:
        return False
    places = origin.arrange(labels[..., :1]) % STRETCH  # [batch, head, key, 1]; layers may begin apart
    apart = places.shape[1] > 1 and not is_constant(places, 1)  # tokens where heads would be
    return places.shape[2] > 1 and apart and is_constant(places, 2) and bool((labels > 0).all())


def _split(
    labels: Tensor, begun: dict[int, Root], swapped: bool | None = None
) -> tuple[Tensor, Tensor, bool]:
    """The texts and positions of some labels, and whether texts are the second axis of their root."""
    text, place = torch.full_like(labels, -1.0), torch.full_like(labels, -1.0)
    number = labels // STRETCH
    for one in torch.unique(number):
        root, here = begun.get(int(one)), number == one
        if root is None:
            continue
        first, second = root.split(labels - one * STRETCH)
        if swapped is None and len(root.shape) == 3 and labels.shape[-1] > 1:
            moving = bool((first.amax(-1) > first.amin(-1))[here.all(-1)].any())
            swapped = moving and bool((second.amax(-1) == second.amin(-1)).all())
        first, second = (second, first) if swapped else (first, second)
        text, place = torch.where(here, first, text), torch.where(here, second + one * STRETCH, place)
    text = torch.where(text < 0, text.amax(-1, keepdim=True), text)
    return text, place, bool(swapped)


def find_positions(node: Node) -> Tensor | None:
    """The positions of a tensor's entries; None if a function can move numbers but not labels."""
    try:
        return node.labels("position")
    except UNMOVABLE:
        return None


def is_constant(labels: Tensor, axis: int) -> bool:
    """Whether labels are alike along an axis."""
    if labels.shape[axis] == 1 or labels.stride(axis) == 0:
        return True
    return bool((labels == labels.narrow(axis, 0, 1)).all())


def order_of(row: Tensor, node: Node, several: bool) -> Order:
    """The order of positions in a row; unknown if it holds only part of a text's.

    Texts are only told apart if there are ``several``.
    """
    if bool(((row <= 0) | (row % 1 != 0)).any()):
        return "unknown"
    for root in beginnings(node) if several else ():
        text, _ = root.split(row[row // STRETCH == root.number] - root.number * STRETCH)
        if len(torch.unique(text)) > 1:
            return "texts"
    if len(row) > 1 and is_constant(row, 0):
        return "one position"
    steps = row.sort().values.diff()
    if not bool(((steps == 1) | (steps > STRETCH / 2)).all()):
        return "unknown"
    return "order" if in_order(row) else "another order"


def in_order(row: Tensor) -> bool:
    """Whether positions ascend, those of each root in one stretch."""
    number = row // STRETCH
    steps = number.diff() == 0
    if bool((row < 0).any()) or int((~steps).sum()) + 1 != len(torch.unique(number)):
        return len(row) == 1
    return bool((row.diff()[steps] > 0).all())
