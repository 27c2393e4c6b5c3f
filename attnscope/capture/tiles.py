"""Tiles: some rows of some heads times a chunk of keys, scored, weighed and summed while in the cache.

Each chunk has a softmax of its own; chunks of a row are merged with the weights ``exp(lse_chunk - lse_row)``,
lse being the log-sum-exp of the scores (Milakov & Gimelshein 2018, Online normalizer calculation for
softmax). The entropy needs no logarithm of a weight: ``H = lse Σ_j A - Σ_j A s``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from attnscope.capture.matches import Matches
from attnscope.capture.plan import CLOSED, KEYS, Chunk, Rows
from attnscope.capture.runs import Runs

Index: TypeAlias = "tuple[int, slice, slice, slice]"
"""Some rows of some key heads of one text, in ``[batch, key_head, group, query, ...]``."""


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
    confidence: Tensor
    total: Tensor  # the same, holding ones
    column: Tensor  # [batch, key_head, group, key]
    distance: Tensor | None  # [batch, key_head, group] float64; None where no row looks ahead
    matched: Mapping[str, Tensor]  # each [batch, key_head, group] float64
    cells: Tensor | None  # [batch, key_head, group, row cell, key cell]


@dataclass(frozen=True, eq=False)
class Tile:
    """A chunk of keys weighed by itself, before its rows are merged with the other chunks."""

    chunk: Chunk
    weights: Tensor  # [key_head · group, row, key]
    lse: Tensor  # [key_head · group, row], as the next two
    highest: Tensor
    weighted_scores: Tensor
    output: Tensor  # [key_head · group, row, value size]


@dataclass
class Worker:
    """Computes group after group of key heads, with scratch memory of its own."""

    scores: Scores
    sheets: Sheets
    plans: Sequence[Sequence[Rows]]  # one for each text, or one for all
    matches: Mapping[str, Sequence[Matches]]
    scratch: dict[str, Tensor] = field(default_factory=dict)

    def run(self, text: int, heads: slice) -> None:
        """Weigh all rows of some key heads of one text."""
        key, value = self.scores.key[text, heads].mT, self.scores.value[text, heads]
        if key.shape[-1] > KEYS:
            key, value = key.mT.contiguous().mT, value.contiguous()
        for rows in self.plans[text if len(self.plans) > 1 else 0]:
            at = text, heads, slice(None), rows.span
            tiles = [
                self._weigh(at, rows, chunk, key[..., chunk.keys], value[:, chunk.keys])
                for chunk in rows.chunks
            ]
            share = self._merge(at, tiles)
            for tile, part in zip(tiles, share, strict=True):
                self._pool(at, rows, tile, part)
                self._match(at, rows, tile, part)
                if self.sheets.distance is not None:
                    self._measure_gaps(at, rows, tile, part)

    def _weigh(self, at: Index, rows: Rows, chunk: Chunk, key: Tensor, value: Tensor) -> Tile:
        """Score a tile, and weigh its keys by themselves.  key [key_head, size, key]"""
        query = self.scores.query[at]  # [key_head, group, row, size]
        heads, group, count, _ = query.shape
        scores = self._buffer("scores", (heads, group * count, chunk.width))
        weights = self._buffer(f"weights {chunk.keys.start // KEYS}", scores.shape)
        torch.bmm(query.flatten(1, 2), key, out=scores)
        tile = scores.view(heads * group, count, chunk.width)
        if self.scores.softcap is not None:
            tile.div_(self.scores.softcap).tanh_().mul_(self.scores.softcap)
        if self.scores.bias is not None:
            bias = self.scores.bias[at[0] if self.scores.bias.shape[0] > 1 else 0]
            if bias.shape[0] > 1:
                bias = bias[at[1].start * group : at[1].stop * group]
            tile.add_(bias[:, rows.span, chunk.keys]).clamp_(min=CLOSED)
        for part, closed in chunk.closing:
            tile[..., part].add_(closed)
        torch.softmax(scores, -1, out=weights)
        output = torch.bmm(weights, value)
        highest = weights.amax(-1)
        lse = scores.amax(-1).sub_(highest.log())
        weighted_scores = scores.mul_(weights).sum(-1)
        shape = heads * group, count
        return Tile(
            chunk,
            weights.view(*shape, -1),
            lse.view(shape),
            highest.view(shape),
            weighted_scores.view(shape),
            output.view(*shape, -1),
        )

    def _merge(self, at: Index, tiles: Sequence[Tile]) -> Sequence[Tensor | None]:
        """Write the figures of whole rows; return each tile's share.  -> each [key_head · group, row]

        The share of a tile that is all there is, is ``None``: every weight counts as it is.
        """
        sheets = self.sheets
        if len(tiles) == 1 and self.scores.sinks is None:
            (tile,) = tiles
            lse, output, highest = tile.lse, tile.output, tile.highest
            entropy = lse - tile.weighted_scores
            share: Sequence[Tensor | None] = [None]
        else:
            parts = torch.stack([tile.lse for tile in tiles])  # [tile, key_head · group, row]
            lse = parts.logsumexp(0)
            if self.scores.sinks is not None:
                group = self.scores.query.shape[2]
                lse = torch.logaddexp(lse, self.scores.sinks[at[1].start * group : at[1].stop * group, None])
            parts = parts.sub_(lse).exp_()
            total = parts.sum(0)
            entropy = total * lse - (parts * torch.stack([tile.weighted_scores for tile in tiles])).sum(0)
            highest = (parts * torch.stack([tile.highest for tile in tiles])).amax(0)
            output = tiles[0].output * parts[0, ..., None]
            for tile, part in zip(tiles[1:], parts[1:], strict=True):
                output.addcmul_(tile.output, part[..., None])
            into = sheets.total[at]
            into.copy_(total.view(into.shape))
            share = parts.unbind()
        for sheet, figure in (
            (sheets.output, output),
            (sheets.lse, lse),
            (sheets.entropy, entropy),
            (sheets.confidence, highest),
        ):
            into = sheet[at]
            into.copy_(figure.view(into.shape))
        return share

    def _pool(self, at: Index, rows: Rows, tile: Tile, share: Tensor | None) -> None:
        """Sum the weights on each key and in each cell.  share [key_head · group, row]"""
        stacked, count = tile.lse.shape
        offsets = (torch.arange(0, stacked * count, count)[:, None] + rows.begins).flatten()
        numbers = self._numbers(max(stacked * count, tile.chunk.width))
        weights = tile.weights.flatten(0, 1)
        summed = _summed(
            weights, offsets, numbers[: len(weights)], None if share is None else share.flatten()
        )
        column = self.sheets.column[at[0], at[1], :, tile.chunk.keys]
        column += summed.view(stacked, len(rows.begins), -1).sum(1).view(column.shape)
        if self.sheets.cells is not None:
            by_key = summed.mT.contiguous()  # [key, key_head · group · row cell]
            cells = _summed(by_key, tile.chunk.begins, numbers[: len(by_key)])
            into = self.sheets.cells[at[0], at[1], :, rows.cells, tile.chunk.cells]
            into += cells.mT.reshape(into.shape)

    def _match(self, at: Index, rows: Rows, tile: Tile, share: Tensor | None) -> None:
        """Sum the weights on matching pairs."""
        keys = tile.chunk.keys
        for name, matches in self.matches.items():
            row, place = matches[at[0]].places(rows.span, keys)
            found = tile.weights.flatten(1).index_select(1, place)
            if share is not None:
                found *= share.index_select(1, row)
            into = self.sheets.matched[name][at[0], at[1]]
            into += found.sum(-1).view(into.shape)

    def _measure_gaps(self, at: Index, rows: Rows, tile: Tile, share: Tensor | None) -> None:
        """Sum the distances between rows and keys, where rows look both ways."""
        assert self.sheets.distance is not None
        keys = torch.arange(tile.chunk.keys.start, tile.chunk.keys.stop)
        position = torch.arange(rows.span.start, rows.span.stop) + self.scores.offset
        gaps = (position[:, None] - keys).abs().to(tile.lse.dtype)  # [row, key]
        far = torch.linalg.vecdot(tile.weights, gaps)  # [key_head · group, row]
        if share is not None:
            far *= share
        into = self.sheets.distance[at[0], at[1]]
        into += far.sum(-1, dtype=torch.float64).view(into.shape)

    def _numbers(self, count: int) -> Tensor:
        """0, 1, 2 and so on, at least so many."""
        if "numbers" not in self.scratch or len(self.scratch["numbers"]) < count:
            self.scratch["numbers"] = torch.arange(count)
        return self.scratch["numbers"]

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
    return torch.nn.functional.embedding_bag(index, rows, offsets, mode="sum", per_sample_weights=weights)
