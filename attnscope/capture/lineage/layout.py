"""The layout of a captured call: for each row its text, head and position, for each slot its key.

First, whether it weighs tokens at all, or things within one position: streams, experts, slots, channels.
Columns that are positions are tokens, whatever queries them. Columns that are outputs of a layer are gates,
and what they weigh has one position. Sizes say nothing. Last, calls that are pieces of one are joined.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from attnscope.capture.hooks.functions import quietly
from attnscope.capture.hooks.modules import Call
from attnscope.capture.lineage.follow import Lineage
from attnscope.capture.lineage.nodes import STRETCH, CallOrigin, Moved, Origin, Root, is_constant
from attnscope.capture.placing.kinds import heads_of
from attnscope.capture.record import is_within
from attnscope.capture.rows.capture import ROUNDING, Capture, Trail, Weighing, is_mapped
from attnscope.capture.rows.scores import Part, PlacedRows, join_differences
from attnscope.capture.tracker import Taken, Tracker
from attnscope.fused.runs import is_plain

CHANNELS = "it attends from channel to channel, not from token to token"
INSIDE = "it attends within one token (streams, heads, experts), not from token to token"
AXES = "it attends over {} axes, and nothing tells which one holds the heads"
JOINED = (
    "it attends over several sequences in a row, in windows or parts, and nothing tells where each part "
    "stands: its weights are not shown"
)
PARTS = (
    "attention in {details} parts, more than there are texts (windows, frames or heads), and nothing tells "
    "where they lie, so a map is of one part, with the positions of that part: {names}"
)
PADDED = (
    "windows that are padded: what a row weighs on padding stands at no token and is not shown, so rows "
    "there sum to less than 1: {names}"
)
SAMPLED = "only some positions ask, so rows are numbered by themselves, and stand at no key: {names}"
LARGE = "calls of more than 16,777,216 rows are not followed: their maps have the axes that torch was given"
MOST = 2**24  # most rows, or weights, whose labels are computed


def judge(lineage: Lineage, weighing: Weighing, result: Tensor) -> tuple[bool, bool]:
    """Whether columns of weights are tokens, and queries learned; forgets a product that weighs none."""
    origin, weights, trail = lineage.of(weighing.operand), weighing.weights, weighing.trail
    if origin is None or trail.reason or is_mapped(weights):
        return True, False
    if origin.right is not None:
        return lineage.of(weighing.weighed) is not None or not _weigh_distances(origin, weighing), False
    # not from a product of queries and keys
    places = None if weights.numel() > MOST or weights.shape[-1] < 2 else origin.node.labels()
    if places is None:
        return False, False
    places, tokens, learned = places.permute(weighing.axes), False, False
    if not is_constant(places, -1):
        tokens = bool(((weights.sum(-1) - 1).abs() < ROUNDING).all())
        learned = places.ndim < 2 or is_constant(places, -2)
    if not tokens or learned:
        lineage.forget(result)
    return tokens, learned


def judge_terms(lineage: Lineage, trail: Trail) -> Trail:
    """A trail, without its scores if what was added to them is of the same states (relative positions)."""
    scores = trail.scores
    if scores is None or not scores.terms:
        return trail

    def roots(*tensors: Tensor) -> set[Root]:
        origins = (lineage.of(each) for each in tensors)
        return {root for each in origins if each is not None for root in each.node.roots}

    ours = roots(scores.product.left, scores.product.right)
    same = (term for term in scores.terms if roots(term) & ours)  # masks are made of the scores' shape
    return trail if all(map(is_plain, same)) else replace(trail, scores=None)


def _weigh_distances(query: Origin, weighing: Weighing) -> bool:
    """Whether the rows are texts and heads, since each position weighs its own numbers: of distances."""
    (root, *others), labels = query.node.roots, query.node.labels()
    if others or labels is None or weighing.weighed is None or weighing.weights.numel() > MOST:
        return False
    rows = root.split(labels.floor())[1].permute(weighing.axes)[..., 0]
    return rows.ndim > 1 and rows.shape[-1] > 1 and is_constant(rows, -1) and not is_constant(rows, 0)


def origin_of_kernel(
    query: Origin | None, key: Origin | None, batch: int, axes: int = 4, sure: bool = False
) -> CallOrigin:
    """Query and key origins of a kernel on [..., position, size], whose arguments may come from anywhere."""
    if key is None or (axes > 3 and isinstance((query or key).node, Root)):  # given as heads: torch's axes
        return CallOrigin(axes=axes, sure=sure)

    def lay(labels: Tensor, turned: bool) -> Tensor:
        labels = labels[..., :1].mT if turned else labels[..., :1]
        return labels.reshape(batch, -1, *labels.shape[-2:])

    asked, answering = (
        None if side is None else Moved(lay, "lay", (side.node, turned), {})
        for side, turned in ((query, False), (key, True))
    )
    return CallOrigin(asked, answering, None if query is None else query.state, axes, sure)


def origin_of_weighing(
    weights: Origin | None, weighing: Weighing, batch: int, heads: int | None
) -> CallOrigin:
    """Query and key origins of weights that come from a product of both."""
    if weights is None or weights.right is None:
        return CallOrigin()
    arrange = partial(weighing.arrange, batch=batch, heads=heads)
    query, key = (Moved(arrange, "arrange", (node,), {}) for node in (weights.node, weights.right))
    return CallOrigin(query, key, weights.state)


@dataclass(frozen=True, eq=False)
class Piece:
    """A call, and the places of its rows and slots, -1 for none; positions are unique within a text."""

    taken: Taken
    state: object  # of the numbers that its queries come from
    text: Tensor  # [batch, head, query]
    head: Tensor  # [batch, head, query]: the first channel of its projection
    query: Tensor  # [batch, head, query]: position
    key: Tensor  # [batch, head, query or 1, key]: position
    texts: int
    usual: bool  # whether it is [text, head, position, position], in order
    complete: bool  # whether, besides, all positions have queries, from all outputs of their projection


def survey(taken: Taken, origin: CallOrigin, given: Sequence[int], parts: bool) -> Piece | str | None:
    """A call with its places; or why it is none of tokens; or None: it cannot be followed to given texts."""
    capture, key = taken.capture, None if origin.key is None else origin.key.labels()
    if key is None or origin.key is None:
        return None
    if origin.query is None:  # as of learned queries; layers, or streams, may begin apart
        places = key % STRETCH  # [batch, head, 1, key]
        apart = places.shape[1] > 1 and not is_constant(places, 1)  # tokens where heads would be
        inside = places.shape[-1] > 1 and apart and is_constant(places, -1) and bool((key > 0).all())
        return INSIDE if inside else None
    query, channel = origin.query.labels(), origin.query.labels("channel")
    if query is None or channel is None or not is_constant(query, -1):
        return None
    key = key[..., :1, :] if is_constant(key, -2) else key
    query, channel = query[..., 0], channel[..., 0]
    if key.shape[1] != query.shape[1]:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    sizes = capture.batch, capture.heads, len(capture.queries), len(capture.keys)
    if (*query.shape, key.shape[-1]) != sizes or key.shape[:2] != sizes[:2] or 0 in sizes:
        return None
    alone = not bool((query % 1).any()) and not bool((key % 1).any())
    query, key = query.floor(), key.floor()
    begun = list(dict.fromkeys((*origin.query.roots, *origin.key.roots)))
    texts, asked = split(query, begun)
    texts = torch.where(texts < 0, texts.amax(-1, keepdim=True), texts)
    if bool((channel[query > 0] == 0).any()):
        return None
    if query.shape[-1] > 1 and is_constant(query, -1) and not is_constant(channel, -1):
        return CHANNELS
    answering = split(key, begun)[1]
    rows, slots, heads = asked[0, 0], answering[0, 0, 0], channel[0, :, 0]
    if origin.sure and not parts:  # its axes hold all tokens, perhaps in another order
        whole = all(bool((row.sort().values.diff() == 1).all()) and row[0] >= 0 for row in (rows, slots))
        if (in_order(rows) and in_order(slots)) or not (alone and whole):
            return None
    if key.shape[-1] > 1 and is_constant(key, -1):
        if alone and bool((key > 0).all()) and bool((key[..., 0] == query).all()):
            return INSIDE
        if bool((key > 0).any()):
            return None  # each key is made of all tokens (Linformer), and has no position
    if query.shape[-1] == 1 and len(torch.unique(slots[slots >= 0])) < int((slots >= 0).sum()):
        return None  # a recurrent state, made of one position, stands beside it
    roots = [root for root in begun if bool((query // STRETCH == root.number).any())]
    if not roots or bool((texts[asked >= 0] < 0).any()):
        return None
    count = max(root.texts for root in roots)
    if given and count not in (1, *given) and len(torch.unique(heads)) == len(heads):
        return None  # their root has more than texts in its first axis: heads, windows, frames
    if not is_constant(texts, -1):  # several texts in a row; of three axes, positions may come first
        return JOINED if any(len(root.shape) > 3 and root.length > 1 for root in roots) else None
    usual = (
        len(texts) == count
        and bool((texts == torch.arange(count, device=rows.device)[:, None, None]).all())
        and bool((channel[:1, :, :1] == channel[:, :, :1]).all())
        and len(torch.unique(heads)) == len(heads)
        and key.shape[2] == 1
        and in_order(rows)
        and in_order(slots)
        and bool((asked == rows).all())
        and bool((answering == slots).all())
    )
    whole = usual and len(rows) >= sum(root.length for root in roots)
    whole &= len(rows) == len(slots) or not bool(torch.isin(rows // STRETCH, slots // STRETCH).any())
    each = int(heads.diff().abs().min()) if len(heads) > 1 else 0
    spare = origin.query.outputs - len(heads) * each  # the same layer may make keys and values
    keys = origin.key.labels("channel") if whole and spare else None  # [batch, head, 1, key]
    complete = whole and spare == (0 if keys is None else 2 * each * len(torch.unique(keys[0, :, 0, 0])))
    piece = Piece(taken, origin.state, texts, channel, asked, answering, count, usual, complete)
    return piece if usual or not ask_again([piece]) else None


def ask_again(pieces: Sequence[Piece]) -> bool:
    """Whether a head has two queries at one position of a text, other than by one softmax."""
    pieces = list({piece.taken.softmax or -at: piece for at, piece in enumerate(pieces)}.values())
    text, head, query = (
        torch.cat([getattr(piece, name)[piece.query >= 0] for piece in pieces])
        for name in ("text", "head", "query")
    )
    head, query = (torch.unique(labels, return_inverse=True)[1] for labels in (head, query))
    rows = (text * (1 + head.amax()) + head) * (1 + query.amax()) + query if len(text) else text
    return len(torch.unique(rows)) < len(rows)


def split(labels: Tensor, roots: Iterable[Root]) -> tuple[Tensor, Tensor]:
    """The texts and positions of some labels; -1: of another root."""
    text, place = torch.full_like(labels, -1.0), torch.full_like(labels, -1.0)
    for root in roots:
        here, (first, second) = labels // STRETCH == root.number, root.split(labels)
        text = torch.where(here, first, text)
        place = torch.where(here, second + root.number * STRETCH, place)
    return text, place


def in_order(row: Tensor) -> bool:
    """Whether positions ascend, those of each root in one stretch."""
    steps = (row // STRETCH).diff() == 0
    if bool((row < 0).any()) or int((~steps).sum()) + 1 != len(torch.unique(row // STRETCH)):
        return len(row) == 1
    return bool((row.diff()[steps] > 0).all())


class SplitCalls(Tracker):
    """Holds calls of one attention (chunks, heads, windows) until no more can belong to it; joins them."""

    held: Sequence[Piece] = ()

    def begin(self) -> None:
        """Pass on what is held of the last pass."""
        self.flush()

    finish = begin

    def take(self, taken: Taken) -> bool:
        """Whether a call is part of one attention, or has unusual axes, and is held."""
        origin, capture, texts = taken.origin, taken.capture, self.recorder.of(Lineage).texts
        small = len(capture.queries) * capture.batch * capture.heads <= MOST
        if origin is not None and not small:
            self.recorder.record.note_change(LARGE)
        parts = bool(texts) and capture.batch > texts[0] and capture.batch not in texts
        piece = survey(taken, origin, texts, parts) if origin is not None and small else None
        if origin is None or not isinstance(piece, Piece) or (origin.sure and piece.usual):
            self.flush()
            return origin is not None and not isinstance(piece, Piece) and self._is_named(taken, parts, piece)
        self.recorder.placed += origin.sure
        if texts and piece.texts not in (1, *texts):  # parts stood where heads do
            self.recorder.record.note_place(PARTS, taken.name, str(piece.texts))
        first = self.held[0] if self.held else piece
        apart = (taken.name, piece.state) != (first.taken.name, first.state)
        if piece.complete or apart or ask_again([*self.held, piece]):
            self.flush()
        self.held = [*self.held, piece]
        if piece.complete:
            self.flush()
        return True

    def _is_named(self, taken: Taken, parts: bool, reason: str | None) -> bool:
        """Name a call that is not over tokens, or would have wrong axes; returns whether it was one."""
        assert taken.origin is not None
        batch, axes = taken.capture.batch, taken.origin.axes
        if axes > 4 and heads_of(taken.calls[-1].module) != taken.capture.heads:
            reason = reason or AXES.format(axes)
        if reason is not None:
            self.recorder.name(taken.name, reason)
        elif parts:
            self.recorder.placed += 1
            self.recorder.record.note_place(PARTS, taken.name, str(batch))
        return reason is not None

    def leave(self, call: Call, output: object) -> None:
        """A module ends: what ran inside it is complete."""
        if self.held and is_within(self.held[0].taken.name, call.name):
            with quietly():
                self.flush()

    def flush(self) -> None:
        """Pass on what is held."""
        pieces, self.held = self.held, ()
        if not pieces:
            return
        taken, usual, record = pieces[0].taken, len(pieces) == 1 and pieces[0].usual, self.recorder.record
        asked, keys = _distinct([each.query for each in pieces]), _distinct([each.key for each in pieces])
        among = torch.isin(asked, keys)
        if usual:  # keys of some rows alone
            lost = bool(among.any()) and not bool(among.all()) and bool(torch.isin(keys, asked).all())
        else:
            lost = any(len(torch.unique(_distinct([each.key]) // STRETCH)) > 1 for each in pieces)
        if lost:
            return record.name(taken.name, JOINED)
        capture = _number_rows(pieces[0]) if usual else _join(pieces, asked, keys)
        if not usual and any(map(_weighs_padding, pieces)):
            record.note_place(PADDED, taken.name)
        if capture.offset is None and 1 < len(capture.queries) < len(capture.keys) and bool(among.all()):
            record.note_place(SAMPLED, taken.name)
        self.recorder.pass_on(replace(taken, capture=capture), self)
        return None


def _weighs_padding(piece: Piece) -> bool:
    """Whether a row leaves keys open that have no position."""
    padding = (piece.key[:, :1] < 0) & (piece.query[:, :1] >= 0)[..., None]  # [batch, 1, query, key]
    read = piece.taken.capture.read
    return bool(padding.any()) and bool((read.allowed(0, padding.shape[2])[:, :1] & padding).any())


def _number_rows(piece: Piece) -> Capture:
    """A usual call: its rows numbered from the first of them, if they stand among the keys."""
    capture, rows, slots = piece.taken.capture, piece.query[0, 0], piece.key[0, 0, 0]
    place = (slots == rows[0]).nonzero()
    if len(place) and torch.equal(slots[int(place[0]) :][: len(rows)], rows):
        return replace(capture, offset=int(place[0]), crossed=False)
    apart = len(rows) != len(slots) and not bool(torch.isin(rows // STRETCH, slots // STRETCH).any())
    return replace(capture, apart=apart) if piece.complete else capture


def _join(pieces: Sequence[Piece], asked: Tensor, keys: Tensor) -> Capture:
    """One attention from several calls: its texts, heads and positions in order."""
    first, texts = pieces[0].taken.capture, max(piece.texts for piece in pieces)
    heads = torch.unique(torch.cat([piece.head[piece.query >= 0] for piece in pieces]))
    crossed = not bool(torch.isin(asked // STRETCH, keys // STRETCH).any())
    if not crossed:
        keys = torch.unique(torch.cat([asked, keys]))
    start, last = (int(torch.searchsorted(keys, asked[at])) for at in (0, -1))
    apart = crossed or last - start + 1 > len(asked)  # from a few positions: separate rows
    rows, offset, queries = (asked, 0, len(asked)) if apart else (keys, start, last - start + 1)
    parts = []
    for piece in pieces:
        row, key = _index(piece.query, rows, offset), _index(piece.key, keys, 0)
        head = torch.searchsorted(heads, piece.head.contiguous()).clamp(max=len(heads) - 1)
        parts.append(Part(piece.taken.capture.read, piece.text.long(), head, row, key))
    return replace(
        first,
        batch=texts,
        heads=len(heads),
        key_heads=max(1, len(heads) * first.key_heads // first.heads),
        queries=range(queries),
        keys=range(len(keys)),
        read=PlacedRows(tuple(parts), texts, len(heads), len(keys)),
        crossed=None if apart else False,
        apart=apart,
        offset=None if apart else offset,
        statistics=None,
        values=None,
        difference=join_differences([piece.taken.capture.difference for piece in pieces], first.dtype),
    )


def _distinct(labels: Sequence[Tensor]) -> Tensor:
    """All positions among some labels, in order."""
    return cast(Tensor, torch.unique(torch.cat([each[each >= 0] for each in labels])))


def _index(places: Tensor, axis: Tensor, offset: int) -> Tensor:
    """The index of places on an axis, counted from ``offset``; -1: no position."""
    return torch.where(places < 0, -1, torch.searchsorted(axis, places.contiguous()) - offset)
