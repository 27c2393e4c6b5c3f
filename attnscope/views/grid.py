"""Every head as a thumbnail."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from attnscope.axes import Array, Weights, fit, shrink
from attnscope.views.heatmap import EACH_ROW, FAINT, WHERE, Scale, choosing_rows, levels
from attnscope.views.table import Titled

CELLS = 48  # rows and columns of a thumbnail, at most
SCALE_ENDS = {"row": EACH_ROW, "head": "each head's largest"}  # what full colour stands for, in words
FEW_HEADS = 0.1  # if fewer than this share of the heads has a cell above ``FAINT``, each gets its own scale


QUARTER, DARK = 0.25, 0.01
"""If fewer than the second share of pooled cells is above the first, the scale ends at the largest cell."""


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
class Grid(Titled):
    """Thumbnails of every head of one kind of attention.

    Layers keep their numbers: a layer without attention leaves a gap. Layers may have different numbers
    of heads. ``size`` is how many queries and keys a thumbnail stands for. ``whole`` is False if only
    some layers were asked for; then the others are not named.

    A ``large`` grid may exceed one screen. ``written`` is the number of the first generated key, if any.
    ``each`` says what a thumbnail is.
    """

    layers: tuple[GridLayer, ...]
    size: tuple[int, int]
    scale: Scale = "fixed"
    whole: bool = True
    written: int | None = None
    each: str = "a head"
    large: bool = False

    def written_from(self, columns: int) -> int:
        """The first generated column in a thumbnail of ``columns``; ``columns`` if there is none."""
        if self.written is None or self.written >= self.size[1]:
            return columns
        return -(-columns * self.written // max(self.size[1], 1))

    @property
    def heads(self) -> int:
        """The largest number of heads in a layer."""
        return max((layer.heads for layer in self.layers), default=0)

    @property
    def columns(self) -> list[str]:
        """The names of the columns; empty for maps that are not heads."""
        return [f"H{number}" if self.each == "a head" else "" for number in range(self.heads)]

    @cached_property
    def signed(self) -> bool:
        """Whether there are negative values: then 0 is in the middle of the colour map."""
        return any(bool((layer.values < 0).any()) for layer in self.layers)

    @property
    def without_attention(self) -> tuple[int, ...]:
        """Layer numbers from 0 to the last one that have no attention of this kind."""
        present = {layer.layer for layer in self.layers} if self.whole else set()
        return tuple(number for number in range(max(present, default=0)) if number not in present)

    @property
    def numbers(self) -> list[int]:
        """The layer numbers from top to bottom, including those without attention."""
        return sorted({*(layer.layer for layer in self.layers), *self.without_attention})

    def scale_ends(self, minus: str = "-") -> tuple[str, str]:
        """The labels of both ends of the colour bar."""
        high = f"{self.top:.2g}" if self.shown_scale == "fixed" else SCALE_ENDS[self.shown_scale]
        low = high if self.shown_scale == "fixed" else "largest"
        return f"{minus}{low}" if self.signed else "0", high

    def legend(self, *, masked: str = "", line: str = "line") -> list[str]:
        """What a thumbnail is, and its colours; ``masked`` and ``line`` say how such cells look."""
        queries, keys = self.size
        cells = max((layer.values.shape[1:] for layer in self.layers), default=self.size)
        said = [f"each map is {self.each}: {queries:,} queries × {keys:,} keys"]
        if cells != (queries, keys):
            said[0] += f", pooled to {cells[0]} × {cells[1]} (keys summed, queries averaged)"
        if self.written_from(keys) < keys:
            said.append(f"{line} above columns: written by the model, from token {self.written:,} on")
        if self.shown_scale == "head":
            auto = self.scale == "auto"
            why, not_one = (f"hardly anything is above {FAINT}: ", ", not 1") if auto else ("", "")
            aside = any(not choosing_rows(~layer.masked).all() for layer in self.layers)
            said.append(f"{why}full colour is each head's largest weight{WHERE if aside else ''}{not_one}")
        if self.top < 1:
            said.append(
                f"hardly any cell is above {QUARTER}: full colour is the largest, {self.top:.2g}, not 1"
            )
        if self.without_attention:
            layers = ", ".join(f"L{each}" for each in self.without_attention)
            said.append(f"no attention of this kind in {layers}")
        return [*said, masked] if masked else said

    @cached_property
    def shown_scale(self) -> Scale:
        """What full colour stands for: "auto" is 1, or each head's largest if nearly all heads are faint."""
        if self.scale != "auto":
            return self.scale
        tops = [_largest(layer).ravel() for layer in self.layers]
        clear = np.concatenate([np.zeros(0), *tops]) > FAINT  # [head]
        return "head" if clear.size and clear.mean() < FEW_HEADS else "fixed"

    @cached_property
    def top(self) -> float:
        """The weight of full colour: 1, or the largest cell of pooled maps that would be nearly black."""
        cells = max((layer.values.shape[1:] for layer in self.layers), default=self.size)
        if self.scale != "auto" or self.shown_scale != "fixed" or self.signed or cells >= self.size:
            return 1.0
        shown = [
            layer.values[choosing_rows(~layer.masked)[..., None] & ~layer.masked] for layer in self.layers
        ]
        weights = np.concatenate(shown)  # [cell]
        bright = (weights > QUARTER).mean() if weights.size else 1.0
        return 1.0 if bright >= DARK else float(weights.max())

    def fit(self, rows: int, columns: int) -> Grid:
        """The same thumbnails on at most ``rows`` × ``columns`` cells; each covers whole places."""
        layers = []
        for layer in self.layers:
            down, across = layer.sizes or ([1] * layer.values.shape[1], [1] * layer.values.shape[2])
            sizes = _lengthen(down, rows), _lengthen(across, columns)
            values, allowed = shrink(layer.values, ~layer.masked, rows, columns, sizes)
            layers.append(GridLayer(layer.layer, values, ~allowed))
        return replace(self, layers=tuple(layers))


