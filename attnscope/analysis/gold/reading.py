"""The observer: asks every head of a batch all questions about its texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnscope.analysis.gold.asked import Asked, Grouping
from attnscope.analysis.gold.sums import REACH, GoldSums
from attnscope.analysis.selection import Selection
from attnscope.attention import Attention, Kind
from attnscope.capture.observers.shared_rows import rows_at_a_time

BLOCK = 1 << 22
"""Weights that are looked at together: 16 MB in float32."""


@dataclass(eq=False)
class GoldReading:
    """Reads every row of a call in blocks that cut no word, and keeps sums alone.

    Of a word's pieces, rows are averaged and columns summed. A row is right if the word with its largest sum,
    special tokens and itself aside, is one of the answers (Clark et al. 2019, section 4.2). A question whose
    answers are all masked is not asked.
    """

    asked: Mapping[Kind, Asked]
    slots: int
    selection: Selection
    sums: GoldSums = field(default_factory=GoldSums)
    skipped: set[Kind] = field(default_factory=set)
    tables: dict[Kind, _Tables] = field(default_factory=dict)

    @torch.no_grad()
    def observe(self, attention: Attention) -> None:
        """Read one call."""
        site = attention.site
        heads = self.selection.heads(site, attention.heads)
        asked = self.asked.get(site.kind)
        if not heads or asked is None or not asked.row:
            return
        lengths = len(asked.rows), len(asked.rows[0].of_token), len(asked.keys[0].of_token)
        if lengths != (attention.batch, len(attention.queries), len(attention.keys)):
            self.skipped.add(site.kind)
            return
        attention = attention.only(heads)
        tables = self.tables.setdefault(site.kind, _Tables(asked))
        units = _Units(tables, len(heads))
        for start, stop in tables.blocks(rows_at_a_time(attention, BLOCK)):
            if len((block := tables.block(start, stop)).row):
                units.add(block, attention.rows(start, stop), attention.allowed(start, stop))
        sums = self.sums.at(site, tuple(heads), self.slots)
        sums.add_units(tables.slot, units.asked + tables.more, units.even, units.right, units.weight)
        sums.offsets += units.offsets(self.slots)


@dataclass(frozen=True, eq=False)
class _Block:
    """The questions about some rows; texts, rows and questions are numbered within the block."""

    groups: Tensor  # [text, row] the group of each row, from 0
    text: Tensor  # [question]
    row: Tensor
    unit: Tensor
    question: Tensor  # [answer]
    key: Tensor
    offset: Tensor
    itself: tuple[Tensor, Tensor, Tensor]  # where a word looks at itself: text, row, key


class _Tables:
    """The questions of a batch as tensors, which the layers of a kind share."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.text, self.row, self.unit = (torch.tensor(each) for each in (asked.text, asked.row, asked.unit))
        self.question, self.key, self.offset = (
            torch.tensor(each) for each in (asked.question, asked.key, asked.offset)
        )
        self.slot, self.more = torch.tensor(asked.slot), torch.tensor(asked.more)  # [unit]
        self.of_row = torch.tensor([each.of_token for each in asked.rows])  # [text, row]
        self.of_key = torch.tensor([each.of_token for each in asked.keys])  # [text, key]
        self.keys = max(each.count for each in asked.keys)
        self.closed = torch.ones(len(asked.keys), self.keys, dtype=torch.bool)  # [text, group]
        for number, each in enumerate(asked.keys):
            self.closed[number, : each.count] = False
            self.closed[number, list(each.special)] = True
        parted = {row for each in asked.rows for row in _parted(each)}
        self.cuts = [row for row in range(self.of_row.shape[1] + 1) if row not in parted]
        self._blocks: dict[tuple[int, int], _Block] = {}

    def blocks(self, most: int) -> Iterator[tuple[int, int]]:
        """Where blocks of rows begin and end: at most ``most`` rows, unless a word is longer."""
        start = last = 0
        for cut in self.cuts[1:]:
            if cut - start > most and last > start:
                yield start, last
                start = last
            last = cut
        yield start, last

    def block(self, start: int, stop: int) -> _Block:
        """The questions about these rows."""
        if (start, stop) not in self._blocks:
            self._blocks[start, stop] = self._block(start, stop)
        return self._blocks[start, stop]

    def _block(self, start: int, stop: int) -> _Block:
        groups = self.of_row[:, start:stop]
        first, last = groups.amin(1), groups.amax(1)  # [text]
        mine = ((self.row >= first[self.text]) & (self.row <= last[self.text])).nonzero()[:, 0]
        numbers = torch.full((len(self.row),), -1)
        numbers[mine] = torch.arange(len(mine))
        answers = (numbers[self.question] >= 0).nonzero()[:, 0]
        text = self.text[mine]
        same = first[:, None] + torch.arange(int((last - first).max()) + 1)  # [text, row] its key
        texts, rows = torch.nonzero((same <= last[:, None]) & self.asked.one_sequence, as_tuple=True)
        return _Block(
            groups - first[:, None],
            text,
            self.row[mine] - first[text],
            self.unit[mine],
            numbers[self.question[answers]],
            self.key[answers],
            self.offset[answers],
            (texts, rows, same[texts, rows]),
        )

    def words(self, rows: Tensor, block: _Block) -> Tensor:
        """Columns summed and rows averaged by word.  [text, head, row, key] -> [text, row, key, head]"""
        texts, heads, size, length = rows.shape
        device = rows.device
        first = torch.arange(texts)[:, None]
        column = (self.of_key + first * self.keys).flatten().to(device)
        table = rows.permute(0, 3, 2, 1).reshape(texts * length, size * heads)
        table = table.new_zeros(texts * self.keys, size * heads).index_add_(0, column, table)
        table = table.view(texts, self.keys, size, heads).transpose(1, 2).reshape(texts * size, -1)
        across = int(block.groups.max()) + 1
        line = (block.groups + first * across).flatten().to(device)
        table = table.new_zeros(texts * across, table.shape[1]).index_add_(0, line, table)
        table /= torch.bincount(line, minlength=texts * across).clamp(min=1)[:, None]
        return table.view(texts, across, self.keys, heads)


