"""What a picture holds, before it is drawn: labels, limits, values and what to say beside them.

A view is built once by its function and drawn by any room of ``attnscope.render``::

    field = weights(values, tokens, tokens, allowed)    # attnscope.axes: [query, key]
    picture = heatmap(field, title="L5H3")
"""

from attnscope.views.focus import Bar, Bars, Focus, focus, rank_places
from attnscope.views.grid import Grid, GridLayer, grid
from attnscope.views.heads import Described, HeadMap, Ranked, Ranking, head_map
from attnscope.views.heatmap import SCALES, Heatmap, Reading, Scale, heatmap
from attnscope.views.overlay import Overlay

__all__ = [
    "SCALES",
    "Bar",
    "Bars",
    "Described",
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
    "focus",
    "grid",
    "head_map",
    "heatmap",
    "rank_places",
]