def _lengthen(sizes: Sequence[int], cells: int) -> Sequence[int]:
    """The sizes, the last one enlarged if every cell then covers whole places; and one fewer."""
    places = len(sizes)
    block = -(-places // max(cells, 1))
    if set(sizes) != {1} or block * (cells - 1) >= places:
        return sizes
    return [*sizes[:-1], 1 + block * cells - places]


def grid(layers: Iterable[tuple[int, Weights]], *, cells: int = CELLS, **more: Any) -> Grid:
    """Thumbnails from pairs of a layer's number and its weights ``[head, query, key]``.

    Pairs may come from a generator: each layer is pooled to at most ``cells`` × ``cells`` (keys summed,
    queries averaged) before the next one is read, so that one layer is in memory at a time. NaNs count as
    masked. ``more`` are other fields of the grid.
    """
    thumbnails, size = [], (0, 0)
    for number, weights in layers:
        if weights.values.ndim != 3:
            raise ValueError(f"a grid shows heads [head, query, key], not {weights.values.shape}")
        finite = np.isfinite(weights.values)
        known = replace(weights, values=np.where(finite, weights.values, 0), allowed=weights.allowed & finite)
        small = fit(known, cells, cells, even=True)
        down, across = ([place.count for place in axis] for axis in (small.queries, small.keys))
        size = (max(size[0], sum(down)), max(size[1], sum(across)))
        masked = ~np.broadcast_to(small.allowed, small.values.shape)
        thumbnails.append(GridLayer(number, small.values, masked, (down, across)))
    return Grid(tuple(sorted(thumbnails, key=lambda layer: layer.layer)), size, **more)


def thumbnail_levels(layer: GridLayer, view: Grid) -> Array:
    """Positions of a layer's values on the colour map, 0 to 1 (0.5 is zero where the view is signed).

    With the scale "head", 1 is the largest weight of the head; "row" and "fixed" as in a heatmap.
    -> [head, row, column]
    """
    scale, top = view.shown_scale, np.float32(view.top)
    if scale == "head":
        largest = _largest(layer)
        scale, top = "fixed", np.where(largest > 0, largest, 1)
    return levels(layer.values / top, (-1.0 if view.signed else 0.0, 1.0), scale, view.signed)


def _largest(layer: GridLayer) -> Array:
    """The largest weight of each head among the rows of ``choosing_rows``.  -> [head, 1, 1]"""
    rows = choosing_rows(~layer.masked)[..., None]  # [head, row, 1]
    top: Array = np.abs(layer.values).max((-2, -1), keepdims=True, initial=0, where=rows)
    return top
