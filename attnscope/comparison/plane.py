"""Every head as a point on a plane, so that heads that do alike things lie near each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Plane:
    """Points whose distances are as near as two axes can bring them to those between the heads.

    The axes have no unit and no direction of their own: only distances mean something.
    ``explained_variance`` is the share of the squared distances that the plane shows, 0 to 1.
    """

    points: NDArray[np.float64]  # [head, 2]
    explained_variance: float


def embed_in_plane(distances: NDArray[np.float64]) -> Plane:
    """Classical multidimensional scaling (Torgerson 1952).  [head, head] -> Plane

    ``distances`` are divergences, which are the *squares* of a metric that fits into a Euclidean space
    (Fuglede & Topsøe 2004), so that double centring them gives inner products with nothing lost.
    """
    count = len(distances)
    centred = distances - distances.mean(0) - distances.mean(1)[:, None] + distances.mean()
    values, vectors = np.linalg.eigh(-centred / 2)  # ascending
    points = np.zeros((count, 2))
    for axis, number in enumerate(range(count - 1, max(count - 3, -1), -1)):
        vector = vectors[:, number]
        sign = np.sign(vector[np.abs(vector).argmax()])  # the same picture on every run
        points[:, axis] = sign * vector * np.sqrt(max(values[number], 0.0))
    whole = float(values.clip(min=0).sum())
    return Plane(points, float(values[-2:].clip(min=0).sum()) / whole if whole > 0 else 1.0)
