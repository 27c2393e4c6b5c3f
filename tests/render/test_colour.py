"""Colour maps: uniform in lightness, and distinct for colour-blind readers."""

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from attnscope.errors import SelectionError
from attnscope.render.colour import (
    DIVERGING,
    OFFERED,
    TWO_SIDED,
    choose_map,
    mark_colour,
    steps,
    table,
    terminal_colours,
)
from attnscope.render.image.charts import COLOURS

# Machado, Oliveira & Fernandes 2009: full deuteranopia, protanopia and tritanopia, on linear RGB
NUMBERS = {
    "none": "1 0 0  0 1 0  0 0 1",
    "deuteranopia": "0.367322 0.860646 -0.227968  0.280085 0.672501 0.047413  -0.011820 0.042940 0.968881",
    "protanopia": "0.152286 1.052583 -0.204868  0.114503 0.786281 0.099216  -0.003882 -0.048116 1.051998",
    "tritanopia": "1.255528 -0.076749 -0.178779  -0.078411 0.930809 0.147602  0.004733 0.691367 0.303900",
}
KNOWN = [name for name in TWO_SIDED if name == DIVERGING or name in matplotlib.colormaps]  # 3.9 lacks three
BLIND = {name: np.array(rows.split(), float).reshape(3, 3) for name, rows in NUMBERS.items()}


def linear(srgb: np.ndarray) -> np.ndarray:
    srgb = srgb / 255
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def lightness(light: np.ndarray) -> np.ndarray:
    """CIE L* of linear RGB, 0 to 100."""
    y = light @ [0.2126, 0.7152, 0.0722]
    return np.where(y > 0.008856, 116 * np.cbrt(y) - 16, 903.3 * y)


@pytest.mark.parametrize("name", OFFERED)
@pytest.mark.parametrize("kind", BLIND)
def test_sequential_maps_are_monotone_for_colour_blind_readers(name: str, kind: str) -> None:
    seen = np.clip(linear(table(name)[::8]) @ BLIND[kind].T, 0, 1)
    change = np.diff(lightness(seen))
    assert (change > 0).all() or (change < 0).all()
    assert abs(change.sum()) > 55


@pytest.mark.parametrize("kind", BLIND)
def test_diverging_map_is_white_in_middle_and_colour_blind_safe(kind: str) -> None:
    assert table("tide")[127:129].min() > 235
    seen = np.clip(linear(table("tide")) @ BLIND[kind].T, 0, 1)
    light = lightness(seen)
    assert (np.diff(light[:128:8]) > 0).all()
    assert (np.diff(light[128::8]) < 0).all()
    opposite = np.abs(seen[:64] - seen[::-1][:64]).max(-1)
    assert (opposite > 0.1).all()


def test_levels_map_to_the_nearest_colour() -> None:
    assert steps(np.array([0, 0.5, 1, 2, -1])).tolist() == [0, 128, 255, 255, 0]


def test_unknown_colour_map_error_lists_existing_ones() -> None:
    for wrong, meant in (("embers", "ember"), ("virdis", "viridis"), ("blues", "Blues"), ("rdbu", "RdBu")):
        told = f"no colour map '{wrong}': did you mean '{meant}'.*there are ember, tide and those of"
        with pytest.raises(SelectionError, match=told):
            choose_map(wrong, signed=False)


def test_matplotlib_maps_have_their_own_colours() -> None:
    for name in matplotlib.colormaps:
        assert choose_map(name, signed=True) == name
        expected = matplotlib.colormaps[name](np.linspace(0, 1, 256), bytes=True)[:, :3]
        np.testing.assert_array_equal(table(name), expected)


def test_diverging_map_is_refused_for_unsigned_values() -> None:
    for name in KNOWN:
        for turned in (name, f"{name}_r") if name != "tide" else (name,):
            assert choose_map(turned, signed=True) == turned
            with pytest.raises(SelectionError, match=f"{turned} is a map for differences.*such as ember"):
                choose_map(turned, signed=False)


@pytest.mark.parametrize("name", ["ember", "cividis", "Blues", "gray"])  # viridis has too few
def test_256_colour_terminals_keep_lightness_order(name: str) -> None:
    """Seen as colours of the cube and greys, steps back are too small to be seen."""
    ladder = np.array([0, 95, 135, 175, 215, 255])
    numbers = terminal_colours(name)
    assert numbers.min() >= 16
    cube = numbers - 16
    colours = np.stack([ladder[cube // 36 % 6], ladder[cube // 6 % 6], ladder[cube % 6]], -1)
    grey = np.repeat((8 + 10 * (numbers - 232))[:, None], 3, -1)
    light = lightness(linear(np.where(numbers[:, None] >= 232, grey, colours)))
    direction = np.sign(light[-1] - light[0])
    behind = np.maximum.accumulate(light * direction) - light * direction
    assert behind.max() < 8
    assert len(set(numbers.tolist())) >= 15


@pytest.mark.parametrize("name", OFFERED)
def test_bars_and_lines_contrast_with_paper(name):
    def luminance(colour) -> float:
        parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
        return float(np.dot(parts, [0.2126, 0.7152, 0.0722]))

    colours = [mark_colour(name) / 255, *(to_rgb(colour) for colour in COLOURS)]
    for colour in colours:
        assert 1.05 / (luminance(colour) + 0.05) >= 3
