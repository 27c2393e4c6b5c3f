"""Attention that a module computes in several calls, or in unusual axes, joined into one.

Queries in chunks, loops over heads or texts, windows and axes that shapes do not explain: the origin of
each call's queries and keys is known (``layout.py``). One call that holds all heads of all texts, position
by position, passes unchanged. Others are held until nothing more can belong to them: another module
attends, the module around them ends, or queries repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from attnscope.capture.hooks.functions import quietly
from attnscope.capture.hooks.modules import Call
from attnscope.capture.lineage.layout import Piece, ask_again, survey
from attnscope.capture.lineage.nodes import STRETCH, UNMOVABLE, QueryKeyOrigin
from attnscope.capture.placing.kinds import heads_of
from attnscope.capture.rows.capture import Capture
from attnscope.capture.rows.scores import Part, PlacedRows, join_differences
from attnscope.capture.tracker import Taken, Tracker

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
BY_KEYS = (
    "softmaxes over one part of the keys after another, by the same queries: a map is of one part, and "
    "nothing tells how the parts are weighed against each other: {names}"
)
SAMPLED = "only some positions ask, so rows are numbered by themselves, and stand at {details}: {names}"
MOST_NAMED = 12
MOST = 2**24  # most rows and slots of a call whose layout is computed
LARGE = (
    f"attention from more than {MOST:,} rows at once is not followed to where its queries and keys come "
    "from: its maps have the axes that torch's function was given"
)


class SplitCalls(Tracker):
    """Holds the calls of one attention, and passes it on, unchanged or joined.

    Calls between things other than tokens are named instead.
    """

    held: Sequence[Piece] = ()

    def begin(self) -> None:
        """Pass on what is held of the last pass."""
        self.flush()

    finish = begin

    def take(self, taken: Taken) -> bool:
        """Whether a call is part of one attention, or has unusual axes, and is held."""
        piece = None if taken.origin is None else self._survey(taken)
        if not isinstance(piece, Piece):
            self.flush()
            return taken.origin is not None and self._is_named(taken, taken.origin, piece)
        complete = piece.complete
        if self.held and (complete or not self._belongs(piece)):
            self.flush()
        self.held = [*self.held, piece]
        if complete:
            self.flush()
        return True

    def _survey(self, taken: Taken) -> Piece | str | None:
        capture = taken.capture
        if len(capture.queries) * capture.batch * capture.heads > MOST:
            self.recorder.record.note_change(LARGE)
            return None
        with suppress(*UNMOVABLE):
            return survey(taken)
        return None

    def _is_named(self, taken: Taken, origin: QueryKeyOrigin, reason: str | None) -> bool:
        """Name a call that is not over tokens, or would have wrong axes; returns whether it was one."""
        batch, call = taken.capture.batch, taken.calls[-1] if taken.calls else None
        if origin.axes > 4 and (call is None or heads_of(call.module) != taken.capture.heads):
            reason = reason or AXES.format(origin.axes)
        if reason is not None:
            self.recorder.record.name(taken.name, reason)
        elif origin.texts and batch > origin.texts[0] and batch not in origin.texts:
            self.recorder.record.note_place(PARTS, taken.name, str(batch))
        return reason is not None

    def leave(self, call: Call, output: object) -> None:
        """A module ends: what ran inside it is complete."""
        if self.held:
            first, inside = self.held[0], f"{call.name}." if call.name else ""
            whole = len(self.held) == 1 and first.whole
            if first.taken.name.startswith(inside) or (first.taken.name == call.name and whole):
                with quietly():
                    self.flush()

    def _belongs(self, piece: Piece) -> bool:
        """Whether a call belongs to the held attention: the same states, and new rows."""
        first = self.held[0]
        if (piece.taken.name, piece.state) != (first.taken.name, first.state):
            return False
        if not ask_again([*self.held, piece]):
            return True
        among = torch.equal(piece.query, first.query) and bool(torch.isin(piece.key, piece.query).all())
        if among and not bool(torch.isin(piece.key, first.key).any()):
            self.recorder.record.note_place(BY_KEYS, piece.taken.name)
        return False

    def flush(self) -> None:
        """Pass on what is held."""
        if not self.held:
            return
        pieces, self.held = self.held, ()
        piece, taken, record = pieces[0], pieces[0].taken, self.recorder.record
        asked, keys = _distinct([each.query for each in pieces]), _distinct([each.key for each in pieces])
        rows, slots = piece.lane
        some = torch.isin(rows, slots)
        missing = bool(some.any()) and not bool(some.all()) and bool(torch.isin(slots, rows).all())
        if len(pieces) == 1 and piece.usual and not missing:
            capture = _number_rows(piece)
        elif any(len(torch.unique(_distinct([each.key]) // STRETCH)) > 1 for each in pieces):
            return record.name(taken.name, JOINED)
        else:
            if any(each.weighs_padding for each in pieces):
                record.note_place(PADDED, taken.name)
            capture = _join(pieces, asked, keys)
        short = capture.offset is None and 1 < len(capture.queries) < len(capture.keys)
        if short and bool(torch.isin(asked, keys).all()):
            places = [str(int(place)) for place in (asked % STRETCH)[: MOST_NAMED + 1]]
            places[MOST_NAMED:] = ["..."] * (len(places) > MOST_NAMED)
            record.note_place(SAMPLED, taken.name, ", ".join(places))
        self.recorder.pass_on(replace(taken, capture=capture), self)
        return None


def _number_rows(piece: Piece) -> Capture:
    """A usual call: its rows numbered from the first of them, if they stand among the keys."""
    capture, (rows, slots) = piece.taken.capture, piece.lane
    if piece.complete:
        apart = not bool(torch.isin(rows // STRETCH, slots // STRETCH).any())
        capture = replace(capture, apart=apart and len(rows) != len(slots))
    place = (slots == rows[0]).nonzero()
    if len(place) == 0 or not torch.equal(slots[int(place[0]) :][: len(rows)], rows):
        return capture
    return replace(capture, offset=int(place[0]), crossed=False)


def _join(pieces: Sequence[Piece], asked: Tensor, keys: Tensor) -> Capture:
    """One attention from several calls: its texts, heads and positions in order."""
    first, texts = pieces[0].taken.capture, max(piece.texts for piece in pieces)
    heads = torch.unique(torch.cat([piece.head[piece.query >= 0] for piece in pieces]))
    crossed = not bool(torch.isin(asked // STRETCH, keys // STRETCH).any())
    if not crossed:
        keys = torch.unique(torch.cat([asked, keys]))
    start, last = (int(torch.searchsorted(keys, asked[at])) for at in (0, -1))
    lanes = sum(int((piece.query >= 0).sum()) for piece in pieces)
    sparse = last - start + 1 > len(asked) and lanes >= texts * len(heads) * len(asked)
    apart = crossed or sparse  # every head queries from the same few positions: separate rows
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
    places: Tensor = torch.unique(torch.cat([each[each >= 0] for each in labels]))
    return places


def _index(places: Tensor, axis: Tensor, offset: int) -> Tensor:
    """The index of places on an axis, counted from ``offset``; -1: no position."""
    return torch.where(places < 0, -1, torch.searchsorted(axis, places.contiguous()) - offset)
