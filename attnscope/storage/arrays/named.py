"""Plain arrays as an NPZ file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from attnscope.axes.weights import Array
from attnscope.storage.whole import whole


def save_arrays(arrays: Mapping[str, Array], path: str | Path) -> None:
    """Write named arrays for ``numpy.load``; the file appears whole or not at all. Raises ``OutputError``."""
    with whole(path) as file:
        np.savez(file, allow_pickle=False, **arrays)
