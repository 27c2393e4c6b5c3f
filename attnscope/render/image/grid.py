"""Every head as a thumbnail, in one figure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attnscope.axes import Array
from attnscope.render.colour import STEPS, steps, table
from attnscope.render.image import sheet as axis
from attnscope.render.image.sheet import (
    GREY,
    NORMAL,
    ROOM,
    SMALL,
    Margins,
    Style,
    draw_colour_bar,
    frame,
    sheet,
    stacked,
)
from attnscope.views.grid import (
    CELLS,
    SCALE_ENDS,
    Grid,
    GridLayer,
    LayerStrip,
    Series,
    describe,
    thumbnail_levels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MASKED, GROUND = (226, 226, 226), (255, 255, 255)

BESIDE = 2
"""Cells that a key next to a row takes in the thumbnail of a long text."""


def grid_figure(view: Grid, style: Style) -> Figure:
    """Every head in one composite image on one axes: layers down, heads across.

    The image holds colours, so that gaps and closed cells can have their own.
    """
    masked = any(layer.masked.any() for layer in view.layers)
    view = fit_image(view)
    composite, (tall, wide, gap) = mosaic(view, style.cmap)
    heads, layers = view.heads, _layer_numbers(view)
    head = min(0.85, 11.0 / max(heads, 1))  # inches from thumbnail to thumbnail
    if style.width:
        head = max(style.width - 0.4 - ROOM - 0.3, 1.0) / heads
    layer = head * (tall + gap) / (wide + gap)
    figure, axes = sheet(
        head * heads,
        layer * len(layers),
        Margins(0.45, ROOM, 0.25, 0.16),
        title=view.title,
        subtitle=view.subtitle,
        notes=(*_notes_of(view, masked), *view.notes),
    )
    axes.imshow(composite, interpolation="nearest", aspect="auto")
    if view.written_from(view.size[1]) < view.size[1]:
        _mark_written(axes, view, (tall, wide, gap))
    size = min(8.0, head * 72 * 0.3)
    centres = [(wide + gap) * i + wide / 2 - 0.5 for i in range(heads)]
    axis.above(axes, centres, [f"H{i}" for i in range(heads)], size)
    middles = [(tall + gap) * i + tall / 2 - 0.5 for i in range(len(layers))]
    axis.beside(axes, middles, [f"L{n}" for n in layers], size)
    frame(axes)
    for spine in axes.spines.values():
        spine.set_visible(False)
    low = "−1" if view.shown_scale == "fixed" else "−largest"
    top = stacked(SCALE_ENDS[view.shown_scale])
    draw_colour_bar(figure, axes, style, [(0, low if view.signed else "0"), (1, top)])
    return figure


def _mark_written(axes: Axes, view: Grid, sizes: tuple[int, int, int]) -> None:
    """A line above the columns of each thumbnail that stand for what the model wrote."""
    from matplotlib.collections import LineCollection

    tall, wide, gap = sizes
    numbers, lines = _layer_numbers(view), []
    for layer in view.layers:
        cells = layer.values.shape[-1]
        start = view.written_from(cells) * wide / cells
        y = numbers.index(layer.layer) * (tall + gap) - 0.5 - gap / 2
        lefts = [head * (wide + gap) - 0.5 for head in range(layer.heads)]
        lines += [[(left + start, y), (left + wide, y)] for left in lefts]
    axes.add_collection(LineCollection(lines, colors=GREY, linewidths=1.2, clip_on=False), autolim=False)


def fit_image(view: Grid) -> Grid:
    """Thumbnails as an image shows them: of a long text with the keys next to a row beside the map."""
    if not view.near or view.size[1] <= CELLS:
        return view
    return view.fit(CELLS, CELLS + BESIDE * (len(view.near) + 1), BESIDE)


def mosaic(view: Grid, cmap: str) -> tuple[Array, tuple[int, int, int]]:
    """All thumbnails in one picture of uint8 colours, and (height, width, gap) of one in pixels.

    The fourth colour is opacity, all of it: with three, matplotlib adds the fourth in twice the precision.
    -> [layer · (height + gap), head · (width + gap), 4]
    """
    tall = max((layer.values.shape[-2] for layer in view.layers), default=1)
    wide = max((layer.values.shape[-1] for layer in view.layers), default=1)
    scale = max(1, -(-12 // max(tall, wide)))  # small maps are enlarged, so that a gap can be thin
    tall, wide = tall * scale, wide * scale
    gap = max(1, wide // 12)
    numbers = _layer_numbers(view)
    picture = np.empty((len(numbers), tall + gap, max(view.heads, 1), wide + gap, 4), np.uint8)
    picture[:] = *GROUND, 255
    for layer in view.layers:
        colours = _colour_cells(layer, view, cmap)  # [head, row, column, 3]
        rows = np.arange(tall) * colours.shape[1] // tall
        columns = np.arange(wide) * colours.shape[2] // wide
        placed = colours[:, rows][:, :, columns].transpose(1, 0, 2, 3)  # [row, head, column, 3]
        picture[numbers.index(layer.layer), :tall, : layer.heads, :wide, :3] = placed
    flat = picture.reshape(len(numbers) * (tall + gap), max(view.heads, 1) * (wide + gap), 4)
    return flat[:-gap, :-gap], (tall, wide, gap)


def _colour_cells(layer: GridLayer, view: Grid, cmap: str) -> Array:
    colours = table(cmap)[steps(thumbnail_levels(layer, view.shown_scale, view.signed))]
    colours[layer.masked] = MASKED
    colours[..., view.gap, :] = GROUND
    return colours


def _layer_numbers(view: Grid) -> list[int]:
    return sorted({*(layer.layer for layer in view.layers), *view.without_attention})


def _notes_of(view: Grid, masked: bool) -> list[str]:
    said = describe(view, max((layer.values.shape[1:] for layer in view.layers), default=view.size))
    if masked:
        said.append("grey: masked")
    if view.without_attention:
        said.append(
            f"no attention of this kind in {', '.join(f'L{each}' for each in view.without_attention)}"
        )
    return ["; ".join(said)]


NARROWEST, WIDEST = 0.55, 1.1  # inches from layer to layer
LINE, BETWEEN = 0.42, 0.14  # inches of one number's curve, and of the air below it


def strip_figure(view: LayerStrip, style: Style) -> Figure:
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
    draw_colour_bar(figure, axes, style, [(0, "0"), (1, stacked(SCALE_ENDS[heads.shown_scale]))])
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
