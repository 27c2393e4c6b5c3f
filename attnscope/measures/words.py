"""Figures of heads whose pieces of words were merged, measured on the merged map."""

from __future__ import annotations

import numpy as np

from attnscope.attention import Attention, HeldRows, Site, Token, tensor_of
from attnscope.axes import Place, Weights
from attnscope.figures import HeadFigures
from attnscope.measures import Measurement


def measure_words(weights: Weights, site: Site) -> tuple[HeadFigures, ...] | None:
    """The figures of heads whose rows and columns are words; ``None`` if they were pooled further.

    Words are equal if their texts are. [head, query, key] -> figures per head
    """
    import torch

    if any(place.pooled for place in (*weights.queries, *weights.keys)):
        return None
    numbers: dict[str, int] = {}
    axes = [
        tuple(_word(place, numbers.setdefault(place.text, len(numbers))) for place in axis)
        for axis in (weights.queries, weights.keys)
    ]
    heads = len(weights.values)
    allowed = np.broadcast_to(weights.allowed, weights.values.shape)
    held = HeldRows(tensor_of(weights.values)[None], tensor_of(allowed)[None])
    offset = 0 if weights.square else None
    attention = Attention(
        site, "recomputed", "words", 1, heads, heads, axes[0], axes[1], offset, torch.float32, held
    )
    measured = Measurement()
    measured.observe(attention)
    return tuple(measured.figures())


def _word(place: Place, number: int) -> Token:
    segment = 0 if place.word is None else place.word[0]
    return Token(place.text, number, special=place.special, segment=segment, word=number)
