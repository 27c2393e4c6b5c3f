"""Tiles: some rows of one head times some keys, scored, weighed and summed while in the core's own cache.

Each tile weighs with ``2^(score - highest score of the row in the tile)``; the tiles of a row are merged with
the shares ``2^(highest - lse)``, lse being ``log2 Σ 2^score`` of the row (Milakov & Gimelshein 2018, Online
normalizer calculation for softmax). A share is the largest weight of its tile, and the entropy needs no
logarithm of a weight: ``H = -ln 2 · Σ_j A (s - lse)``.

Scores are in powers of 2, times ``log2 e``: torch's ``exp`` takes thirty to a hundred times as long for
a weight that comes out as 0 as for another, and its ``exp2`` does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnscope.fused.gaps import Gaps
from attnscope.fused.pairs import Matches
from attnscope.fused.plan import Block, Tile
from attnscope.fused.runs import Runs
from attnscope.fused.spots import Spots

MASKED = -1e30
"""The score of a masked key: its weight is 0, and no sum of it overflows."""

LOWEST = -125.0
"""A weight below 2 to this power counts as 0. Products with numbers below 2^-126 take a hundred times as long
as others."""

BITS = math.log2(math.e)
"""Scores are in powers of 2: those of the softmax times this number."""


@dataclass(frozen=True, eq=False)
class Scores:
    """How scores are made: ``softcap(scale·q·k) + bias`` where ``runs`` are open, with a sink beside them.

    All of it times ``BITS``.
    """

    query: Tensor  # [batch, head, query, size]
    key: Tensor  # [batch, key_head, key, size]
    value: Tensor  # [batch, key_head, key, value size]
    runs: Runs
    scale: float
    offset: int
    bias: Tensor | None = None  # [batch or 1, head or 1, query, key]
    softcap: float | None = None
    sinks: Tensor | None = None  # [head]

    @property
    def dtype(self) -> torch.dtype:
        """The type that is computed in: float32 at least."""
        return torch.promote_types(self.query.dtype, torch.float32)

    @property
    def factor(self) -> float:
        """What queries are multiplied with, so that their products with keys are what ``pass_on`` takes."""
        return self.scale * BITS if self.softcap is None else self.scale / self.softcap

    def pass_on(self, scores: Tensor, text: int, head: int, row: Tensor | slice, key: Tensor | slice) -> None:
        """Cap scores and add the bias, in place: those of some rows and keys of one head."""
        if self.softcap is not None:
            scores.tanh_().mul_(self.softcap * BITS)
        if self.bias is not None:
            bias = self.bias[text % len(self.bias), head % self.bias.shape[1]]
            scores.add_(bias[row, key], alpha=BITS).clamp_(min=MASKED)


@dataclass(frozen=True, eq=False)
class Sheets:
    """Where results go. No two heads write to the same place."""

    output: Tensor  # [batch, head, query, value size]
    entropy: Tensor  # [batch, head, query], as the next two
    largest: Tensor
    total: Tensor
    column: Tensor  # [batch, head, key]
    at: Mapping[str, Tensor]  # each [batch, head, query]
    gaps: Mapping[str, Tensor]  # each [batch, head] float64, as the next
    pairs: Mapping[str, Tensor]
    cells: Tensor | None  # [batch, head, row cell, key cell]


@dataclass(frozen=True, eq=False)
class Head:
    """One head of one text at work, in the type that is computed in."""

    text: int
    number: int
    query: Tensor  # [query, size], times ``Scores.factor``
    key: Tensor  # [key, size]
    value: Tensor  # [key, value size]
    steep: bool  # whether some score may lie more than ``LOWEST`` below another


@dataclass
class Worker:
    """Computes head after head, with scratch memory of its own."""

    scores: Scores
    sheets: Sheets
    plans: Sequence[Sequence[Block]]  # one for each text, or one for all
    spots: Sequence[Mapping[str, Spots]]  # as the plans
    matches: Mapping[str, Sequence[Matches]]
    gaps: Mapping[str, Gaps]
    scratch: dict[object, Tensor] = field(default_factory=dict)

    def run(self, text: int, number: int) -> None:
        """Weigh all rows of a head of one text."""
        scores, dtype = self.scores, self.scores.dtype
        shared = number // (scores.query.shape[1] // scores.key.shape[1])
        query = scores.query[text, number].to(dtype) * scores.factor
        # heads are interleaved in memory, and products of neighbouring rows are faster
        key, value = (each[text, shared].to(dtype).contiguous() for each in (scores.key, scores.value))
        farthest = 2 * float(query.norm(dim=-1).amax() * key.norm(dim=-1).amax())
        steep = scores.bias is not None or scores.softcap is not None or not farthest < -LOWEST
        head = Head(text, number, query, key, value, steep)
        lse = torch.cat([self._weigh(head, block) for block in self.plans[text % len(self.plans)]])
        for name, spots in self.spots[text % len(self.spots)].items():
            self.sheets.at[name][text, number, spots.rows] = self._weights_at(head, lse, spots)

    def _weigh(self, head: Head, block: Block) -> Tensor:
        """Weigh the rows of a block, write their figures down, and return their log-sum-exp.  -> [row]"""
        rows, count = block.rows, block.rows.stop - block.rows.start
        within = [slice(tile.rows.start - rows.start, tile.rows.stop - rows.start) for tile in block.tiles]
        shape = len(block.tiles), count
        highest = head.query.new_full(shape, MASKED)  # of each tile and row, as the next two
        mass, moment = head.query.new_ones(shape), head.query.new_zeros(shape)  # Σ w and Σ w (s - highest)
        weights, outputs = [], []
        for place, (tile, part) in enumerate(zip(block.tiles, within, strict=True)):
            scores, top = self._score(head, tile), highest[place, part]
            torch.amax(scores, -1, out=top)
            scores.sub_(top[:, None])
            if head.steep:
                torch.nn.functional.threshold(scores, LOWEST, MASKED, inplace=True)
            weight = torch.exp2(scores, out=self._buffer(place, scores.shape))
            torch.sum(weight, -1, out=mass[place, part])
            torch.sum(scores.mul_(weight), -1, out=moment[place, part])
            outputs.append(torch.mm(weight, head.value[tile.keys]))
            weights.append(weight)
        most = highest.amax(0)
        lse = (highest - most).exp2_().mul_(mass).sum(0).log2_().add_(most)
        if self.scores.sinks is not None:
            lse = torch.logaddexp2(lse, self.scores.sinks[head.number].to(lse.dtype) * BITS)
        below = highest.sub_(lse)
        share = below.exp2()  # [tile, row]
        output = head.query.new_zeros(count, head.value.shape[-1])
        for part, of_tile, each in zip(within, share, outputs, strict=True):
            output[part].addcmul_(each, of_tile[part, None])
        at, sheets = (head.text, head.number, rows), self.sheets
        sheets.output[at] = output
        sheets.entropy[at] = (share * below.mul_(mass).add_(moment)).sum(0).div_(-BITS)
        sheets.largest[at] = share.amax(0)
        sheets.total[at] = (share * mass).sum(0) if self.scores.sinks is not None else 1
        self._sum_up(head, block, weights, [each[part] for each, part in zip(share, within, strict=True)])
        return lse

    def _score(self, head: Head, tile: Tile) -> Tensor:
        """The scores of a tile, in scratch memory.  -> [row, key]"""
        query, key = head.query[tile.rows], head.key[tile.keys]
        scores = torch.mm(query, key.T, out=self._buffer("scores", (len(query), len(key))))
        self.scores.pass_on(scores, head.text, head.number, tile.rows, tile.keys)
        if tile.mask is not None:
            scores[tile.masked].masked_fill_(tile.mask, MASKED)
        return scores

    def _sum_up(self, head: Head, block: Block, weights: Sequence[Tensor], share: Sequence[Tensor]) -> None:
        """Sum the weights of a block over rows and over pairs; share [row] of each tile."""
        at, sheets = (head.text, head.number), self.sheets
        first = block.row_cells.start
        strip = head.query.new_zeros(
            block.row_cells.stop - first, block.keys.stop - block.keys.start
        )  # [row cell, key]
        for tile, weight, part in zip(block.tiles, weights, share, strict=True):
            keys = slice(tile.keys.start - block.keys.start, tile.keys.stop - block.keys.start)
            strip[tile.cells.start - first : tile.cells.stop - first, keys] = _sum_runs(
                weight, tile.begins, self._numbers(len(weight)), part.contiguous()
            )
            for name, matches in self.matches.items():
                row, place = matches[head.text].places(tile.rows, tile.keys)
                weights_of, share_of = weight.view(-1).index_select(0, place), part.index_select(0, row)
                sheets.pairs[name][at] += torch.dot(weights_of, share_of)
            for name, gaps in self.gaps.items():
                table = gaps.table(tile.rows, tile.keys, weight.dtype)
                sheets.gaps[name][at] += torch.dot((weight * table).sum(-1), part)
        sheets.column[at][block.keys] += strip.sum(0)
        if sheets.cells is not None:
            by_key = strip.T.contiguous()
            cells = _sum_runs(by_key, block.key_begins, self._numbers(len(by_key)))
            sheets.cells[at][block.row_cells, block.key_cells] += cells.T

    def _weights_at(self, head: Head, lse: Tensor, spots: Spots) -> Tensor:
        """The weights on one key of each row, ``2^(s - lse)``.  -> [some rows]"""
        query = head.query[spots.rows]
        products = torch.mul(query, head.key[spots.place], out=self._buffer("products", query.shape))
        scores = products.sum(-1)
        if self.scores.bias is not None or self.scores.softcap is not None:
            rows = torch.arange(spots.rows.start, spots.rows.stop)
            self.scores.pass_on(scores, head.text, head.number, rows, spots.keys)
        weights = scores.sub_(lse[spots.rows]).exp2_()
        return weights if spots.closed is None else weights.masked_fill_(spots.closed, 0)

    def _numbers(self, count: int) -> Tensor:
        """0, 1, 2 and so on, so many."""
        if "numbers" not in self.scratch or len(self.scratch["numbers"]) < count:
            self.scratch["numbers"] = torch.arange(count)
        return self.scratch["numbers"][:count]

    def _buffer(self, name: object, shape: Sequence[int]) -> Tensor:
        size = math.prod(shape)
        if name not in self.scratch or self.scratch[name].numel() < size:
            self.scratch[name] = torch.empty(size, dtype=self.scores.dtype)
        return self.scratch[name][:size].view(*shape)


def _sum_runs(rows: Tensor, begins: Tensor, numbers: Tensor, share: Tensor | None = None) -> Tensor:
    """Sum runs of neighbouring rows, each row times its share.  [row, column] -> [run, column]

    Run ``r`` begins at row ``begins[r]``; ``numbers`` counts the rows. (An embedding bag does this fastest
    for runs of any length.)
    """
    return torch.embedding_bag(rows, numbers, begins, False, 0, False, share)[0]
