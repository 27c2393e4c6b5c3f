"""Heads as figures: one head, two and their difference, one number per head, a thumbnail of every head."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.axes import Array
from attnscope.render.colour import DIVERGING, choose_map, is_light, steps, table
from attnscope.render.image import sheet as axis
from attnscope.render.image.sheet import (
    BAR,
    GREY,
    NORMAL,
    QUIET,
    ROOM,
    SMALL,
    STRIP,
    STRIP_AIR,
    Style,
    draw_bands,
    draw_colour_bar,
    frame,
    hatch,
    paint,
    sheet,
    short,
    stacked,
)
from attnscope.views.grid import Grid, thumbnail_levels
from attnscope.views.heads import HeadMap
from attnscope.views.heatmap import HeadPair, HeadRow, Heatmap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


WRITTEN = 0.1  # inches of a cell that can show its weight as text
SHORT, LONGEST = 6, 12  # letters of a unit beside its number, and of a line of a longer one
LOWEST = 0.16  # least inches of a row under a spectrogram, for its token
LOSSES = 0.4  # inches of the losses below it
WEIGHT = "weight"  # the group id of the weights written into cells


def heatmap_figure(view: Heatmap, style: Style) -> Figure:
    """One head: row 0 on top, the colour bar beside it, masked cells hatched, hidden ones white.

    The image holds the weights themselves (with the scale "row", their levels).
    """
    rows, columns = view.values.shape
    queries, keys = view.weights.queries, view.weights.keys
    cell = min(max(2.6 / max(rows, columns), 0.21), 7.0 / max(rows, columns))
    ticks = scale_ticks(view)
    right = style.room(ticks[-1][1])
    if style.width:
        left = axis.room(axis.labels(queries, cell)[1], NORMAL)
        cell = max(style.width - left - right, 1.0) / columns
        if style.narrow:  # labels shrink with the cells
            _, words, size = axis.labels(queries, cell if view.bands is None else max(cell, LOWEST))
            cell = max(style.width - axis.room(words, size) - right, 1.0) / columns
    tall = cell if view.bands is None else max(cell, LOWEST)
    _, row_texts, row_size = axis.labels(queries, tall)
    _, column_texts, column_size = axis.labels(keys, cell)
    strip = 0.0 if view.bands is None else STRIP + STRIP_AIR
    above = axis.room(column_texts, column_size) + strip
    below = 0.1 if view.strip is None else LOSSES + 0.16
    margins = (axis.room(row_texts, row_size), right, above, below)
    notes = notes_below(view)
    drawn = sheet(view, cell * columns, tall * rows, margins, notes=notes, readings=view.readings)
    axes = top = drawn.part()
    _draw_weights(axes, view, style.cmap)
    if view.bands is not None:
        top = draw_bands(drawn, view.bands, axes)
    axis.put(axes, queries, keys, (cell, tall), written=view.written, top=top)
    if style.annotate and cell >= WRITTEN:
        texts = np.array([[f"{value:.2f}".replace("0.", ".", 1) for value in row] for row in view.values])
        shown = ~view.masked & ~view.hidden & (np.abs(view.values) >= 0.005)
        options = {"size": min(NORMAL, cell * 72 * 0.42), "va": "center_baseline", "gid": WEIGHT}
        _write_into_cells(axes, np.where(shown, texts, ""), view.levels(), style, **options)
    frame(axes)
    draw_colour_bar(axes, style, ticks)
    if view.strip is not None:
        _draw_losses(drawn.part(0, tall * rows + 0.06, None, LOSSES), view, view.strip, style)
    return drawn.figure


def _draw_losses(axes: Axes, view: Heatmap, strip: Sequence[float | None], style: Style) -> None:
    """A bar under each column: the loss of its tokens."""
    axes.bar(range(len(strip)), [each or 0.0 for each in strip], width=0.9, color=style.bar)
    axes.set_xlim(-0.5, len(strip) - 0.5)
    axes.set_ylim(0, view.most)
    frame(axes, ("bottom",), "#bbbbbb")
    axis.beside(axes, [view.most / 2], ["loss"], SMALL)
    axis.beside(axes, [0, view.most], ["0", f"{view.most:.1f} nats"], SMALL, right=True)


def notes_below(view: Heatmap) -> tuple[str, ...]:
    """The notes of a head, and why some labels are bold."""
    return view.notes if view.written is None else (*view.notes, "bold tokens: written by the model")


def scale_ticks(view: Heatmap) -> list[tuple[float, str]]:
    """The labels of a head's colour bar."""
    low, high = view.scale_ends(".3g", minus="−")
    middle = "" if view.scale == "row" else f"{sum(view.limits) / 2:.3g}"
    return [(0, low), (0.5, middle), (1, stacked(high))]


