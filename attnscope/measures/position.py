"""Measures of where a row looks, counted from its own position on the same sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.measures.forms.over_keys import AtKey, ByGap
from attnscope.measures.measure import MEASURES, Measure, measure

if TYPE_CHECKING:
    from torch import Tensor

CLARK = "Clark et al. 2019, What Does BERT Look At?"
VOITA = "Voita et al. 2019, Analyzing Multi-Head Self-Attention"
VIG = "Vig & Belinkov 2019, Analyzing the Structure of Attention"
SINKS = "attention sinks: Xiao et al. 2023; Gu et al. 2024"


TWO_AWAY = ("offset=-2", "offset=2")
"""The distances that are measured beside the next ones: a head that looks two back is no `previous` one."""


@measure("distance", ByGap, unit="tokens", bounds="0 to N - 1", formula="Σ_j A |i - j|", source=VIG)
def distance(gap: Tensor) -> Tensor:
    """Mean distance between a query and the keys it looks at.  -> [batch, head, row]"""
    return gap.abs()


@measure(
    "offset",
    ByGap,
    unit="tokens",
    bounds="-(N - 1) to N - 1",
    formula="Σ_j A (j - i), negative looks back",
    source=VIG,
)
def offset(gap: Tensor) -> Tensor:
    """Mean signed distance from a query to the keys it looks at.  -> [batch, head, row]"""
    return gap


@measure("self", AtKey, formula="A[i, i]", rows="rows whose own key exists", source=CLARK)
def self_(position: Tensor) -> Tensor:
    """Weight on the query's own token.  -> [batch, head, row]"""
    return position


@measure("previous", AtKey, formula="A[i, i-1]", rows="rows after the first", source=CLARK)
def previous(position: Tensor) -> Tensor:
    """Weight on the token before the query.  -> [batch, head, row]"""
    return position - 1


@measure("next", AtKey, formula="A[i, i+1]", rows="rows before the last key", source=CLARK)
def next_(position: Tensor) -> Tensor:
    """Weight on the token after the query.  -> [batch, head, row]"""
    return position + 1


@measure("first", AtKey, formula="A[i, 0]", rows="rows after the first", source=SINKS)
def first(position: Tensor) -> Tensor:
    """Weight on the first token.  -> [batch, head, row]"""
    import torch

    return torch.where(position > 0, 0, -1)


@MEASURES.register_family("offset=K", r"offset=([+-]?\d{1,7})")
def at_offset(name: str, step: str) -> Measure:
    """The weight on the token so many places from the query: ``offset=-2`` is two back."""
    many = abs(int(step))
    way = f"{many:,} token{'s' * (many > 1)} {'back' if int(step) < 0 else 'ahead'}"

    def key(position: Tensor) -> Tensor:
        import torch

        return torch.where(position + int(step) >= 0, position + int(step), -1)

    key.__doc__ = f"Weight on what stands {way}  -> [batch, head, row]"
    formula = f"A[i, i{int(step):+d}]"
    return Measure(name, AtKey(key), "share", "0 to 1", formula, "rows for which that key exists", VOITA)
