"""The colour bar of an image: the map upright beside the axes, with what its ends stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnscope.render.image.sheet.axis import beside
from attnscope.render.image.sheet.sheet import SMALL, Style, colour_map, frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOM = 0.75  # inches for the bar and its texts
BAR = 0.3  # inches of the bar alone
TALLEST = 2.4  # inches


def stacked(words: str) -> str:
    """Words one below the other, as narrow as the room beside a bar."""
    return words.replace(" ", "\n")


def colour_bar(figure: Figure, axes: Axes, style: Style, ticks: Sequence[tuple[float, str]]) -> None:
    """Draw the bar on the right of ``axes``; ``ticks`` are (0 to 1, text)."""
    box = axes.get_position()
    wide, tall = figure.get_size_inches()
    height = min(box.height, TALLEST / tall)
    bar = figure.add_axes((box.x1 + 0.14 / wide, box.y1 - height, 0.12 / wide, height))
    ramp = np.linspace(0, 1, 256)[:, None]
    bar.imshow(
        ramp, cmap=colour_map(style.cmap), vmin=0, vmax=1, aspect="auto", origin="lower", extent=(0, 1, 0, 1)
    )
    beside(bar, [at for at, _ in ticks], [text for _, text in ticks], SMALL, right=True)
    for text, (at, words) in zip(bar.texts, ticks, strict=True):
        if at == 1 and words.count("\n") > 1:  # a long unit: the bar may be short, above it there is room
            text.set_verticalalignment("bottom")
    frame(bar)
