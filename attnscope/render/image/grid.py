"""Every head as a thumbnail, in one figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnscope.axes.weights import Array
from attnscope.render.colour import steps, table
from attnscope.render.image.sheet import axis
from attnscope.render.image.sheet.colour_bar import ROOM, colour_bar, stacked
from attnscope.render.image.sheet.sheet import GREY, Margins, Style, frame, sheet
from attnscope.views.grid import CELLS, SCALE_ENDS, Grid, GridLayer, describe, thumbnail_levels

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
    colour_bar(figure, axes, style, [(0, low if view.signed else "0"), (1, top)])
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
