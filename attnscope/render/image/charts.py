"""How a measure changes along the text, as a figure: a head below the other, all on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.render.colour import STEPS, table
from attnscope.render.image import sheet as axis
from attnscope.render.image.sheet import (
    BELOW,
    GREY,
    NORMAL,
    POINT,
    SMALL,
    Margins,
    Style,
    colour_map,
    frame,
    hatch,
    sheet,
)
from attnscope.text import clean, round_short
from attnscope.views.charts import Curves, Faithful, MovedWords, Stack, Terms, TokenOrder

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


TALL_FAITHFUL, LEGEND, BETWEEN_FAITHFUL = 2.9, 2.75, 0.35  # inches
WIDE_FAITHFUL = 3.1  # of a panel, inches
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195")
"""Okabe & Ito's, which all eyes tell apart; what they are too few for has another dash."""
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)))


def faithful_figure(view: Faithful, style: Style) -> Figure:
    """Deletion on the left, insertion on the right, and whose line is which beside them, best first."""
    panel = (
        WIDE_FAITHFUL
        if style.width is None
        else max((style.width - LEGEND - BETWEEN_FAITHFUL - 0.75) / 2, 1.2)
    )
    across = 2 * panel + BETWEEN_FAITHFUL + LEGEND
    margins = Margins(0.55, 0.15, 0.2, 0.5)
    figure, axes = sheet(
        across, TALL_FAITHFUL, margins, title=view.title, subtitle=view.subtitle, notes=view.notes
    )
    box = axes.get_position()
    axes.remove()
    inch = box.width / across
    top = max(max(each.deletion + each.insertion) for each in (*view.ranked, view.random, view.alone))
    for number, name in enumerate(("deletion", "insertion")):
        at = (box.x0 + number * (panel + BETWEEN_FAITHFUL) * inch, box.y0, panel * inch, box.height)
        drawn = figure.add_axes(at)
        _panel(drawn, view, name, top)
        drawn.tick_params(labelsize=SMALL, labelleft=number == 0, length=2)
    figure.axes[0].set_ylabel("probability of the prediction", size=BELOW, color=GREY)
    lines = [
        (each.name, (each.deletion_area, each.insertion_area), colour, dash, width)
        for each, (colour, dash, width) in _lines(view)
    ]
    left = box.x1 - (LEGEND - 0.25) * inch
    step = min(0.2 / TALL_FAITHFUL, 1 / (len(lines) + 1)) * box.height
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


def _lines(view: Faithful) -> list[tuple[TokenOrder, tuple[str, object, float]]]:
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


WIDE_STACK = 4.5  # inches of a bar, where no width is asked for
TALLEST = 12.0  # inches of all bars
LETTERED = 0.13
"""Inches of a part that has its letter in it."""


