"""Colour maps: two of our own, safe for colour-blind readers, and all of matplotlib's; pictures lit by them.

Ours are a few anchors in OKLab (Ottosson 2020, "A perceptual color space for image processing"), in which
equal steps look equal. Lightness is linear from end to end, so that a map reads in grey, in print, and
without red and green; and a terminal needs no matplotlib for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from attnscope.axes import Array
from attnscope.errors import SelectionError
from attnscope.registry import nearest_name
from attnscope.scores import WEAK

STEPS = 256
SEQUENTIAL, DIVERGING = "ember", "tide"  # the default maps

OFFERED = (SEQUENTIAL, "viridis", "cividis", "Blues", "gray")
"""The maps offered in the page and in the browser."""

TWO_SIDED = (
    DIVERGING, "PiYG", "PRGn", "BrBG", "PuOr", "RdGy", "RdBu", "RdYlBu", "RdYlGn", "Spectral", "coolwarm",
    "bwr", "seismic", "berlin", "managua", "vanimo",
)  # fmt: skip
"""Diverging maps: both ends stand out from a neutral middle, which only suits differences."""

# lightness of the two ends (of a diverging map: ends and middle), and (chroma, hue in degrees) at equal steps
_OWN_MAPS = {
    SEQUENTIAL: (
        (0.21, 0.96),
        ((0.06, 285), (0.13, 300), (0.18, 335), (0.20, 15), (0.18, 45), (0.15, 75), (0.07, 100)),
    ),
    DIVERGING: (
        (0.36, 0.97),
        ((0.11, 262), (0.15, 255), (0.09, 245), (0.0, 245), (0.08, 70), (0.14, 55), (0.13, 42)),
    ),
}

# OKLab to linear sRGB, from the definition of OKLab
_LAB_TO_CONES = np.array(
    [[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.2914855480]]
)
_CONES_TO_RGB = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)


@cache
def table(name: str) -> Array:
    """The colours of a map from low to high, uint8 sRGB; ``SelectionError`` if unknown.  -> [256, 3]"""
    at = np.linspace(0, 1, STEPS)
    if name not in _OWN_MAPS:
        check_name(name)
        import matplotlib

        return matplotlib.colormaps[name](at, bytes=True)[:, :3]
    (low, high), anchors = _OWN_MAPS[name]
    rise = 1 - np.abs(2 * at - 1) if name in TWO_SIDED else at
    chroma, hue = np.array(anchors).T
    stops = np.linspace(0, 1, len(chroma))
    a = np.interp(at, stops, chroma * np.cos(np.radians(hue)))
    b = np.interp(at, stops, chroma * np.sin(np.radians(hue)))
    lab = np.stack([low + (high - low) * rise, a, b], -1)  # [step, L a b]
    light = np.clip((lab @ _LAB_TO_CONES.T) ** 3 @ _CONES_TO_RGB.T, 0, 1)
    srgb = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return np.asarray(np.round(255 * srgb).astype(np.uint8))


ROLE_COLOURS = {
    "previous": "#0072b2", "next": "#56b4e9", "self": "#009e73", "positional": "#4040c0",
    "induction": "#d55e00", "duplicate": "#cc79a7", "first": "#e69f00", "special": "#f0e442",
    "punctuation": "#8c6d1f", "sharp": "#8e3b8e", "broad": "#b8b8b8",
}  # fmt: skip
"""The ground of a role's letter, most of them of Okabe and Ito; a head without a pattern has none."""


def role_colour(role: str) -> tuple[int, int, int] | None:
    """The colour of a role, weak or not, sRGB; ``None`` without a pattern."""
    role = role.removeprefix(WEAK)
    return tuple(bytes.fromhex(ROLE_COLOURS[role][1:])) if role in ROLE_COLOURS else None  # type: ignore[return-value]


@cache
def terminal_colours(name: str) -> Array:
    """The nearest of a terminal's 256 colours, in perception, to each entry of a map.  -> [256]

    Taken from the 240 that do not depend on the terminal's theme: the cube (16-231) and greys (232-255).
    """
    ladder = (0, 95, 135, 175, 215, 255)
    cube = [(red, green, blue) for red in ladder for green in ladder for blue in ladder]
    terminal = _lab(np.array(cube + [(grey,) * 3 for grey in range(8, 248, 10)]))
    apart = _lab(table(name))[:, None] - terminal  # [entry, colour, L a b]
    return np.asarray((apart**2).sum(-1).argmin(1) + 16)


