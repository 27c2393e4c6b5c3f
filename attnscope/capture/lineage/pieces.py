"""Attention that a module computes in several calls, or in axes of its own, put together as one.

Queries in chunks, loops over heads or texts, windows, blocks and axes that no reader of shapes can tell: of
each call it is known where its queries and keys come from (``layout.py``). One call that holds all heads of
all texts, position by position, passes as it is. Others are held until it is clear that nothing more belongs
to them: another module attends, the module around them ends, or queries come that have been asked already.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

import torch

from attnscope.capture.hooks.modules import Call
from attnscope.capture.lineage.joined import Piece, at_its_rows, join
from attnscope.capture.lineage.layout import Layout, Sides, looks_inside, survey
from attnscope.capture.observer import quietly
from attnscope.capture.placing.kinds import heads_of
from attnscope.capture.record import LayerWithoutAttention, Record
from attnscope.capture.rows.capture import Capture
from attnscope.capture.rows.single_heads import SingleHeads

AXES = "it attends in {} axes, and nothing tells which of them are its heads"
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
INSIDE = "it attends among what stands at one token (streams, heads, experts), not from token to token"
MOST = 2**24
"""Rows and slots up to which a call's places are looked at."""
LARGE = (
    f"attention from more than {MOST:,} rows at once is not followed to where its queries and keys come "
    "from: its maps have the axes that torch's function was given"
)


