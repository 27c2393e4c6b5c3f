"""Two heads and their difference, as a figure of three maps on one height."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.render.colour import DIVERGING
from attnscope.render.image.maps import image_values
from attnscope.render.image.sheet import axis
from attnscope.render.image.sheet.colour_bar import ROOM, colour_bar, stacked
from attnscope.render.image.sheet.sheet import NORMAL, Margins, Style, colour_map, frame, hatch, sheet
from attnscope.views.heatmap import EACH_ROW, Heatmap
from attnscope.views.pair import HeadPair, Parting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    for number, each in enumerate((*view.maps, view.difference)):
        if number:
            axes = figure.add_axes((0, 0, 1, 1))
        axes.set_position((box.x0 + number * (width + between) * inch, box.y0, width * inch, box.height))
        _draw(figure, axes, each, cell, Style(None, DIVERGING) if each.signed else style, first=number == 0)
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
    colour_bar(figure, axes, style, [(0, f"{low:.2g}"), (1, top)])


def _said(names: tuple[str, str], parting: Parting) -> str:
    looks = " · ".join(
        f"{name} looks at {key} ({weight:.2f})"
        for name, key, weight in zip(names, parting.keys, parting.weights, strict=True)
    )
    return f"{parting.label} {parting.position}: {parting.distance:.2f} nats apart; {looks}"
