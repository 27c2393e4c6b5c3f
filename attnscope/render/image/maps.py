"""Heads as figures: one, two and their difference, several, their numbers, thumbnails, and distances."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from attnscope.axes import Array
from attnscope.render.colour import DIVERGING, choose_map, is_light, steps, table
from attnscope.render.image import sheet as paper
from attnscope.render.image.sheet import BAR_ROOM, GREY, NORMAL, POINT, QUIET, SMALL, Style
from attnscope.views import DistanceMap, HeadDistances, HeadMap, HeadPair, HeadRow, Heatmap
from attnscope.views.maps import Grid, thumbnail_levels

LEAST_ROW = 0.16  # least inches of a row under a spectrogram, for its token
LOSS_HEIGHT = 0.4  # inches of the losses below it
WEIGHT_TEXT = "weight"  # the group id of the weights written into cells


def heatmap_figure(view: Heatmap, style: Style) -> Figure:
    """One head, masked cells hatched, hidden ones white. The image holds the weights, or levels by row."""
    rows, columns = view.values.shape
    queries, keys = view.weights.queries, view.weights.keys
    cell = min(max(2.6 / max(rows, columns), 0.21), 7.0 / max(rows, columns))
    ticks = scale_ticks(view)
    right = style.room(ticks[-1][1])
    if style.width:
        cell = max(style.width - paper.label_room(queries, cell, NORMAL) - right, 1.0) / columns
        if style.narrow:  # labels shrink with the cells
            left = paper.label_room(queries, cell if view.bands is None else max(cell, LEAST_ROW))
            cell = max(style.width - left - right, 1.0) / columns
    tall = cell if view.bands is None else max(cell, LEAST_ROW)
    strip = 0.0 if view.bands is None else paper.STRIP_HEIGHT + paper.STRIP_GAP
    below = 0.1 if view.strip is None else LOSS_HEIGHT + 0.16
    margins = (paper.label_room(queries, tall), right, paper.label_room(keys, cell) + strip, below)
    notes = notes_below(view)
    drawn = paper.sheet(view, cell * columns, tall * rows, margins, notes=notes, readings=view.readings)
    axes = top = drawn.part()
    _draw_weights(axes, view, style.cmap)
    if view.bands is not None:
        top = paper.draw_bands(drawn, view.bands, axes)
    paper.put(axes, queries, keys, (cell, tall), written=view.written, top=top)
    if style.annotate and cell >= 0.1:  # inches of a legible number
        texts = np.array([[f"{value:.2f}".replace("0.", ".", 1) for value in row] for row in view.values])
        shown = ~view.masked & ~view.hidden & (np.abs(view.values) >= 0.005)
        options = {"size": min(NORMAL, cell * 72 * 0.42), "va": "center_baseline", "gid": WEIGHT_TEXT}
        _write_into_cells(axes, np.where(shown, texts, ""), view.levels(), style, **options)
    paper.frame(axes)
    paper.draw_colour_bar(axes, style, ticks)
    if view.strip is not None:
        _draw_losses(drawn.part(0, tall * rows + 0.06, None, LOSS_HEIGHT), view, view.strip, style)
    return drawn.figure


def _draw_losses(axes: Axes, view: Heatmap, strip: Sequence[float | None], style: Style) -> None:
    axes.bar(range(len(strip)), [each or 0.0 for each in strip], width=0.9, color=style.bar)
    axes.set_xlim(-0.5, len(strip) - 0.5)
    axes.set_ylim(0, view.most)
    paper.frame(axes, ("bottom",), "#bbbbbb")
    paper.beside(axes, [view.most / 2], ["loss"], SMALL)
    paper.beside(axes, [0, view.most], ["0", f"{view.most:.1f} nats"], SMALL, right=True)


def notes_below(view: Heatmap) -> tuple[str, ...]:
    """The notes of a head, and why some labels are bold."""
    return view.notes if view.written is None else (*view.notes, "bold tokens: written by the model")


def scale_ticks(view: Heatmap) -> list[tuple[float, str]]:
    """The labels of a head's colour bar."""
    low, high = view.scale_ends(".3g", minus="−")
    middle = "" if view.scale == "row" else f"{sum(view.limits) / 2:.3g}"
    return [(0, low), (0.5, middle), (1, paper.stacked(high))]


