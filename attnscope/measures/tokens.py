"""Measures of which tokens a row looks at: special ones, punctuation, repeats, the other segment."""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.measures.block import Block, TokenFacts
from attnscope.measures.measure import KeySum, measure

CLARK = "Clark et al. 2019, What Does BERT Look At?"


def _known(facts: TokenFacts | None) -> TokenFacts:
    if facts is None:
        raise ValueError("this measure needs token facts, and the block has none on that axis")
    return facts


def _on_keys(block: Block, chosen: Tensor) -> KeySum:
    """The weight on the chosen keys, [text, key]; all rows count."""
    return KeySum(chosen[:, None], torch.ones_like(block.open_keys, dtype=torch.bool))


def _on_pairs(block: Block, chosen: Tensor) -> KeySum:
    """The weight on the chosen keys of each row, [text, row, key]; rows that have an open one count."""
    return KeySum(chosen, (chosen[:, None] & block.allowed).any(-1))


@measure(
    "special",
    unit="share",
    bounds="0 to 1",
    formula="Σ A[i, j] over special tokens j",
    rows="all rows",
    source=CLARK,
    key_tokens=True,
)
def special(block: Block) -> KeySum:
    """Weight on the tokenizer's special tokens.  -> [batch, head, row]"""
    return _on_keys(block, _known(block.keys).special)


@measure(
    "punctuation",
    unit="share",
    bounds="0 to 1",
    formula="Σ A[i, j] over tokens j that hold nothing but punctuation",
    rows="all rows",
    source=CLARK,
    key_tokens=True,
)
def punctuation(block: Block) -> KeySum:
    """Weight on tokens that hold nothing but punctuation.  -> [batch, head, row]"""
    return _on_keys(block, _known(block.keys).punctuation)


@measure(
    "duplicate",
    unit="share",
    bounds="0 to 1",
    formula="Σ A[i, j] over open keys j ≠ i with the token id of i",
    rows="rows that have such a key",
    source="TransformerLens, head detector (duplicate token heads)",
    positions=True,
    query_tokens=True,
    key_tokens=True,
)
def duplicate(block: Block) -> KeySum:
    """Weight on other occurrences of the query's own token.  -> [batch, head, row]"""
    queries, keys = _known(block.queries), _known(block.keys)
    same = queries.ids[:, :, None] == keys.ids[:, None]  # [text, row, key]
    itself = block.positions[:, None] == torch.arange(keys.ids.shape[1], device=same.device)
    return _on_pairs(block, same & ~itself)


@measure(
    "induction",
    unit="share",
    bounds="0 to 1",
    formula="Σ A[i, j+1] over open keys j+1 where token j < i equals token i",
    rows="rows that have such a key",
    source="Olsson et al. 2022, In-context Learning and Induction Heads (prefix matching)",
    positions=True,
    query_tokens=True,
    key_tokens=True,
)
def induction(block: Block) -> KeySum:
    """Weight on the tokens that followed earlier occurrences of the query's token.  -> [batch, head, row]"""
    queries, keys = _known(block.queries), _known(block.keys)
    key = torch.arange(keys.ids.shape[1], device=keys.ids.device)
    follows = (queries.ids[:, :, None] == keys.ids.roll(1, 1)[:, None]) & (key > 0)  # [text, row, key]
    return _on_pairs(block, follows & (key <= block.positions[:, None]))


@measure(
    "segment",
    unit="share",
    bounds="0 to 1",
    formula="Σ A[i, j] over open keys j of the other segment",
    rows="rows that have such a key",
    source="text pairs: Devlin et al. 2019, BERT",
    positions=True,
    query_tokens=True,
    key_tokens=True,
)
def segment(block: Block) -> KeySum:
    """Weight on the other segment of a text pair.  -> [batch, head, row]"""
    queries, keys = _known(block.queries), _known(block.keys)
    return _on_pairs(block, queries.segment[:, :, None] != keys.segment[:, None])
