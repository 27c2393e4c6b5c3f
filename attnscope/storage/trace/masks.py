"""Masks in little room: most leave every row one run of neighbouring keys, others are packed in bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from attnscope.axes.weights import Array
from attnscope.storage.trace.layout import Mask


def pack_mask(open_keys: Array, hold: Callable[[str, Array], str]) -> Mask:
    """A mask in the smaller form; ``hold`` takes its array and says its name.

    bool, [batch or 1, head or 1, query or 1, key]
    """
    keys = open_keys.shape[-1]
    count = open_keys.sum(-1, dtype=np.int32)
    low = np.where(count > 0, open_keys.argmax(-1), 0).astype(np.int32)
    high = np.where(count > 0, keys - open_keys[..., ::-1].argmax(-1), 0).astype(np.int32)
    if np.array_equal(high - low, count):
        return Mask("runs", hold("mask", np.stack([low, high], -1)), keys)
    return Mask("bits", hold("mask", np.packbits(open_keys, axis=-1)), keys)


def open_rows(mask: Mask, arrays: Mapping[str, Array], start: int, stop: int) -> Array:
    """Some rows of a mask, bool.  -> [batch or 1, head or 1, row or 1, key]"""
    packed = arrays[mask.array]
    packed = packed if packed.shape[2] == 1 else packed[:, :, start:stop]
    if mask.form == "bits":
        return np.unpackbits(packed, axis=-1, count=mask.keys).view(bool)
    key = np.arange(mask.keys, dtype=np.int32)
    opened: Array = (key >= packed[..., :1]) & (key < packed[..., 1:])
    return opened
