"""Terms of a sum as a figure: bars to both sides of zero, and the map of all heads beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attnscope.render.colour import STEPS, table
from attnscope.render.image.sheet import axis
from attnscope.render.image.sheet.sheet import (
    GREY,
    NORMAL,
    SMALL,
    Margins,
    Style,
    colour_map,
    frame,
    hatch,
    sheet,
)
from attnscope.text import clean
from attnscope.views.charts.terms import Moved, Terms

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LENGTH, ROW, BETWEEN, AIR = 3.2, 0.2, 0.55, 0.6
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
    beside = 0.0 if heads is None else BETWEEN + wide
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
        left = box.x0 + (length + BETWEEN) * share
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


def _sentence(moved: Moved) -> str:
    """What a head's output does to words."""
    parts = []
    for name, words in (("raises", moved.raised), ("lowers", moved.lowered)):
        if words:
            parts.append(f"{name} " + ", ".join(clean(word.label) or "␣" for word in words))
    return f"{moved.label} " + ("; ".join(parts) or "moves no word")