def _draw_weights(axes: Axes, view: Heatmap, cmap: str, **options: Any) -> None:
    paper.hatch(axes)
    paper.paint(axes, image_values(view), cmap, (0.0, 1.0) if view.scale == "row" else view.limits, **options)
    axes.images[-1].set_cmap(axes.images[-1].get_cmap().with_extremes(under="white"))


def image_values(view: Heatmap) -> np.ma.MaskedArray[Any, Any]:
    """The values of a heatmap's image: its weights, or levels by row; hidden cells lie below the scale."""
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
    if len(view.unit) > 6:
        top = "\n".join([high, *textwrap.wrap(view.unit, 12)])
    right = max(BAR_ROOM, paper.BAR_WIDTH + paper.room(top.split("\n"), SMALL))
    left = max(0.45, paper.room(view.rows, NORMAL))
    means = 0.45 * view.by_layer  # inches, with the gap before them
    if style.width:
        cell = max(style.width - left - right - 0.3 - means, 1.0) / max(heads, 1)
    below, tall = 1.65 * view.by_layer, 1.3  # inches for the points, and of these
    width, height = cell * heads, cell * 0.7 * layers
    margins = (left, right, 0.25, 0.1)
    drawn = paper.sheet(view, width + means, height + below, margins, title=view.title or view.name)
    axes = drawn.part(0, 0, width, height)
    size = min(8.0, cell * 72 * 0.3)
    paper.beside(axes, range(layers), view.rows, size)
    _draw_numbers(axes, view, view.columns, style, cell)
    if view.by_layer:
        column = replace(view, values=view.means[:, None])
        last = drawn.part(width + 0.1, 0, means - 0.1, height)
        _draw_numbers(last, column, ["mean"], style, min(cell, means - 0.1))
        _draw_points(drawn.part(0, height + below - tall, width, tall), view, style, (low, high))
        axes = last
    paper.draw_colour_bar(axes, style, [(0, low), (1, top)])
    return drawn.figure


