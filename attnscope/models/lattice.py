"""The tokens of a picture in rows and columns, from where the numbers of each token come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attnscope.axes import Array

COARSER = 1.15
"""Tokens of which the pixels are so many times larger belong to a coarser picture of the same thing."""

SAME_LINE = 0.25
"""Middles closer to each other than this share of a token's width are of one row or column."""

LEAST_OWNED = 0.5
"""Where less than this share of a picture's numbers ends in one token alone, no token has a place in it."""

EDGE_SNAP = 0.1
"""An edge so close to the picture's own, in widths of a token, is the picture's."""


class Coordinates(NamedTuple):
    """Where each prepared number lies in one picture, in its pixels; ``nan`` for what is no part of it."""

    x: Array
    y: Array


@dataclass(frozen=True)
class Region:
    """The part of a picture that one token stands for.

    ``box`` is left, top, right and bottom, in pixels of the picture as it was given. ``row`` and ``column``
    count within the tokens of the same ``level``: 0 is the finest, the others show the whole.
    """

    level: int
    row: int
    column: int
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class _Cell:
    """Where the numbers of one token come from: their middle, their extent, and pixels a number."""

    token: int
    middle: tuple[float, float]
    size: tuple[float, float]
    scale: float


def find_regions(owners: Array, where: Coordinates, rows: int, columns: int) -> dict[int, Region] | None:
    """The region of each token that owns numbers of a picture; tokens of padding have none.

    ``owners`` has the number of a token for each number of the prepared picture, or less than 0. ``None`` if
    two tokens would have the same place, or if too little of the picture ends in one token alone.
    """
    inside = np.isfinite(where.x) & np.isfinite(where.y)
    if inside.any() and (owners[inside] >= 0).mean() < LEAST_OWNED:
        return None
    cells = _cells(owners.ravel(), where.x.ravel(), where.y.ravel())
    picture = columns, rows
    levels = [part for group in _levels(cells) for part in _part(group, picture)]
    regions: dict[int, Region] = {}
    for level, group in enumerate(sorted(levels, key=_coarseness)):
        placed = _place_cells(group, level, picture)
        if not _is_lattice(placed):
            return None
        regions |= placed
    return regions


def _is_lattice(placed: Mapping[int, Region]) -> bool:
    """Whether no two tokens have one place."""
    return len({(region.row, region.column) for region in placed.values()}) == len(placed)


def _is_full(placed: Mapping[int, Region]) -> bool:
    """Whether every place of so many rows and columns is one token's."""
    rows, columns = ({getattr(each, side) for each in placed.values()} for side in ("row", "column"))
    return _is_lattice(placed) and len(placed) == len(rows) * len(columns)


def _coarseness(cells: Sequence[_Cell]) -> float:
    """The longer side of the tokens of one level: small pictures of the whole may be squeezed."""
    return float(np.median([max(cell.size) for cell in cells]))


def _cells(owners: Array, x: Array, y: Array) -> list[_Cell]:
    inside = (owners >= 0) & np.isfinite(x) & np.isfinite(y)
    owners, x, y = owners[inside], x[inside], y[inside]
    tokens, which = np.unique(owners, return_inverse=True)
    counts = np.bincount(which)
    middles, sizes = [], []
    for values in (x, y):
        middle = np.bincount(which, values) / counts
        variance = np.bincount(which, (values - middle[which]) ** 2) / counts
        middles.append(middle)
        sizes.append(np.sqrt(12 * variance))  # of numbers that are spread evenly
    scales = np.sqrt(np.maximum(sizes[0] * sizes[1], 1e-12) / counts)
    columns = (tokens.tolist(), *(each.tolist() for each in (*middles, *sizes, scales)))
    return [_Cell(token, (a, b), (w, h), s) for token, a, b, w, h, s in zip(*columns, strict=True)]


def _levels(cells: Sequence[_Cell]) -> list[list[_Cell]]:
    """Tokens of one scale each, the finest first."""
    levels: list[list[_Cell]] = []
    for cell in sorted(cells, key=lambda cell: cell.scale):
        if not levels or cell.scale > COARSER * levels[-1][-1].scale:
            levels.append([])
        levels[-1].append(cell)
    return levels


def _part(cells: Sequence[_Cell], picture: tuple[int, int]) -> list[list[_Cell]]:
    """Tokens of one scale, apart where two pictures of the same thing happen to have it.

    Tokens of one picture follow each other: each joins the first in which it covers none.
    """
    if _is_full(_place_cells(cells, 0, picture)):
        return [list(cells)]
    parts: list[list[_Cell]] = []
    for cell in sorted(cells, key=lambda cell: cell.token):
        free = (part for part in parts if not any(_overlap(cell, other) for other in part))
        part = next(free, None)
        if part is None:
            parts.append([cell])
        else:
            part.append(cell)
    return parts if all(_is_full(_place_cells(part, 0, picture)) for part in parts) else [list(cells)]


def _overlap(one: _Cell, other: _Cell) -> bool:
    """Whether two tokens share more than the edges of their pictures, in both directions."""
    return all(
        (size + wide) / 2 - abs(middle - centre) > SAME_LINE * min(size, wide)
        for middle, centre, size, wide in zip(one.middle, other.middle, one.size, other.size, strict=True)
    )


def _place_cells(cells: Sequence[_Cell], level: int, picture: tuple[int, int]) -> dict[int, Region]:
    """Rows, columns and boxes of the tokens of one level."""
    (columns, across), (rows, down) = (_edges(cells, axis, picture[axis]) for axis in (0, 1))
    return {
        cell.token: Region(level, row, column, (across[column], down[row], across[column + 1], down[row + 1]))
        for cell, row, column in zip(cells, rows, columns, strict=True)
    }


def _edges(cells: Sequence[_Cell], axis: int, end: int) -> tuple[list[int], list[float]]:
    """The number of each cell along one axis, and the edges that neighbours share."""
    middle = np.array([cell.middle[axis] for cell in cells])
    half = np.array([cell.size[axis] for cell in cells]) / 2
    width = 2 * float(np.median(half))
    order = np.argsort(middle)  # the picture's edge may cut all but a sliver of a token
    begins = np.diff(middle[order], prepend=-np.inf) > SAME_LINE * width
    numbers = np.empty(len(cells), int)
    numbers[order] = np.cumsum(begins) - 1
    count = int(numbers.max()) + 1
    sizes = np.bincount(numbers, minlength=count)
    starts, stops = (np.bincount(numbers, middle + sign * half) / sizes for sign in (-1, 1))
    edges = np.concatenate([starts[:1], (stops[:-1] + starts[1:]) / 2, stops[-1:]])
    for place, bound in ((0, 0.0), (-1, float(end))):
        if abs(edges[place] - bound) < EDGE_SNAP * width:
            edges[place] = bound
    return numbers.tolist(), edges.tolist()
