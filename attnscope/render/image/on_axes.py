"""One head on axes that somebody else made: a part of a figure of theirs, with their settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.axes.places import Place
from attnscope.render.colour import choose_map
from attnscope.render.image.maps import image_values
from attnscope.render.image.sheet.axis import short
from attnscope.render.image.sheet.sheet import colour_map, hatch
from attnscope.views.heatmap import Heatmap

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELLED = 60
"""Places of an axis that are labelled one by one, at most."""


def draw_heatmap(view: Heatmap, axes: Axes, cmap: str | None = None) -> None:
    """Draw a head's weights: rows down, columns across, closed cells hatched; token text is literal."""
    low, high = (0.0, 1.0) if view.scale == "row" else view.limits
    hatch(axes)
    axes.imshow(
        image_values(view),
        cmap=colour_map(choose_map(cmap, signed=view.signed)),
        vmin=low,
        vmax=high,
        interpolation="nearest",
    )
    axes.set_title(view.title, parse_math=False)
    for ticks, places, turned in (
        (axes.set_yticks, view.weights.queries, 0),
        (axes.set_xticks, view.weights.keys, 90),
    ):
        shown = _labelled(places)
        ticks(shown, [short(places[at].label) for at in shown], rotation=turned, parse_math=False)


def _labelled(places: tuple[Place, ...]) -> list[int]:
    """The places that are labelled: all, or evenly some."""
    return list(range(0, len(places), -(-len(places) // LABELLED)))