def _lab(srgb: Array) -> Array:
    """OKLab of sRGB from 0 to 255.  [..., 3] -> [..., 3]"""
    part = srgb / 255
    light = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    return np.asarray(np.cbrt(light @ np.linalg.inv(_CONES_TO_RGB).T) @ np.linalg.inv(_LAB_TO_CONES).T)


def steps(levels: Array) -> Array:
    """The table entry of each level from 0 to 1.  [...] -> [...]"""
    return np.round(np.clip(levels, 0, 1) * (STEPS - 1)).astype(np.intp)


def contrast_with_white(colours: Array) -> Array:
    """The contrast ratio of sRGB colours from 0 to 255 with white, as WCAG defines it.  [..., 3] -> [...]"""
    part = colours / 255
    light = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    return np.asarray(1.05 / (light @ [0.2126, 0.7152, 0.0722] + 0.05))


LEAST_CONTRAST = 3.0  # of a mark on paper (WCAG 1.4.11)


def mark_colour(name: str) -> Array:
    """The colour of bars and points: that of a high value, as far as it is seen on white.  -> [3]"""
    colours = table(name)
    able = np.flatnonzero(contrast_with_white(colours) >= LEAST_CONTRAST)
    return np.asarray(colours[able[np.abs(able - STEPS * 5 // 8).argmin()]])


def is_light(colours: Array) -> Array:
    """Whether black reads better than white on colours given in shares.  [..., 3] -> [...]"""
    return colours**2.2 @ [0.2126, 0.7152, 0.0722] > 0.18


def check_name(name: str) -> None:
    """Raise ``SelectionError`` for a map that is neither ours nor matplotlib's."""
    if name in _OWN_MAPS:
        return
    import matplotlib

    names: Sequence[str] = (*_OWN_MAPS, *matplotlib.colormaps)
    if name not in names:
        raise SelectionError(
            f"no colour map {name!r}: {nearest_name(name, names)}there are {', '.join(_OWN_MAPS)} and "
            "those of matplotlib, such as viridis"
        )


def choose_map(cmap: str | None, *, signed: bool) -> str:
    """The requested map, or the default; raises ``SelectionError`` if unknown, or diverging for weights."""
    name = cmap or (DIVERGING if signed else SEQUENTIAL)
    check_name(name)
    if not signed and name.removesuffix("_r") in TWO_SIDED:
        raise SelectionError(
            f"{name} is a map for differences, whose middle is nothing: choose one that runs from end to "
            f"end, such as {SEQUENTIAL} or viridis"
        )
    return name


DARKEST_SHARE = 0.3  # the share of a picture's brightness that a patch without attention keeps
GLOW = 0.3  # the share of the colour map's brightness that full attention adds, to show on dark patches


def blend(pixels: Array, levels: Array, cmap: str) -> Array:
    """A picture under levels from 0 to 1.  [row, column, 3], [row, column] -> [row, column, 3], uint8"""
    glow = table(cmap)[np.rint(levels * (STEPS - 1)).astype(int)]  # [row, column, 3]
    level = levels[..., None]
    own = pixels * (DARKEST_SHARE + (1 - DARKEST_SHARE) * level)
    return np.asarray(
        np.clip(np.rint(own * (1 - GLOW * level) + glow * GLOW * level), 0, 255).astype(np.uint8)
    )


def resize(field: Array, rows: int, columns: int) -> Array:
    """A picture or map at another size: averaged or repeated.  [row, column, ...] -> [rows, columns, ...]"""
    for axis, size in enumerate((rows, columns)):
        edges = np.linspace(0, field.shape[axis], size + 1)
        starts = np.minimum(edges[:-1].astype(int), field.shape[axis] - 1)
        stops = np.maximum(np.ceil(edges[1:] - 1e-9).astype(int), starts + 1)
        if size >= field.shape[axis]:
            middles = np.minimum(((edges[:-1] + edges[1:]) / 2).astype(int), field.shape[axis] - 1)
            field = np.take(field, middles, axis)
        else:
            sums = np.cumsum(np.insert(field.astype(np.float64), 0, 0, axis), axis)
            counts = (stops - starts).reshape([-1 if axis == i else 1 for i in range(field.ndim)])
            field = (np.take(sums, stops, axis) - np.take(sums, starts, axis)) / counts
    return field
