"""PNG files by their format: chunks, checksums, pixels, dots per inch."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from attnscope.render.image.png import png
from matplotlib.image import imread
from PIL import Image


def test_pixels_come_back_as_they_were() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 3), np.uint8)
    np.testing.assert_array_equal(np.round(imread(io.BytesIO(png(pixels, 100))) * 255), pixels)


def test_what_follows_the_three_colours_is_left_out() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 4), np.uint8)
    assert png(pixels, 100) == png(pixels[..., :3], 100)


def test_dots_per_inch_are_told() -> None:
    with Image.open(io.BytesIO(png(np.zeros((2, 2, 3), np.uint8), 300))) as image:
        assert [round(dots, 1) for dots in image.info["dpi"]] == [300, 300]


def test_nothing_but_the_picture_is_in_the_file_and_every_checksum_is_right() -> None:
    content, names = png(np.zeros((2, 3, 3), np.uint8), 150), []
    at = 8
    while at < len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        name, body = content[at + 4 : at + 8], content[at + 8 : at + 8 + length]
        assert struct.unpack(">I", content[at + 8 + length : at + 12 + length])[0] == zlib.crc32(name + body)
        names.append(name)
        at += 12 + length
    assert names == [b"IHDR", b"pHYs", b"IDAT", b"IEND"]
