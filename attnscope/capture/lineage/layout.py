"""The layout of a captured call: for each row its text, head and position, for each slot its key.

First, whether it attends over tokens at all, or over parts of one position: streams, experts, channels.
Columns that are positions are tokens, whatever queries them. Columns that are outputs of a layer are gates,
and what they multiply has one position. Sizes say nothing. Last, calls that are pieces of one are joined.
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
from attnscope.capture.lineage.nodes import (
    ROOT_OFFSET,
    CallOrigin,
    Moved,
    Origin,
    Root,
    beside_learned,
    is_constant,
)
from attnscope.capture.placing.kinds import heads_of
from attnscope.capture.record import is_within
from attnscope.capture.rows.capture import ROUNDING, CapturedCall, Trail, Weighing, is_mapped
from attnscope.capture.rows.scores import Part, PlacedRows, join_differences
from attnscope.capture.tracker import Tracker
from attnscope.fused.runs import is_plain

CHANNELS = "its attention is between channels, not between tokens"
INSIDE = "its attention is within each token (streams, heads, experts), not between tokens"
AXES = "its queries have {} axes, and which one holds the heads is unknown"
JOINED = (
    "it attends over several concatenated sequences, in windows or parts whose positions are unknown: its "
    "weights are not shown"
)
PARTS = (
    "attention in {details} parts, more than there are texts (windows, channels, frames or heads): rows and "
    "columns are positions within a part: {names}"
)
PADDED = (
    "padded windows: weight on padding belongs to no token and is not shown, so their rows sum to less "
    "than 1: {names}"
)
SAMPLED = "only some positions have queries, so rows have numbers of their own: {names}"
LARGE = "calls of more than 16,777,216 rows are not traced: their maps have the axes that torch received"
MOST = 2**24  # most rows, or weights, whose labels are computed


def classify_weighing(lineage: Lineage, weighing: Weighing, result: Tensor) -> tuple[bool, bool]:
    """Whether columns of weights are tokens, and queries learned; forgets a product of others."""
    origin, weights, trail = lineage.origin_of(weighing.operand), weighing.weights, weighing.trail
    if origin is None or trail.reason or is_mapped(weights):
        return True, False
    if origin.right is not None:
        return lineage.origin_of(weighing.factor) is not None or not _weigh_distances(origin, weighing), False
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


def drop_relative_scores(lineage: Lineage, trail: Trail) -> Trail:
    """A trail, without its scores if what was added to them is of the same states (relative positions)."""
    scores = trail.scores
    if scores is None or not scores.terms:
        return trail

    def roots(*tensors: Tensor) -> set[Root]:
        origins = (lineage.origin_of(each) for each in tensors)
        return {root for each in origins if each is not None for root in each.node.roots}

    score_roots = roots(scores.product.left, scores.product.right)
    same = (term for term in scores.terms if roots(term) & score_roots)  # masks are made of the scores' shape
    return trail if all(map(is_plain, same)) else replace(trail, scores=None)


def _weigh_distances(query: Origin, weighing: Weighing) -> bool:
    """Whether the rows are texts and heads, as each position multiplies numbers of its own: of distances."""
    (root, *others), labels = query.node.roots, query.node.labels()
    if others or labels is None or weighing.factor is None or weighing.weights.numel() > MOST:
        return False
    rows = root.split(labels.floor())[1].permute(weighing.axes)[..., 0]
    return rows.ndim > 1 and rows.shape[-1] > 1 and is_constant(rows, -1) and not is_constant(rows, 0)


def origin_of_kernel(
    query: Origin | None, key: Origin | None, batch: int, axes: int = 4, axes_known: bool = False
) -> CallOrigin:
    """Query and key origins of a kernel on [..., position, size], whose arguments may come from anywhere."""
    if key is None or (axes > 3 and isinstance((query or key).node, Root)):  # given as heads: torch's axes
        return CallOrigin(axes=axes, axes_known=axes_known)

    def as_column_labels(labels: Tensor, of_keys: bool) -> Tensor:
        labels = labels[..., :1].mT if of_keys else labels[..., :1]
        return labels.reshape(batch, -1, *labels.shape[-2:])

    query_positions, key_positions = (
        None if side is None else Moved(as_column_labels, "as_column_labels", (side.node, of_keys), {})
        for side, of_keys in ((query, False), (key, True))
    )
    state = None if query is None else query.state
    return CallOrigin(query_positions, key_positions, state, axes, axes_known)


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

    capture: CapturedCall
    text: Tensor  # [batch, head, query]
    head: Tensor  # [batch, head, query]: the first channel of its projection
    query: Tensor  # [batch, head, query]: position
    key: Tensor  # [batch, head, query or 1, key]: position
    texts: int
    roots: Sequence[Root]  # of its queries
    usual: bool  # whether it is [text, head, position, position], in order
    complete: bool  # whether, besides, all positions have queries, from all outputs of their projection

    @property
    def state(self) -> object:
        """Equal for calls whose queries come from the same numbers."""
        return None if self.capture.origin is None else self.capture.origin.state


@dataclass(eq=False)
class Places:
    """Where the queries and keys of a call stand, from their labels."""

    origin: CallOrigin
    query: Tensor  # labels, [batch, head, query]
    channel: Tensor  # the output of a projection that each query comes from, [batch, head, query]; 0: of none
    key: Tensor  # labels, [batch, head, query or 1, key]
    exact: bool  # whether every label is of one position, not of a mixture of several

    def __post_init__(self) -> None:
        self.roots = list(dict.fromkeys(root for side in self.origin.sides for root in side.roots))
        self._number_copies()
        texts, self.query_positions = split(self.query, self.roots)  # [batch, head, query]
        self.texts = torch.where(
            texts < 0, texts.amax(-1, keepdim=True), texts
        )  # padding is of its row's text
        self.key_positions = split(self.key, self.roots)[1]  # [batch, head, query or 1, key]
        self.rows, self.slots = self.query_positions[0, 0], self.key_positions[0, 0, 0]
        self.heads = self.channel[0, :, 0]

    def _number_copies(self) -> None:
        """Learned states that stand in each of several windows get positions of their own, side by side."""
        (root, *others), query = self.roots, self.query[:, 0]  # [batch, query]
        count = query.numel() // root.texts
        if others or count <= root.length or not root.before + root.behind or not bool((query > 0).all()):
            return
        if not (is_constant(self.query, 1) and torch.equal(self.query, self.key[:, :, 0])):
            return
        texts, places = root.split(query)
        before, behind = places < root.before, places >= root.length - root.behind
        learned = before | behind
        windows = texts.masked_fill(learned, root.texts).amin(-1, keepdim=True)  # the texts of these
        texts = torch.where(learned, windows, texts)
        codes, own = (texts * root.length + places).flatten(), int((~learned).sum())
        if len(torch.unique(codes[~learned.flatten()])) < own:
            return
        if torch.bincount(texts.flatten().long()).tolist() != [count] * root.texts:
            return
        labels = torch.empty_like(codes)
        labels[codes.argsort(stable=True)] = torch.arange(len(codes)).to(codes) + root.number * ROOT_OFFSET
        self.query = labels.view(len(query), 1, -1).expand_as(self.query)
        self.key = self.query[:, :, None]
        shape, copies = torch.Size((root.texts, count, 1)), int(learned[texts == 0].sum())
        ahead = int(before[texts == 0].sum())
        self.roots = [Root(root.number, shape, -1, root.device, ahead, copies - ahead, root.grid)]

    @property
    def lack_projection(self) -> bool:
        """Whether a query with a position is no output of a layer."""
        return bool((self.channel[self.query > 0] == 0).any())

    @property
    def are_channels(self) -> bool:
        """Whether the queries of a head are channels of one position."""
        several = self.query.shape[-1] > 1 and is_constant(self.query, -1)
        return several and not is_constant(self.channel, -1)

    @property
    def are_reordered(self) -> bool:
        """Whether the axes hold neighbouring positions, in another order."""
        axes = self.rows, self.slots
        if all(map(in_order, axes)) or not self.exact:
            return False
        return all(bool((axis.sort().values.diff() == 1).all()) and bool(axis[0] >= 0) for axis in axes)

    @property
    def share_one_key(self) -> bool:
        """Whether all keys of a query have the same position."""
        return self.key.shape[-1] > 1 and is_constant(self.key, -1) and bool((self.key > 0).any())

    @property
    def are_within_tokens(self) -> bool:
        """Whether all keys of a query have its own position."""
        whole = self.share_one_key and self.exact and bool((self.key > 0).all())
        return whole and bool((self.key[..., 0] == self.query).all())

    @property
    def repeat_keys(self) -> bool:
        """Whether a single query has two keys at one position: a recurrent state stands beside the tokens."""
        slots = self.slots[self.slots >= 0]
        return self.query.shape[-1] == 1 and len(torch.unique(slots)) < len(slots)

    def are_usual(self, count: int) -> bool:
        """Whether the axes are texts, heads, and positions in order, the same in all texts and heads."""
        text = torch.arange(count, device=self.texts.device)[:, None, None]
        return (
            len(self.texts) == count
            and bool((self.texts == text).all())
            and bool((self.channel[:1, :, :1] == self.channel[:, :, :1]).all())
            and self.have_distinct_heads
            and self.key.shape[2] == 1
            and in_order(self.rows)
            and in_order(self.slots)
            and bool((self.query_positions == self.rows).all())
            and bool((self.key_positions == self.slots).all())
        )

    @property
    def have_distinct_heads(self) -> bool:
        """Whether each head has outputs of its own in the queries' projection."""
        return len(torch.unique(self.heads)) == len(self.heads)

    def are_complete(self, roots: Sequence[Root]) -> bool:
        """Whether usual axes hold all positions, and all outputs of the projection of queries."""
        rows, slots, heads = self.rows, self.slots, self.heads
        if len(rows) < sum(root.length for root in roots):
            return False
        if len(rows) != len(slots) and bool(torch.isin(rows // ROOT_OFFSET, slots // ROOT_OFFSET).any()):
            return False
        query, key = self.origin.sides
        size = int(heads.diff().abs().min()) if len(heads) > 1 else 0
        spare = query.outputs - len(heads) * size  # the same layer may make keys and values
        keys = key.labels("channel") if spare else None  # [batch, head, 1, key]
        return spare == (0 if keys is None else 2 * size * len(torch.unique(keys[0, :, 0, 0])))


def read_places(capture: CapturedCall, origin: CallOrigin, key: Tensor) -> Places | None:
    """The places of a call; None if its queries have no labels, or labels have other axes than the call."""
    query = None if origin.query is None else origin.query.labels()
    channel = None if origin.query is None or query is None else origin.query.labels("channel")
    if query is None or channel is None or not is_constant(query, -1):
        return None
    key = key[..., :1, :] if is_constant(key, -2) else key
    query, channel = query[..., 0], channel[..., 0]
    if key.shape[1] != query.shape[1]:  # grouped heads share their keys
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    sizes = capture.batch, capture.heads, len(capture.queries), len(capture.keys)
    if (*query.shape, key.shape[-1]) != sizes or key.shape[:2] != sizes[:2] or 0 in sizes:
        return None
    exact = not bool((query % 1).any()) and not bool((key % 1).any())
    return Places(origin, query.floor(), channel, key.floor(), exact)


def locate_rows_and_keys(capture: CapturedCall, texts: Sequence[int], parts: bool) -> Piece | str | None:
    """A call with its places; or why it is none of tokens; or None: it cannot be followed to given texts."""
    origin = capture.origin
    key = None if origin is None or origin.key is None else origin.key.labels()
    if origin is None or key is None:
        return None
    if origin.query is None:
        return INSIDE if _are_streams(key) else None
    places = read_places(capture, origin, key)
    if places is None or places.lack_projection:
        return None
    if places.are_channels:
        return CHANNELS
    if origin.axes_known and not parts and not places.are_reordered:
        return None  # as the function says: its axes are texts, heads and positions
    if places.are_within_tokens:
        return INSIDE
    if places.share_one_key or places.repeat_keys:
        return None  # each key is made of all tokens (Linformer), or is a recurrent state
    return _place_in_texts(capture, places, texts)


def _place_in_texts(capture: CapturedCall, places: Places, texts: Sequence[int]) -> Piece | str | None:
    """A call over tokens with its places in the given texts, if each row is of one text."""
    roots = [root for root in places.roots if bool((places.query // ROOT_OFFSET == root.number).any())]
    if not roots or bool((places.texts[places.query_positions >= 0] < 0).any()):
        return None
    count = max(root.texts for root in roots)
    if texts and count not in (1, *texts) and places.have_distinct_heads:
        return None  # their root has more than texts in its first axis: heads, windows, frames
    if not is_constant(places.texts, -1):  # several texts in a row; of three axes, positions may come first
        return JOINED if any(len(root.shape) > 3 and root.length > 1 for root in roots) else None
    usual = places.are_usual(count)
    rows = places.texts, places.channel, places.query_positions, places.key_positions
    piece = Piece(capture, *rows, count, roots, usual, usual and places.are_complete(roots))
    return piece if usual or not has_duplicate_queries([piece]) else None


def _are_streams(key: Tensor) -> bool:
    """Whether keys of learned queries are streams of one token; layers, or streams, may begin apart."""
    places = key % ROOT_OFFSET  # [batch, head, 1, key]
    tokens_as_heads = places.shape[1] > 1 and not is_constant(places, 1)
    several = places.shape[-1] > 1 and tokens_as_heads and is_constant(places, -1)
    return several and bool((key > 0).all())


def has_duplicate_queries(pieces: Sequence[Piece]) -> bool:
    """Whether a head has two queries at one position of a text, other than by one softmax."""
    pieces = list({piece.capture.softmax or -at: piece for at, piece in enumerate(pieces)}.values())
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
        here, (first, second) = labels // ROOT_OFFSET == root.number, root.split(labels)
        text = torch.where(here, first, text)
        place = torch.where(here, second + root.number * ROOT_OFFSET, place)
    return text, place


def in_order(row: Tensor) -> bool:
    """Whether positions ascend, those of each root in one stretch."""
    steps = (row // ROOT_OFFSET).diff() == 0
    if bool((row < 0).any()) or int((~steps).sum()) + 1 != len(torch.unique(row // ROOT_OFFSET)):
        return len(row) == 1
    return bool((row.diff()[steps] > 0).all())


class SplitCalls(Tracker):
    """Holds calls of one attention (chunks, heads, windows) until no more can belong to it; joins them."""

    waiting: Sequence[Piece] = ()

    def begin(self) -> None:
        """Pass on what is held of the last pass."""
        self.flush()

    finish = begin

    def on_capture(self, capture: CapturedCall) -> bool:
        """Whether a call is part of one attention, or has unusual axes, and is held."""
        origin, texts = capture.origin, self.recorder.tracker(Lineage).texts
        if origin is None:
            self.flush()
            return False
        parts = bool(texts) and capture.batch > texts[0] and capture.batch not in texts
        piece: Piece | str | None = None
        if len(capture.queries) * capture.batch * capture.heads <= MOST:
            piece = locate_rows_and_keys(capture, texts, parts)
        else:
            self.recorder.record.note_change(LARGE)
        if not isinstance(piece, Piece):
            self.flush()
            return self._is_named(capture, origin, parts, piece)
        if origin.axes_known and piece.usual:
            self.flush()
            return False
        self.recorder.lineage_uses += origin.axes_known
        if texts and piece.texts not in (1, *texts):  # parts stood where heads do
            self.recorder.record.note_place(PARTS, capture.name, str(piece.texts))
        first = self.waiting[0] if self.waiting else piece
        alike = capture.name == first.capture.name and piece.state == first.state
        if piece.complete or not alike or has_duplicate_queries([*self.waiting, piece]):
            self.flush()
        self.waiting = [*self.waiting, piece]
        if piece.complete:
            self.flush()
        return True

    def _is_named(self, capture: CapturedCall, origin: CallOrigin, parts: bool, reason: str | None) -> bool:
        """Name a call that is not over tokens, or would have wrong axes; returns whether it was one."""
        if reason is None and origin.axes > 4 and heads_of(capture.modules[-1].module) != capture.heads:
            reason = AXES.format(origin.axes)
        if reason is not None:
            self.recorder.name(capture.name, reason)
        elif parts:
            self.recorder.lineage_uses += 1
            self.recorder.record.note_place(PARTS, capture.name, str(capture.batch))
        return reason is not None

    def leave(self, call: Call, output: object) -> None:
        """A module ends: what ran inside it is complete."""
        if self.waiting and is_within(self.waiting[0].capture.name, call.name):
            with quietly():
                self.flush()

    def flush(self) -> None:
        """Pass on what is held."""
        pieces, self.waiting = self.waiting, ()
        if not pieces:
            return
        capture, usual, record = pieces[0].capture, len(pieces) == 1 and pieces[0].usual, self.recorder.record
        rows, keys = _distinct([each.query for each in pieces]), _distinct([each.key for each in pieces])
        among = torch.isin(rows, keys)
        if usual:  # keys of some rows alone
            lost = bool(among.any()) and not bool(among.all()) and bool(torch.isin(keys, rows).all())
        else:
            lost = any(len(torch.unique(_distinct([each.key]) // ROOT_OFFSET)) > 1 for each in pieces)
        if lost:
            return record.name(capture.name, JOINED)
        capture = _number_rows(pieces[0]) if usual else _join(pieces, rows, keys)
        if not usual and any(map(_weighs_padding, pieces)):
            record.note_place(PADDED, capture.name)
        if capture.offset is None and 1 < len(capture.queries) < len(capture.keys) and bool(among.all()):
            record.note_place(SAMPLED, capture.name)
        self.recorder.emit(capture, self)
        return None


def _weighs_padding(piece: Piece) -> bool:
    """Whether a row leaves keys unmasked that have no position."""
    padding = (piece.key[:, :1] < 0) & (piece.query[:, :1] >= 0)[..., None]  # [batch, 1, query, key]
    read = piece.capture.read
    return bool(padding.any()) and bool((read.allowed(0, padding.shape[2])[:, :1] & padding).any())


def _number_rows(piece: Piece) -> CapturedCall:
    """A usual call: its rows numbered from the first of them, if they stand among the keys."""
    capture, rows, slots = piece.capture, piece.query[0, 0], piece.key[0, 0, 0]
    place = (slots == rows[0]).nonzero()
    if len(place) and torch.equal(slots[int(place[0]) :][: len(rows)], rows):
        return replace(capture, offset=int(place[0]), is_cross=False)
    same_root = bool(torch.isin(rows // ROOT_OFFSET, slots // ROOT_OFFSET).any())
    separate = len(rows) != len(slots) and not same_root
    return replace(capture, separate_axes=separate) if piece.complete else capture


def _join(pieces: Sequence[Piece], rows: Tensor, keys: Tensor) -> CapturedCall:
    """One attention from several calls: its texts, heads and positions in order."""
    first, root, texts = pieces[0].capture, pieces[0].roots[0], max(piece.texts for piece in pieces)
    heads = torch.unique(torch.cat([piece.head[piece.query >= 0] for piece in pieces]))
    separate = not bool(torch.isin(rows // ROOT_OFFSET, keys // ROOT_OFFSET).any())
    if not separate:
        keys = torch.unique(torch.cat([rows, keys]))
    start, last = (int(torch.searchsorted(keys, rows[at])) for at in (0, -1))
    offset, queries = 0, len(rows)
    separate = separate or last - start + 1 > queries  # from a few positions: separate rows
    if not separate:
        rows, offset, queries = keys, start, last - start + 1
    parts = []
    for piece in pieces:
        row, key = _index(piece.query, rows, offset), _index(piece.key, keys, 0)
        head = torch.searchsorted(heads, piece.head.contiguous()).clamp(max=len(heads) - 1)
        parts.append(Part(piece.capture.read, piece.text.long(), head, row, key))
    return replace(
        first,
        batch=texts,
        heads=len(heads),
        key_heads=max(1, len(heads) * first.key_heads // first.heads),
        queries=range(queries),
        keys=range(len(keys)),
        read=PlacedRows(tuple(parts), texts, len(heads), len(keys)),
        is_cross=None if separate else False,
        sections=beside_learned(root, len(keys)) if root.before or root.behind else first.sections,
        separate_axes=separate,
        offset=None if separate else offset,
        statistics=None,
        values=None,
        difference=join_differences([piece.capture.difference for piece in pieces], first.dtype),
    )


def _distinct(labels: Sequence[Tensor]) -> Tensor:
    """All positions among some labels, in order."""
    return cast(Tensor, torch.unique(torch.cat([each[each >= 0] for each in labels])))


def _index(places: Tensor, axis: Tensor, offset: int) -> Tensor:
    """The index of places on an axis, counted from ``offset``; -1: no position."""
    return torch.where(places < 0, -1, torch.searchsorted(axis, places.contiguous()) - offset)
