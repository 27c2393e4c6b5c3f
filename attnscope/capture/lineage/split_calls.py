"""Attention that a module computes in several calls, or in unusual axes, joined into one.

Queries in chunks, loops over heads or texts, windows, blocks and axes that shapes do not explain: the
origin of each call's queries and keys is known (``layout.py``). One call that holds all heads of all
texts, position by position, passes unchanged. Others are held until nothing more can belong to them:
another module attends, the module around them ends, or queries repeat.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnscope.capture.hooks.modules import Call
from attnscope.capture.lineage.layout import (
    UNMOVABLE,
    Layout,
    looks_inside,
    survey,
)
from attnscope.capture.lineage.nodes import STRETCH, QueryKeyOrigin
from attnscope.capture.observer import quietly
from attnscope.capture.placing.kinds import heads_of
from attnscope.capture.rows.capture import Capture
from attnscope.capture.rows.placed import Part, PlacedRows
from attnscope.capture.rows.proof import join_differences
from attnscope.capture.tracker import Pass, Taken, Tracker

AXES = "it attends over {} axes, and nothing tells which one holds the heads"
PARTS = (
    "attention in {details} parts, more than there are texts (windows, frames or heads), and nothing tells "
    "where they lie, so a map is of one part, with the positions of that part: {names}"
)
PADDED = (
    "windows that are padded: what a row weighs on padding stands at no token and is not shown, so rows "
    "there sum to less than 1: {names}"
)
BY_KEYS = (
    "softmaxes over one part of the keys after another, by the same queries: a map is of one part, and "
    "nothing tells how the parts are weighed against each other: {names}"
)
CHANNELS = "it attends from channel to channel, not from token to token"
INSIDE = "it attends within one token (streams, heads, experts), not from token to token"
JOINED = (
    "it attends over several sequences in a row, in windows or parts, and nothing tells where each part "
    "stands: its weights are not shown"
)
SAMPLED = "only some positions ask, so rows are numbered by themselves, and stand at {details}: {names}"
MOST_NAMED = 12
MOST = 2**24
"""Most rows and slots of a call whose layout is computed."""
LARGE = (
    f"attention from more than {MOST:,} rows at once is not followed to where its queries and keys come "
    "from: its maps have the axes that torch's function was given"
)


@dataclass(frozen=True, eq=False)
class Piece:
    """One call of the attention that is being joined."""

    taken: Taken
    layout: Layout
    state: int

    @property
    def asked(self) -> Tensor:
        """Which head queries from which position of which text.  -> [row, 3]"""
        layout = self.layout
        return torch.stack([layout.text, layout.head, layout.query], -1)[layout.query >= 0]

    @property
    def weighs_padding(self) -> bool:
        """Whether a row leaves keys open that have no position."""
        layout, capture = self.layout, self.taken.capture
        padding = (layout.key[:, :1] < 0) & (layout.query[:, :1] >= 0)[..., None]  # [batch, 1, query, key]
        if not bool(padding.any()):
            return False
        return bool((capture.read.allowed(0, len(capture.queries))[:, :1] & padding).any())

    def repeats(self, other: Piece) -> bool:
        """Whether the same weights of one softmax weigh other values."""
        if not self.taken.softmax or self.taken.softmax != other.taken.softmax:
            return False
        return torch.equal(self.layout.key, other.layout.key) and torch.equal(self.asked, other.asked)


class SplitCalls(Tracker):
    """Holds the calls of one attention, and passes it on, unchanged or joined.

    Calls between things other than tokens are named instead.
    """

    def __init__(self, recorder: Pass) -> None:
        super().__init__(recorder)
        self.held: list[Piece] = []
        self._usual: dict[Hashable, tuple[bool, bool]] = {}  # by the signature of the layout

    def begin(self) -> None:
        """Pass on what is held of the last pass."""
        self.flush()

    def take(self, taken: Taken) -> bool:
        """Whether a call is part of one attention, or has unusual axes, and is held."""
        origin, capture = taken.origin, taken.capture
        if origin is None:
            self.flush()
            return False
        signature = origin.signature
        known = None if signature is None else (signature, capture.batch, capture.heads)
        if known is not None and known in self._usual:
            return self._pass(taken, *self._usual[known])
        layout = None
        if len(capture.queries) * capture.batch * capture.heads <= MOST:
            layout = _survey(origin, capture)
        else:
            self.recorder.record.note_change(LARGE)
        if layout is None:
            self.flush()
            return self._is_named(taken, origin)
        if layout.usual and layout.complete:
            self._usual[known] = layout.apart and capture.queries != capture.keys, layout.of_itself
            return self._pass(taken, *self._usual[known])
        if layout.channels or layout.inside:
            self.flush()
            return self._name(taken, CHANNELS if layout.channels else INSIDE)
        piece = Piece(taken, layout, origin.state)
        if self.held and not self._belongs(piece):
            self._note_parts(piece)
            self.flush()
        if not any(map(piece.repeats, self.held)):
            self.held.append(piece)
        return True

    def _pass(self, taken: Taken, apart: bool, of_itself: bool) -> bool:
        """Pass a usual call on."""
        self.flush()
        capture = taken.capture
        crossed = False if of_itself else capture.crossed
        self.recorder.pass_on(replace(taken, capture=replace(capture, apart=apart, crossed=crossed)), self)
        return True

    def _is_named(self, taken: Taken, origin: QueryKeyOrigin) -> bool:
        """Name a call that cannot be followed and would have wrong axes; returns whether it was one."""
        capture, (*_, call) = taken.capture, (None, *taken.calls)
        if looks_inside(origin):
            return self._name(taken, INSIDE)
        if origin.axes > 4 and (call is None or heads_of(call.module) != capture.heads):
            return self._name(taken, AXES.format(origin.axes))
        texts = origin.texts
        if texts and capture.batch > texts[0] and capture.batch not in texts:
            self.recorder.record.note_place(PARTS, taken.name, str(capture.batch))
        return False

    def _name(self, taken: Taken, reason: str) -> bool:
        self.recorder.record.name(taken.name, reason)
        return True

    def leave(self, call: Call, output: object) -> None:
        """A module ends: what ran inside it is complete."""
        if self.held:
            first, inside = self.held[0], f"{call.name}." if call.name else ""
            whole = len(self.held) == 1 and first.layout.usual and first.layout.whole
            if first.taken.name.startswith(inside) or (first.taken.name == call.name and whole):
                with quietly():
                    self.flush()

    def finish(self) -> None:
        """Pass on all that is held."""
        self.flush()

    def flush(self) -> None:
        """Pass on what is held."""
        if not self.held:
            return
        pieces, self.held = self.held, []
        first = pieces[0].taken
        if len(pieces) > 1 or not pieces[0].layout.usual or _misses_keys(pieces[0].layout):
            if any(piece.layout.sequences > 1 for piece in pieces):
                self._name(first, JOINED)
                return
            if any(piece.weighs_padding for piece in pieces):
                self.recorder.record.note_place(PADDED, first.name)
            capture = join(pieces)
        else:
            capture = at_its_rows(pieces[0])
        self._note_sampled(first.name, capture, [piece.layout for piece in pieces])
        self.recorder.pass_on(replace(first, capture=capture), self)

    def _note_sampled(self, name: str, capture: Capture, layouts: Sequence[Layout]) -> None:
        """Note rows that are numbered separately although their queries are among the keys."""
        asked, keys = (
            torch.unique(torch.cat([labels[labels >= 0] for labels in every]))
            for every in ([layout.query for layout in layouts], [layout.key for layout in layouts])
        )
        if (
            capture.offset is None
            and 1 < len(capture.queries) < len(capture.keys)
            and bool(torch.isin(asked, keys).all())
        ):
            places = [str(int(place)) for place in (asked % STRETCH)[: MOST_NAMED + 1]]
            places[MOST_NAMED:] = ["..."] * (len(places) > MOST_NAMED)
            self.recorder.record.note_place(SAMPLED, name, ", ".join(places))

    def _belongs(self, piece: Piece) -> bool:
        """Whether a call belongs to the held attention: the same states, and new rows."""
        if not self._is_alike(piece):
            return False
        if piece.taken.softmax and piece.taken.softmax == self.held[-1].taken.softmax:
            return True
        return not ask_again(piece.layout, [other.layout for other in self.held])

    def _is_alike(self, piece: Piece) -> bool:
        """Whether a call is of the held module and has the same query states."""
        first = self.held[0]
        return (piece.taken.name, piece.state) == (first.taken.name, first.state)

    def _note_parts(self, piece: Piece) -> None:
        """Note that the held queries attend again, to other keys: each map is a part."""
        mine, theirs = piece.layout, self.held[0].layout
        if len(self.held) == 1 and self._is_alike(piece) and torch.equal(mine.query, theirs.query):
            among = bool(torch.isin(mine.key, mine.query).all())
            if among and not bool(torch.isin(mine.key, theirs.key).any()):
                self.recorder.record.note_place(BY_KEYS, piece.taken.name)


def _survey(origin: QueryKeyOrigin, capture: Capture) -> Layout | None:
    """The layout, if it describes the captured call."""
    try:
        layout = survey(origin)
    except UNMOVABLE:
        return None
    shape = capture.batch, capture.heads, len(capture.queries)
    if layout is None or layout.query.shape != shape or layout.key.shape[-1] != len(capture.keys):
        return None
    return layout if layout.channels or layout.inside or layout.usual or not ask_again(layout, []) else None


def ask_again(layout: Layout, others: Sequence[Layout]) -> bool:
    """Whether a head has two queries at one position of a text, in this call or in others."""
    parts = [layout, *others]
    heads, places = (
        torch.unique(torch.cat([of.flatten() for of in every]))
        for every in ([part.head for part in parts], [part.query for part in parts])
    )
    rows = []
    for part in parts:
        lane = part.text * len(heads) + torch.searchsorted(heads, part.head.contiguous())
        row = lane * len(places) + torch.searchsorted(places, part.query.contiguous())
        rows.append(row[part.query >= 0])
    mine = torch.unique(rows[0])
    return len(mine) < len(rows[0]) or any(bool(torch.isin(mine, row).any()) for row in rows[1:])


def join(pieces: Sequence[Piece]) -> Capture:
    """One attention from several calls: its texts, heads and positions in order."""
    first, layouts = pieces[0].taken.capture, [piece.layout for piece in pieces]
    asked, keys, names = (
        torch.unique(torch.cat(every))
        for every in (
            [layout.query[layout.query >= 0] for layout in layouts],
            [layout.key[layout.key >= 0] for layout in layouts],
            [layout.head[layout.query >= 0] for layout in layouts],
        )
    )
    crossed = not bool(torch.isin(asked // STRETCH, keys // STRETCH).any())
    if not crossed:
        keys = torch.unique(torch.cat([asked, keys]))
    count, texts = len(names), max(layout.texts for layout in layouts)
    start, last = (int(torch.searchsorted(keys, asked[at])) for at in (0, -1))
    lanes = sum(int((layout.query >= 0).sum()) for layout in layouts)
    sparse = last - start + 1 > len(asked) and lanes >= texts * count * len(asked)
    apart = crossed or sparse  # every head queries from the same few positions: separate rows
    rows, offset, queries = (asked, 0, len(asked)) if apart else (keys, start, last - start + 1)
    parts = []
    for piece, layout in zip(pieces, layouts, strict=True):
        row, key = _index(layout.query, rows, offset), _index(layout.key, keys, 0)
        head = torch.searchsorted(names, layout.head.contiguous()).clamp(max=count - 1)
        parts.append(Part(piece.taken.capture.read, layout.text.long(), head, row, key))
    return replace(
        first,
        batch=texts,
        heads=count,
        key_heads=max(1, count * first.key_heads // first.heads),
        queries=range(queries),
        keys=range(len(keys)),
        read=PlacedRows(tuple(parts), texts, count, len(keys)),
        crossed=None if apart else False,
        apart=apart,
        offset=None if apart else offset,
        statistics=None,
        values=None,
        difference=join_differences([piece.taken.capture.difference for piece in pieces], first.dtype),
    )


def _misses_keys(layout: Layout) -> bool:
    """Whether only some of the querying positions are keys: keys are then put at their places."""
    rows, keys = layout.query[0, 0], layout.key[0, 0, 0]
    answer = torch.isin(rows, keys)
    return bool(answer.any()) and not bool(answer.all()) and bool(torch.isin(keys, rows).all())


def at_its_rows(piece: Piece) -> Capture:
    """A single call with queries at some positions only, its rows numbered from the first of them."""
    rows, keys = piece.layout.query[0, 0], piece.layout.key[0, 0, 0]
    place = (keys == rows[0]).nonzero()
    if len(place) == 0 or not torch.equal(keys[int(place[0]) :][: len(rows)], rows):
        return piece.taken.capture
    return replace(piece.taken.capture, offset=int(place[0]), crossed=False)


def _index(places: Tensor, axis: Tensor, offset: int) -> Tensor:
    """The index of places on an axis, counted from ``offset``; -1: no position."""
    return torch.where(places < 0, -1, torch.searchsorted(axis, places.contiguous()) - offset)
