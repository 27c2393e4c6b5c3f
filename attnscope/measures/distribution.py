"""Measures of a row as a distribution: how wide it is, how sure, how much it leaves to a sink."""

from __future__ import annotations

import torch

from attnscope.measures.block import Block, finest
from attnscope.measures.measure import KeySum, PerRow, measure

CLARK = "Clark et al. 2019, What Does BERT Look At?"
VOITA = "Voita et al. 2019, Analyzing Multi-Head Self-Attention"
CHOICE = "rows with at least two open keys"
ALL = "all rows"

COVERED = 0.9
"""The part of a row that ``coverage90`` waits for."""

ROUNDING = 1e-6
"""The part of a row by which rounding may fall short of ``COVERED``: ten even weights reach it with nine."""


@measure("entropy", unit="nats", bounds="0 to log n", formula="-Σ_j A log A", rows=CHOICE, source=CLARK)
def entropy(block: Block) -> PerRow:
    """Shannon entropy of the row.  -> [batch, head, row]"""
    return PerRow(block.entropy, block.open_keys > 1)


@measure(
    "spread",
    unit="share",
    bounds="0 to 1",
    formula="entropy / log n_i",
    rows=CHOICE,
    source=CLARK,
)
def spread(block: Block) -> PerRow:
    """Entropy as a share of the most that the open keys allow.  -> [batch, head, row]"""
    most = block.open_keys.clamp_min(2).to(block.rows.dtype).log()
    return PerRow(block.entropy / most, block.open_keys > 1)


@measure(
    "span", unit="keys", bounds="1 to n", formula="exp(entropy)", rows=CHOICE, source="perplexity of the row"
)
def span(block: Block) -> PerRow:
    """Effective number of keys.  -> [batch, head, row]"""
    return PerRow(block.entropy.exp(), block.open_keys > 1)


@measure("confidence", unit="share", bounds="0 to 1", formula="max_j A", rows=CHOICE, source=VOITA)
def confidence(block: Block) -> PerRow:
    """Largest weight of the row.  -> [batch, head, row]"""
    return PerRow(block.largest[0], block.open_keys > 1)


@measure(
    "coverage90",
    unit="keys",
    bounds="1 to n",
    formula="fewest keys whose weights reach 0.9 Σ_j A",
    rows=CHOICE,
    source="sparsity of the row",
)
def coverage90(block: Block) -> PerRow:
    """Fewest keys that hold nine tenths of the row; sorts every row, so it is measured only when asked for.

    [batch, head, row, key] -> [batch, head, row]. The sums run in float64 where the device has it; a
    shortfall of a millionth of the row is taken for rounding.
    """
    rows = block.rows.to(finest(block.rows.device))
    reached = rows.sort(-1, descending=True).values.cumsum(-1)  # [batch, head, row, key]
    short = reached < (COVERED - ROUNDING) * reached[..., -1:]
    return PerRow((short.sum(-1) + 1).to(block.rows.dtype), block.open_keys > 1)


@measure(
    "sink",
    unit="share",
    bounds="0 to 1",
    formula="1 - Σ_j A",
    rows=ALL,
    source="attention sinks: Xiao et al. 2023; gpt-oss",
)
def sink(block: Block) -> KeySum:
    """Weight that no key of the row holds.  -> [batch, head, row]"""
    every = torch.ones(1, 1, block.rows.shape[-1], device=block.rows.device)
    return KeySum(-every, torch.ones_like(block.open_keys, dtype=torch.bool), beyond=1.0)
