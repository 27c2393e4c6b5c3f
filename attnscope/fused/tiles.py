"""Heads at work, one after another, each in blocks of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnscope.fused.asked.gaps import Gaps
from attnscope.fused.asked.pairs import Matches
from attnscope.fused.asked.spots import Spots
from attnscope.fused.plan import Block
from attnscope.fused.runs import Runs
from attnscope.fused.weigh import BITS, LOWEST, Asked, Figures, Head, Weigh


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

    def head(self, text: int, number: int) -> Head:
        """One head of one text."""
        shared = number // (self.query.shape[1] // self.key.shape[1])
        factor = self.scale * BITS if self.softcap is None else self.scale / self.softcap
        query = self.query[text, number].to(self.dtype) * factor
        # heads are interleaved in memory, and products of neighbouring rows are faster
        key, value = (each[text, shared].to(self.dtype).contiguous() for each in (self.key, self.value))
        bias = None if self.bias is None else self.bias[text % len(self.bias), number % self.bias.shape[1]]
        sink = None if self.sinks is None else self.sinks[number].to(self.dtype)
        farthest = 2 * float(query.norm(dim=-1).amax() * key.norm(dim=-1).amax())
        steep = bias is not None or self.softcap is not None or not farthest < -LOWEST
        return Head(query, key, value, steep, self.softcap, bias, sink)


@dataclass(frozen=True, eq=False)
class Sheets:
    """Where results go. No two heads write to the same place."""

    output: Tensor  # [batch, head, query, value size]
    entropy: Tensor  # [batch, head, query], as the next two
    largest: Tensor
    total: Tensor
    column: Tensor  # [batch, head, key]
    at: Tensor  # [batch, head, name, query]
    gaps: Tensor  # [batch, head, name] float64, as the next
    pairs: Tensor
    cells: Tensor | None  # [batch, head, row cell, key cell]

    def figures(self, text: int, number: int) -> Figures:
        """The places of one head of one text."""
        at = text, number
        return Figures(
            output=self.output[at],
            entropy=self.entropy[at],
            largest=self.largest[at],
            total=self.total[at],
            column=self.column[at],
            at=self.at[at],
            gaps=self.gaps[at],
            pairs=self.pairs[at],
            cells=None if self.cells is None else self.cells[at],
        )


@dataclass
class Worker:
    """Computes head after head, with scratch memory of its own."""

    scores: Scores
    sheets: Sheets
    plans: Sequence[Sequence[Block]]  # one for each text, or one for all
    spots: Sequence[Spots]  # as the plans
    matches: Mapping[str, Sequence[Matches]]
    gaps: Sequence[Gaps]
    weigh: Weigh
    scratch: Tensor = field(init=False)  # room for the scores of any tile
    kept: Tensor = field(init=False)  # room for the weights of any block
    numbers: Tensor = field(init=False)  # 0, 1, 2 and so on, as far as any block needs

    def __post_init__(self) -> None:
        """Make room once: memory that grows from block to block is had anew from the system each time."""
        blocks = [block for plan in self.plans for block in plan]
        rows = max(block.stop - block.start for block in blocks)
        width = max(block.tiles[0].stop - block.tiles[0].start for block in blocks)
        keys = max(block.tiles[-1].stop - block.tiles[0].start for block in blocks)
        self.scratch = torch.empty(rows * width, dtype=self.scores.dtype)
        self.kept = torch.empty(rows * keys, dtype=self.scores.dtype)
        self.numbers = torch.arange(max(rows, keys))

    def run(self, text: int, number: int) -> None:
        """Weigh all rows of a head of one text."""
        head, figures = self.scores.head(text, number), self.sheets.figures(text, number)
        for block in self.plans[text % len(self.plans)]:
            self._weigh(head, figures, block, text)

    def _weigh(self, head: Head, figures: Figures, block: Block, text: int) -> None:
        """Weigh the rows of a block."""
        rows, tiles = slice(block.start, block.stop), block.tiles
        keys, width = slice(tiles[0].start, tiles[-1].stop), tiles[0].stop - tiles[0].start
        asked = Asked(
            *self.spots[text % len(self.spots)].places(rows, keys, width),
            [gaps.ahead_of(rows, keys, self.scores.dtype) for gaps in self.gaps],
            [matches[text].places(rows, keys, width) for matches in self.matches.values()],
            self.numbers,
        )
        self.weigh(head, block, asked, figures, self.scratch, self.kept)
