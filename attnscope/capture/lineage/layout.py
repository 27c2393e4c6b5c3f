"""Where the rows of one captured call lie: of each row its text, head and position, of each slot its key."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnscope.capture.lineage.follow import Lineage
from attnscope.capture.lineage.nodes import STRETCH, Filler, Node, Root, beginnings, is_mixed, outputs
from attnscope.capture.rows.weighing import Weighing

Arrange = Callable[[Tensor], Tensor]
"""What lays a tensor [..., query, ?] out as [batch, head, query, ?]."""


@dataclass(frozen=True, eq=False)
class Sides:
    """Where queries and keys come from; ``scored``: both nodes are laid out as scores, [..., query, key]."""

    query: Node | None
    key: Node | None
    state: int
    arrange: Arrange
    scored: bool
    axes: int = 4  # of the tensors that a kernel was given
    texts: tuple[int, ...] = ()  # how many texts there are: one of these, as far as known
    known: bool = False  # whether the function said which axes are texts and heads

    @staticmethod
    def of_kernel(lineage: Lineage, args: Sequence[Any], kwargs: Mapping[str, Any], batch: int) -> Sides:
        """Those of torch's own kernel, which is given queries and keys of any origin."""
        given = dict(zip(("query", "key"), args, strict=False)) | dict(kwargs)
        query, key = (lineage.of(given[name]) for name in ("query", "key"))
        axes = given["query"].ndim
        nowhere = Sides(None, None, 0, Tensor.detach, False, axes, lineage.texts)
        if key is None or key.right is not None or (query is not None and query.right is not None):
            return nowhere
        if axes > 3 and isinstance((query or key).node, Root):  # it was given heads: torch's axes are meant
            return nowhere

        def arrange(labels: Tensor) -> Tensor:
            return labels.reshape(batch, -1, *labels.shape[-2:])

        asking, state = (None, 0) if query is None else (query.node, query.state)
        return Sides(asking, key.node, state, arrange, False, axes, lineage.texts)

    @staticmethod
    def of_weighing(lineage: Lineage, weighing: Weighing, batch: int, heads: int | None) -> Sides:
        """Those of weights, which a product of both began."""
        weights = lineage.of(weighing.operand)
        arrange = partial(weighing.arrange, batch=batch, heads=heads)
        if weights is None or weights.right is None:
            return Sides(None, None, 0, arrange, True, texts=lineage.texts)
        return Sides(weights.node, weights.right, weights.state, arrange, True, texts=lineage.texts)

    @property
    def signature(self) -> Hashable:
        """Equal for calls of one layout; None where only the tensors would tell."""
        query, key = (None if side is None else side.signature for side in (self.query, self.key))
        return None if query is None or key is None else (query, key)


