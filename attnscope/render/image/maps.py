"""Heatmaps, grids of thumbnails and maps of one number a head, as figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.axes.weights import Array
from attnscope.render.colour import steps, table
from attnscope.render.image import axis
from attnscope.render.image.bar import ROOM, colour_bar
from attnscope.render.image.sheet import (
    NORMAL,
    SMALL,
    Margins,
    Style,
    colour_map,
    frame,
    hatch,
    sheet,
)
from attnscope.views.grid import CELLS, Grid, GridLayer, describe, thumbnail_levels
from attnscope.views.heads import HeadMap, number
from attnscope.views.heatmap import Heatmap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MASKED, GROUND = (226, 226, 226), (255, 255, 255)

WRITTEN = 0.1
"""Inches of a cell from which a weight can be read in it."""

WEIGHT = "weight"
"""The group id of the weights that are written into cells."""

BESIDE = 2
"""Cells that a key next to a row takes in the thumbnail of a long text."""


def heatmap_figure(view: Heatmap, style: Style) -> Figure:
    """One head: row 0 on top, the colour bar beside it, closed cells hatched.

    The image holds the weights themselves (with the scale "row", their levels).
    """
    rows, columns = view.values.shape
    queries, keys = view.weights.queries, view.weights.keys
    cell = min(max(2.6 / max(rows, columns), 0.21), 7.0 / max(rows, columns))
    if style.width:
        left = axis.room(axis.labels(queries, cell)[1], NORMAL)
        cell = max(style.width - left - ROOM - 0.3, 1.0) / columns
    _, row_texts, row_size = axis.labels(queries, cell)
    _, column_texts, column_size = axis.labels(keys, cell)
    margins = Margins(axis.room(row_texts, row_size), ROOM, axis.room(column_texts, column_size), 0.1)
    figure, axes = sheet(
        cell * columns,
        cell * rows,
        margins,
        title=view.title,
        subtitle=view.subtitle,
        notes=view.notes,
        readings=view.readings,
    )
    by_row = view.scale == "row"
    low, high = (0.0, 1.0) if by_row else view.limits
    hatch(axes)
    axes.imshow(
        image_values(view),
        cmap=colour_map(style.cmap),
        vmin=low,
        vmax=high,
        interpolation="nearest",
        aspect="auto",
    )
    axis.put(axes, queries, keys, (cell, cell))
    if style.annotate and cell >= WRITTEN:
        _write_weights(axes, view, style, min(NORMAL, cell * 72 * 0.42))
    frame(axes)
    ends = ("−max" if view.signed else "0", "max of\nthe row") if by_row else (f"{low:.3g}", f"{high:.3g}")
    middle = "" if by_row else f"{(low + high) / 2:.3g}"
    colour_bar(figure, axes, style, [(0, ends[0]), (0.5, middle), (1, ends[1])])
    return figure


def _write_weights(axes: Axes, view: Heatmap, style: Style, size: float) -> None:
    """Each open cell's weight in black or white, whichever reads better; 0 is left out."""
    colours = table(style.cmap)[steps(view.levels())] / 255.0
    light = colours**2.2 @ [0.2126, 0.7152, 0.0722] > 0.18  # [query, key]
    for (row, column), value in np.ndenumerate(view.values):
        if not view.masked[row, column] and abs(value) >= 0.005:
            text = f"{value:.2f}".replace("0.", ".", 1)
            ink = "black" if light[row, column] else "white"
            axes.text(column, row, text, size=size, color=ink, ha="center", va="center_baseline", gid=WEIGHT)


def image_values(view: Heatmap) -> np.ma.MaskedArray[Any, Any]:
    """What the image of a heatmap holds: its weights, or their levels where each row has its own scale."""
    return np.ma.array(view.levels() if view.scale == "row" else view.values, mask=view.masked)


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
        Margins(0.45, ROOM, 0.25, 0.1),
        title=view.title,
        subtitle=view.subtitle,
        notes=(*_notes_of(view, masked), *view.notes),
    )
    axes.imshow(composite, interpolation="nearest", aspect="auto")
    size = min(8.0, head * 72 * 0.3)
    centres = [(wide + gap) * i + wide / 2 - 0.5 for i in range(heads)]
    axis.above(axes, centres, [f"H{i}" for i in range(heads)], size)
    middles = [(tall + gap) * i + tall / 2 - 0.5 for i in range(len(layers))]
    axis.beside(axes, middles, [f"L{n}" for n in layers], size)
    frame(axes)
    for spine in axes.spines.values():
        spine.set_visible(False)
    top = SCALE_ENDS[view.shown_scale]
    colour_bar(figure, axes, style, [(0, f"−{top}" if view.signed else "0"), (1, top)])
    return figure


SCALE_ENDS = {"fixed": "1", "row": "max of\nthe row", "head": "max of\nthe head"}


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


def head_map_figure(view: HeadMap, style: Style) -> Figure:
    """One number a head, written into its cell where there is room. The image holds the numbers."""
    layers, heads = view.values.shape
    cell = min(0.5, 11.0 / max(heads, 1))
    if style.width:
        cell = max(style.width - 0.45 - ROOM - 0.3, 1.0) / max(heads, 1)
    figure, axes = sheet(
        cell * heads,
        cell * 0.7 * layers,
        Margins(0.45, ROOM, 0.25, 0.1),
        title=view.title or view.name,
        subtitle=view.subtitle,
        notes=view.notes,
    )
    low, high = view.limits
    if not np.isfinite(view.values).all():
        hatch(axes)
    known = np.ma.masked_invalid(view.values)
    axes.imshow(
        known, cmap=colour_map(style.cmap), vmin=low, vmax=high, interpolation="nearest", aspect="auto"
    )
    size = min(8.0, cell * 72 * 0.3)
    axis.above(axes, range(heads), [f"H{head}" for head in range(heads)], size)
    axis.beside(axes, range(layers), [f"L{layer}" for layer in view.layers], size)
    frame(axes)
    if cell >= 0.3:
        _write_numbers(axes, view, style, min(7.0, cell * 72 * 0.24))
    unit = f" {view.unit}" if view.unit else ""
    colour_bar(figure, axes, style, [(0, f"{low:.3g}"), (1, f"{high:.3g}{unit}")])
    return figure


def _write_numbers(axes: Axes, view: HeadMap, style: Style, size: float) -> None:
    colours = table(style.cmap)[steps(np.nan_to_num(view.levels()))] / 255.0
    light = colours**2.2 @ [0.2126, 0.7152, 0.0722] > 0.18  # [layer, head]
    for (row, head), value in np.ndenumerate(view.values):
        if np.isfinite(value):
            ink = "black" if light[row, head] else "white"
            axes.text(
                head, row, number(value), size=max(size, SMALL - 2), color=ink, ha="center", va="center"
            )
