"""What a picture holds, before it is drawn: labels, limits, values and notes.

A view is built once by its function and drawn by any surface of ``attnscope.render``::

    field = weights(values, tokens, tokens, allowed)    # attnscope.axes: [query, key]
    picture = heatmap(field, title="L5H3")
"""

from typing import TypeAlias

from attnscope.views.charts import Curves, LayerGraph, SoundMap, Stack, Terms
from attnscope.views.grid import Grid, grid
from attnscope.views.heads import (
    AlignedTexts,
    Described,
    DistanceMap,
    HeadDistances,
    HeadMap,
    Ranked,
    Ranking,
    head_map,
)
from attnscope.views.heatmap import SCALES, HeadPair, HeadRow, Heatmap, Measured, Scale, heatmap
from attnscope.views.table import Table
from attnscope.views.token import Bars, Overlay, TokenView, rank_places, token_view

__all__ = [
    "SCALES",
    "Bars",
    "Described",
    "Drawable",
    "Grid",
    "HeadMap",
    "Heatmap",
    "Measured",
    "Overlay",
    "Ranked",
    "Ranking",
    "Scale",
    "TokenView",
    "View",
    "grid",
    "head_map",
    "heatmap",
    "rank_places",
    "token_view",
]

View: TypeAlias = (
    "Heatmap | Grid | TokenView | HeadMap | Ranking | DistanceMap | HeadPair"
    " | HeadRow | AlignedTexts | Curves | Stack | Terms | Table"
)
"""What can be printed in a terminal."""

Drawable: TypeAlias = (
    "Heatmap | Grid | TokenView | HeadMap | DistanceMap | HeadDistances | HeadPair"
    " | HeadRow | Terms | Curves | Stack | SoundMap | LayerGraph"
)
"""What can be saved as a picture."""
