"""A picture with attention laid over it, as a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnscope.render.image import axis
from attnscope.render.image.sheet import GAP, GREY, NORMAL, SMALL, Margins, Style, frame, sheet, wrap_title
from attnscope.render.overlay import blend, levels_of, resize
from attnscope.views.focus import Focus
from attnscope.views.overlay import Overlay

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIDE = 2.8  # inches of a picture's width
LEAST = 1.5  # below, its title has no room; narrower pictures are made smaller with all that is in them
BETWEEN = 0.25
FINEST = 448  # pixels of a picture's shorter side, at least, so that patches have sharp edges


def overlay_figure(view: Focus, shown: Overlay, style: Style) -> Figure:
    """The picture itself, and one for each map laid over it; full light is the heaviest weight."""
    tall, wide = shown.pixels.shape[:2]
    count = 1 + len(shown.maps)
    side = SIDE if not style.width else max((style.width - BETWEEN * (count - 1) - 0.2) / count, LEAST)
    label = axis.short(view.label)
    names = ["as the model sees it", *(f"{label} {title}" for title, _ in shown.maps)]
    titles = [wrap_title(name, NORMAL, side + GAP) for name in names]
    lines = max(title.count("\n") for title in titles)
    whole = side * count + BETWEEN * (count - 1)
    figure, axes = sheet(
        whole,
        side * tall / wide,
        Margins(0.15, 0.15, 0.3 + 0.15 * lines, 0.3),
        title=view.title,
        subtitle=view.subtitle,
        notes=view.notes,
    )
    box = axes.get_position()
    share, above = box.width / whole, 1 + 0.06 / (side * tall / wide)
    grow = max(1, -(-FINEST // min(tall, wide)))
    pixels = resize(shown.pixels, tall * grow, wide * grow)
    for number, (title, weights) in enumerate(
        zip(titles, (None, *(map_ for _, map_ in shown.maps)), strict=True)
    ):
        if number:
            axes = figure.add_axes((0, 0, 1, 1))
        heading: dict[str, Any] = {"transform": axes.transAxes, "size": NORMAL, "va": "bottom"}
        left = box.x0 + number * (side + BETWEEN) * share
        axes.set_position((left, box.y0, side * share, box.height))
        frame(axes)
        if weights is None:
            axes.imshow(pixels.astype("uint8"), interpolation="nearest", aspect="auto")
            axes.text(0, above, title, color=GREY, **heading)
            continue
        levels, top = levels_of(weights)
        spread = resize(levels, tall * grow, wide * grow)
        axes.imshow(blend(pixels, spread, style.cmap), interpolation="nearest", aspect="auto")
        axes.text(0, above, title, weight="bold", **heading)
        axes.text(
            0, -0.03, f"full light is {top:.2g}", transform=axes.transAxes, size=SMALL, color=GREY, va="top"
        )
        _mark(axes, shown, pixels.shape[0], pixels.shape[1])
    return figure


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
