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


COLUMN_WIDTH = 4.5  # inches


def is_narrow(width: float | None) -> bool:
    """Whether a picture of so many inches is for the column of a paper, which has a caption of its own."""
    return width is not None and width < COLUMN_WIDTH


def describe(view: Drawable) -> tuple[str, str]:
    """The title of a picture, and what it shows in words, for those who cannot see it."""
    if isinstance(view, Panels):
        each = [describe(part) for part in view.parts]
        title = view.title or next((title for title, _ in each if title), "")
        return title, " ".join(f"{name}. {words}" for name, words in each)
    named = view.maps[0] if isinstance(view, (HeadRow, HeadPair)) else view
    axes: AxisNames | None = getattr(named, "axes", None)
    bar, scores = getattr(named, "bar", ""), getattr(view, "readings", ())
    parts = [view.subtitle, *((f"rows: {axes.rows}", f"columns: {axes.columns}") if axes else ())]
    parts += [f"colours and bars: {bar}" if bar else ""]
    parts += [" ".join((each.name, each.texts[0], each.unit)).rstrip() for each in scores]
    return view.title, "; ".join(filter(None, (*parts, *view.notes)))
