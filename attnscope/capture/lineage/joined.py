"""Several calls of one attention as one call, its rows read from theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnscope.attention import RowSource
from attnscope.capture.hooks.modules import Call
from attnscope.capture.lineage.layout import Layout
from attnscope.capture.lineage.nodes import STRETCH
from attnscope.capture.rows.capture import Capture
from attnscope.capture.rows.proof import join_differences


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

    @property
    def weighs_padding(self) -> bool:
        """Whether a row leaves keys open that are of no position."""
        layout = self.layout
        padding = (layout.key[:, :1] < 0) & (layout.query[:, :1] >= 0)[..., None]  # [batch, 1, query, key]
        if not bool(padding.any()):
            return False
        return bool((self.capture.read.allowed(0, self.capture.queries)[:, :1] & padding).any())


def join(pieces: Sequence[Piece]) -> Capture:
    """One attention of several calls: its texts, heads and positions in order."""
    first, layouts = pieces[0].capture, _in_sequence([piece.layout for piece in pieces])
    asked = torch.unique(torch.cat([layout.query.flatten() for layout in layouts]))
    keys = torch.unique(torch.cat([layout.key.flatten() for layout in layouts]))
    asked, keys = asked[asked >= 0], keys[keys >= 0]
    crossed = not bool(torch.isin(asked // STRETCH, keys // STRETCH).any())
    if not crossed:
        keys = torch.unique(torch.cat([asked, keys]))
    heads, count = _number_heads(layouts)
    texts = max(layout.texts for layout in layouts)
    start, last = (int(torch.searchsorted(keys, asked[at])) for at in (0, -1))
    lanes = sum(int((layout.query >= 0).sum()) for layout in layouts)
    sparse = last - start + 1 > len(asked) and lanes >= texts * count * len(asked)
    apart = crossed or sparse  # every head asks from the same few positions: rows of their own
    rows, offset, queries = (asked, 0, len(asked)) if apart else (keys, start, last - start + 1)
    parts = []
    for piece, layout, head in zip(pieces, layouts, heads, strict=True):
        row, key = _index(layout.query, rows, offset), _index(layout.key, keys, 0)
        parts.append(Part(piece.capture.read, layout.text.long(), head, row, key))
    return replace(
        first,
        batch=texts,
        heads=count,
        key_heads=max(1, count * first.key_heads // first.heads),
        queries=queries,
        keys=len(keys),
        read=PlacedRows(tuple(parts), texts, count, len(keys)),
        crossed=None if apart else False,
        apart=apart,
        offset=None if apart else offset,
        statistics=None,
        values=None,
        difference=join_differences([piece.capture.difference for piece in pieces], first.dtype),
    )


def at_its_rows(piece: Piece) -> Capture:
    """A lone call that asks from some positions only, its rows counted from the first of them.

    Where only some of those that ask answer, keys are put at their places.
    """
    layout, capture = piece.layout, piece.capture
    rows, keys = layout.query[0, 0], layout.key[0, 0, 0]
    answer = torch.isin(rows, keys)
    if bool(answer.any()) and not bool(answer.all()) and bool(torch.isin(keys, rows).all()):
        return join([piece])
    place = (keys == rows[0]).nonzero()
    if len(place) == 0 or not torch.equal(keys[int(place[0]) :][: len(rows)], rows):
        return capture
    return replace(capture, offset=int(place[0]), crossed=False)


def _in_sequence(layouts: Sequence[Layout]) -> list[Layout]:
    """The same layouts, their beginnings numbered in the order in which they stand among the keys."""
    numbers = torch.unique(torch.cat([(layout.key // STRETCH).flatten() for layout in layouts]))
    numbers = numbers[numbers >= 0]
    if len(numbers) < 2:
        return list(layouts)
    places = [
        torch.cat([(layout.key // STRETCH == number).nonzero()[:, -1] for layout in layouts]).min()
        for number in numbers
    ]
    order = torch.stack(places).argsort(stable=True)

    def moved(places: Tensor) -> Tensor:
        result = places.clone()
        for rank, number in enumerate(numbers[order]):
            result = torch.where(places // STRETCH == number, places + (rank - number) * STRETCH, result)
        return result

    return [replace(layout, query=moved(layout.query), key=moved(layout.key)) for layout in layouts]


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


@dataclass(frozen=True, eq=False)
class Part:
    """One call, and where its rows and slots belong; -1: nowhere."""

    read: RowSource
    text: Tensor  # [batch, head, query]
    head: Tensor  # [batch, head, query]
    row: Tensor  # [batch, head, query]
    key: Tensor  # [batch, head, query or 1, slot]

    def is_alike(self, heads: int) -> bool:
        """Whether all heads have the same rows, slots and masks."""
        if self.head.shape[1] != heads or self.read.allowed(0, 1).shape[1] > 1:
            return False
        alike = all(bool((of == of[:, :1]).all()) for of in (self.text, self.row, self.key))
        return alike and bool((self.head == self.head[:1, :, :1]).all())


@dataclass(frozen=True, eq=False)
class PlacedRows:
    """Rows of several parts; where several say something of one row and key, it adds up."""

    parts: tuple[Part, ...]
    texts: int
    heads: int
    keys: int

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """Weights of the queries ``start`` to ``stop``.  -> [batch, head, row, key]"""
        chosen = range(self.heads) if heads is None else heads
        taken = sorted(set(chosen))
        rows = self._gathered(start, stop, taken, of_mask=False)
        return rows if list(chosen) == taken else rows[:, [taken.index(head) for head in chosen]]

    def allowed(self, start: int, stop: int) -> Tensor:
        """Keys that a part had and its mask left open, bool.  -> [batch, head or 1, row, key]"""
        alike = all(part.is_alike(self.heads) for part in self.parts)
        return self._gathered(start, stop, range(1 if alike else self.heads), of_mask=True) > 0

    def _gathered(self, start: int, stop: int, heads: Sequence[int], of_mask: bool) -> Tensor:
        """What the parts say of some rows and heads, at its keys.  -> [batch, head, row, key]"""
        device = self.parts[0].row.device
        number = torch.full((self.heads,), -1, device=device)
        number[list(heads)] = torch.arange(len(heads), device=device)
        count, wide = stop - start, self.keys + 1  # the last column is for slots that belong nowhere
        sums: Tensor | None = None
        for part in self.parts:
            mine = (part.row >= start) & (part.row < stop) & (number[part.head] >= 0)  # [batch, head, query]
            first, last = _span(mine.any(0).any(0))
            lanes = mine.any(0).any(-1).nonzero()[:, 0]
            mine = mine[:, lanes, first:last]
            if of_mask:
                values = part.read.allowed(first, last).float()
                values = values if values.shape[1] == 1 else values[:, lanes]
                values = values.expand(*mine.shape, -1)
            else:
                values = part.read.rows(first, last, lanes.tolist())
            if sums is None:
                sums = values.new_zeros(self.texts * len(heads) * count * wide)
            key = part.key if part.key.shape[2] == 1 else part.key[:, :, first:last]
            key = key[:, lanes].expand(*values.shape)[mine]  # [place, slot]
            text, head, row = (
                of[:, lanes, first:last][mine][:, None] for of in (part.text, part.head, part.row)
            )
            place = ((text * len(heads) + number[head]) * count + row - start) * wide
            column = torch.where(key < 0, self.keys, key)
            sums.index_add_(0, (place + column).flatten(), values[mine].flatten())
        assert sums is not None
        return sums.view(self.texts, len(heads), count, wide)[..., :-1]


def _span(mine: Tensor) -> tuple[int, int]:
    """The first and the last place that is chosen, as bounds."""
    places = mine.nonzero()[:, 0]
    return (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
