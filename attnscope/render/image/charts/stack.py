"""Shares of a whole as a figure: a bar a label, every part with a letter and a colour of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.render.colour import STEPS, table
from attnscope.render.image.sheet import axis
from attnscope.render.image.sheet.sheet import NORMAL, SMALL, Margins, Style, frame, sheet
from attnscope.render.image.sheet.wrapping import POINT
from attnscope.text import clean
from attnscope.views.charts.stack import Stack

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDE = 4.5  # inches of a bar, where no width is asked for
NARROWEST = 1.6
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
    width = WIDE if style.width is None else max(style.width - left - 0.3, NARROWEST)
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
