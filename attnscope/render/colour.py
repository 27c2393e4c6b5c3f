"""Colour maps of our own, even in lightness and safe for colour-blind readers.

Each map is a few anchors in OKLab (Ottosson 2020, "A perceptual color space for image processing"),
in which equal steps look equal. Lightness rises (or falls) in a straight line from end to end, so a
map reads in grey, in print, and without red and green.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from attnscope.axes.weights import Array
from attnscope.registry import Registry

STEPS = 256
SEQUENTIAL, DIVERGING = "ember", "tide"
"""The maps that are taken when none is asked for."""


@dataclass(frozen=True, slots=True)
class Colours:
    """A map by its anchors: lightness of the two ends, and (chroma, hue in degrees) at equal steps.

    A diverging map has the second lightness in its middle and the first one at both ends.
    """

    lightness: tuple[float, float]
    anchors: tuple[tuple[float, float], ...]
    diverging: bool = False


cmaps: Registry[Colours] = Registry("colour map")
"""Colour maps by name."""

_purple_to_yellow = ((0.06, 285), (0.13, 300), (0.18, 335), (0.20, 15), (0.18, 45), (0.15, 75), (0.07, 100))
_blue_to_lime = ((0.07, 295), (0.12, 275), (0.105, 240), (0.10, 190), (0.14, 160), (0.18, 130), (0.19, 108))
_blue_to_sand = ((0.06, 262), (0.08, 263), (0.025, 264), (0.025, 96), (0.08, 96), (0.12, 97), (0.14, 100))
_white_to_navy = ((0.0, 250), (0.03, 250), (0.07, 250), (0.11, 252), (0.14, 255), (0.13, 260), (0.08, 265))
_blue_to_rust = ((0.11, 262), (0.15, 255), (0.09, 245), (0.0, 245), (0.08, 70), (0.14, 55), (0.13, 42))

cmaps.register("ember")(Colours((0.21, 0.96), _purple_to_yellow))
cmaps.register("lagoon")(Colours((0.23, 0.95), _blue_to_lime))
cmaps.register("slate")(Colours((0.24, 0.94), _blue_to_sand))
cmaps.register("ink")(Colours((0.98, 0.22), _white_to_navy))
cmaps.register("grey")(Colours((0.18, 0.98), ((0.0, 0), (0.0, 0))))
cmaps.register("tide")(Colours((0.36, 0.97), _blue_to_rust, diverging=True))

# OKLab to linear sRGB, from the definition of OKLab
_TO_CONES = np.array(
    [[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.2914855480]]
)
_TO_LIGHT = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)


@cache
def table(name: str) -> Array:
    """The colours of a map from low to high, uint8 sRGB.  -> [256, 3]

    Raises ``SelectionError`` for a name that does not exist.
    """
    colours = cmaps[name]
    at = np.linspace(0, 1, STEPS)
    low, high = colours.lightness
    rise = 1 - np.abs(2 * at - 1) if colours.diverging else at
    chroma, hue = np.array(colours.anchors).T
    stops = np.linspace(0, 1, len(chroma))
    a = np.interp(at, stops, chroma * np.cos(np.radians(hue)))
    b = np.interp(at, stops, chroma * np.sin(np.radians(hue)))
    lab = np.stack([low + (high - low) * rise, a, b], -1)  # [step, L a b]
    light = np.clip((lab @ _TO_CONES.T) ** 3 @ _TO_LIGHT.T, 0, 1)
    srgb = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    rounded: Array = np.round(255 * srgb).astype(np.uint8)
    return rounded


@cache
def indexed(name: str) -> Array:
    """The nearest, as they look, of a terminal's 256 colours to each entry of a map.  -> [256]

    Taken from the 240 that do not depend on the terminal's theme: the cube (16-231) and greys (232-255).
    """
    ladder = (0, 95, 135, 175, 215, 255)
    cube = [(red, green, blue) for red in ladder for green in ladder for blue in ladder]
    terminal = _lab(np.array(cube + [(grey,) * 3 for grey in range(8, 248, 10)]))
    apart = _lab(table(name))[:, None] - terminal  # [entry, colour, L a b]
    nearest: Array = (apart**2).sum(-1).argmin(1) + 16
    return nearest


def _lab(srgb: Array) -> Array:
    """OKLab of sRGB from 0 to 255.  [..., 3] -> [..., 3]"""
    part = srgb / 255
    light = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    lab: Array = np.cbrt(light @ np.linalg.inv(_TO_LIGHT).T) @ np.linalg.inv(_TO_CONES).T
    return lab


def steps(levels: Array) -> Array:
    """Which entry of a table each level from 0 to 1 takes.  [...] -> [...]"""
    indices: Array = np.round(np.clip(levels, 0, 1) * (STEPS - 1)).astype(np.intp)
    return indices


def colour_map(asked: str | None, *, signed: bool) -> str:
    """The name of the map to draw with: the one asked for, else the default for such values."""
    name = asked or (DIVERGING if signed else SEQUENTIAL)
    cmaps[name]  # refuse an unknown name here, with the names that exist
    return name
