"""What all images share: a white sheet with a title above, a caption below, and a colour bar."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscope.render.colour import table
from attnscope.views.heatmap import Reading

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

POINT = 1 / 72  # inches
SMALL, NORMAL, LARGE = 6.5, 9.0, 11.0  # points
GREY = "#5a5a5a"
GAP = 0.15  # inches
TITLE, SUBTITLE, CAPTION = "title", "subtitle", "caption"
"""The group ids of a sheet's own texts."""


@dataclass(frozen=True, slots=True)
class Margins:
    """Inches around the axes of a picture."""

    left: float
    right: float
    top: float
    bottom: float


@dataclass(frozen=True, slots=True)
class Style:
    """How an image is asked for: ``width`` in inches, or as large as is legible; ``cmap`` by name."""

    width: float | None
    cmap: str


def sheet(
    width: float,
    height: float,
    margins: Margins,
    *,
    title: str,
    subtitle: str,
    caption: Sequence[str],
) -> tuple[Figure, Axes]:
    """A figure with axes of ``width`` × ``height`` inches, and room around them for title and caption."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    full = max(margins.left + width + margins.right, 3.2)
    lines = wrapped(caption, full)
    top = margins.top + (0.3 if title else 0) + (0.2 if subtitle else 0) + GAP
    bottom = margins.bottom + len(lines) * SMALL * 1.5 * POINT + GAP
    tall = top + height + bottom
    figure = Figure(figsize=(full, tall), facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((margins.left / full, bottom / tall, width / full, height / tall))
    at = 1 - GAP / tall
    for gid, text, size, colour, step in (
        (TITLE, title, LARGE, "black", 0.22),
        (SUBTITLE, subtitle, 8.0, GREY, 0.2),
    ):
        if text:
            figure.text(GAP / full, at, text, size=size, color=colour, va="top", gid=gid)
            at -= step / tall
    if lines:
        figure.text(
            GAP / full,
            GAP / tall,
            "\n".join(lines),
            size=SMALL,
            color=GREY,
            va="bottom",
            linespacing=1.25,
            gid=CAPTION,
        )
    return figure, axes


def wrapped(caption: Sequence[str], width: float) -> list[str]:
    """The lines of a caption below a sheet of some inches."""
    return [line for text in caption for line in textwrap.wrap(text, max(int(width * 16), 30))]


def listed(name: str) -> Colormap:
    """A colour map of ours for matplotlib; closed cells are left clear."""
    from matplotlib.colors import ListedColormap

    clear = (0.0, 0.0, 0.0, 0.0)
    return ListedColormap(table(name) / 255.0, name=f"attnscope-{name}").with_extremes(bad=clear)


def hatch(axes: Axes) -> None:
    """What is closed shows the hatched ground below the map, which no weight looks like."""
    axes.patch.set(facecolor="#f1f1f1", edgecolor="#cccccc", hatch="//////", linewidth=0)


def frame(axes: Axes) -> None:
    """A hairline around the axes, and no ticks."""
    axes.xaxis.set_visible(False)
    axes.yaxis.set_visible(False)
    for spine in axes.spines.values():
        spine.set(linewidth=0.5, color="#888888", zorder=5)  # above the labels, whatever is drawn first


def sentences(readings: Sequence[Reading], notes: Sequence[str]) -> list[str]:
    """The caption: measured numbers in a row, then each note."""
    numbers = "   ".join(_reading(reading) for reading in readings)
    return [*([numbers] if numbers else []), *notes]


def _reading(reading: Reading) -> str:
    unit = f" {reading.unit}" if reading.unit else ""
    beside = "" if reading.baseline is None else f" (uniform {reading.baseline:.2f})"
    return f"{reading.name} {reading.value:.2f}{unit}{beside}"
