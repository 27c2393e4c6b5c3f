"""Composition: how much a later head reads of what an earlier head writes, from the model's weights alone.

Elhage et al. 2021, A Mathematical Framework for Transformer Circuits; the formulas are in ``README.md``, with
states as rows, ``W_OV = W_V W_O``, ``W_QK = W_Q W_Kᵀ``, and Frobenius norms.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

DRAWS = 32  # the baseline is the mean over this many random matrices


@dataclass(frozen=True, eq=False)
class Circuit:
    """The projections of the heads of one layer, each ``[head, width, size]``; ``output`` is transposed."""

    query: Tensor | None
    key: Tensor | None
    value: Tensor
    output: Tensor


def compose(earlier: Circuit, later: Circuit) -> dict[str, Tensor]:
    """Q-, K- and V-composition of all heads of two layers.  -> [later head, earlier head]"""
    ways = {"V": (later.value, later.output)}
    if later.query is not None and later.key is not None:
        ways = {"Q": (later.query, later.key), "K": (later.key, later.query)} | ways
    wrote = _gram(earlier.value)
    length = _length(earlier.value, earlier.output)  # [earlier head]
    scores = {}
    for way, (reads, rest) in ways.items():
        met = torch.einsum("ewo,lwr->leor", earlier.output.double(), reads.double())
        square = torch.einsum("eab,leax,lxy,leby->le", wrote, met, _gram(rest), met)
        scores[way] = square.clamp(min=0).sqrt() / (_length(reads, rest)[:, None] * length)
    return scores


def compose_random(earlier: Circuit, later: Circuit) -> tuple[float, float]:
    """The mean score of random matrices of the same shapes, and its deviation; reproducible."""
    generator = torch.Generator().manual_seed(0)

    def drawn(like: Tensor) -> Tensor:
        return torch.randn(DRAWS, *like.shape[1:], generator=generator, dtype=torch.float64)

    one = Circuit(None, None, drawn(earlier.value), drawn(earlier.output))
    other = Circuit(None, None, drawn(later.value), drawn(later.output))
    scores = compose(one, other)["V"]
    return float(scores.mean()), float(scores.std())


def _gram(parts: Tensor) -> Tensor:
    """[head, width, size] -> [head, size, size]"""
    return parts.double().mT @ parts.double()


def _length(one: Tensor, other: Tensor) -> Tensor:
    """The Frobenius norm of one times the other transposed.  [head, width, size] twice -> [head]"""
    return (_gram(one) * _gram(other)).sum((-2, -1)).clamp(min=0).sqrt()
