"""A figure in exactly the width that is asked for: what needs more room to be legible is made smaller."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def fit_width(figure: Figure, width: float) -> None:
    """Bring a figure to so many inches, with its letters, lines and dots; its height follows."""
    from matplotlib.collections import PathCollection
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.text import Annotation, Text

    wide, tall = figure.get_size_inches()
    share = width / wide
    if abs(share - 1) < 1e-6:
        return
    figure.set_size_inches(width, tall * share)
    ticks: set[int] = set()
    for side in (side for axes in figure.axes for side in (axes.xaxis, axes.yaxis) if side.get_visible()):
        labels = side.get_ticklabels()
        ticks |= set(map(id, labels))
        if labels:  # those that are made while drawing take over what stands here
            side.set_tick_params(labelsize=labels[0].get_fontsize() * share, pad=3 * share)
    for artist in figure.findobj():
        if isinstance(artist, Text) and id(artist) not in ticks:
            artist.set_fontsize(artist.get_fontsize() * share)
        if isinstance(artist, Annotation):
            across, up = artist.xyann
            artist.xyann = (across * share, up * share)
        elif isinstance(artist, Line2D):
            artist.set(linewidth=artist.get_linewidth() * share, markersize=artist.get_markersize() * share)
        elif isinstance(artist, Patch):
            artist.set_linewidth(artist.get_linewidth() * share)
        elif isinstance(artist, PathCollection):
            artist.set_sizes(artist.get_sizes() * share**2)
