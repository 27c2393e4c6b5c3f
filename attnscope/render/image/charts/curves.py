"""How a measure changes along the text, as a figure: a head below the other, all on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnscope.render.colour import STEPS, table
from attnscope.render.image.sheet import axis
from attnscope.render.image.sheet.sheet import GREY, NORMAL, SMALL, Margins, Style, frame, sheet
from attnscope.text import round_short
from attnscope.views.charts.curves import Curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE = 5.0  # inches of the text, where no width is asked for
NARROWEST = 1.6
TALL, BETWEEN = 0.38, 0.1  # inches of a head, and of the air below it


def curves_figure(view: Curves, style: Style) -> Figure:
    """Steps from row to row, the baseline as a line over each, and the ends of the scale."""
    names = [curve.head for curve in view.curves]
    left, right = axis.room(names, NORMAL), axis.room([f"{view.top:.2f} {view.unit}"], SMALL)
    width = WIDE if style.width is None else max(style.width - left - right, NARROWEST)
    height = len(names) * (TALL + BETWEEN) - BETWEEN
    said = f"the line is the baseline; all heads on one scale up to {round_short(view.top)} {view.unit}"
    figure, axes = sheet(
        width,
        height,
        Margins(left, right, 0.05, 0.3),
        title=view.title,
        subtitle=view.subtitle,
        notes=(said, *view.notes),
    )
    box = axes.get_position()
    inch = box.height / height
    colour = table(style.cmap)[STEPS * 5 // 8] / 255.0
    for number, curve in enumerate(view.curves):
        if number:
            axes = figure.add_axes((0, 0, 1, 1))
        top = box.y1 - number * (TALL + BETWEEN) * inch
        axes.set_position((box.x0, top - TALL * inch, box.width, TALL * inch))
        axes.stairs(_numbers(curve.values), view.edges, fill=True, color=colour)
        axes.stairs(_numbers(curve.baseline), view.edges, baseline=None, color=GREY, linewidth=0.8)
        _settle(axes, view)
        axis.beside(axes, [view.top / 2], [curve.head], NORMAL)
    axis.beside(axes, [0, view.top], ["0", f"{view.top:.2g} {view.unit}"], SMALL, right=True)
    for side, row in (("left", view.edges[0]), ("right", view.edges[-1] - 1)):
        at = view.edges[0] if side == "left" else view.edges[-1]
        name = f"row {row:,}" if side == "left" else f"{row:,}"
        axes.annotate(
            name,
            (at, min(0.0, view.least)),
            (0, -4),
            textcoords="offset points",
            size=SMALL,
            color=GREY,
            ha=side,
            va="top",
        )
    return figure


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _settle(axes: Axes, view: Curves) -> None:
    axes.set_xlim(view.edges[0], view.edges[-1])
    axes.set_ylim(min(0.0, view.least), view.top)
    frame(axes)
    for side, spine in axes.spines.items():
        spine.set(visible=side == "bottom", color="#bbbbbb")