def _draw_numbers(axes: Axes, view: HeadMap, names: Sequence[str], style: Style, cell: float) -> None:
    paper.paint(axes, view.values, style.cmap, view.limits)
    paper.above(axes, range(len(names)), names, min(8.0, cell * 72 * 0.3))
    paper.frame(axes)
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
    paper.beside(axes, view.limits, ends, SMALL)
    every = -(-len(at) // 12)
    paper.above(axes, at[::every].tolist(), view.rows[::every], SMALL)
    paper.frame(axes, ("left", "bottom"))


MAP_SIDE = 2.9  # inches of a map's longer side
MAP_GAP = 0.15
NAME_HEIGHT = 0.42  # inches of a head's name and role below its map


def pair_figure(view: HeadPair, style: Style) -> Figure:
    """Both heads, and the first minus the second in the diverging colours; stacked if narrow."""
    rows, columns = view.difference.values.shape
    queries, keys = view.difference.weights.queries, view.difference.weights.keys
    cell, beside = MAP_SIDE / max(rows, columns), 1 if style.narrow else 3
    left, between = paper.label_room(queries, cell, NORMAL), BAR_ROOM + MAP_GAP
    if style.width is not None:
        cell = max(style.width - left - BAR_ROOM - (beside - 1) * between, 1.2 * beside) / (beside * columns)
    width, height = cell * columns, cell * rows
    above = paper.label_room(keys, cell)
    step = (width + between, 0.0) if beside > 1 else (0.0, height + above + 0.3)  # from one map to the next
    notes = (*view.sentences, *view.notes)
    margins = (left, BAR_ROOM, above, 0.3)
    drawn = paper.sheet(view, width + 2 * step[0], height + 2 * step[1], margins, notes=notes)
    for place, each in enumerate((*view.maps, view.difference)):
        axes = drawn.part(place * step[0], place * step[1], width, height)
        own = Style(None, DIVERGING) if each.signed else style
        _draw_weights(axes, each, own.cmap)
        paper.put(axes, queries if beside == 1 or not place else (), keys, (cell, cell))
        paper.frame(axes)
        axes.text(0, -0.02, each.title, transform=axes.transAxes, size=NORMAL, weight="bold", va="top")
        low, high = each.scale_ends(".2g", minus="−")
        paper.draw_colour_bar(axes, own, [(0, low), (1, paper.stacked(high))])
    return drawn.figure


def row_figure(view: HeadRow, style: Style) -> Figure:
    """Heads side by side, in several rows if they would be too small; one colour bar for all."""
    weights = view.maps[0].weights
    rows, columns = view.maps[0].values.shape
    cell = MAP_SIDE / max(rows, columns)
    ticks = scale_ticks(view.maps[0])
    right = style.room(ticks[-1][1])
    beside = min(len(view.maps), 4)
    if style.width is not None:
        free = style.width - paper.label_room(weights.queries, cell, NORMAL) - right + MAP_GAP
        beside = max(1, min(len(view.maps), int(free / (1.2 + MAP_GAP))))  # a head has 1.2 inches at least
    beside = -(-len(view.maps) // -(-len(view.maps) // beside))  # equal rows rather than a remainder
    if style.width is not None:
        cell = max(free / beside - MAP_GAP, 1.0) / columns
        free = style.width - paper.label_room(weights.queries, cell) - right + MAP_GAP  # labels shrink, too
        cell = max(free / beside - MAP_GAP, 1.0) / columns
    width, height = cell * columns, cell * rows
    left, above = paper.label_room(weights.queries, cell), paper.label_room(weights.keys, cell)
    lines = -(-len(view.maps) // beside)
    down = height + NAME_HEIGHT + above  # from row to row
    field = (beside * (width + MAP_GAP) - MAP_GAP, lines * down - NAME_HEIGHT - above)
    notes = notes_below(replace(view.maps[0], notes=view.notes))
    drawn = paper.sheet(view, *field, (left, right, above, NAME_HEIGHT), notes=notes)
    for number, each in enumerate(view.maps):
        line, place = divmod(number, beside)
        axes = drawn.part(place * (width + MAP_GAP), line * down, width, height)
        _draw_weights(axes, each, style.cmap)
        paper.put(axes, () if place else weights.queries, weights.keys, (cell, cell), written=each.written)
        paper.frame(axes)
        where: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "top"}
        axes.annotate(each.title, (0, 0), (0, -3), size=NORMAL, weight="bold", **where)
        axes.annotate(each.subtitle, (0, 0), (0, -15), **where, **QUIET)
        if number == beside - 1:
            paper.draw_colour_bar(axes, style, ticks)
    return drawn.figure


def draw_heatmap(view: Heatmap, axes: Axes, cmap: str | None = None) -> None:
    """Draw a head's weights: rows down, columns across, masked cells hatched; token text is literal."""
    _draw_weights(axes, view, choose_map(cmap, signed=view.signed), aspect=None)
    axes.set_title(view.title.partition(" · ")[0], parse_math=False)  # axes are narrow and stand in a row
    weights = view.weights
    for ticks, places, turned in ((axes.set_yticks, weights.queries, 0), (axes.set_xticks, weights.keys, 90)):
        shown = list(range(0, len(places), -(-len(places) // 60)))  # of sixty places, each is labelled
        ticks(shown, [paper.short(places[at].label) for at in shown], rotation=turned, parse_math=False)


MASKED_COLOUR = (226, 226, 226)


def grid_figure(view: Grid, style: Style) -> Figure:
    """Every head in one image of colours on one axes, so that gaps and masked cells have their own."""
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
    drawn = paper.sheet(view, head * heads, layer * len(layers), (left, right, 0.25, 0.16), notes=notes)
    axes = drawn.part()
    axes.imshow(composite, interpolation="nearest", aspect="auto")
    if view.written_from(view.size[1]) < view.size[1]:
        _mark_written(axes, view, (tall, wide, gap))
    size = min(8.0, head * 72 * 0.3)
    centres = [(wide + gap) * i + wide / 2 - 0.5 for i in range(heads)]
    paper.above(axes, centres, view.columns, size)
    middles = [(tall + gap) * i + tall / 2 - 0.5 for i in range(len(layers))]
    paper.beside(axes, middles, [f"L{n}" for n in layers], size)
    paper.frame(axes, ())
    paper.draw_colour_bar(axes, style, [(0, low), (1, paper.stacked(high))])
    return drawn.figure


def _mark_written(axes: Axes, view: Grid, sizes: tuple[int, int, int]) -> None:
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
    picture[:] = 255
    for layer in view.layers:
        colours = table(cmap)[steps(thumbnail_levels(layer, view))]
        colours[layer.masked] = MASKED_COLOUR
        rows = np.arange(tall) * colours.shape[1] // tall
        columns = np.arange(wide) * colours.shape[2] // wide
        placed = colours[:, rows][:, :, columns].transpose(1, 0, 2, 3)  # [row, head, column, 3]
        picture[numbers.index(layer.layer), :tall, : layer.heads, :wide, :3] = placed
    flat = picture.reshape(len(numbers) * (tall + gap), max(view.heads, 1) * (wide + gap), 4)
    return flat[:-gap, :-gap], (tall, wide, gap)


TABLE_SIDE = 4.6  # inches of a table's longer side
LEGIBLE_CELL = 0.055  # inches of a cell from which every head's name fits beside it

PART_GAP = 0.5
DOT_POINTS = 4.7  # points across

PLACES_BESIDE = np.array([(1, 0), (1, 0.7), (1, -0.7), (-1, 0), (-1, 0.7), (-1, -0.7)])
PLACES_OVER = np.array([(0, 1), (0, -1), (0.8, 1.6), (0.8, -1.6), (-0.8, 1.6), (-0.8, -1.6)])
"""Where a name may stand beside its dot, and above or below it, in its own sizes: the first are preferred."""


def distances_figure(view: HeadDistances, style: Style) -> Figure:
    """The table on the left, the plane on the right. The table's image holds nearness, 0 to 1."""
    left, right = _label_room(view.table), 0.3
    side = TABLE_SIDE
    if style.width is not None:
        side = max((style.width - left - BAR_ROOM - PART_GAP - right) / 2, 2.4)
    drawn = paper.sheet(view, 2 * side + BAR_ROOM + PART_GAP, side, (left, right, 0.35, 0.2))
    _draw_table(drawn.part(0, 0, side), view.table, side, side, style)
    _draw_plane(drawn.part(side + BAR_ROOM + PART_GAP, 0, side), view, side, style)
    return drawn.figure


def distance_figure(view: DistanceMap, style: Style) -> Figure:
    """A table alone, for the heads of two models."""
    rows, columns = len(view.rows), len(view.columns)
    cell = TABLE_SIDE / max(rows, columns)
    left = _label_room(view)
    right = max(BAR_ROOM, 5.4 - left - cell * columns)  # so that there is space for a title
    if style.width is not None:
        right, cell = BAR_ROOM, max(style.width - left - BAR_ROOM, 1.0) / columns
    drawn = paper.sheet(view, cell * columns, cell * rows, (left, right, 0.35, 0.2))
    _draw_table(drawn.part(), view, cell * columns, cell * rows, style)
    return drawn.figure


def _label_room(view: DistanceMap) -> float:
    return paper.room([max(view.rows, key=len)], NORMAL)


def _draw_table(axes: Axes, view: DistanceMap, width: float, height: float, style: Style) -> None:
    """Cells, a frame around each group, names where they fit, and the colour bar."""
    paper.paint(axes, view.nearness(), style.cmap, (0, 1))
    across, down = width / len(view.columns), height / len(view.rows)
    size = float(np.clip(down * 72 * 0.85, 4.0, SMALL))
    if down >= LEGIBLE_CELL:
        paper.beside(axes, range(len(view.rows)), view.rows, size)
    if across >= LEGIBLE_CELL:
        paper.above(axes, range(len(view.columns)), view.columns, size, rotation=90)
    for start, count in zip(view.starts, view.groups, strict=True):
        if count > 1:
            square = Rectangle((start - 0.5, start - 0.5), count, count, fill=False, lw=0.9, ec="white")
            axes.add_patch(square)
    paper.frame(axes)
    paper.draw_colour_bar(axes, style, [(0, f"{view.top:.2f} nats\napart"), (1, "0, alike")])


def _draw_plane(axes: Axes, view: HeadDistances, side: float, style: Style) -> None:
    """A dot for each head in its layer's colour, its name beside it, and a legend of layers above."""
    numbers = np.array(view.layers)
    # 0.12 from the end of the colour map: its very end would vanish on white
    shades = np.round(numbers / max(numbers.max(), 1) * (1 - 0.12) * 255).astype(int)
    colours = table(style.cmap)[shades] / 255.0  # [head, 3]
    middle = (view.points.max(0) + view.points.min(0)) / 2
    half = 0.65 * float(np.ptp(view.points, axis=0).max()) or 1.0
    axes.set_xlim(middle[0] - half, middle[0] + half)
    axes.set_ylim(middle[1] - half, middle[1] + half)
    x, y = view.points.T
    axes.scatter(x, y, s=DOT_POINTS**2, c=colours, edgecolors="white", linewidths=0.4, zorder=3)
    size = 6.0 if len(view.names) <= 48 else 4.6
    at = (view.points - middle + half) / (2 * half) * side / POINT  # points on paper, [head, 2]
    for name, point, offset in zip(view.names, view.points, _beside_dots(at, view.names, size), strict=True):
        if offset is not None:
            place: dict[str, Any] = {"textcoords": "offset points", "va": "center", "ha": "center"}
            axes.annotate(name, point, offset, size=size, color=GREY, **place)
    paper.frame(axes, colour="#dddddd")
    layers = sorted(set(view.layers))
    shown = layers[:: max(1, -(-len(layers) // 12))]
    for number, layer in enumerate(shown):
        here, above = 0.02 + number * 0.98 / max(len(shown), 6), axes.transAxes
        colour = colours[view.layers.index(layer)]
        axes.scatter([here], [1.03], s=DOT_POINTS**2, color=colour, transform=above, clip_on=False)
        axes.text(here + 0.02, 1.03, f"L{layer}", size=SMALL, va="center", transform=above)


def _beside_dots(at: Array, names: tuple[str, ...], size: float) -> list[tuple[float, float] | None]:
    """Where each name's centre stands relative to its dot; ``None`` if it would cover another.  [head, 2]"""
    dots = np.concatenate([at - DOT_POINTS / 2, at + DOT_POINTS / 2], 1)  # [box, left bottom right top]
    named = np.empty((0, 4))
    found: list[tuple[float, float] | None] = []
    for dot, name in zip(at, names, strict=True):
        wide, tall = 0.64 * size * len(name), size
        right, up = wide / 2 + DOT_POINTS / 2 + 0.5, tall / 2 + DOT_POINTS / 2
        places = np.concatenate(
            [PLACES_BESIDE * np.array([right, up]), PLACES_OVER * np.array([wide / 2, up])]
        )
        half = np.array([wide, tall]) / 2
        boxes = np.concatenate([dot + places - half, dot + places + half], 1)
        covered = [_overlap(box, dots) + _overlap(box, named) for box in boxes]
        best = int(np.argmin(covered))
        shown = _overlap(boxes[best], named) <= 0.12 * wide * tall  # of the name
        found.append((float(places[best, 0]), float(places[best, 1])) if shown else None)
        named = np.concatenate([named, boxes[best : best + shown]])
    return found


def _overlap(box: Array, others: Array) -> float:
    """How much of the others a box covers, in square points.  [4], [box, 4] -> area"""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    return float(np.prod(np.clip(sides, 0, None), 1).sum())