def _parted(grouping: Grouping) -> Iterator[int]:
    """The rows before which a word is parted."""
    rows: dict[int, list[int]] = {}
    for row, group in enumerate(grouping.of_token):
        rows.setdefault(group, []).append(row)
    for each in rows.values():
        yield from range(each[0] + 1, each[-1] + 1)


class _Units:
    """What the questions of one call add up to, text by text: [unit], or [unit, head] of the heads."""

    def __init__(self, tables: _Tables, heads: int) -> None:
        self.tables = tables
        self.asked, self.even = torch.zeros(2, len(tables.slot), dtype=torch.float64)
        self.right, self.weight = torch.zeros(2, len(tables.slot), heads, dtype=torch.float64)
        self._offsets: list[tuple[Tensor, Tensor]] = []  # slots and distances of answers

    def add(self, block: _Block, rows: Tensor, allowed: Tensor) -> None:
        """A block of whole words.  [text, head, row, key], and the keys left open"""
        tables = self.tables
        words = tables.words(rows.float(), block)
        even = allowed.float() / allowed.sum(-1, keepdim=True).clamp(min=1)
        even = tables.words(even.expand(len(rows), *even.shape[1:]), block)
        at = block.text[block.question], block.row[block.question], block.key
        weights, open_ = (
            words[at].cpu().double(),
            even[at].cpu().double().mean(-1),
        )  # [answer, head], [answer]
        words.masked_fill_(tables.closed[:, None, :, None].to(words.device), -1)
        words[block.itself] = -1
        best = words.argmax(2)[block.text, block.row].cpu()  # [question, head]
        share = torch.zeros(len(block.row), dtype=torch.float64).index_add_(0, block.question, open_)
        asked = (share > 0).double()
        unit = block.unit[block.question]
        counts = asked[block.question, None]
        self.asked.index_add_(0, block.unit, asked)
        self.even.index_add_(0, block.unit, share)
        self.right.index_add_(0, unit, (best[block.question] == block.key[:, None]) * counts)
        self.weight.index_add_(0, unit, weights * counts)
        near = (block.offset.abs() <= REACH) & (open_ > 0)
        self._offsets.append((tables.slot[unit[near]], block.offset[near]))

    def offsets(self, slots: int) -> Tensor:
        """How many answers are at each distance.  -> [slot, distance]"""
        found = torch.zeros(slots, 2 * REACH + 1, dtype=torch.float64)
        for slot, offset in self._offsets:
            one = torch.ones(len(slot), dtype=torch.float64)
            found.index_put_((slot, offset + REACH), one, accumulate=True)
        return found
