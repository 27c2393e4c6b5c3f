"""What a picture holds, before it is drawn: labels, limits, values and what to say beside them.

A view is built once by its function and drawn by any room of ``attnscope.render``::

    field = weights(values, tokens, tokens, allowed)    # attnscope.axes: [query, key]
    picture = heatmap(field, title="L5H3")
"""

from typing import TypeAlias

from attnscope.views.charts import Curves, Faithful, Stack, Terms
from attnscope.views.distances import DistanceMap, HeadDistances, HeadPlane
from attnscope.views.focus import Bar, Bars, Focus, Overlay, focus, rank_places
from attnscope.views.grid import Grid, GridLayer, Strip, grid
from attnscope.views.heads import AlignedTexts, Described, HeadMap, Ranked, Ranking, head_map
from attnscope.views.heatmap import SCALES, HeadPair, Heatmap, Reading, Scale, heatmap
from attnscope.views.table import Table

__all__ = [
    "SCALES",
    "Bar",
    "Bars",
    "Described",
    "Drawable",
    "Focus",
    "Grid",
    "GridLayer",
    "HeadMap",
    "Heatmap",
    "Overlay",
    "Ranked",
    "Ranking",
    "Reading",
    "Scale",
    "View",
    "focus",
    "grid",
    "head_map",
    "heatmap",
    "rank_places",
]

View: TypeAlias = (
    "Heatmap | Grid | Focus | HeadMap | Ranking | DistanceMap | HeadPlane | Strip | HeadPair | AlignedTexts"
    " | Curves | Stack | Terms | Table"
)
"""What is printed in a terminal."""

Drawable: TypeAlias = (
    "Heatmap | Grid | Focus | HeadMap | DistanceMap | HeadDistances | Strip | HeadPair | Terms | Curves"
    " | Stack | Faithful"
)
"""What is saved as a picture."""
