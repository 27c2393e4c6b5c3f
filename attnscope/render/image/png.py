"""Pixels as a PNG file.

Heatmaps are rectangles of one colour, in which a row of pixels mostly repeats the one above. Storing
every row as its difference to the row above makes them nearly all zeros, which pack several times faster
and smaller than with the filters that a general encoder weighs for each row.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

from attnscope.axes.weights import Array

SIGNATURE = b"\x89PNG\r\n\x1a\n"
TRUECOLOUR, UP = 2, 2
INCH = 0.0254  # metres


def png(pixels: Array, dpi: float) -> bytes:
    """A PNG of uint8 colours, without dates or names of programs.  [row, column, 3 or more] -> bytes

    What follows red, green and blue is left out. Format: W3C, Portable Network Graphics Specification,
    Third Edition.
    """
    tall, wide, _ = pixels.shape
    colours = np.empty((tall, wide, 3), np.uint8)
    for part in range(3):
        colours[..., part] = pixels[..., part]
    rows = colours.reshape(tall, wide * 3)
    filtered = np.empty((tall, wide * 3 + 1), np.uint8)
    filtered[:, 0] = UP
    filtered[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])  # modulo 256
    per_metre = round(dpi / INCH)
    return SIGNATURE + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">IIBBBBB", wide, tall, 8, TRUECOLOUR, 0, 0, 0)),
            _chunk(b"pHYs", struct.pack(">IIB", per_metre, per_metre, 1)),
            _chunk(b"IDAT", zlib.compress(filtered.data, 3)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
