"""Measures of which tokens a row looks at: special ones, punctuation, repeats, the other segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.fused.request import Pairs
from attnscope.measures.block import TokenFacts, number_of
from attnscope.measures.forms.over_keys import OnKeys, OnOthers, OnPairs, OnTokens
from attnscope.measures.measure import MEASURES, Measure, measure

if TYPE_CHECKING:
    from torch import Tensor

CLARK = "Clark et al. 2019, What Does BERT Look At?"


@measure("special", OnKeys, formula="Σ A[i, j] over special tokens j", source=CLARK)
def special(keys: TokenFacts) -> Tensor:
    """Weight on the tokenizer's special tokens.  -> [batch, head, row]"""
    return keys.special


@measure(
    "punctuation", OnKeys, formula="Σ A[i, j] over tokens j that hold nothing but punctuation", source=CLARK
)
def punctuation(keys: TokenFacts) -> Tensor:
    """Weight on tokens that hold nothing but punctuation.  -> [batch, head, row]"""
    return keys.punctuation


@MEASURES.register_family("[NAME]", r"(\[[^\[\]\s]{1,40}\]|<[^<>\s]{1,40}>)")
def on_special(name: str, token: str) -> Measure:
    """The weight on one special token by its name: ``[CLS]``, ``</s>``."""

    def keys_with_it(keys: TokenFacts) -> Tensor:
        return keys.names == number_of(token)

    keys_with_it.__doc__ = f"Weight on the special token {token}  -> [batch, head, row]"
    formula = f"Σ A[i, j] over the tokens j that are {token}"
    return Measure(name, OnTokens(keys_with_it), "share", "0 to 1", formula, OnTokens.rows, CLARK)


@measure(
    "duplicate",
    OnPairs,
    formula="Σ A[i, j] over open keys j ≠ i with the token id of i",
    source="TransformerLens, head detector (duplicate token heads)",
)
def duplicate(queries: TokenFacts, keys: TokenFacts) -> Pairs:
    """Weight on other occurrences of the query's own token.  -> [batch, head, row]"""
    return Pairs(queries.ids, keys.ids, itself=False)


@measure(
    "induction",
    OnPairs,
    formula="Σ A[i, j+1] over open keys j+1 where token j < i equals token i",
    source="Olsson et al. 2022, In-context Learning and Induction Heads (prefix matching)",
)
def induction(queries: TokenFacts, keys: TokenFacts) -> Pairs:
    """Weight on the tokens that followed earlier occurrences of the query's token.  -> [batch, head, row]"""
    import torch

    before = torch.nn.functional.pad(keys.ids[:, :-1], (1, 0), value=NO_TOKEN)
    return Pairs(queries.ids, before, ahead=False)


NO_TOKEN = -(1 << 63)
"""The label of a key that follows no token: the id of none."""


@measure(
    "segment",
    OnOthers,
    formula="Σ A[i, j] over open keys j of the other segment",
    source="text pairs: Devlin et al. 2019, BERT",
)
def segment(queries: TokenFacts, keys: TokenFacts) -> Pairs:
    """Weight on the other segment of a text pair.  -> [batch, head, row]"""
    return Pairs(queries.segment, keys.segment)
