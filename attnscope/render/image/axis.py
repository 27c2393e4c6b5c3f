"""Labels along the axes of an image: each one where it can be read, else every nth with its number."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnscope.render.image.sheet import NORMAL, POINT, SMALL
from attnscope.views.labels import Place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST = 18
READABLE = 7.4
"""Points from one label to the next, below which letters touch."""


def labels(axis: Sequence[Place], cell: float) -> tuple[list[int], list[str], float]:
    """Which places to label, with what, and in which size in points; ``cell`` is in inches."""
    pitch = cell / POINT
    every = max(math.ceil(READABLE / pitch), 1)
    shown = list(range(0, len(axis), every))
    texts = [
        short(f"{axis[i].start} {axis[i].label}" if every > 1 and not axis[i].pooled else axis[i].label)
        for i in shown
    ]
    return shown, texts, min(max(pitch * every * 0.8, SMALL), NORMAL)


def short(text: str) -> str:
    """The text, cut with ``…`` where it is longer than a label may be."""
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def room(texts: Sequence[str], size: float) -> float:
    """Inches that the longest of the texts needs, generously."""
    longest = max((sum(_em(character) for character in text) for text in texts), default=0.0)
    return longest * size * POINT + 0.12


def _em(character: str) -> float:
    if unicodedata.combining(character):
        return 0.0
    return 1.05 if unicodedata.east_asian_width(character) in "WF" else 0.64


def put(axes: Axes, rows: Sequence[Place], columns: Sequence[Place], cell: tuple[float, float]) -> None:
    """Label the rows on the left and the columns above; ``cell`` is (width, height) in inches."""
    shown, texts, size = labels(columns, cell[0])
    axes.xaxis.tick_top()
    axes.set_xticks(shown, texts, size=size, rotation=90, va="bottom")
    shown, texts, size = labels(rows, cell[1])
    axes.set_yticks(shown, texts, size=size)
    axes.tick_params(length=0, pad=2)
