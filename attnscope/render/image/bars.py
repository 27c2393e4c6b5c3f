"""A picture with attention laid over it, as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnscope.axes import Array
from attnscope.render.colour import STEPS, table
from attnscope.render.image import sheet as axis
from attnscope.render.image.sheet import (
    GAP,
    GREY,
    NORMAL,
    SMALL,
    Margins,
    Style,
    fence,
    frame,
    sheet,
    wrap_title,
)
from attnscope.render.overlay import blend, full_light, levels_of, resize
from attnscope.views.token import Bars, Overlay, TokenView

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


SIDE = 2.8  # inches of a picture's width
LEAST = 1.5  # below, its title has no room; narrower pictures are made smaller with all that is in them
TALLEST = 5.0  # inches of a picture's height
SLENDER = 0.25  # inches of width of one that is much taller than wide
BETWEEN = 0.25
FINEST = 448  # pixels of a picture's shorter side, at least, so that patches have sharp edges


def overlay_figure(view: TokenView, shown: Sequence[Overlay], style: Style) -> Figure:
    """A row for each picture: itself, and each map laid over it; full light is the heaviest weight."""
    count = 1 + max(len(each.maps) for each in shown)
    side = SIDE if not style.width else max((style.width - BETWEEN * (count - 1) - 0.2) / count, LEAST)
    sides = [min(side, max(TALLEST * _proportion(each), SLENDER)) for each in shown]
    heights = [min(one / _proportion(each), TALLEST) for one, each in zip(sides, shown, strict=True)]
    titles = [_titles(view, each, side, several=len(shown) > 1) for each in shown]
    lines = max(title.count("\n") for row in titles for title in row)
    heading, above = 0.3 + 0.15 * lines, 0.3
    whole = side * count + BETWEEN * (count - 1)
    tall = sum(heights) + (heading + above) * (len(shown) - 1)
    figure, axes = sheet(
        whole,
        tall,
        Margins(0.15, 0.15, heading, above),
        title=view.title,
        subtitle=view.subtitle,
        notes=view.notes,
    )
    box = axes.get_position()
    axes.remove()
    across, up = box.width / whole, box.height / tall
    tops, top = full_light(shown), box.y1
    for each, names, wide, high in zip(shown, titles, sides, heights, strict=True):
        grow = max(1, -(-FINEST // min(each.pixels.shape[:2])))
        pixels = resize(each.pixels, *(size * grow for size in each.pixels.shape[:2]))
        for number, name in enumerate(names):
            left = box.x0 + number * (side + BETWEEN) * across
            one = figure.add_axes((left, top - high * up, wide * across, high * up))
            _draw(one, each, number, pixels, tops, style)
            weight = "bold" if number else "normal"
            colour = "black" if number else GREY
            place: dict[str, Any] = {"transform": one.transAxes, "va": "bottom"}
            one.text(0, 1 + 0.06 / high, name, size=NORMAL, weight=weight, color=colour, **place)
        top -= (high + heading + above) * up
    return figure


def _proportion(shown: Overlay) -> float:
    """How wide a picture is beside its height."""
    tall, wide = shown.pixels.shape[:2]
    return float(wide / tall)


def _titles(view: TokenView, shown: Overlay, side: float, *, several: bool) -> list[str]:
    """What stands above a picture and each of its maps."""
    which = f" · {shown.name}" if several else ""
    label = axis.short(view.label)
    whole = wrap_title(f"as the model sees it{which}", NORMAL, side + GAP, bold=True)
    names = [f"{label} {verb}{which}" for verb, _ in shown.maps]
    return [whole, *(wrap_title(name, NORMAL, side + GAP, bold=True, label=label) for name in names)]


def _draw(
    axes: Axes, shown: Overlay, number: int, pixels: Array, tops: dict[str, float], style: Style
) -> None:
    """The picture itself, or the map with that number over it."""
    frame(axes)
    if number:
        verb, weights = shown.maps[number - 1]
        levels = resize(levels_of(weights, tops[verb]), *pixels.shape[:2])
        below: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points"}
        light = f"full light is {tops[verb]:.2g}"
        axes.annotate(light, (0, 0), (0, -3), size=SMALL, color=GREY, va="top", **below)
        pixels = blend(pixels, levels, style.cmap)
    axes.imshow(pixels.astype("uint8"), interpolation="nearest", aspect="auto")
    if number:
        _mark(axes, shown, *pixels.shape[:2])


def _mark(axes: Axes, shown: Overlay, tall: int, wide: int) -> None:
    """A frame around the patch itself."""
    from matplotlib.patches import Rectangle

    if shown.patch is None:
        return
    rows, columns = shown.maps[0][1].shape
    row, column = shown.patch
    corner = (column * wide / columns - 0.5, row * tall / rows - 0.5)
    axes.add_patch(
        Rectangle(corner, wide / columns, tall / rows, fill=False, edgecolor="white", linewidth=1.5)
    )


LENGTH = 2.6  # inches of the longest bar
BETWEEN_BARS = 0.5


def focus_figure(view: TokenView, style: Style) -> Figure:
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
        length = max((style.width - 0.4 - BETWEEN_BARS * (len(lists) - 1)) / len(lists) - label, 1.2)
    titles = [wrap_title(title, NORMAL, length + label + 0.3, bold=True, label=name) for title, _ in lists]
    lines = max((title.count("\n") for title in titles), default=0)
    height = 0.22 * max(longest, 1)
    whole = length * len(lists) + (label + BETWEEN_BARS) * (len(lists) - 1)
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
            (box.x0 + i * (length + label + BETWEEN_BARS) * share, box.y0, length * share, box.height)
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
