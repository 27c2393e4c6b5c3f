"""Views of compared heads, made from nothing."""

from __future__ import annotations

import numpy as np

from attnscope.axes import Place
from attnscope.views.heads import AlignedTexts, DistanceMap, HeadDistances, distance_map
from attnscope.views.heatmap import HeadPair, Parting, head_pair
from tests.render.screen import random_head


def distances(count: int, seed: int = 0) -> np.ndarray:
    """Symmetric, 0 on the diagonal."""
    table = np.random.default_rng(seed).random((count, count)) * 0.6
    return np.triu(table, 1) + np.triu(table, 1).T


def names(count: int, heads: int = 12) -> tuple[str, ...]:
    return tuple(f"L{number // heads}H{number % heads}" for number in range(count))


def table(count: int, groups=(), **said) -> DistanceMap:
    return distance_map(distances(count), names(count), names(count), groups=groups, **said)


def all_heads(count: int) -> HeadDistances:
    cut = max(count // 3, 1)
    groups = [range(cut), range(cut, count)] if count > 1 else [range(count)]
    points = np.random.default_rng(0).normal(size=(count, 2))
    layers = tuple(number // 12 for number in range(count))
    said = {"title": "heads compared", "notes": ("two groups",)}
    return HeadDistances(table(count, groups, **said), points, names(count), layers, **said)


def pair(count: int = 5, label: str = "cat") -> HeadPair:
    one, other = random_head(count, seed=1), random_head(count, seed=2)
    parting = Parting(label, 2, 0.51, (f"{label} 0", "it 8"), (0.95, 0.11))
    return head_pair(("L0H1", "L2H3"), (one, other), (parting,), title="L0H1 and L2H3", notes=("a note",))


def aligned(*steps: tuple[str | None, str | None]) -> AlignedTexts:
    made = [
        tuple(None if text is None else Place(text, number, number + 1) for text in step)
        for number, step in enumerate(steps)
    ]
    return AlignedTexts(tuple(made), title="two texts")