@dataclass(eq=False)
class Pieces:
    """Holds the calls of one attention, and emits it: as it was captured, or as one that was put together.

    ``record`` notes the calls that attend between other things than tokens.
    """

    emit: Callable[[Capture, str, Sequence[Call] | None], None]
    record: Record
    held: list[Piece] = field(default_factory=list)
    _passing: dict[Hashable, tuple[bool, bool]] = field(default_factory=dict)  # of usual layouts
    _over_channels: set[type | None] = field(default_factory=set)  # modules whose queries are channels

    def __post_init__(self) -> None:
        self._singles = SingleHeads(lambda capture, name: self.emit(capture, name, None))

    def take(
        self, capture: Capture, name: str, calls: Sequence[Call], sides: Sides | None, softmax: int
    ) -> None:
        """Take a call, and emit it at once unless it may be a part of something."""
        if not self._holds(capture, name, calls, sides, softmax):
            self._release(capture, name, calls)

    def _release(self, capture: Capture, name: str, calls: Sequence[Call]) -> None:
        """Emit what is whole, or hold a single head until its siblings ran."""
        if capture.heads > 1 or not self._singles.hold(calls, name, capture):
            self.emit(capture, name, calls)

    def _holds(
        self, capture: Capture, name: str, calls: Sequence[Call], sides: Sides | None, softmax: int
    ) -> bool:
        """Take a call if it may be a part of one attention, or lies in axes of its own; say whether."""
        layout = None
        if sides is not None:
            known = sides.signature
            known = None if known is None else (known, capture.batch, capture.heads)
            if known is not None and known in self._passing:
                return self._pass(capture, name, calls, *self._passing[known])
            if capture.queries * capture.batch * capture.heads <= MOST:
                layout = _survey(sides, capture)
            else:
                self.record.note_change(LARGE)
            if layout is not None and layout.usual and layout.complete:
                self._passing[known] = layout.apart and capture.queries != capture.keys, layout.of_itself
                return self._pass(capture, name, calls, *self._passing[known])
        kind = type(calls[-1].module) if calls else None
        if sides is None and kind in self._over_channels:
            self.record.note(LayerWithoutAttention.at(name, CHANNELS))
            return True
        if sides is None or layout is None:
            self.flush()
            if sides is not None and looks_inside(sides):
                self.record.note(LayerWithoutAttention.at(name, INSIDE))
                return True
            if sides is not None and sides.axes > 4 and not known_heads(capture, calls):
                self.record.note(LayerWithoutAttention.at(name, AXES.format(sides.axes)))
                return True
            texts = () if sides is None or sides.known else sides.texts
            if texts and capture.batch > texts[0] and capture.batch not in texts:
                self.record.note_place(PARTS, name, str(capture.batch))
            return False
        if layout.channels or layout.inside:
            self.flush()
            if layout.channels and sides.known:
                self._over_channels.add(kind)
            self.record.note(LayerWithoutAttention.at(name, CHANNELS if layout.channels else INSIDE))
            return True
        piece = Piece(capture, name, tuple(calls), layout, sides.state, softmax)
        if self.held and not self._belongs(piece):
            self._note_parts(piece)
            self.flush()
        if not self._repeats(piece):
            self.held.append(piece)
        return True

    def _pass(self, capture: Capture, name: str, calls: Sequence[Call], apart: bool, of_itself: bool) -> bool:
        """Release a call of the usual layout."""
        self.flush()
        crossed = False if of_itself else capture.crossed
        self._release(replace(capture, apart=apart, crossed=crossed), name, calls)
        return True

    def enter(self, call: Call) -> None:
        """A module starts: lists of single heads that it does not stand in are over."""
        if self._singles.held:
            with quietly():
                self._singles.enter(call)

    def leave(self, call: Call) -> None:
        """A module ends: what ran inside of it is complete."""
        if self.held:
            first, inside = self.held[0], f"{call.name}." if call.name else ""
            whole = len(self.held) == 1 and first.layout.usual and first.layout.whole
            if first.name.startswith(inside) or (first.name == call.name and whole):
                with quietly():
                    self.flush()
        if self._singles.held:
            with quietly():
                self._singles.leave(call)

    def finish(self) -> None:
        """Release all that is held."""
        self.flush()
        self._singles.flush()

    def flush(self) -> None:
        """Release what is held."""
        if not self.held:
            return
        pieces, self.held = self.held, []
        first = pieces[0]
        if len(pieces) == 1 and first.layout.usual:
            self._release(at_its_rows(first), first.name, first.calls)
        else:
            if any(piece.weighs_padding for piece in pieces):
                self.record.note_place(PADDED, first.name)
            self._release(join(pieces), first.name, first.calls)

    def _belongs(self, piece: Piece) -> bool:
        """Whether a call is of the attention that is held: the same states, and rows not asked yet."""
        first = self.held[0]
        if (piece.name, piece.state) != (first.name, first.state):
            return False
        if piece.softmax and piece.softmax == self.held[-1].softmax:
            return True
        return not ask_again(piece.layout, [other.layout for other in self.held])

    def _note_parts(self, piece: Piece) -> None:
        """Say so if the queries that are held ask again, of other keys among them: a map is of a part."""
        first = self.held[0]
        alike = (piece.name, piece.state) == (first.name, first.state) and len(self.held) == 1
        if alike and torch.equal(piece.layout.query, first.layout.query):
            mine, theirs = piece.layout.key, first.layout.key
            if bool(torch.isin(mine, piece.layout.query).all()) and not bool(torch.isin(mine, theirs).any()):
                self.record.note_place(BY_KEYS, piece.name)

    def _repeats(self, piece: Piece) -> bool:
        """Whether the very same weights of one softmax weigh other values."""
        if not piece.softmax:
            return False
        return any(
            piece.softmax == other.softmax
            and torch.equal(piece.layout.key, other.layout.key)
            and torch.equal(piece.asked, other.asked)
            for other in self.held
        )


def _survey(sides: Sides, capture: Capture) -> Layout | None:
    """The layout, if it is one of the call that was captured."""
    try:
        layout = survey(sides)
    except (RuntimeError, TypeError, IndexError, ValueError):
        return None  # a function that moves numbers, and cannot move labels
    shape = capture.batch, capture.heads, capture.queries
    if layout is None or layout.query.shape != shape or layout.key.shape[-1] != capture.keys:
        return None
    return layout if layout.channels or layout.inside or layout.usual or not ask_again(layout, []) else None


def ask_again(layout: Layout, others: Sequence[Layout]) -> bool:
    """Whether a head asks twice from one position of a text, in this call or in others."""
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


def known_heads(capture: Capture, calls: Sequence[Call]) -> bool:
    """Whether the module that attends says itself that it has so many heads."""
    return bool(calls) and heads_of(calls[-1].module) == capture.heads
