"""One token's focus as a figure: what it looks at, and who looks at it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.render.colour import STEPS, table
from attnscope.render.image.overlay import overlay_figure
from attnscope.render.image.sheet import axis
from attnscope.render.image.sheet.sheet import GAP, GREY, NORMAL, SMALL, Margins, Style, sheet
from attnscope.render.image.sheet.wrapping import fence, wrap_title
from attnscope.views.focus import Bars, Focus

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LENGTH = 2.6  # inches of the longest bar
BETWEEN = 0.5


def focus_figure(view: Focus, style: Style) -> Figure:
    """Two lists of bars side by side, on the scale of the terminal; the heaviest on top. Or a picture."""
    if view.overlays:
        return overlay_figure(view, view.overlays, style)
    name = axis.short(view.label)
    lists = [
        (f"{name} (token {view.position}) {verb}", bars)
        for verb, bars in zip(view.verbs, (view.looks_at, view.looked_at_by), strict=True)
        if bars is not None
    ]
    longest = max((len(bars.bars) for _, bars in lists), default=0)
    texts = [_label(bar.label, bar.position) for _, bars in lists for bar in bars.bars]
    label = axis.room(texts, NORMAL)
    length = LENGTH
    if style.width:
        length = max((style.width - 0.4 - BETWEEN * (len(lists) - 1)) / len(lists) - label, 1.2)
    titles = [wrap_title(title, NORMAL, length + label + 0.3, bold=True, label=name) for title, _ in lists]
    lines = max((title.count("\n") for title in titles), default=0)
    height = 0.22 * max(longest, 1)
    whole = length * len(lists) + (label + BETWEEN) * (len(lists) - 1)
    figure, axes = sheet(
        whole,
        height,
        Margins(label, 0.4, 0.35 + 0.15 * lines, 0.35),
        title=view.title,
        subtitle=view.subtitle,
        notes=view.notes,
    )
    box = axes.get_position()
    share = box.width / whole
    for i, (title, (_, bars)) in enumerate(zip(titles, lists, strict=True)):
        if i:
            axes = figure.add_axes((0, 0, 1, 1))
        axes.set_position(
            (box.x0 + i * (length + label + BETWEEN) * share, box.y0, length * share, box.height)
        )
        _bars(axes, bars, view.full_bar, longest, style)
        left = -(label - GAP) / length  # where the labels of the bars begin
        whole_axes: dict[str, Any] = {"transform": axes.transAxes, "ha": "left"}
        axes.text(left, 1 + 0.08 / height, title, size=NORMAL, weight="bold", va="bottom", **whole_axes)
        if bars.more:
            axes.text(left, -0.22 / height, bars.rest, size=SMALL, color=GREY, va="top", **whole_axes)
    return figure


def _label(text: str, position: int) -> str:
    return f"{fence(axis.short(text))} {position}"


def _bars(axes: Axes, bars: Bars, full: float, longest: int, style: Style) -> None:
    colour = table(style.cmap)[STEPS * 5 // 8] / 255.0
    weights = [bar.weight for bar in bars.bars]
    axes.barh(range(len(weights)), weights, height=0.72, color=colour)
    axes.set_yticks(range(len(weights)), [_label(bar.label, bar.position) for bar in bars.bars], size=NORMAL)
    axes.set_ylim(longest - 0.5, -0.5)
    axes.set_xlim(0, full)
    axes.tick_params(axis="y", length=0, pad=3)
    axes.tick_params(axis="x", labelsize=SMALL, length=2, width=0.5)
    axes.set_xticks([0, full / 2, full], ["0", f"{full / 2:.3g}", f"{full:.3g}"])
    for row, weight in enumerate(weights):
        inside = weight > 0.8 * full
        axes.text(
            weight + full * (-0.01 if inside else 0.01),
            row,
            f"{weight:.2f}",
            size=SMALL,
            color="black" if inside else GREY,
            ha="right" if inside else "left",
            va="center",
        )
    for side, spine in axes.spines.items():
        spine.set(linewidth=0.5, color="#888888", visible=side in ("left", "bottom"))