@dataclass(frozen=True, eq=False)
class Layout:
    """The places of a call's rows and slots, -1 for none; no two positions of a text have one number."""

    text: Tensor  # [batch, head, query]
    head: Tensor  # [batch, head, query]: the first channel of its projection
    query: Tensor  # [batch, head, query]: position
    key: Tensor  # [batch, head, query or 1, key]: position
    texts: int
    positions: int  # of one text
    outputs: int  # of the projection that the queries come from
    channels: bool  # whether its queries are channels of one position
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
            and all(_in_order(row) for row in (lane[0, 0], keys[0, 0, 0]))
            and bool((self.query == lane).all())
            and bool((self.key == keys).all())
        )

    @property
    def apart(self) -> bool:
        """Whether queries and keys began apart from each other, so that no query stands at a key."""
        return not bool(torch.isin(self.query // STRETCH, torch.unique(self.key // STRETCH)).any())

    @property
    def of_itself(self) -> bool:
        """Whether every position that asks answers, too, in one order: also of two sequences in a row."""
        return torch.equal(self.query[0, 0], self.key[0, 0, 0])

    @property
    def whole(self) -> bool:
        """Whether every position of every text asks."""
        return len(self.text) == self.texts and self.query.shape[-1] >= self.positions

    @property
    def complete(self) -> bool:
        """Whether all positions that answer ask, by all outputs of their projection or a third of them."""
        heads, rows, slots = self.head[0, :, 0], self.query[0, 0], self.key[0, 0, 0]
        if len(rows) != len(slots) and bool(torch.isin(rows // STRETCH, slots // STRETCH).any()):
            return False
        each = int(heads.diff().abs().min()) if len(heads) > 1 else 0
        return self.whole and len(heads) * each in (self.outputs, self.outputs / 3)


def survey(sides: Sides) -> Layout | None:
    """The layout of a call, or None if its queries and keys cannot be followed."""
    if sides.query is None or sides.key is None:
        return None
    query, key, channel = (
        sides.query.labels("place"),
        sides.key.labels("place"),
        sides.query.labels("channel"),
    )
    if sides.scored:
        if query.shape[-1] > 1 and not is_constant(query, -1) and is_constant(key, -1):
            query, key, channel = key, query, sides.key.labels("channel")
        if not is_constant(query, -1):
            return None
        query, channel = sides.arrange(query[..., :1]), sides.arrange(channel[..., :1])
        key = sides.arrange(key[..., :1, :] if is_constant(key, -2) else key)
    else:
        query, key, channel = (sides.arrange(labels[..., :1]) for labels in (query, key, channel))
        key = key.mT
        if key.shape[1] != query.shape[1]:
            key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    begun = {begin.number: begin for begin in (*beginnings(sides.query), *beginnings(sides.key))}
    query, channel = query[..., 0], channel[..., 0]
    texts, asked, swapped = _split(query, begun)
    varies = query.shape[-1] > 1 and bool((channel != channel[..., :1]).any())
    if bool((channel[query > 0] == 0).any()) or not len(texts):
        return None
    if varies and bool((query == query[..., :1]).all()):
        return Layout(texts, channel, asked, key, 0, 0, 0, channels=True)
    if is_mixed(sides.key, sides.query):
        return None  # its keys stand at no token
    answered, answering, _ = _split(key, begun, swapped)
    here = (answering == asked[..., None]) & (answered == texts[..., None]) | (asked < 0)[..., None]
    if here.shape[-1] > 1 and bool(here.all()) and _stand_alone(sides):
        return Layout(texts, channel, asked, answering, 0, 0, 0, channels=False, inside=True)
    roots = [begun[int(number)] for number in torch.unique(query[query > 0] // STRETCH)]
    real = [root for root in roots if isinstance(root, Root)]
    if not real:  # fillers alone ask, of the texts that answer
        real = [root for root in begun.values() if isinstance(root, Root)]
        texts = answered.amax(-1).expand_as(asked)
    if not real or bool((texts[asked >= 0] < 0).any()):
        return None
    count = max(root.shape[1] if swapped else root.texts for root in real)
    if sides.texts and count not in (1, *sides.texts):
        return None  # what they began with holds more in the axis of its texts: heads, windows, frames
    positions = sum(root.shape[0] if swapped and isinstance(root, Root) else root.positions for root in roots)
    return Layout(texts, channel, asked, answering, count, positions, outputs(sides.query), channels=False)


def looks_inside(sides: Sides) -> bool:
    """Whether queries from nowhere, such as learned ones, each look at what stands at one position."""
    if sides.query is not None or sides.key is None or sides.scored:
        return False
    try:
        labels = sides.arrange(sides.key.labels("position")[..., :1])  # [batch, head, key, 1]
    except (RuntimeError, TypeError, IndexError, ValueError):
        return False
    places = labels % STRETCH  # states of several layers began apart, at the same positions
    apart = places.shape[1] > 1 and not is_constant(places, 1)  # tokens where heads would be
    return places.shape[2] > 1 and apart and is_constant(places, 2) and bool((labels > 0).all())


def _stand_alone(sides: Sides) -> bool:
    """Whether queries and keys stand at one position each, and are not made of several."""
    return all(
        bool((side.labels("position") > 0).all()) for side in (sides.query, sides.key) if side is not None
    )


def _split(
    labels: Tensor, begun: dict[int, Root | Filler], swapped: bool | None = None
) -> tuple[Tensor, Tensor, bool]:
    """The texts and positions of some places, and whether texts are the second axis of what they began with.

    Places of fillers take the text of the others in their row.
    """
    text, place = torch.full_like(labels, -1.0), torch.full_like(labels, -1.0)
    number = labels // STRETCH
    for one in torch.unique(number):
        begin, here = begun.get(int(one)), number == one
        if begin is None:
            continue
        flat = labels - one * STRETCH
        if isinstance(begin, Filler):
            place = torch.where(here, labels, place)
            continue
        first, second = begin.split(flat)
        if swapped is None and len(begin.shape) == 3 and labels.shape[-1] > 1:
            moving = bool((first.amax(-1) > first.amin(-1))[here.all(-1)].any())
            swapped = moving and bool((second.amax(-1) == second.amin(-1)).all())
        first, second = (second, first) if swapped else (first, second)
        text, place = torch.where(here, first, text), torch.where(here, second + one * STRETCH, place)
    text = torch.where(text < 0, text.amax(-1, keepdim=True), text)
    return text, place, bool(swapped)


def find_positions(node: Node) -> Tensor | None:
    """The positions of a tensor's entries; None where a function moves numbers, and cannot move labels."""
    try:
        return node.labels("position")
    except (RuntimeError, TypeError, IndexError, ValueError):
        return None


def is_constant(labels: Tensor, axis: int) -> bool:
    """Whether labels are alike along an axis."""
    if labels.shape[axis] == 1 or labels.stride(axis) == 0:
        return True
    return bool((labels == labels.narrow(axis, 0, 1)).all())


def _in_order(row: Tensor) -> bool:
    """Whether positions ascend, those of each beginning in one stretch."""
    number = row // STRETCH
    steps = number.diff() == 0
    if bool((row < 0).any()) or int((~steps).sum()) + 1 != len(torch.unique(number)):
        return len(row) == 1
    return bool((row.diff()[steps] > 0).all())
