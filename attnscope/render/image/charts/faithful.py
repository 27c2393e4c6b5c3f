"""How a prediction falls and rises along several orders of the tokens, as a figure: two panels of curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.render.image.sheet.sheet import BELOW, GREY, NORMAL, SMALL, Margins, Style, sheet
from attnscope.views.charts.faithful import Faithful, Ranked

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TALL, LEGEND, BETWEEN = 2.9, 2.75, 0.35  # inches
WIDE = 3.1  # of a panel, inches
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195")
"""Okabe & Ito's, which all eyes tell apart; what they are too few for has another dash."""
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)))


def faithful_figure(view: Faithful, style: Style) -> Figure:
    """Deletion on the left, insertion on the right, and whose line is which beside them, best first."""
    panel = WIDE if style.width is None else max((style.width - LEGEND - BETWEEN - 0.75) / 2, 1.2)
    across = 2 * panel + BETWEEN + LEGEND
    margins = Margins(0.55, 0.15, 0.2, 0.5)
    figure, axes = sheet(across, TALL, margins, title=view.title, subtitle=view.subtitle, notes=view.notes)
    box = axes.get_position()
    axes.remove()
    inch = box.width / across
    top = max(max(each.deletion + each.insertion) for each in (*view.ranked, view.random, view.alone))
    for number, name in enumerate(("deletion", "insertion")):
        at = (box.x0 + number * (panel + BETWEEN) * inch, box.y0, panel * inch, box.height)
        drawn = figure.add_axes(at)
        _panel(drawn, view, name, top)
        drawn.tick_params(labelsize=SMALL, labelleft=number == 0, length=2)
    figure.axes[0].set_ylabel("probability of the prediction", size=BELOW, color=GREY)
    lines = [
        (each.name, (each.deletion_area, each.insertion_area), colour, dash, width)
        for each, (colour, dash, width) in _lines(view)
    ]
    left = box.x1 - (LEGEND - 0.25) * inch
    step = min(0.2 / TALL, 1 / (len(lines) + 1)) * box.height
    columns = (box.x1 - 0.55 * inch, box.x1)
    quiet: dict[str, Any] = {"size": SMALL, "color": GREY, "ha": "right"}
    for x, name in zip(columns, ("deletion", "insertion"), strict=True):
        figure.text(x, box.y1, name, va="top", **quiet)
    from matplotlib.lines import Line2D

    for number, (name, areas, colour, dash, width) in enumerate(lines, 1):
        y = box.y1 - number * step - step / 2
        ends = [left, left + 0.22 * inch]
        figure.add_artist(Line2D(ends, [y, y], color=colour, linestyle=dash, linewidth=width))
        figure.text(left + 0.3 * inch, y, name, size=SMALL, va="center")
        for x, area in zip(columns, areas, strict=True):
            figure.text(x, y, f"{area / view.whole:.2f}", va="center", **quiet)
    return figure


def _lines(view: Faithful) -> list[tuple[Ranked, tuple[str, object, float]]]:
    """Each order with its colour, dash and width: those beside which all stand are grey."""
    own = [
        (each, (COLOURS[n % len(COLOURS)], DASHES[n // len(COLOURS) % len(DASHES)], 1.3))
        for n, each in enumerate(view.ranked)
    ]
    return [(view.alone, ("black", "-", 1.0)), *own, (view.random, ("#9a9a9a", "-", 2.4))]


def _panel(axes: Axes, view: Faithful, name: str, top: float) -> None:
    """One curve an order, over the share of the tokens that is gone, or back."""
    shares = [each / view.taken[-1] for each in view.taken]
    for each, (colour, dash, width) in reversed(_lines(view)):
        axes.plot(shares, getattr(each, name), color=colour, linestyle=dash, linewidth=width)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, top * 1.05 or 1)
    said = "tokens taken away, those that count most first"
    axes.set_xlabel(
        said if name == "deletion" else "tokens given back, those that count most first", size=BELOW
    )
    axes.xaxis.label.set_color(GREY)
    axes.set_title(name, size=NORMAL, loc="left", pad=3)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#bbbbbb")
    axes.grid(axis="y", color="#eeeeee", linewidth=0.6)
    axes.set_axisbelow(True)
