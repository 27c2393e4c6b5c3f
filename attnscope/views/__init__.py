"""What a picture holds, before it is drawn: labels, limits, values and notes.

A view is built once by its function and drawn by any surface of ``attnscope.render``::

    field = weights(values, tokens, tokens, allowed)    # attnscope.axes: [query, key]
    picture = heatmap(field, title="L5H3")
"""

from typing import TypeAlias

from attnscope.views.charts import *
from attnscope.views.heads import *
from attnscope.views.maps import *

View: TypeAlias = (
    "Heatmap | Grid | RoleMap | TokenView | HeadMap | Ranking | DistanceMap | HeadPair"
    " | HeadRow | AlignedTexts | Curves | Stack | Terms | Table"
)
"""What can be printed in a terminal."""

Drawable: TypeAlias = (
    "Heatmap | Grid | RoleMap | TokenView | HeadMap | DistanceMap | HeadDistances | HeadPair"
    " | HeadRow | Terms | Curves | Stack | SoundMap | LayerGraph | Panels"
)
"""What can be saved as a picture."""
