"""The same head number through all layers, as a figure: thumbnails, and its numbers against depth below."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attnscope.render.colour import STEPS, table
from attnscope.render.image.grid import fit_image, mosaic
from attnscope.render.image.sheet import axis
from attnscope.render.image.sheet.colour_bar import ROOM, colour_bar, stacked
from attnscope.render.image.sheet.sheet import GREY, NORMAL, SMALL, Margins, Style, frame, sheet
from attnscope.views.grid import SCALE_ENDS, GridLayer
from attnscope.views.strip import Series, Strip

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NARROWEST, WIDEST = 0.55, 1.1  # inches from layer to layer
LINE, BETWEEN = 0.42, 0.14  # inches of one number's curve, and of the air below it


def strip_figure(view: Strip, style: Style) -> Figure:
    """Layers from left to right; below each, the points of its numbers."""
    import numpy as np

    count = len(view.names)
    left = axis.room([max((series.name for series in view.series), key=len)], NORMAL)
    step = min(WIDEST, 11.0 / count)
    if style.width is not None:
        step = max((style.width - left - ROOM) / count, NARROWEST)
    # one row of thumbnails: each layer's only head becomes a head of one layer
    small = fit_image(view.thumbnails)
    heads = replace(
        small,
        layers=(
            GridLayer(
                0,
                np.concatenate([layer.values for layer in small.layers]),
                np.concatenate([layer.masked for layer in small.layers]),
            ),
        ),
    )
    picture, (tall, wide, gap) = mosaic(heads, style.cmap)
    thumbnail = step * tall / (wide + gap)
    height = thumbnail + 0.25 + len(view.series) * (LINE + BETWEEN)
    figure, axes = sheet(
        step * count,
        height,
        Margins(left, ROOM, 0.25, 0.25),
        title=view.title,
        subtitle=view.subtitle,
        notes=view.notes,
    )
    box = axes.get_position()
    inch = box.height / height
    axes.set_position((box.x0, box.y1 - thumbnail * inch, box.width, thumbnail * inch))
    axes.imshow(picture, interpolation="nearest", aspect="auto", extent=(0, picture.shape[1], tall, 0))
    axes.set_xlim(0, count * (wide + gap))
    centres = [(wide + gap) * number + wide / 2 for number in range(count)]
    axis.above(axes, centres, view.names, min(8.0, step * 72 * 0.3))
    frame(axes)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for centre, role in zip(centres, view.roles, strict=True):
        axes.text(centre, tall * 1.03, role, size=SMALL, color=GREY, ha="center", va="top")
    colour_bar(figure, axes, style, [(0, "0"), (1, stacked(SCALE_ENDS[heads.shown_scale]))])
    for number, series in enumerate(view.series):
        top = box.y1 - (thumbnail + 0.25 + number * (LINE + BETWEEN)) * inch
        curve = figure.add_axes((box.x0, top - LINE * inch, box.width, LINE * inch))
        _curve(curve, series, centres, (0, count * (wide + gap)), style)
    return figure


def _curve(axes: Axes, series: Series, at: list[float], ends: tuple[float, float], style: Style) -> None:
    """One number against depth, each point with its value."""
    known = [(x, value) for x, value in zip(at, series.values, strict=True) if value is not None]
    colour = table(style.cmap)[STEPS * 2 // 5] / 255.0
    axes.plot(*zip(*known, strict=True), color=colour, marker="o", markersize=3, linewidth=1)
    low, high = min(value for _, value in known), max(value for _, value in known)
    room = (high - low) or 1.0
    axes.set_ylim(low - 0.25 * room, high + 0.75 * room)
    axes.set_xlim(*ends)
    for x, value in known:
        axes.annotate(
            f"{value:.2f}",
            (x, value),
            (0, 3),
            textcoords="offset points",
            size=SMALL,
            color=GREY,
            ha="center",
        )
    axis.beside(axes, [(low + high) / 2], [series.name], NORMAL)
    axis.beside(axes, [(low + high) / 2], [series.unit], SMALL, right=True)
    frame(axes)
    for side, spine in axes.spines.items():
        spine.set(visible=side == "bottom", color="#dddddd")
