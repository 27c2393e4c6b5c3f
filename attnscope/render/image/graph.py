"""A graph by layers as a figure: from the embeddings on the left to the prediction on the right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnscope.render.colour import STEPS, table
from attnscope.render.image.sheet import BELOW, QUIET, SMALL, Style, frame, sheet
from attnscope.views.graph import LayerGraph

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN, ROW = 1.5, 0.62  # inches from node to node
LEAST, MOST = 0.6, 5.0  # points of an edge
BEND = 0.18  # of an edge that crosses columns


def graph_figure(view: LayerGraph, style: Style) -> Figure:
    """Nodes as boxes with their roles below, edges as wide as what they carry, coloured by its sign."""
    from matplotlib.patches import FancyArrowPatch

    places, tallest = view.places(), view.tallest
    wide, tall = COLUMN * (view.columns - 1) or COLUMN, ROW * tallest
    drawn = sheet(view, wide, tall + 0.35, (0.65, 0.65, 0.1, 0.1))
    axes = drawn.part()
    axes.set_xlim(0, view.columns - 1 or 1)
    axes.set_ylim(tallest / 2 + 0.45, -tallest / 2 - 0.15)
    colours = table(style.cmap) / 255.0
    top = max((abs(edge.effect) for edge in view.edges), default=0.0) or 1.0
    boxes = {}
    for node in view.nodes:
        look = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "#888888", "linewidth": 0.8}
        boxes[node.name] = axes.text(
            *places[node.name], node.name, size=BELOW, ha="center", va="center", bbox=look, zorder=3
        )
        told = node.role if node.effect is None else f"{node.effect:+.2f} {node.role}".strip()
        x, y = places[node.name]
        axes.annotate(told, (x, y), (0, -13), textcoords="offset points", ha="center", va="top", **QUIET)
    for edge in view.edges:
        (x, y), (to_x, to_y) = places[edge.source], places[edge.target]
        far = to_x - x > 1 and y == to_y
        ink = colours[-1 - STEPS // 6] if edge.effect >= 0 else colours[STEPS // 6]
        width = LEAST + (MOST - LEAST) * abs(edge.effect) / top
        arrow = FancyArrowPatch(
            (x, y), (to_x, to_y), connectionstyle=f"arc3,rad={-BEND if far else 0}", arrowstyle="-",
            linewidth=width, color=ink, alpha=0.75, zorder=1, shrinkA=0, shrinkB=0,
        )  # fmt: skip
        axes.add_patch(arrow)
        if edge.way:
            middle = (x + to_x) / 2, (y + to_y) / 2
            axes.text(*middle, edge.way, size=SMALL, ha="center", va="center", zorder=2, color="#333333")
    frame(axes, ())
    axes.patch.set_visible(False)
    return drawn.figure
