"""Measures of a row as a distribution: how wide it is, how sure, how much it leaves to a sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.measures.block import Block, finest
from attnscope.measures.forms.form import Row
from attnscope.measures.forms.over_rows import OfEveryRow, OfRow, OfTwoRows, OfWeights
from attnscope.measures.measure import measure

if TYPE_CHECKING:
    from torch import Tensor

CLARK = "Clark et al. 2019, What Does BERT Look At?"
VOITA = "Voita et al. 2019, Analyzing Multi-Head Self-Attention"
SINK = "attention sinks: Xiao et al. 2023; gpt-oss"

COVERED = 0.9
"""The part of a row that ``coverage90`` waits for."""

ROUNDING = 1e-6
"""The part of a row by which rounding may fall short of ``COVERED``: ten even weights reach it with nine."""


@measure("entropy", OfRow, unit="nats", bounds="0 to log n", formula="-Σ_j A log A", source=CLARK)
def entropy(row: Row) -> Tensor:
    """Shannon entropy of the row.  -> [batch, head, row]"""
    return row.entropy


@measure("spread", OfRow, formula="entropy / log n_i", source=CLARK)
def spread(row: Row) -> Tensor:
    """Entropy as a share of the most that the open keys allow.  -> [batch, head, row]"""
    return row.entropy / row.open_keys.clamp_min(2).log()


@measure("span", OfRow, unit="keys", bounds="1 to n", formula="exp(entropy)", source="perplexity of the row")
def span(row: Row) -> Tensor:
    """Effective number of keys.  -> [batch, head, row]"""
    return row.entropy.exp()


@measure("confidence", OfRow, formula="max_j A", source=VOITA)
def confidence(row: Row) -> Tensor:
    """Largest weight of the row.  -> [batch, head, row]"""
    return row.largest


@measure(
    "coverage90",
    OfWeights,
    unit="keys",
    bounds="1 to n",
    formula="fewest keys whose weights reach 0.9 Σ_j A",
    source="sparsity of the row",
)
def coverage90(block: Block) -> Tensor:
    """Fewest keys that hold nine tenths of the row; sorts every row, so it is measured only when asked for.

    [batch, head, row, key] -> [batch, head, row]. The sums run in float64 where the device has it; a
    shortfall of a millionth of the row is taken for rounding.
    """
    rows = block.rows.to(finest(block.rows.device))
    reached = rows.sort(-1, descending=True).values.cumsum(-1)  # [batch, head, row, key]
    short = reached < (COVERED - ROUNDING) * reached[..., -1:]
    return (short.sum(-1) + 1).to(block.rows.dtype)


@measure(
    "monotonic",
    OfTwoRows,
    formula="share of rows whose largest key is at or after that of the row before",
    source="monotonic alignment: Raffel et al. 2017, Online and Linear-Time Attention",
)
def monotonic(rows: Tensor, before: Tensor) -> Tensor:
    """Whether the row's largest key is at or after that of the row before; only when asked for.

    [batch, head, row, key] twice -> [batch, head, row]. Where several keys are equally large, each counts as
    the largest for its part, so that even attention scores (n + 1) / 2n, as one key drawn anew each row does.
    """
    here, there = (each == each.amax(-1, keepdim=True) for each in (rows, before))
    reached = there.cumsum(-1, dtype=rows.dtype) / there.sum(-1, keepdim=True)
    return (here * reached).sum(-1) / here.sum(-1)


@measure("sink", OfEveryRow, formula="1 - Σ_j A", source=SINK)
def sink(row: Row) -> Tensor:
    """Weight that no key of the row holds.  -> [batch, head, row]"""
    return 1 - row.total