def stack_figure(view: Stack, style: Style) -> Figure:
    """A row a label; below, which letter is which part, and its mean share."""
    labels = [axis.short(clean(label)) for label in view.labels]
    row = min(0.2, TALLEST / max(len(labels), 1))
    every = max(1, -(-int(axis.READABLE * POINT * 1000) // int(row * 1000)))
    size = min(NORMAL, row * every / POINT * 0.75)
    left = axis.room(labels, size)
    width = WIDE_STACK if style.width is None else max(style.width - left - 0.3, NARROWEST)
    figure, axes = sheet(
        width,
        row * len(labels),
        Margins(left, 0.3, 0.05, 0.14),
        title=view.title,
        subtitle=view.subtitle,
        notes=(view.legend, *view.notes),
    )
    starts = view.shares.cumsum(1) - view.shares  # [label, part]
    for part, (letter, tone) in enumerate(zip(view.letters, view.tones, strict=True)):
        colour = table(style.cmap)[round(tone * (STEPS - 1))] / 255.0
        rows = range(len(labels))
        axes.barh(rows, view.shares[:, part], left=starts[:, part], height=0.9, color=colour, linewidth=0)
        ink = "black" if float(colour**2.2 @ [0.2126, 0.7152, 0.0722]) > 0.18 else "white"
        for at in rows:
            if view.shares[at, part] * width >= LETTERED and row >= SMALL * POINT:
                x = starts[at, part] + view.shares[at, part] / 2
                axes.text(x, at, letter, size=SMALL, color=ink, ha="center", va="center_baseline")
    axes.set_xlim(0, 1)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    shown = range(0, len(labels), every)
    axis.beside(axes, list(shown), [labels[at] for at in shown], size)
    frame(axes)
    return figure


LENGTH, ROW, BETWEEN_TERMS, AIR = 3.2, 0.2, 0.55, 0.6
"""Inches of the bars, of a row, between bars and map; rows between the two blocks of bars."""

CELL, WIDEST = 0.26, 4.2
"""Inches of a cell of the map, and of the whole map at most."""


def terms_figure(view: Terms, style: Style) -> Figure:
    """Bars of groups, their sum, and the largest terms; beside them every head in the same colours."""
    groups, largest = view.blocks
    places = [float(row) for row in range(len(groups))]
    places += [len(groups) + AIR + row for row in range(len(largest))]
    rows = places[-1] + 1
    label = axis.room([term.label for block in view.blocks for term in block], NORMAL)
    heads = view.heads if view.heads is not None and view.heads.values.size else None
    wide = 0.0 if heads is None else min(CELL * heads.values.shape[1], WIDEST)
    beside = 0.0 if heads is None else BETWEEN_TERMS + wide
    length = LENGTH if not style.width else max(style.width - label - beside - 0.35, 1.2)
    notes = (*map(_sentence, view.moved), *view.notes)
    whole, tall = length + beside, ROW * rows
    margins = Margins(label, 0.2, 0.12, 0.3)
    figure, axes = sheet(whole, tall, margins, title=view.title, subtitle=view.subtitle, notes=notes)
    box = axes.get_position()
    axes.set_position((box.x0, box.y0, box.width * length / whole, box.height))
    _draw_bars(axes, view, places, rows, style)
    if heads is not None:
        share, cell = box.width / whole, min(CELL * 0.8, tall / len(heads.layers))
        height = box.height * cell * len(heads.layers) / tall
        left = box.x0 + (length + BETWEEN_TERMS) * share
        beside_axes = figure.add_axes((left, box.y1 - height, wide * share, height))
        _draw_heads(beside_axes, view, wide / heads.values.shape[1], cell, style)
    return figure


def _draw_bars(axes: Axes, view: Terms, places: list[float], rows: float, style: Style) -> None:
    terms = [term for block in view.blocks for term in block]
    colours = table(style.cmap) / 255.0
    low, high = colours[STEPS // 6], colours[-1 - STEPS // 6]
    axes.barh(
        places,
        [term.value for term in terms],
        height=0.72,
        color=[high if term.value >= 0 else low for term in terms],
    )
    axes.axvline(0, color="#888888", linewidth=0.5)
    axes.set_yticks(places, [axis.short(clean(term.label)) for term in terms], size=NORMAL)
    for tick, term in zip(axes.get_yticklabels(), terms, strict=True):
        if term is view.total or term.label == view.marked:
            tick.set_fontweight("bold")
    axes.set_ylim(rows - 0.5, -0.5)
    low, high = view.span
    number = 0.16 * (low + high)  # room for a number at either end
    axes.set_xlim(-low - (number if low else 0), high + (number if high else 0))
    axes.tick_params(axis="y", length=0, pad=3)
    axes.set_xticks([])
    for place, term in zip(places, terms, strict=True):
        side = 1 if term.value >= 0 else -1
        at = term.value + side * 0.01 * sum(view.span)
        axes.text(
            at,
            place,
            f"{term.value:+.3f}",
            size=SMALL,
            color=GREY,
            ha="left" if side > 0 else "right",
            va="center",
        )
    for spine in axes.spines.values():
        spine.set_visible(False)


def _draw_heads(axes: Axes, view: Terms, wide: float, tall: float, style: Style) -> None:
    """Every head in a cell, blue and red as the bars."""
    heads = view.heads
    if heads is None:
        return
    if not np.isfinite(heads.values).all():
        hatch(axes)
    low, high = heads.limits
    known = np.ma.masked_invalid(heads.values)
    axes.imshow(
        known, cmap=colour_map(style.cmap), vmin=low, vmax=high, interpolation="nearest", aspect="auto"
    )
    size = max(min(7.0, min(wide, tall) * 72 * 0.5), 3.0)
    count = heads.values.shape[1]
    step = max(1, round(0.22 / wide))
    axes.set_title("every head", size=SMALL, color=GREY, loc="left", pad=12)
    for head in range(0, count, step):
        axes.text(head, -0.6, f"H{head}", size=size, ha="center", va="bottom", color=GREY)
    step = max(1, round(0.12 / tall))
    for row in range(0, len(heads.layers), step):
        axes.text(-0.65, row, f"L{heads.layers[row]}", size=size, ha="right", va="center", color=GREY)
    frame(axes)


def _sentence(moved: MovedWords) -> str:
    """What a head's output does to words."""
    parts = []
    for name, words in (("raises", moved.raised), ("lowers", moved.lowered)):
        if words:
            parts.append(f"{name} " + ", ".join(clean(word.label) or "␣" for word in words))
    return f"{moved.label} " + ("; ".join(parts) or "moves no word")
