"""The same head number through all layers: thumbnails, and how its numbers change with depth."""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.axes.weights import Array
from attnscope.views.grid import Grid


@dataclass(frozen=True, slots=True)
class Series:
    """One number of each layer; ``None`` where a layer has none."""

    name: str
    unit: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, eq=False)
class Strip:
    """One head number in every layer that has it.

    ``thumbnails`` has one head a layer. The first of ``series`` is the distance of each layer's head from
    that of the layer before; ``apart`` has those of all pairs.
    """

    names: tuple[str, ...]
    roles: tuple[str, ...]
    thumbnails: Grid
    series: tuple[Series, ...]
    apart: Array  # [layer, layer]
    title: str = ""
    subtitle: str = ""
    notes: tuple[str, ...] = ()