def _draw_weights(axes: Axes, view: Heatmap, cmap: str, **options: Any) -> None:
    """The cells of a head over hatched ground."""
    hatch(axes)
    paint(axes, image_values(view), cmap, (0.0, 1.0) if view.scale == "row" else view.limits, **options)
    axes.images[-1].set_cmap(axes.images[-1].get_cmap().with_extremes(under="white"))


def image_values(view: Heatmap) -> np.ma.MaskedArray[Any, Any]:
    """The values of a heatmap's image: its weights, or their levels if each row has its own scale.

    Hidden cells lie below the scale.
    """
    values, low = (view.levels(), 0.0) if view.scale == "row" else (view.values, view.limits[0])
    return np.ma.array(np.where(view.hidden, low - 1, np.maximum(values, low)), mask=view.masked)


def _write_into_cells(axes: Axes, texts: Array, levels: Array, style: Style, **options: Any) -> None:
    """The text of each cell in black or white, whichever reads better.  [row, column], [row, column]"""
    light = is_light(table(style.cmap)[steps(levels)] / 255.0)
    for (row, column), text in np.ndenumerate(texts):
        if text:
            ink = "black" if light[row, column] else "white"
            axes.text(column, row, text, color=ink, ha="center", **options)


def head_map_figure(view: HeadMap, style: Style) -> Figure:
    """One number per head, written into its cell if it fits. The image holds the numbers."""
    layers, heads = view.values.shape
    cell = min(0.5, 11.0 / max(heads, 1))
    low, high = (f"{limit:.3g}" for limit in view.limits)
    top = f"{high} {view.unit}".strip()
    if len(view.unit) > SHORT:
        top = "\n".join([high, *textwrap.wrap(view.unit, LONGEST)])
    right = max(ROOM, BAR + axis.room(top.split("\n"), SMALL))
    left = max(0.45, axis.room(view.rows, NORMAL))
    means = MEANS * view.by_layer
    if style.width:
        cell = max(style.width - left - right - 0.3 - means, 1.0) / max(heads, 1)
    below = POINTS * view.by_layer
    width, height = cell * heads, cell * 0.7 * layers
    margins = (left, right, 0.25, 0.1)
    drawn = sheet(view, width + means, height + below, margins, title=view.title or view.name)
    axes = drawn.part(0, 0, width, height)
    size = min(8.0, cell * 72 * 0.3)
    axis.beside(axes, range(layers), view.rows, size)
    _draw_numbers(axes, view, view.columns, style, cell)
    if view.by_layer:
        column = replace(view, values=view.means[:, None])
        last = drawn.part(width + 0.1, 0, means - 0.1, height)
        _draw_numbers(last, column, ["mean"], style, min(cell, means - 0.1))
        _draw_points(drawn.part(0, height + below - TALL, width, TALL), view, style, (low, high))
        axes = last
    draw_colour_bar(axes, style, [(0, low), (1, top)])
    return drawn.figure


MEANS = 0.45  # inches of the layer means, and of the gap before them
POINTS, TALL = 1.65, 1.3  # inches below the map, and of the heads drawn there


def _draw_numbers(axes: Axes, view: HeadMap, names: Sequence[str], style: Style, cell: float) -> None:
    """The cells of a map, with their numbers where they fit."""
    if not np.isfinite(view.values).all():
        hatch(axes)
    paint(axes, np.ma.masked_invalid(view.values), style.cmap, view.limits)
    axis.above(axes, range(len(names)), names, min(8.0, cell * 72 * 0.3))
    frame(axes)
    if cell >= 0.3:
        texts = np.array(view.texts)
        size = max(min(7.0, cell * 72 * 0.24), SMALL - 2)
        _write_into_cells(axes, texts, np.nan_to_num(view.levels()), style, size=size, va="center")


