"""Labels along the axes of an image: each one where it can be read, else every nth with its number."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from attnscope.axes.places import Place
from attnscope.render.image.sheet.sheet import NORMAL, SMALL
from attnscope.render.image.sheet.wrapping import POINT, em, fence, is_wide
from attnscope.text import is_framed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Transform

ROW, COLUMN = "row", "column"
"""The group ids of labels, in an SVG and in a figure's texts."""

PAD = 2.5  # points between a label and the map
LONGEST = 18
READABLE = 7.4
"""Points from one label to the next, below which letters touch."""

LOOSE = 12.0
"""The same of moments, between which an eye finds its way."""

STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300)
"""Seconds from one moment that is written to the next."""


def labels(axis: Sequence[Place], cell: float) -> tuple[list[int], list[str], float]:
    """Which places to label, with what, and in which size in points; ``cell`` is in inches."""
    pitch = cell / POINT
    every = max(math.ceil(READABLE / pitch), 1)
    size = min(max(pitch * every * 0.8, SMALL), NORMAL)
    if every > 1 and axis and all(place.heard for place in axis):
        return *_round_seconds(axis, pitch), size
    shown = list(range(0, len(axis), every))
    texts = [
        axis[i].moment
        if axis[i].heard
        else f"{axis[i].start} {fence(short(axis[i].label))}"
        if every > 1 and not axis[i].pooled
        else short(axis[i].label)
        for i in shown
    ]
    return shown, texts, size


def _round_seconds(axis: Sequence[Place], pitch: float) -> tuple[list[int], list[str]]:
    """The places at which round seconds are, as many as have room at ``pitch`` points a place."""
    times = [float(place.moment.removesuffix(" s")) for place in axis]
    places_a_second = (len(times) - 1) / max(times[-1] - times[0], 1e-3)
    step = next((step for step in STEPS if step * places_a_second * pitch >= LOOSE), STEPS[-1])
    first, last = math.ceil(times[0] / step - 1e-6), math.floor(times[-1] / step + 1e-6)
    rounded = [number * step for number in range(first, last + 1)]
    return [bisect_right(times, time + 1e-6) - 1 for time in rounded], [f"{time:g} s" for time in rounded]


def short(text: str) -> str:
    """The text, its end or a framed token's middle cut if it is too long; wide characters count twice."""
    ends = list(accumulate(1 + is_wide(character) for character in text))
    if not text or ends[-1] <= LONGEST:
        return text
    last = 2 * (LONGEST - 1) // 3 if is_framed(text) and ends[-1] == len(text) else 0
    return text[: bisect_right(ends, LONGEST - 1 - last)] + "…" + text[len(text) - last :]


def room(texts: Sequence[str], size: float) -> float:
    """Inches that the longest of the texts needs, generously."""
    longest = max((sum(map(em, text)) for text in texts), default=0.0)
    return longest * size * POINT + 0.12


def put(
    axes: Axes,
    rows: Sequence[Place],
    columns: Sequence[Place],
    cell: tuple[float, float],
    *,
    written: int | None = None,
    top: Axes | None = None,
) -> None:
    """Label the rows on the left and the columns above; ``cell`` is (width, height) in inches.

    ``top`` are the axes that stand above the map, where there are any.
    The tokens from number ``written`` on, which the model wrote, are bold.
    """
    shown, texts, size = labels(columns, cell[0])
    above(top or axes, shown, texts, size, rotation=90)
    _embolden(top or axes, columns, shown, written)
    shown, texts, size = labels(rows, cell[1])
    beside(axes, shown, texts, size)
    _embolden(axes, rows, shown, written)


def _embolden(axes: Axes, places: Sequence[Place], shown: Sequence[int], written: int | None) -> None:
    """Make the latest labels bold that are of tokens from number ``written`` on."""
    latest = axes.texts[len(axes.texts) - len(shown) :]
    for text, at in zip(latest, shown, strict=True):
        if written is not None and places[at].start >= written:
            text.set_fontweight("bold")


def above(axes: Axes, at: Sequence[float], texts: Sequence[str], size: float, *, rotation: float = 0) -> None:
    """Write texts above the axes, at these columns; ``size`` in points.

    They are plain texts, because matplotlib's ticks take several times as long to make and to draw. Where
    texts are turned, those of Chinese, Japanese and Korean characters stand upright, one below the other.
    """
    transform = axes.get_xaxis_transform() + _shift(axes, 0, PAD)
    for x, text in zip(at, texts, strict=True):
        upright = rotation == 90 and bool(text) and all(map(is_wide, text))
        axes.text(
            x,
            1,
            "\n".join(text) if upright else text,
            size=size,
            linespacing=1.0,
            rotation=0 if upright else rotation,
            ha="center",
            va="bottom",
            transform=transform,
            gid=COLUMN,
        )


def beside(
    axes: Axes, at: Sequence[float], texts: Sequence[str], size: float, *, right: bool = False
) -> None:
    """Write texts on the left of the axes, or on the right, at these rows; ``size`` in points."""
    transform = axes.get_yaxis_transform() + _shift(axes, PAD if right else -PAD, 0)
    side = "left" if right else "right"
    for y, text in zip(at, texts, strict=True):
        axes.text(
            float(right), y, text, size=size, ha=side, va="center_baseline", transform=transform, gid=ROW
        )


def _shift(axes: Axes, x: float, y: float) -> Transform:
    """A way of some points, on paper; as a share of the figure, so that it becomes smaller with it."""
    from matplotlib.transforms import ScaledTranslation

    figure: Any = axes.figure
    wide, tall = figure.get_size_inches()
    return ScaledTranslation(x * POINT / wide, y * POINT / tall, figure.transFigure)
