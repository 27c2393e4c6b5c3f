"""Every head of a model as a thumbnail, layers down and heads across."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from attnscope.axes.weights import Array, Weights, fit, shrink
from attnscope.views.heatmap import Scale, levels

CELLS = 48
"""Rows and columns of a thumbnail, at most."""


@dataclass(frozen=True, eq=False)
class GridLayer:
    """The thumbnails of one layer; ``sizes`` is how many tokens rows and columns stand for."""

    layer: int
    values: Array  # [head, row, column]
    masked: Array  # [head, row, column]
    sizes: tuple[Sequence[int], Sequence[int]] | None = None

    @property
    def heads(self) -> int:
        """How many heads the layer has."""
        return len(self.values)


@dataclass(frozen=True, eq=False)
class Grid:
    """Thumbnails of every head of one kind of attention.

    Layers keep their numbers: one without attention leaves its number free. Layers may have different
    numbers of heads. ``size`` is how many queries and keys a thumbnail stands for. Where only some layers
    were asked for, the picture is not ``whole``, and the others are not named.
    """

    layers: tuple[GridLayer, ...]
    size: tuple[int, int]
    title: str = ""
    subtitle: str = ""
    scale: Scale = "fixed"
    notes: tuple[str, ...] = ()
    whole: bool = True

    @property
    def heads(self) -> int:
        """The largest number of heads in a layer."""
        return max((layer.heads for layer in self.layers), default=0)

    @cached_property
    def signed(self) -> bool:
        """Whether there are negative values, which no attention has: then 0 is in the middle of the map."""
        return any(bool((layer.values < 0).any()) for layer in self.layers)

    @property
    def without_attention(self) -> tuple[int, ...]:
        """Layer numbers from 0 to the last one that have no attention of this kind."""
        present = {layer.layer for layer in self.layers} if self.whole else set()
        return tuple(number for number in range(max(present, default=0)) if number not in present)

    def fit(self, rows: int, columns: int) -> Grid:
        """The same thumbnails on at most ``rows`` × ``columns`` cells each."""
        layers = []
        for layer in self.layers:
            values, allowed = shrink(layer.values, ~layer.masked, rows, columns, layer.sizes)
            layers.append(GridLayer(layer.layer, values, ~allowed))
        return replace(self, layers=tuple(layers))


def grid(
    layers: Iterable[tuple[int, Weights]],
    *,
    title: str = "",
    subtitle: str = "",
    scale: Scale = "fixed",
    notes: tuple[str, ...] = (),
    cells: int = CELLS,
) -> Grid:
    """Thumbnails from pairs of a layer's number and its weights ``[head, query, key]``.

    Pairs may come from a generator: each layer is brought down to at most ``cells`` × ``cells`` (keys
    summed, queries averaged) before the next one is asked for, so one layer is held at a time.
    Values that are not numbers count as masked.
    """
    thumbnails, size = [], (0, 0)
    for number, weights in layers:
        if weights.values.ndim != 3:
            raise ValueError(f"a grid shows heads [head, query, key], not {weights.values.shape}")
        finite = np.isfinite(weights.values)
        values = np.where(finite, weights.values, 0)
        small = fit(
            replace(weights, values=values, allowed=weights.allowed & finite), cells, cells, even=True
        )
        size = (max(size[0], len(weights.queries)), max(size[1], len(weights.keys)))
        masked = ~np.broadcast_to(small.allowed, small.values.shape)
        sizes = tuple(tuple(place.count for place in axis) for axis in (small.queries, small.keys))
        thumbnails.append(GridLayer(number, small.values, masked, (sizes[0], sizes[1])))
    thumbnails.sort(key=lambda layer: layer.layer)
    return Grid(tuple(thumbnails), size, title, subtitle, scale, notes)


def thumbnail_levels(layer: GridLayer, scale: Scale, signed: bool = False) -> Array:
    """Where each value of a layer lies on the colour map, 0 to 1 (0.5 is zero where ``signed``).

    With the scale "head", 1 is the largest weight of the head; "row" and "fixed" as in a heatmap.
    -> [head, row, column]
    """
    low = -1.0 if signed else 0.0
    if scale != "head":
        return levels(layer.values, (low, 1.0), scale, signed)
    top = np.abs(layer.values).max((-2, -1), keepdims=True, initial=0)
    return levels(layer.values / np.where(top > 0, top, 1), (low, 1.0), "fixed", signed)