def _draw_points(axes: Axes, view: HeadMap, style: Style, ends: tuple[str, str]) -> None:
    """Each head as a point over its layer, and a line through the means."""
    at = np.arange(len(view.layers))
    rows = np.repeat(at, view.values.shape[1])
    axes.scatter(rows, view.values.ravel(), s=9, color=[style.bar], linewidths=0, alpha=0.8)
    axes.plot(at, view.means, color=GREY, linewidth=1)
    air = 0.05 * (view.limits[1] - view.limits[0])
    axes.set_xlim(-0.5, len(at) - 0.5)
    axes.set_ylim(view.limits[0] - air, view.limits[1] + air)
    axis.beside(axes, view.limits, ends, SMALL)
    every = -(-len(at) // 12)
    axis.above(axes, at[::every].tolist(), view.rows[::every], SMALL)
    frame(axes, ("left", "bottom"))


SIDE = 2.9  # inches of a map's longer side
BETWEEN = 0.15
MANY, SMALLEST = 4, 1.2  # heads side by side without a given width, and the least inches of one
NAMED = 0.42  # inches of a head's name and role below its map


def pair_figure(view: HeadPair, style: Style) -> Figure:
    """Both heads, then the first minus the second in the diverging colours; rows are labelled once.

    In a narrow picture they are stacked.
    """
    rows, columns = view.difference.values.shape
    queries, keys = view.difference.weights.queries, view.difference.weights.keys
    cell, beside = SIDE / max(rows, columns), 1 if style.narrow else 3
    left = axis.room(axis.labels(queries, cell)[1], NORMAL)
    between = ROOM + BETWEEN
    if style.width is not None:
        cell = max(style.width - left - ROOM - (beside - 1) * between, 1.2 * beside) / (beside * columns)
    width, height = cell * columns, cell * rows
    _, texts, size = axis.labels(keys, cell)
    above = axis.room(texts, size)
    step = (width + between, 0.0) if beside > 1 else (0.0, height + above + 0.3)  # from one map to the next
    notes = (*view.sentences, *view.notes)
    drawn = sheet(view, width + 2 * step[0], height + 2 * step[1], (left, ROOM, above, 0.3), notes=notes)
    for place, each in enumerate((*view.maps, view.difference)):
        axes = drawn.part(place * step[0], place * step[1], width, height)
        own = Style(None, DIVERGING) if each.signed else style
        _draw_weights(axes, each, own.cmap)
        axis.put(axes, queries if beside == 1 or not place else (), keys, (cell, cell))
        frame(axes)
        axes.text(0, -0.02, each.title, transform=axes.transAxes, size=NORMAL, weight="bold", va="top")
        low, high = each.scale_ends(".2g", minus="−")
        draw_colour_bar(axes, own, [(0, low), (1, stacked(high))])
    return drawn.figure


def row_figure(view: HeadRow, style: Style) -> Figure:
    """Heads side by side, in several rows if they would be too small; one colour bar for all."""
    weights = view.maps[0].weights
    rows, columns = view.maps[0].values.shape
    cell = SIDE / max(rows, columns)
    ticks = scale_ticks(view.maps[0])
    right = style.room(ticks[-1][1])
    beside = min(len(view.maps), MANY)
    if style.width is not None:
        left = axis.room(axis.labels(weights.queries, cell)[1], NORMAL)
        free = style.width - left - right + BETWEEN
        beside = max(1, min(len(view.maps), int(free / (SMALLEST + BETWEEN))))
    beside = -(-len(view.maps) // -(-len(view.maps) // beside))  # equal rows rather than a remainder
    if style.width is not None:
        cell = max(free / beside - BETWEEN, 1.0) / columns
        _, texts, size = axis.labels(weights.queries, cell)  # labels shrink with the cells
        free = style.width - axis.room(texts, size) - right + BETWEEN
        cell = max(free / beside - BETWEEN, 1.0) / columns
    width, height = cell * columns, cell * rows
    _, texts, size = axis.labels(weights.queries, cell)
    left = axis.room(texts, size)
    _, texts, size = axis.labels(weights.keys, cell)
    above, lines = axis.room(texts, size), -(-len(view.maps) // beside)
    down = height + NAMED + above  # from row to row
    field = (beside * (width + BETWEEN) - BETWEEN, lines * down - NAMED - above)
    notes = notes_below(replace(view.maps[0], notes=view.notes))
    drawn = sheet(view, *field, (left, right, above, NAMED), notes=notes)
    for number_, each in enumerate(view.maps):
        line, place = divmod(number_, beside)
        axes = drawn.part(place * (width + BETWEEN), line * down, width, height)
        _draw_weights(axes, each, style.cmap)
        axis.put(axes, () if place else weights.queries, weights.keys, (cell, cell), written=each.written)
        frame(axes)
        where: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "top"}
        axes.annotate(each.title, (0, 0), (0, -3), size=NORMAL, weight="bold", **where)
        axes.annotate(each.subtitle, (0, 0), (0, -15), **where, **QUIET)
        if number_ == beside - 1:
            draw_colour_bar(axes, style, ticks)
    return drawn.figure


LABELLED = 60  # Up to this many places of an axis, each is labelled.


def draw_heatmap(view: Heatmap, axes: Axes, cmap: str | None = None) -> None:
    """Draw a head's weights: rows down, columns across, masked cells hatched; token text is literal."""
    _draw_weights(axes, view, choose_map(cmap, signed=view.signed), aspect=None)
    axes.set_title(view.title.partition(" · ")[0], parse_math=False)  # axes are narrow and stand in a row
    for ticks, places, turned in (
        (axes.set_yticks, view.weights.queries, 0),
        (axes.set_xticks, view.weights.keys, 90),
    ):
        shown = list(range(0, len(places), -(-len(places) // LABELLED)))
        ticks(shown, [short(places[at].label) for at in shown], rotation=turned, parse_math=False)


MASKED, GROUND = (226, 226, 226), (255, 255, 255)


def grid_figure(view: Grid, style: Style) -> Figure:
    """Every head in one composite image on one axes: layers down, heads across.

    The image holds colours, so that gaps and masked cells have their own.
    """
    masked = any(layer.masked.any() for layer in view.layers)
    composite, (tall, wide, gap) = mosaic(view, style.cmap)
    heads, layers = view.heads, view.numbers
    low, high = view.scale_ends(minus="−")
    left, right = 0.33 if style.narrow else 0.45, style.room(high)
    head = min(0.85, 11.0 / max(heads, 1))  # inches from thumbnail to thumbnail
    if style.width:
        head = max(style.width - left - right, 1.0) / heads
    layer = head * (tall + gap) / (wide + gap)
    said = view.legend(masked="grey: masked" if masked else "")
    notes = ("; ".join(said), *view.notes)
    drawn = sheet(view, head * heads, layer * len(layers), (left, right, 0.25, 0.16), notes=notes)
    axes = drawn.part()
    axes.imshow(composite, interpolation="nearest", aspect="auto")
    if view.written_from(view.size[1]) < view.size[1]:
        _mark_written(axes, view, (tall, wide, gap))
    size = min(8.0, head * 72 * 0.3)
    centres = [(wide + gap) * i + wide / 2 - 0.5 for i in range(heads)]
    axis.above(axes, centres, view.columns, size)
    middles = [(tall + gap) * i + tall / 2 - 0.5 for i in range(len(layers))]
    axis.beside(axes, middles, [f"L{n}" for n in layers], size)
    frame(axes, ())
    draw_colour_bar(axes, style, [(0, low), (1, stacked(high))])
    return drawn.figure


def _mark_written(axes: Axes, view: Grid, sizes: tuple[int, int, int]) -> None:
    """A line above each thumbnail's columns of generated tokens."""
    from matplotlib.collections import LineCollection

    tall, wide, gap = sizes
    numbers, lines = view.numbers, []
    for layer in view.layers:
        cells = layer.values.shape[-1]
        start = view.written_from(cells) * wide / cells
        y = numbers.index(layer.layer) * (tall + gap) - 0.5 - gap / 2
        lefts = [head * (wide + gap) - 0.5 for head in range(layer.heads)]
        lines += [[(left + start, y), (left + wide, y)] for left in lefts]
    axes.add_collection(LineCollection(lines, colors=GREY, linewidths=1.2, clip_on=False), autolim=False)


def mosaic(view: Grid, cmap: str) -> tuple[Array, tuple[int, int, int]]:
    """All thumbnails in one picture of uint8 colours, and (height, width, gap) of one in pixels.

    The fourth channel is opacity, always full: with three, matplotlib would add it in twice the
    precision. -> [layer · (height + gap), head · (width + gap), 4]
    """
    tall = max((layer.values.shape[-2] for layer in view.layers), default=1)
    wide = max((layer.values.shape[-1] for layer in view.layers), default=1)
    scale = max(1, -(-12 // max(tall, wide)))  # small maps are enlarged, so that a gap can be thin
    tall, wide = tall * scale, wide * scale
    gap = max(1, wide // 12)
    numbers = view.numbers
    picture = np.empty((len(numbers), tall + gap, max(view.heads, 1), wide + gap, 4), np.uint8)
    picture[:] = *GROUND, 255
    for layer in view.layers:
        colours = table(cmap)[steps(thumbnail_levels(layer, view))]
        colours[layer.masked] = MASKED
        rows = np.arange(tall) * colours.shape[1] // tall
        columns = np.arange(wide) * colours.shape[2] // wide
        placed = colours[:, rows][:, :, columns].transpose(1, 0, 2, 3)  # [row, head, column, 3]
        picture[numbers.index(layer.layer), :tall, : layer.heads, :wide, :3] = placed
    flat = picture.reshape(len(numbers) * (tall + gap), max(view.heads, 1) * (wide + gap), 4)
    return flat[:-gap, :-gap], (tall, wide, gap)
