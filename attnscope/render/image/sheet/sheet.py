"""What all images share: a white sheet with a title above, a caption below, and a colour bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnscope.render.colour import table
from attnscope.render.image.sheet.wrapping import POINT, wrap, wrap_title
from attnscope.text import clean, round_short
from attnscope.views.heatmap import Reading

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

SMALL, BELOW, NORMAL, LARGE = 6.5, 8.0, 9.0, 11.0  # points
GREY = "#5a5a5a"
GAP = 0.15  # inches
LINE = SMALL * 1.3 * POINT  # from line to line of a caption
COLUMN, TO_VALUE = 2.2, 0.85  # inches from column to column of readings, and to the end of their values
TITLE, SUBTITLE, NOTES = "title", "subtitle", "notes"
NAME, VALUE, BASELINE = "name", "value", "baseline"
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
    """How an image is asked for: ``width`` in inches, or as large as is legible; ``cmap`` by name.

    ``annotate`` writes the weights of a head into its cells.
    """

    width: float | None
    cmap: str
    annotate: bool = False


def sheet(
    width: float,
    height: float,
    margins: Margins,
    *,
    title: str,
    subtitle: str,
    notes: Sequence[str],
    readings: Sequence[Reading] = (),
) -> tuple[Figure, Axes]:
    """A figure with axes of ``width`` × ``height`` inches, and room around them for title and caption."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    notes = [clean(note) for note in notes]
    full = max(margins.left + width + margins.right, 3.2)
    title, subtitle = wrap_title(title, LARGE, full), wrap_title(subtitle, BELOW, full)
    columns = in_columns(readings, full)
    lines = [line for note in notes for line in wrap(note, SMALL, full)]
    measured = max((len(column) for column in columns), default=0)
    heads = [
        (TITLE, title, LARGE, "black", 0.22 + 0.18 * title.count("\n"), 0.08),
        (SUBTITLE, subtitle, BELOW, GREY, 0.2 + 0.14 * subtitle.count("\n"), 0.0),
    ]
    top = margins.top + sum(step + below for _, text, _, _, step, below in heads if text) + GAP
    bottom = margins.bottom + (measured + len(lines)) * LINE + GAP
    tall = top + height + bottom
    figure = Figure(figsize=(full, tall), facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((margins.left / full, bottom / tall, width / full, height / tall))
    at = 1 - GAP / tall
    for gid, text, size, colour, step, _ in heads:
        if text:
            figure.text(GAP / full, at, text, size=size, color=colour, va="top", gid=gid)
            at -= step / tall
    small: dict[str, Any] = {"size": SMALL, "color": GREY, "linespacing": 1.25}
    if lines:
        figure.text(GAP / full, GAP / tall, "\n".join(lines), va="bottom", gid=NOTES, **small)
    for number, column in enumerate(columns):
        left = GAP + number * COLUMN
        for row, reading in enumerate(column):
            y = (GAP + (measured + len(lines) - row - 0.75) * LINE) / tall
            for x, side, gid, text in (
                (left, "left", NAME, reading.name),
                (left + TO_VALUE, "right", VALUE, value_of(reading)),
                (left + TO_VALUE + 0.05, "left", BASELINE, _beside(reading)),
            ):
                figure.text(x / full, y, text, ha=side, va="baseline", gid=gid, **small)
    return figure, axes


def in_columns(readings: Sequence[Reading], width: float) -> list[Sequence[Reading]]:
    """Readings in as many columns as a sheet of some inches has room for."""
    count = max(int((width - GAP) / COLUMN), 1)
    tall = -(-len(readings) // count)
    return [readings[start : start + tall] for start in range(0, len(readings), tall)] if tall else []


def value_of(reading: Reading) -> str:
    """What a reading shows as its number."""
    return f"{reading.value:.2f}"


def _beside(reading: Reading) -> str:
    baseline = "" if reading.baseline is None else f"(baseline {round_short(reading.baseline)})"
    return f"{reading.unit} {baseline}".strip()


def colour_map(name: str) -> Colormap:
    """A colour map of ours for matplotlib; masked cells are left clear."""
    from matplotlib.colors import ListedColormap

    clear = (0.0, 0.0, 0.0, 0.0)
    return ListedColormap(table(name) / 255.0, name=f"attnscope-{name}").with_extremes(bad=clear)


def hatch(axes: Axes) -> None:
    """What is masked shows the hatched ground below the map, which no weight looks like."""
    axes.patch.set(facecolor="#f1f1f1", edgecolor="#cccccc", hatch="//////", linewidth=0)


def frame(axes: Axes) -> None:
    """A hairline around the axes, and no ticks."""
    axes.xaxis.set_visible(False)
    axes.yaxis.set_visible(False)
    for spine in axes.spines.values():
        spine.set(linewidth=0.5, color="#888888", zorder=5)  # above the labels, whatever is drawn first
