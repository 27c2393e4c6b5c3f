"""What a picture holds, before it is drawn: labels, limits, values and what to say beside them.

A view is built once by its function and drawn by any room of ``attnscope.render``::

    field = weights(values, tokens, tokens, allowed)    # [query, key], labelled
    picture = heatmap(merge_words(field), title="L5H3")
"""

from attnscope.views.axes import Weights, hide_special, merge_words, pool, shrink, weights
from attnscope.views.focus import Bar, Bars, Focus, focus, ranked
from attnscope.views.grid import Grid, GridLayer, grid
from attnscope.views.heads import HeadMap, Ranked, Ranking, head_map
from attnscope.views.heatmap import SCALES, Heatmap, Reading, Scale, heatmap
from attnscope.views.labels import Place, places, visible
from attnscope.views.lit import Lit

__all__ = [
    "SCALES",
    "Bar",
    "Bars",
    "Focus",
    "Grid",
    "GridLayer",
    "HeadMap",
    "Heatmap",
    "Lit",
    "Place",
    "Ranked",
    "Ranking",
    "Reading",
    "Scale",
    "Weights",
    "focus",
    "grid",
    "head_map",
    "heatmap",
    "hide_special",
    "merge_words",
    "places",
    "pool",
    "ranked",
    "shrink",
    "visible",
    "weights",
]
