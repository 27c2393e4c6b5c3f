"""Measures of where a row looks, counted from its own position on the same sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.measures.block import Block
from attnscope.measures.measure import KeySum, measure

CLARK = "Clark et al. 2019, What Does BERT Look At?"
VIG = "Vig & Belinkov 2019, Analyzing the Structure of Attention"
SINKS = "attention sinks: Xiao et al. 2023; Gu et al. 2024"


def _key_sum(block: Block, number: Tensor, counts: Tensor) -> KeySum:
    """A sum with numbers [row, key] over the rows that count, [row]."""
    return KeySum(number[None], counts.expand(block.open_keys.shape))


def _gaps(block: Block) -> Tensor:
    """Position of each key less that of each row.  -> [row, key]"""
    return torch.arange(block.rows.shape[-1], device=block.rows.device) - block.positions[:, None]


def _at_offset(block: Block, offset: int) -> KeySum:
    keys = block.positions + offset
    return _key_sum(block, _gaps(block) == offset, (keys >= 0) & (keys < block.rows.shape[-1]))


@measure(
    "distance",
    unit="tokens",
    bounds="0 to N - 1",
    formula="Σ_j A |i - j|",
    rows="all rows",
    source=VIG,
    positions=True,
)
def distance(block: Block) -> KeySum:
    """Mean distance between a query and the keys it looks at.  -> [batch, head, row]"""
    return _key_sum(block, _gaps(block).abs(), torch.ones_like(block.positions, dtype=torch.bool))


@measure(
    "offset",
    unit="tokens",
    bounds="-(N - 1) to N - 1",
    formula="Σ_j A (j - i), negative looks back",
    rows="all rows",
    source=VIG,
    positions=True,
)
def offset(block: Block) -> KeySum:
    """Mean signed distance from a query to the keys it looks at.  -> [batch, head, row]"""
    return _key_sum(block, _gaps(block), torch.ones_like(block.positions, dtype=torch.bool))


@measure(
    "self",
    unit="share",
    bounds="0 to 1",
    formula="A[i, i]",
    rows="rows whose own key exists",
    source=CLARK,
    positions=True,
)
def self_(block: Block) -> KeySum:
    """Weight on the query's own token.  -> [batch, head, row]"""
    return _at_offset(block, 0)


@measure(
    "previous",
    unit="share",
    bounds="0 to 1",
    formula="A[i, i-1]",
    rows="rows after the first",
    source=CLARK,
    positions=True,
)
def previous(block: Block) -> KeySum:
    """Weight on the token before the query.  -> [batch, head, row]"""
    return _at_offset(block, -1)


@measure(
    "next",
    unit="share",
    bounds="0 to 1",
    formula="A[i, i+1]",
    rows="rows before the last key",
    source=CLARK,
    positions=True,
)
def next_(block: Block) -> KeySum:
    """Weight on the token after the query.  -> [batch, head, row]"""
    return _at_offset(block, 1)


@measure(
    "first",
    unit="share",
    bounds="0 to 1",
    formula="A[i, 0]",
    rows="rows after the first",
    source=SINKS,
    positions=True,
)
def first(block: Block) -> KeySum:
    """Weight on the first token.  -> [batch, head, row]"""
    key = torch.arange(block.rows.shape[-1], device=block.rows.device)
    return _key_sum(block, (key == 0)[None], block.positions > 0)
