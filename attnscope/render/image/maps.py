"""Heatmaps, and maps of one number a head, as figures."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.axes import Place
from attnscope.render.colour import DIVERGING, choose_map, steps, table
from attnscope.render.image import sheet as axis
from attnscope.render.image.sheet import (
    BAR,
    NORMAL,
    ROOM,
    SMALL,
    Margins,
    Style,
    colour_map,
    draw_colour_bar,
    frame,
    hatch,
    sheet,
    short,
    stacked,
)
from attnscope.views.heads import HeadMap, number
from attnscope.views.heatmap import EACH_ROW, HeadPair, Heatmap, Parting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attnscope.axes import Array


WRITTEN = 0.1
"""Inches of a cell from which a weight can be read in it."""

SHORT, LONGEST = 6, 12
"""Letters of a unit beside its number, and of a line of a longer one."""

LOWEST = 0.16
"""Inches of a row under a spectrogram, at least: a token is read beside it."""

STRIP = 0.5
"""Inches of a spectrogram above a map."""

WEIGHT = "weight"
"""The group id of the weights that are written into cells."""


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
    tall = cell if view.bands is None else max(cell, LOWEST)
    _, row_texts, row_size = axis.labels(queries, tall)
    _, column_texts, column_size = axis.labels(keys, cell)
    strip = 0.0 if view.bands is None else STRIP + 0.04
    above = axis.room(column_texts, column_size) + strip
    margins = Margins(axis.room(row_texts, row_size), ROOM, above, 0.1)
    figure, axes = sheet(
        cell * columns,
        tall * rows,
        margins,
        title=view.title,
        subtitle=view.subtitle,
        notes=view.notes if view.written is None else (*view.notes, "bold tokens: written by the model"),
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
    top = None if view.bands is None else _draw_bands(figure, axes, view.bands)
    axis.put(axes, queries, keys, (cell, tall), written=view.written, top=top)
    if style.annotate and cell >= WRITTEN:
        _write_weights(axes, view, style, min(NORMAL, cell * 72 * 0.42))
    frame(axes)
    ends = (f"{low:.3g}", f"{high:.3g}")
    if by_row:
        ends = ("−largest" if view.signed else "0", stacked(EACH_ROW))
    middle = "" if by_row else f"{(low + high) / 2:.3g}"
    draw_colour_bar(figure, axes, style, [(0, ends[0]), (0.5, middle), (1, ends[1])])
    return figure


def _draw_bands(figure: Figure, axes: Axes, bands: Array) -> Axes:
    """A spectrogram over the columns of a map, low tones at the bottom."""
    place, tall = axes.get_position(), figure.get_size_inches()[1]
    strip = figure.add_axes((place.x0, place.y1 + 0.04 / tall, place.width, STRIP / tall))
    extent = (*axes.get_xlim(), 0, len(bands))
    strip.imshow(bands, cmap="Greys", vmin=0, vmax=1, origin="lower", aspect="auto", extent=extent)
    frame(strip)
    return strip


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


def head_map_figure(view: HeadMap, style: Style) -> Figure:
    """One number a head, written into its cell where there is room. The image holds the numbers."""
    layers, heads = view.values.shape
    cell = min(0.5, 11.0 / max(heads, 1))
    low, high = view.limits
    top = _with_unit(f"{high:.3g}", view.unit)
    right = max(ROOM, BAR + axis.room(top.split("\n"), SMALL))
    if style.width:
        cell = max(style.width - 0.45 - right - 0.3, 1.0) / max(heads, 1)
    figure, axes = sheet(
        cell * heads,
        cell * 0.7 * layers,
        Margins(0.45, right, 0.25, 0.1),
        title=view.title or view.name,
        subtitle=view.subtitle,
        notes=view.notes,
    )
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
    draw_colour_bar(figure, axes, style, [(0, f"{low:.3g}"), (1, top)])
    return figure


def _with_unit(number: str, unit: str) -> str:
    """A number with its unit beside it, or below it in lines where that is long."""
    if len(unit) <= SHORT:
        return f"{number} {unit}".strip()
    return "\n".join([number, *textwrap.wrap(unit, LONGEST)])


def _write_numbers(axes: Axes, view: HeadMap, style: Style, size: float) -> None:
    colours = table(style.cmap)[steps(np.nan_to_num(view.levels()))] / 255.0
    light = colours**2.2 @ [0.2126, 0.7152, 0.0722] > 0.18  # [layer, head]
    for (row, head), value in np.ndenumerate(view.values):
        if np.isfinite(value):
            ink = "black" if light[row, head] else "white"
            axes.text(
                head, row, number(value), size=max(size, SMALL - 2), color=ink, ha="center", va="center"
            )


SIDE = 2.9  # inches of a map's longer side
BETWEEN = 0.15


def pair_figure(view: HeadPair, style: Style) -> Figure:
    """Both heads, then the first minus the second in the diverging colours; rows are labelled once."""
    rows, columns = view.difference.values.shape
    queries, keys = view.difference.weights.queries, view.difference.weights.keys
    cell = SIDE / max(rows, columns)
    left = axis.room(axis.labels(queries, cell)[1], NORMAL)
    between = ROOM + BETWEEN
    if style.width is not None:
        cell = max(style.width - left - ROOM - 2 * between, 3.6) / (3 * columns)
    width, height = cell * columns, cell * rows
    whole = 3 * width + 2 * between
    _, texts, size = axis.labels(keys, cell)
    figure, axes = sheet(
        whole,
        height,
        Margins(left, ROOM, axis.room(texts, size), 0.3),
        title=view.title,
        subtitle=view.subtitle,
        notes=(*(_said(view.names, parting) for parting in view.partings), *view.notes),
    )
    box = axes.get_position()
    inch = box.width / whole
    for place, each in enumerate((*view.maps, view.difference)):
        if place:
            axes = figure.add_axes((0, 0, 1, 1))
        axes.set_position((box.x0 + place * (width + between) * inch, box.y0, width * inch, box.height))
        _draw(figure, axes, each, cell, Style(None, DIVERGING) if each.signed else style, first=place == 0)
    return figure


def _draw(figure: Figure, axes: Axes, view: Heatmap, cell: float, style: Style, *, first: bool) -> None:
    """One map with its name, its columns' labels and its colour bar."""
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
    axis.put(axes, view.weights.queries if first else (), view.weights.keys, (cell, cell))
    frame(axes)
    axes.text(0, -0.02, view.title, transform=axes.transAxes, size=NORMAL, weight="bold", va="top")
    top = stacked(EACH_ROW) if by_row else f"{high:.2g}"
    draw_colour_bar(figure, axes, style, [(0, f"{low:.2g}"), (1, top)])


