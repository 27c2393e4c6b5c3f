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
from torch import Tensor

from attnscope.capture.hooks.modules import Call
from attnscope.capture.lineage.layout import Layout, Sides, survey
from attnscope.capture.lineage.placed import Part, PlacedRows
from attnscope.capture.lineage.roots import STRETCH
from attnscope.capture.record import LayerWithoutAttention, Record
from attnscope.capture.rows.capture import Capture
from attnscope.capture.rows.single_heads import SingleHeads

CHANNELS = "it attends from channel to channel, not from token to token"
MOST = 2**24
"""Rows and slots up to which a call's places are looked at."""


@dataclass(frozen=True, eq=False)
class Piece:
    """One call of the attention that is being put together."""

    capture: Capture
    name: str
    calls: tuple[Call, ...]
    layout: Layout
    state: int
    softmax: int  # the number of the softmax that its weights come from; 0 of a kernel

    @property
    def asked(self) -> Tensor:
        """Which head asks from where, in which text.  -> [row, 3]"""
        layout = self.layout
        return torch.stack([layout.text, layout.head, layout.query], -1)[layout.query >= 0]


@dataclass(eq=False)
class Pieces:
    """Holds the calls of one attention, and emits it: as it was captured, or as one that was put together.

    ``record`` notes the calls that attend between other things than tokens.
    """

    emit: Callable[[Capture, str, Sequence[Call] | None], None]
    record: Record
    held: list[Piece] = field(default_factory=list)
    _passing: set[Hashable] = field(default_factory=set)

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
        if sides is not None and capture.queries * capture.batch * capture.heads <= MOST:
            known = sides.signature
            known = None if known is None else (known, capture.batch, capture.heads)
            if known is not None and known in self._passing:
                self.flush()
                return False
            layout = _survey(sides, capture)
            if layout is not None and layout.usual and layout.complete:
                self._passing.add(known)
                layout = None
        if sides is None or layout is None:
            self.flush()
            return False
        if layout.channels:
            self.flush()
            self.record.note(LayerWithoutAttention.at(name, CHANNELS))
            return True
        piece = Piece(capture, name, tuple(calls), layout, sides.state, softmax)
        if self.held and not self._belongs(piece):
            self.flush()
        if not self._repeats(piece):
            self.held.append(piece)
        return True

    def enter(self, call: Call) -> None:
        """A module starts: lists of single heads that it does not stand in are over."""
        if self._singles.held:
            self._singles.enter(call)

    def leave(self, call: Call) -> None:
        """A module ends: what ran inside of it is complete."""
        if self.held:
            first, inside = self.held[0], f"{call.name}." if call.name else ""
            whole = len(self.held) == 1 and first.layout.usual and first.layout.whole
            if first.name.startswith(inside) or (first.name == call.name and whole):
                self.flush()
        if self._singles.held:
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
            self._release(_at_its_rows(first), first.name, first.calls)
        else:
            self._release(join(pieces), first.name, first.calls)

    def _belongs(self, piece: Piece) -> bool:
        """Whether a call is of the attention that is held: the same states, and rows not asked yet."""
        first = self.held[0]
        if (piece.name, piece.state) != (first.name, first.state):
            return False
        if piece.softmax and piece.softmax == self.held[-1].softmax:
            return True
        return not ask_again(piece.layout, [other.layout for other in self.held])

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
    return layout if layout.channels or layout.usual or not ask_again(layout, []) else None


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


def join(pieces: Sequence[Piece]) -> Capture:
    """One attention of several calls: its texts, heads and positions in order."""
    first, layouts = pieces[0].capture, [piece.layout for piece in pieces]
    asked = torch.unique(torch.cat([layout.query.flatten() for layout in layouts]))
    keys = torch.unique(torch.cat([layout.key.flatten() for layout in layouts]))
    asked, keys = asked[asked >= 0], keys[keys >= 0]
    crossed = not bool(torch.isin(asked // STRETCH, keys // STRETCH).any())
    if not crossed:
        keys = torch.unique(torch.cat([asked, keys]))
    rows = asked if crossed else keys
    heads, count = _number_heads(layouts)
    offset = 0 if crossed else int(torch.searchsorted(keys, asked[:1]))
    last = len(asked) if crossed else int(torch.searchsorted(keys, asked[-1:])) + 1
    parts = []
    for piece, layout, head in zip(pieces, layouts, heads, strict=True):
        row, key = _index(layout.query, rows, offset), _index(layout.key, keys, 0)
        parts.append(Part(piece.capture.read, layout.text.long(), head, row, key))
    texts = max(layout.texts for layout in layouts)
    gaps = [piece.capture.difference for piece in pieces if piece.capture.difference is not None]
    return replace(
        first,
        batch=texts,
        heads=count,
        key_heads=max(1, count * first.key_heads // first.heads),
        queries=last - offset,
        keys=len(keys),
        read=PlacedRows(tuple(parts), texts, count, len(keys)),
        crossed=crossed,
        offset=None if crossed else offset,
        statistics=None,
        difference=max(gaps) if gaps else None,
    )


def _at_its_rows(piece: Piece) -> Capture:
    """A lone call that asks from some positions only, its rows counted from the first of them."""
    layout, capture = piece.layout, piece.capture
    rows, keys = layout.query[0, 0], layout.key[0, 0, 0]
    place = (keys == rows[0]).nonzero()
    if len(place) == 0 or not torch.equal(keys[int(place[0]) :][: len(rows)], rows):
        return capture
    return replace(capture, offset=int(place[0]))


def _index(places: Tensor, axis: Tensor, offset: int) -> Tensor:
    """Where places stand on an axis, counted from ``offset``; -1: nowhere."""
    return torch.where(places < 0, -1, torch.searchsorted(axis, places.contiguous()) - offset)


def _number_heads(layouts: Sequence[Layout]) -> tuple[list[Tensor], int]:
    """The number of each row's head, and how many heads there are.

    Projections that ask from the same positions have heads of their own; those of two streams share theirs.
    """
    head = torch.cat([layout.head.flatten() for layout in layouts])
    place = torch.cat([layout.query.flatten() for layout in layouts])
    head, place = head[place >= 0], place[place >= 0]
    projection = head // STRETCH
    places = [torch.unique(place[projection == one]) for one in torch.unique(projection)]
    shared = len(torch.unique(torch.cat(places))) < sum(len(each) for each in places)
    codes = [layout.head if shared else layout.head % STRETCH for layout in layouts]
    names = torch.unique(head if shared else head % STRETCH)
    numbers = [torch.searchsorted(names, code.contiguous()).clamp(max=len(names) - 1) for code in codes]
    return numbers, len(names)
