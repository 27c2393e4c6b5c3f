"""The layout of one captured call: for each row its text, head and position, for each slot its key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from attnscope.capture.lineage.follow import Lineage
from attnscope.capture.lineage.nodes import STRETCH, Contracted, Origin, QueryKeyOrigin, Root, is_constant
from attnscope.capture.rows.capture import Weighing
from attnscope.capture.tracker import Taken

CHANNELS = "it attends from channel to channel, not from token to token"
INSIDE = "it attends within one token (streams, heads, experts), not from token to token"


def origin_of_kernel(
    lineage: Lineage, query: Origin | None, key: Origin | None, batch: int, axes: int = 4
) -> QueryKeyOrigin:
    """Query and key origins of a kernel on [..., position, size], whose arguments may come from anywhere."""
    scores = any(side is not None and side.right is not None for side in (query, key))
    # what was given as heads begins with torch's axes
    if key is None or scores or (axes > 3 and isinstance((query or key).node, Root)):
        return QueryKeyOrigin(None, None, 0, Tensor.detach, False, axes, lineage.texts)

    def arrange(labels: Tensor) -> Tensor:
        return labels.reshape(batch, -1, *labels.shape[-2:])

    asking, state = (None, 0) if query is None else (query.node, query.state)
    return QueryKeyOrigin(asking, key.node, state, arrange, False, axes, lineage.texts)


def project(origin: Origin | None, states: Tensor, heads: int, batch_first: bool) -> Origin | None:
    """Where queries or keys come from that torch projects itself, [text, head, position, size]."""
    if origin is None:
        return None
    text, place = (None, 0) if states.ndim < 3 else (0, 1) if batch_first else (1, 0)
    shape = 1 if text is None else states.shape[text], heads, states.shape[place], states.shape[-1] // heads
    return replace(origin, node=Contracted(origin.node, (text, None, place, None), torch.Size(shape), 0))


def origin_of_weighing(lineage: Lineage, weighing: Weighing, batch: int, heads: int | None) -> QueryKeyOrigin:
    """Query and key origins of weights that come from a product of both."""
    weights = lineage.of(weighing.operand)
    arrange = partial(weighing.arrange, batch=batch, heads=heads)
    if weights is None or weights.right is None:
        return QueryKeyOrigin(None, None, 0, arrange, True, texts=lineage.texts)
    return QueryKeyOrigin(weights.node, weights.right, weights.state, arrange, True, texts=lineage.texts)


@dataclass(frozen=True, eq=False)
class Piece:
    """A call, and the places of its rows and slots, -1 for none; positions are unique within a text."""

    taken: Taken
    state: int  # of the numbers that its queries come from
    text: Tensor  # [batch, head, query]
    head: Tensor  # [batch, head, query]: the first channel of its projection
    query: Tensor  # [batch, head, query]: position
    key: Tensor  # [batch, head, query or 1, key]: position
    texts: int
    positions: int  # of one text
    outputs: int  # of the projection that the queries come from

    @cached_property
    def lane(self) -> tuple[Tensor, Tensor]:
        """The queries and keys of the first head of the first text."""
        return self.query[0, 0], self.key[0, 0, 0]

    @cached_property
    def usual(self) -> bool:
        """Whether it is [text, head, position, position], in order."""
        rows, slots = self.lane
        return (
            len(self.text) == self.texts
            and bool((self.text == torch.arange(self.texts, device=rows.device)[:, None, None]).all())
            and bool((self.head[:1, :, :1] == self.head[:, :, :1]).all())
            and len(torch.unique(self.head[0, :, 0])) == self.head.shape[1]
            and self.key.shape[2] == 1
            and in_order(rows)
            and in_order(slots)
            and bool((self.query == rows).all())
            and bool((self.key == slots).all())
        )

    @property
    def whole(self) -> bool:
        """Whether it is usual, and every position has a query."""
        return self.usual and self.query.shape[-1] >= self.positions

    @property
    def complete(self) -> bool:
        """Whether all key positions have queries, from all outputs of their projection or a third of them."""
        heads, (rows, slots) = self.head[0, :, 0], self.lane
        if len(rows) != len(slots) and bool(torch.isin(rows // STRETCH, slots // STRETCH).any()):
            return False
        each = int(heads.diff().abs().min()) if len(heads) > 1 else 0
        return self.whole and len(heads) * each in (self.outputs, self.outputs / 3)

    @property
    def weighs_padding(self) -> bool:
        """Whether a row leaves keys open that have no position."""
        capture, padding = self.taken.capture, self.key[:, :1] < 0
        padding = padding & (self.query[:, :1] >= 0)[..., None]  # [batch, 1, query, key]
        if not bool(padding.any()):
            return False
        return bool((capture.read.allowed(0, len(capture.queries))[:, :1] & padding).any())


def survey(taken: Taken) -> Piece | str | None:
    """A call with its places; or why it is none of tokens; or None if queries or keys cannot be followed."""
    origin, capture = taken.origin, taken.capture
    if origin is None or origin.key is None or (origin.query is None and origin.scored):
        return None
    key = origin.key.labels("position")
    if origin.query is None:  # as of learned queries; layers, or streams, may begin apart
        places = origin.arrange(key[..., :1]) % STRETCH  # [batch, head, key, 1]
        apart = places.shape[1] > 1 and not is_constant(places, 1)  # tokens where heads would be
        inside = places.shape[2] > 1 and apart and is_constant(places, 2) and bool((key > 0).all())
        return INSIDE if inside else None
    query, channel = origin.query.labels("position"), origin.query.labels("channel")
    if origin.scored:
        if query.shape[-1] > 1 and not is_constant(query, -1) and is_constant(key, -1):
            query, key, channel = key, query, origin.key.labels("channel")
        if not is_constant(query, -1):
            return None
        key = origin.arrange(key[..., :1, :] if is_constant(key, -2) else key)
    else:
        key = origin.arrange(key[..., :1]).mT
    query, channel = (origin.arrange(labels[..., :1])[..., 0] for labels in (query, channel))
    if key.shape[1] != query.shape[1]:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    if query.shape != (capture.batch, capture.heads, len(capture.queries)):
        return None
    alone = not bool((query % 1).any()) and not bool((key % 1).any())
    query, key = query.floor(), key.floor()
    begun = {root.number: root for root in (*origin.query.roots, *origin.key.roots)}
    texts, asked, swapped = _split(query, begun)
    if bool((channel[query > 0] == 0).any()) or not len(texts):
        return None
    if query.shape[-1] > 1 and is_constant(query, -1) and not is_constant(channel, -1):
        return CHANNELS
    answered, answering, _ = _split(key, begun, swapped)
    if key.shape[-1] > 1:
        here = (answering == asked[..., None]) & (answered == texts[..., None]) | (asked < 0)[..., None]
        if bool(here.all()) and alone and bool((query > 0).all()) and bool((key > 0).all()):
            return INSIDE
        if is_constant(key, -1) and bool((key > 0).any()):
            return None  # each key is made of all tokens (Linformer), and has no position
    roots = [begun[int(number)] for number in torch.unique(query[query > 0] // STRETCH)]
    if not roots or bool((texts[asked >= 0] < 0).any()) or key.shape[-1] != len(capture.keys):
        return None
    count = max(root.shape[1] if swapped else root.texts for root in roots)
    if origin.texts and count not in (1, *origin.texts):
        return None  # their root has more than texts in its first axis: heads, windows, frames
    positions = sum(root.shape[0] if swapped else root.length for root in roots)
    outputs = origin.query.outputs
    piece = Piece(taken, origin.state, texts, channel, asked, answering, count, positions, outputs)
    return piece if piece.usual or not ask_again([piece]) else None


def ask_again(pieces: Sequence[Piece]) -> bool:
    """Whether a head has two queries at one position of a text, other than by one softmax."""
    pieces = list({piece.taken.softmax or -at: piece for at, piece in enumerate(pieces)}.values())
    heads = torch.unique(torch.cat([piece.head.flatten() for piece in pieces]))
    places = torch.unique(torch.cat([piece.query.flatten() for piece in pieces]))
    asked = []
    for piece in pieces:
        lane = piece.text * len(heads) + torch.searchsorted(heads, piece.head.contiguous())
        row = lane * len(places) + torch.searchsorted(places, piece.query.contiguous())
        asked.append(row[piece.query >= 0])
    rows = torch.cat(asked)
    return len(torch.unique(rows)) < len(rows)


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
        first, second = root.split(labels)
        if swapped is None and len(root.shape) == 3 and labels.shape[-1] > 1:
            moving = bool((first.amax(-1) > first.amin(-1))[here.all(-1)].any())
            swapped = moving and bool((second.amax(-1) == second.amin(-1)).all())
        first, second = (second, first) if swapped else (first, second)
        text, place = torch.where(here, first, text), torch.where(here, second + one * STRETCH, place)
    text = torch.where(text < 0, text.amax(-1, keepdim=True), text)
    return text, place, bool(swapped)


def in_order(row: Tensor) -> bool:
    """Whether positions ascend, those of each root in one stretch."""
    number = row // STRETCH
    steps = number.diff() == 0
    if bool((row < 0).any()) or int((~steps).sum()) + 1 != len(torch.unique(number)):
        return len(row) == 1
    return bool((row.diff()[steps] > 0).all())
