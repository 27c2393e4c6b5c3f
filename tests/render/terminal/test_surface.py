"""Colours that text can be read on."""

from __future__ import annotations

import pytest

from attnscope.render.colour import OFFERED, TWO_SIDED
from attnscope.render.terminal.surface import TONES, Palette, style_on


def luminance(triplet: tuple[int, int, int]) -> float:
    """Relative luminance as in WCAG 2."""
    parts = [part / 255 for part in triplet]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("name", [*OFFERED, *TWO_SIDED])
@pytest.mark.parametrize(("faint", "least"), [(False, 4.5), (True, 2.0)])
def test_numbers_contrast_with_their_cells(name: str, faint: bool, least: float) -> None:
    for number in range(TONES):
        style = style_on(Palette(name), number, faint)
        assert style.color is not None
        assert style.bgcolor is not None
        light = sorted(luminance(tuple(colour.get_truecolor())) for colour in (style.color, style.bgcolor))
        assert (light[1] + 0.05) / (light[0] + 0.05) >= least, number
