"""What a canvas shows, as a PNG: its pixels, its dots per inch, and nothing else."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from matplotlib.image import imread
from PIL import Image

from attnscope.render.image.draw import encode_png


@dataclass
class Canvas:
    pixels: np.ndarray

    def buffer_rgba(self) -> np.ndarray:
        return self.pixels


def random_canvas() -> Canvas:
    return Canvas(np.random.default_rng(0).integers(0, 256, (7, 5, 4), np.uint8))


def test_colours_come_back_as_they_were_without_transparency() -> None:
    canvas = random_canvas()
    back = np.round(imread(io.BytesIO(encode_png(canvas, 100))) * 255)
    np.testing.assert_array_equal(back, canvas.pixels[..., :3])


def test_dots_per_inch_are_told() -> None:
    with Image.open(io.BytesIO(encode_png(random_canvas(), 300))) as image:
        assert [round(dots, 1) for dots in image.info["dpi"]] == [300, 300]


def test_no_date_and_no_name_is_in_the_file() -> None:
    with Image.open(io.BytesIO(encode_png(random_canvas(), 150))) as image:
        assert set(image.info) == {"dpi"}