def _said(names: tuple[str, str], parting: Parting) -> str:
    looks = " · ".join(
        f"{name} looks at {key} ({weight:.2f})"
        for name, key, weight in zip(names, parting.keys, parting.weights, strict=True)
    )
    return f"{parting.label} {parting.position}: {parting.distance:.2f} nats apart; {looks}"


LABELLED = 60
"""Places of an axis that are labelled one by one, at most."""


def draw_heatmap(view: Heatmap, axes: Axes, cmap: str | None = None) -> None:
    """Draw a head's weights: rows down, columns across, closed cells hatched; token text is literal."""
    low, high = (0.0, 1.0) if view.scale == "row" else view.limits
    hatch(axes)
    axes.imshow(
        image_values(view),
        cmap=colour_map(choose_map(cmap, signed=view.signed)),
        vmin=low,
        vmax=high,
        interpolation="nearest",
    )
    axes.set_title(view.title, parse_math=False)
    for ticks, places, turned in (
        (axes.set_yticks, view.weights.queries, 0),
        (axes.set_xticks, view.weights.keys, 90),
    ):
        shown = _labelled(places)
        ticks(shown, [short(places[at].label) for at in shown], rotation=turned, parse_math=False)


def _labelled(places: tuple[Place, ...]) -> list[int]:
    """The places that are labelled: all, or evenly some."""
    return list(range(0, len(places), -(-len(places) // LABELLED)))
