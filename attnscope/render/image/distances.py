"""Distances between heads as a figure: the table in the order of its groups, and every head on a plane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.axes import Array
from attnscope.render.colour import table
from attnscope.render.image import sheet as axis
from attnscope.render.image.sheet import (
    GREY,
    NORMAL,
    POINT,
    ROOM,
    SMALL,
    Style,
    draw_colour_bar,
    frame,
    paint,
    sheet,
)
from attnscope.views.distances import DistanceMap, HeadDistances

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGEST = 4.6  # inches of a table's longer side
NARROWEST = 5.4  # inches of a picture that has space for a title
NAMED = 0.055  # inches of a cell from which every head's name fits beside it

BETWEEN = 0.5
COVERED = 0.12  # names covered by more than this share are left out
DOT = 4.7  # points across

BESIDE = ((1, 0), (1, 0.7), (1, -0.7), (-1, 0), (-1, 0.7), (-1, -0.7))
OVER = ((0, 1), (0, -1), (0.8, 1.6), (0.8, -1.6), (-0.8, 1.6), (-0.8, -1.6))
"""Where a name may stand beside its dot, and above or below it, in its own sizes: the first are preferred."""

FAINTEST = 0.12  # the last layer's place on the colour map: its very end would vanish on white


def distances_figure(view: HeadDistances, style: Style) -> Figure:
    """The table on the left, the plane on the right. The table's image holds nearness, 0 to 1."""
    left, right = _label_room(view.table), 0.3
    side = LARGEST
    if style.width is not None:
        side = max((style.width - left - ROOM - BETWEEN - right) / 2, 2.4)
    drawn = sheet(view, 2 * side + ROOM + BETWEEN, side, (left, right, 0.35, 0.2))
    _draw_table(drawn.part(0, 0, side), view.table, side, side, style)
    _draw_plane(drawn.part(side + ROOM + BETWEEN, 0, side), view, side, style)
    return drawn.figure


def distance_figure(view: DistanceMap, style: Style) -> Figure:
    """A table alone, for the heads of two models."""
    rows, columns = len(view.rows), len(view.columns)
    cell = LARGEST / max(rows, columns)
    left = _label_room(view)
    right = max(ROOM, NARROWEST - left - cell * columns)
    if style.width is not None:
        right, cell = ROOM, max(style.width - left - ROOM, 1.0) / columns
    drawn = sheet(view, cell * columns, cell * rows, (left, right, 0.35, 0.2))
    _draw_table(drawn.part(), view, cell * columns, cell * rows, style)
    return drawn.figure


def _label_room(view: DistanceMap) -> float:
    return axis.room([max(view.rows, key=len)], NORMAL)


def _draw_table(axes: Axes, view: DistanceMap, width: float, height: float, style: Style) -> None:
    """Cells, a frame around each group, names where they fit, and the colour bar."""
    from matplotlib.patches import Rectangle

    paint(axes, view.nearness(), style.cmap, (0, 1))
    across, down = width / len(view.columns), height / len(view.rows)
    size = float(np.clip(down * 72 * 0.85, 4.0, SMALL))
    if down >= NAMED:
        axis.beside(axes, range(len(view.rows)), view.rows, size)
    if across >= NAMED:
        axis.above(axes, range(len(view.columns)), view.columns, size, rotation=90)
    for start, count in zip(view.starts, view.groups, strict=True):
        if count > 1:
            square = Rectangle((start - 0.5, start - 0.5), count, count, fill=False, lw=0.9, ec="white")
            axes.add_patch(square)
    frame(axes)
    draw_colour_bar(axes, style, [(0, f"{view.top:.2f} nats\napart"), (1, "0, alike")])


def _draw_plane(axes: Axes, view: HeadDistances, side: float, style: Style) -> None:
    """A dot for each head in its layer's colour, its name beside it, and a legend of layers above."""
    numbers = np.array(view.layers)
    shades = np.round(numbers / max(numbers.max(), 1) * (1 - FAINTEST) * 255).astype(int)
    colours = table(style.cmap)[shades] / 255.0  # [head, 3]
    middle = (view.points.max(0) + view.points.min(0)) / 2
    half = 0.65 * float(np.ptp(view.points, axis=0).max()) or 1.0
    axes.set_xlim(middle[0] - half, middle[0] + half)
    axes.set_ylim(middle[1] - half, middle[1] + half)
    x, y = view.points.T
    axes.scatter(x, y, s=DOT**2, c=colours, edgecolors="white", linewidths=0.4, zorder=3)
    size = 6.0 if len(view.names) <= 48 else 4.6
    at = (view.points - middle + half) / (2 * half) * side / POINT  # points on paper, [head, 2]
    for name, point, offset in zip(view.names, view.points, _beside_dots(at, view.names, size), strict=True):
        if offset is not None:
            place: dict[str, Any] = {"textcoords": "offset points", "va": "center", "ha": "center"}
            axes.annotate(name, point, offset, size=size, color=GREY, **place)
    frame(axes, colour="#dddddd")
    layers = sorted(set(view.layers))
    shown = layers[:: max(1, -(-len(layers) // 12))]
    for number, layer in enumerate(shown):
        here = 0.02 + number * 0.98 / max(len(shown), 6)
        colour = colours[view.layers.index(layer)]
        axes.scatter([here], [1.03], s=DOT**2, color=colour, transform=axes.transAxes, clip_on=False)
        axes.text(here + 0.02, 1.03, f"L{layer}", size=SMALL, va="center", transform=axes.transAxes)


def _beside_dots(at: Array, names: tuple[str, ...], size: float) -> list[tuple[float, float] | None]:
    """Where each name stands relative to its dot, with the least overlap of names and dots.

    A name that would cover another one is left out. ``at`` are the dots; everything is in points. [head,
    2] -> (right, up) of each name's centre
    """
    dots = np.concatenate([at - DOT / 2, at + DOT / 2], 1)  # [box, left bottom right top]
    named = np.empty((0, 4))
    found: list[tuple[float, float] | None] = []
    for dot, name in zip(at, names, strict=True):
        wide, tall = 0.64 * size * len(name), size
        right, up = wide / 2 + DOT / 2 + 0.5, tall / 2 + DOT / 2
        places = np.array(
            [*((x * right, y * up) for x, y in BESIDE), *((x * wide / 2, y * up) for x, y in OVER)]
        )
        half = np.array([wide, tall]) / 2
        boxes = np.concatenate([dot + places - half, dot + places + half], 1)
        covered = [_overlap(box, dots) + _overlap(box, named) for box in boxes]
        best = int(np.argmin(covered))
        if _overlap(boxes[best], named) > COVERED * wide * tall:
            found.append(None)
            continue
        found.append((float(places[best, 0]), float(places[best, 1])))
        named = np.concatenate([named, boxes[best : best + 1]])
    return found


def _overlap(box: Array, others: Array) -> float:
    """How much of the others a box covers, in square points.  [4], [box, 4] -> area"""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    return float(np.prod(np.clip(sides, 0, None), 1).sum())
