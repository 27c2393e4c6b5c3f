"""A reader: one head as a table of numbers in a text file."""

from pathlib import Path

import numpy as np


def read_table(path: Path) -> dict[str, np.ndarray]:
    """The weights of a single head.  -> [query, key]"""
    return {"weights": np.loadtxt(path, dtype=np.float32)}
