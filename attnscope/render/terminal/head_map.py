"""One number a head in the terminal: a table of layers × heads whose cells carry colour."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.segment import Segment

from attnscope.render.terminal.sheet.strokes import colour_bar, footing, heading
from attnscope.render.terminal.sheet.surface import DIM, TONES, Line, Surface, style_on
from attnscope.views.heads import HeadMap, number


def head_map_lines(view: HeadMap, surface: Surface) -> Iterator[Line]:
    """The whole table; where it is too wide, heads follow below in a second one."""
    palette = surface.palette(signed=view.signed)
    yield from heading(view.title or view.name, view.subtitle, surface)
    texts = [[number(value) for value in row] for row in view.values]
    label = max((len(f"L{layer}") for layer in view.layers), default=0) + 1
    heads = view.values.shape[1]
    cell = max([4, *(len(text) + 2 for row in texts for text in row), len(f"H{heads - 1}") + 1])
    beside = max(1, (surface.width - label) // cell)
    beside = -(-heads // -(-heads // beside)) if heads else 1  # equal halves rather than a remainder
    tones = np.round(np.nan_to_num(view.levels()) * (TONES - 1)).astype(int)
    for start in range(0, heads, beside):
        shown = range(start, min(start + beside, heads))
        if start:
            yield []
        names = "".join(f"H{head} ".rjust(cell) for head in shown)
        yield [Segment(" " * label + names.rstrip(), DIM)]
        for row, layer in enumerate(view.layers):
            line = [Segment(f"L{layer}".ljust(label), DIM)]
            for head in shown:
                text = texts[row][head]
                style = style_on(palette, int(tones[row, head])) if text and surface.colour else None
                line.append(Segment(f"{text or '·'} ".rjust(cell), style or (None if text else DIM)))
            yield line
    yield []
    unit = f" {view.unit}" if view.unit else ""
    low, high = f"{view.limits[0]:.3g}", f"{view.limits[1]:.3g}{unit}"
    if surface.colour:
        yield colour_bar(low, high, surface, palette)
    else:
        yield [Segment(f"{view.name}: {low} to {high}", DIM)]
    yield from footing(view.notes, surface)
