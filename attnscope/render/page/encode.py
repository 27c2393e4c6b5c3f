"""Weights in eight bits each, compressed, as text that a page can hold."""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass

import numpy as np

from attnscope.axes.weights import Array

LARGEST, MASKED = 254, 255
"""The byte of the largest weight, and the byte of a masked cell."""

POWER = 1.5
"""Bytes stand for weights ** (1 / POWER): small weights keep more digits than in equal steps, while a
page of many small weights still compresses well (squares would take half as much space again)."""

PLAIN, UP = b"\0", b"\1"
"""How a head's rows are stored: as they are, or as differences to the row above (mod 256)."""


@dataclass(frozen=True, slots=True)
class Code:
    """The byte ``b`` is the weight ``top * (b / 254) ** POWER``; 255 is a masked cell.

    ``top`` is 1, or the largest weight where one is larger.
    """

    top: float = 1.0

    def bytes_of(self, values: Array, allowed: Array) -> Array:
        """The nearest bytes, uint8. Raises ``ValueError`` for weights that are negative or beyond ``top``.

        Weights that are not numbers count as masked.  [...] -> [...]
        """
        known = np.isfinite(values) & allowed
        shares = np.where(known, values, 0) / self.top
        if shares.min(initial=0) < -1e-6 or shares.max(initial=0) > 1 + 1e-6:
            raise ValueError(f"weights of a page lie between 0 and {self.top:g}")
        codes = np.round(LARGEST * np.clip(shares, 0, 1) ** (1 / POWER)).astype(np.uint8)
        return np.where(known, codes, np.uint8(MASKED))

    def weights_of(self, codes: Array) -> Array:
        """The weights that bytes stand for; NaN where masked.  [...] -> [...]"""
        weights = self.top * (codes / LARGEST) ** POWER
        return np.where(codes == MASKED, np.nan, weights)

    def error(self, weight: float) -> float:
        """The most that a weight can be off: half a step of a byte, seen from it upwards."""
        root = (weight / self.top) ** (1 / POWER)
        return float(self.top * ((root + 0.5 / LARGEST) ** POWER - root**POWER))


def pack(codes: Array) -> str:
    """One head's bytes as base64 of a raw deflate stream.  [query, key]

    Rows are stored in the way whose bytes are less evenly spread, which compresses better. Looking for
    runs of one byte only (Z_RLE) is many times faster here than looking for all repetitions, and
    smaller: what else repeats in weights does so by chance.
    """
    rises = np.diff(codes, axis=0, prepend=np.uint8(0))
    way, chosen = min(((PLAIN, codes), (UP, rises)), key=lambda option: _bits(option[1]))
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15, 9, zlib.Z_RLE)
    raw = deflate.compress(way + np.ascontiguousarray(chosen).tobytes()) + deflate.flush()
    return base64.b64encode(raw).decode()


def _bits(codes: Array) -> float:
    """The entropy of single bytes, times their number."""
    counts = np.bincount(codes.ravel(), minlength=256)
    present = counts[counts > 0]
    return float((present * np.log2(codes.size / present)).sum())


def unpack(text: str, rows: int, columns: int) -> Array:
    """The bytes of a head.  -> [query, key]"""
    raw = zlib.decompress(base64.b64decode(text), wbits=-15)
    codes = np.frombuffer(raw, np.uint8, offset=1).reshape(rows, columns)
    return codes if raw[:1] == PLAIN else np.cumsum(codes, axis=0, dtype=np.uint8)
