"""Tiles: some rows of some heads times a chunk of keys, scored, weighed and summed while in the cache.

Each chunk has a softmax of its own; chunks of a row are merged with the weights ``exp(lse_chunk - lse_row)``,
lse being the log-sum-exp of the scores (Milakov & Gimelshein 2018, Online normalizer calculation for
softmax). The entropy needs no logarithm of a weight: ``H = lse Σ_j A - Σ_j A s``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnscope.fused.gaps import Gaps
from attnscope.fused.pairs import Matches
from attnscope.fused.plan import KEYS, MASKED, Chunk, Rows
from attnscope.fused.runs import Runs


@dataclass(frozen=True, eq=False)
class Scores:
    """How scores are made: ``softcap(q·k) + bias`` where ``runs`` are open, with a sink beside them."""

    query: Tensor  # [batch, key_head, group, query, size], scaled
    key: Tensor  # [batch, key_head, key, size]
    value: Tensor  # [batch, key_head, key, value size]
    runs: Runs
    offset: int
    bias: Tensor | None = None  # [batch or 1, head or 1, query, key]
    softcap: float | None = None
    sinks: Tensor | None = None  # [head]


@dataclass(frozen=True, eq=False)
class Sheets:
    """Where results go. No two head groups write to the same place."""

    output: Tensor  # [batch, key_head, group, query, value size]
    lse: Tensor  # [batch, key_head, group, query], as the next two
    entropy: Tensor
    largest: Tensor
    total: Tensor  # the same, holding ones
    column: Tensor  # [batch, key_head, group, key]
    gaps: Mapping[str, Tensor]  # each [batch, key_head, group] float64, as the next
    matched: Mapping[str, Tensor]
    cells: Tensor | None  # [batch, key_head, group, row cell, key cell]


@dataclass(frozen=True, eq=False)
class Tile:
    """A chunk of keys weighed by itself, before its rows are merged with the other chunks."""

    chunk: Chunk
    weights: Tensor  # [head, row, key]
    lse: Tensor  # [head, row], as the next two
    highest: Tensor
    weighted_scores: Tensor
    output: Tensor  # [head, row, value size]


@dataclass(eq=False)
class Heads:
    """Some key heads of one text at work: ``[head, ...]`` are all query heads that read them, in order.

    Figures of rows come block after block and are written down together when the last one is there.
    """

    text: int
    chosen: slice  # of the key heads
    query: Tensor  # [key_head, group, query, size]
    key: Tensor  # [key_head, size, key]
    value: Tensor  # [key_head, key, value size]
    column: Tensor  # [head, key]
    cells: Tensor | None  # [head, row cell, key cell]
    lse: list[Tensor] = field(default_factory=list)  # each [head, row], as the next two
    entropy: list[Tensor] = field(default_factory=list)
    highest: list[Tensor] = field(default_factory=list)
    output: list[Tensor] = field(default_factory=list)  # each [head, row, value size]
    matched: dict[str, list[Tensor]] = field(default_factory=dict)  # each [head]

    @property
    def queries(self) -> slice:
        """The query heads among all of the layer."""
        group = self.query.shape[1]
        return slice(self.chosen.start * group, self.chosen.stop * group)


@dataclass
class Worker:
    """Computes group after group of key heads, with scratch memory of its own."""

    scores: Scores
    sheets: Sheets
    plans: Sequence[Sequence[Rows]]  # one for each text, or one for all
    matches: Mapping[str, Sequence[Matches]]
    gaps: Mapping[str, Gaps]
    scratch: dict[str, Tensor] = field(default_factory=dict)
    offsets: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def run(self, text: int, chosen: slice) -> None:
        """Weigh all rows of some key heads of one text."""
        plan = self.plans[text if len(self.plans) > 1 else 0]
        query = self.scores.query[text, chosen]
        # heads are interleaved in memory, and products of neighbouring rows are faster
        key, value = (each[text, chosen].contiguous() for each in (self.scores.key, self.scores.value))
        column = self.sheets.column[text, chosen].flatten(0, 1)
        cells = None if self.sheets.cells is None else self.sheets.cells[text, chosen].flatten(0, 1)
        heads = Heads(text, chosen, query, key.mT, value, column, cells)
        for rows in plan:
            tiles = [self._weigh(heads, rows, chunk) for chunk in rows.chunks]
            share = self._merge(heads, rows, tiles)
            for tile, part in zip(tiles, share, strict=True):
                self._pool(heads, rows, tile, part)
                self._match(heads, rows, tile, part)
                self._measure_gaps(heads, rows, tile, part)
        self._write(heads)

    def _weigh(self, heads: Heads, rows: Rows, chunk: Chunk) -> Tile:
        """Score a tile, and weigh its keys by themselves."""
        query = heads.query[:, :, rows.span]  # [key_head, group, row, size]
        key_heads, group, count, _ = query.shape
        scores = self._buffer("scores", (key_heads, group * count, chunk.width))
        weights = self._buffer(f"weights {chunk.keys.start // KEYS}", scores.shape)
        torch.bmm(query.flatten(1, 2), heads.key[..., chunk.keys], out=scores)
        tile = scores.view(key_heads * group, count, chunk.width)
        if self.scores.softcap is not None:
            tile.div_(self.scores.softcap).tanh_().mul_(self.scores.softcap)
        if self.scores.bias is not None:
            bias = self.scores.bias[heads.text if self.scores.bias.shape[0] > 1 else 0]
            if bias.shape[0] > 1:
                bias = bias[heads.queries]
            tile.add_(bias[:, rows.span, chunk.keys]).clamp_(min=MASKED)
        for part, masked in chunk.masking:
            tile[..., part].add_(masked)
        torch.softmax(scores, -1, out=weights)
        output = torch.bmm(weights, heads.value[:, chunk.keys])
        weights = weights.view(tile.shape)
        highest = weights.amax(-1)
        lse = tile.amax(-1).sub_(highest.log())
        weighted_scores = tile.mul_(weights).sum(-1)
        return Tile(chunk, weights, lse, highest, weighted_scores, output.view(*lse.shape, -1))

    def _merge(self, heads: Heads, rows: Rows, tiles: Sequence[Tile]) -> Sequence[Tensor | None]:
        """Note the figures of whole rows; return each tile's share.  -> each [head, row]

        The share of a tile that is all there is, is ``None``: every weight counts as it is.
        """
        if len(tiles) == 1 and self.scores.sinks is None:
            (tile,) = tiles
            lse, output, highest = tile.lse, tile.output, tile.highest
            entropy = lse - tile.weighted_scores
            share: Sequence[Tensor | None] = [None]
        else:
            parts = torch.stack([tile.lse for tile in tiles])  # [tile, head, row]
            lse = parts.logsumexp(0)
            if self.scores.sinks is not None:
                lse = torch.logaddexp(lse, self.scores.sinks[heads.queries, None])
            parts = parts.sub_(lse).exp_()
            total = parts.sum(0)
            entropy = total * lse - (parts * torch.stack([tile.weighted_scores for tile in tiles])).sum(0)
            highest = (parts * torch.stack([tile.highest for tile in tiles])).amax(0)
            output = tiles[0].output * parts[0, ..., None]
            for tile, part in zip(tiles[1:], parts[1:], strict=True):
                output.addcmul_(tile.output, part[..., None])
            into = self.sheets.total[heads.text, heads.chosen, :, rows.span]
            into.copy_(total.view(into.shape))
            share = parts.unbind()
        heads.lse.append(lse)
        heads.entropy.append(entropy)
        heads.highest.append(highest)
        heads.output.append(output)
        return share

    def _pool(self, heads: Heads, rows: Rows, tile: Tile, share: Tensor | None) -> None:
        """Sum the weights on each key and in each cell.  share [head, row]"""
        count, chunk = len(tile.weights), tile.chunk
        summed = _summed(
            tile.weights.flatten(0, 1),
            self._offsets(rows, count),
            self._numbers(count * rows.count),
            None if share is None else share.flatten(),
        )
        heads.column[:, chunk.keys] += summed.view(count, -1, chunk.width).sum(1)
        if heads.cells is not None:
            by_key = summed.mT.contiguous()  # [key, head · row cell]
            cells = _summed(by_key, chunk.begins, self._numbers(chunk.width))
            heads.cells[:, rows.cells, chunk.cells] += cells.view(len(cells), count, -1).permute(1, 2, 0)

    def _match(self, heads: Heads, rows: Rows, tile: Tile, share: Tensor | None) -> None:
        """Sum the weights on matching pairs."""
        for name, matches in self.matches.items():
            count, place = matches[heads.text].places(rows.span, tile.chunk.keys)
            found = tile.weights.flatten(1).index_select(1, place)  # [head, pair]
            if share is not None:
                found *= share.repeat_interleave(count, 1, output_size=len(place))
            heads.matched.setdefault(name, []).append(found.sum(-1))

    def _measure_gaps(self, heads: Heads, rows: Rows, tile: Tile, share: Tensor | None) -> None:
        """Sum the weights, each times the number of its gap."""
        keys = torch.arange(tile.chunk.keys.start, tile.chunk.keys.stop)
        positions = torch.arange(rows.span.start, rows.span.stop) + self.scores.offset
        for name, gaps in self.gaps.items():
            table = gaps.table(positions, keys).to(tile.lse.dtype)
            sums = torch.linalg.vecdot(tile.weights, table)  # [head, row]
            if share is not None:
                sums *= share
            into = self.sheets.gaps[name][heads.text, heads.chosen]
            into += sums.sum(-1, dtype=torch.float64).view(into.shape)

    def _write(self, heads: Heads) -> None:
        """Write down what all rows of some heads gave."""
        at, sheets = (heads.text, heads.chosen), self.sheets
        for sheet, blocks in (
            (sheets.output, heads.output),
            (sheets.lse, heads.lse),
            (sheets.entropy, heads.entropy),
            (sheets.largest, heads.highest),
        ):
            sheet[at].copy_(torch.cat(blocks, 1).view(sheet[at].shape))
        for name, found in heads.matched.items():
            into = sheets.matched[name][at]
            into.copy_(torch.stack(found).sum(0, dtype=torch.float64).view(into.shape))

    def _offsets(self, rows: Rows, count: int) -> Tensor:
        """Where the row cells of so many heads begin, their rows stacked."""
        if (rows.span.start, count) not in self.offsets:
            first = torch.arange(0, count * rows.count, rows.count)
            self.offsets[rows.span.start, count] = (first[:, None] + rows.begins).flatten()
        return self.offsets[rows.span.start, count]

    def _numbers(self, count: int) -> Tensor:
        """0, 1, 2 and so on, so many."""
        if "numbers" not in self.scratch or len(self.scratch["numbers"]) < count:
            self.scratch["numbers"] = torch.arange(count)
        return self.scratch["numbers"][:count]

    def _buffer(self, name: str, shape: tuple[int, ...]) -> Tensor:
        size = math.prod(shape)
        if name not in self.scratch or self.scratch[name].numel() < size:
            self.scratch[name] = self.scores.query.new_empty(size)
        return self.scratch[name][:size].view(shape)


def _summed(rows: Tensor, offsets: Tensor, index: Tensor, weights: Tensor | None = None) -> Tensor:
    """Sum runs of neighbouring rows, each times its weight.  [row, column] -> [run, column]

    Run ``r`` begins at row ``offsets[r]``; ``index`` counts the rows. (An embedding bag does this
    fastest for runs of any length.)
    """
    return torch.embedding_bag(rows, index, offsets, False, 0, False, weights)[0]
