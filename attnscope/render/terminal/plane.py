"""Heads as points on a plane, in the terminal: each a small tile with its name or its layer on it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.segment import Segment

from attnscope.axes.weights import Array
from attnscope.render.terminal.sheet.strokes import footing, heading
from attnscope.render.terminal.sheet.surface import DIM, TONES, Line, Surface, style_on
from attnscope.render.terminal.sheet.text import wrap
from attnscope.views.distances import HeadPlane

WIDEST, TALLEST, LOWEST = 120, 26, 6
ASPECT = 2.1
"""How much taller than wide a character is."""

CROWDED = 0.22
"""The share of the plane that tiles with names may cover; beyond it they carry their layer alone."""


def plane_lines(view: HeadPlane, surface: Surface) -> Iterator[Line]:
    """The plane; a tile that would cover another one moves to the nearest free place."""
    yield from heading(view.title, "", surface)
    layers = [str(layer) for layer in view.layers]
    columns = min(surface.width, WIDEST)
    labels, told = list(view.names), "each tile is a head"
    tile = max(len(label) for label in labels) + 2
    lines = _height(view.points, columns - tile)
    if sum(len(label) + 2 for label in labels) > CROWDED * columns * lines:
        labels, told = layers, "each tile is a head, with the number of its layer"
        tile = max(len(label) for label in labels) + 2
        lines = _height(view.points, columns - tile)
    widths = [len(label) + 2 for label in labels]
    lines = max(lines, 2 * sum(widths) // columns)  # so that every tile finds a place
    placed = _place_tiles(_on_grid(view.points, columns - tile, lines - 1), widths, columns, lines)
    tones = _tones(view.layers)
    palette = surface.palette(signed=False)
    for row in range(lines):
        line: Line = []
        at = 0
        for column, head in sorted((column, head) for head, (y, column) in placed.items() if y == row):
            line.append(Segment(" " * (column - at)))
            text = f" {labels[head]} "
            line.append(Segment(text, style_on(palette, tones[head]) if surface.colour else None))
            at = column + len(text)
        yield line
    yield []
    if surface.colour and len(set(view.layers)) > 1:
        told += ", coloured from the first layer to the last"
    said = f"{told}; near means alike"
    yield from ([Segment(line, DIM)] for line in wrap(said, surface.width))
    yield from footing(view.notes, surface)


def _height(points: Array, columns: int) -> int:
    """Lines that show the points in their own proportions, in so many columns."""
    wide, tall = np.ptp(points, axis=0)
    tallest = min(TALLEST, 8 + len(points) // 2)
    return int(np.clip(round(columns * tall / max(wide, 1e-12) / ASPECT), LOWEST, tallest))


def _on_grid(points: Array, columns: int, lines: int) -> list[tuple[int, int]]:
    """Points as (line, column), in the largest scale at which they fit."""
    low, size = points.min(0), np.ptp(points, axis=0)
    scale = min(columns / max(size[0], 1e-12), lines * ASPECT / max(size[1], 1e-12))
    x = (points[:, 0] - low[0]) * scale + (columns - size[0] * scale) / 2
    y = lines - (points[:, 1] - low[1]) * scale / ASPECT - (lines - size[1] * scale / ASPECT) / 2
    return [(round(float(line)), round(float(column))) for line, column in zip(y, x, strict=True)]


def _place_tiles(
    wanted: list[tuple[int, int]], widths: list[int], columns: int, lines: int
) -> dict[int, tuple[int, int]]:
    """A free (line, column) for each tile, as near as there is one to where it belongs."""
    free = np.ones((lines, columns), bool)
    y, x = np.mgrid[:lines, :columns]
    placed = {}
    for head, (line, column) in enumerate(wanted):
        width = widths[head]
        fits = np.ones((lines, columns), bool)
        fits[:, columns - width + 1 :] = False
        for step in range(width):
            fits[:, : columns - step] &= free[:, step:]
        away = np.where(fits, ((y - line) * ASPECT) ** 2 + (x - column) ** 2, np.inf)
        best = int(away.argmin())
        placed[head] = best // columns, best % columns
        free[placed[head][0], placed[head][1] : placed[head][1] + width] = False
    return placed


def _tones(layers: tuple[int, ...]) -> list[int]:
    """A tone for each head, from its layer."""
    last = max(max(layers), 1)
    return [round(layer / last * (TONES - 1)) for layer in layers]
