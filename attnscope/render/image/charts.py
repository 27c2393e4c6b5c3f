"""Numbers as pictures: one token's bars or its picture, curves, shares, the terms of a sum, and graphs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Rectangle

from attnscope.axes import Array
from attnscope.render.colour import STEPS, blend, is_light, resize, table
from attnscope.render.image import sheet as paper
from attnscope.render.image.sheet import BELOW, GAP, GREY, NORMAL, POINT, QUIET, SMALL, Style
from attnscope.text import clean, round_short
from attnscope.views import (
    Bar,
    Bars,
    Curve,
    Curves,
    HeadMap,
    LayerGraph,
    Overlay,
    SoundMap,
    Stack,
    Term,
    Terms,
)
from attnscope.views.charts import TokenView, full_light
from attnscope.views.heads import number as format_number

PICTURE_HEIGHT = 5.0  # inches of a picture's height
PICTURE_GAP = 0.25


def overlay_figure(view: TokenView, style: Style) -> Figure:
    """A row for each picture: itself, and each map laid over it; full brightness is the largest weight."""
    shown = view.overlays
    count = 1 + max(len(each.maps) for each in shown)
    side = 2.8  # inches; below 1.5 the title does not fit, and the picture is scaled down as a whole
    if style.width:
        side = max((style.width - PICTURE_GAP * (count - 1) - 0.2) / count, 1.5)
    shapes = [each.pixels.shape[1] / each.pixels.shape[0] for each in shown]  # width over height
    sides = [min(side, max(PICTURE_HEIGHT * shape, 0.25)) for shape in shapes]
    heights = [min(one / shape, PICTURE_HEIGHT) for one, shape in zip(sides, shapes, strict=True)]
    titles = [_titles(view, each, side, several=len(shown) > 1) for each in shown]
    lines = max(title.count("\n") for row in titles for title in row)
    heading, above = 0.3 + 0.15 * lines, 0.3
    whole = side * count + PICTURE_GAP * (count - 1)
    tall = sum(heights) + (heading + above) * (len(shown) - 1)
    drawn = paper.sheet(view, whole, tall, (0.15, 0.15, heading, above))
    top, down = full_light(shown), 0.0
    for each, names, wide, high in zip(shown, titles, sides, heights, strict=True):
        grow = max(1, -(-448 // min(each.pixels.shape[:2])))  # so many pixels give patches sharp edges
        pixels = resize(each.pixels, *(size * grow for size in each.pixels.shape[:2]))
        for number, name in enumerate(names):
            one = drawn.part(number * (side + PICTURE_GAP), down, wide, high)
            _draw_picture(one, each, number, pixels, top, style)
            weight, colour = ("bold", "black") if number else ("normal", GREY)
            place: dict[str, Any] = {"transform": one.transAxes, "va": "bottom"}
            one.text(0, 1 + 0.06 / high, name, size=NORMAL, weight=weight, color=colour, **place)
        down += high + heading + above
    return drawn.figure


def _titles(view: TokenView, shown: Overlay, side: float, *, several: bool) -> list[str]:
    which = f" · {shown.name}" if several else ""
    label = paper.short(view.label)
    whole = paper.wrap_title(f"as the model sees it{which}", NORMAL, side + GAP, bold=True)
    names = [f"{label} {verb}{which}" for verb, _ in shown.maps]
    return [whole, *(paper.wrap_title(name, NORMAL, side + GAP, bold=True, label=label) for name in names)]


def _draw_picture(axes: Axes, shown: Overlay, number: int, pixels: Array, top: float, style: Style) -> None:
    paper.frame(axes)
    if number:
        _, weights = shown.maps[number - 1]
        levels = resize(np.clip(weights / (top or 1.0), 0, 1), *pixels.shape[:2])
        below: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points"}
        light = "bright: shown" if weights.dtype == bool else f"full brightness: {top:.2g} weight"
        axes.annotate(light, (0, 0), (0, -3), va="top", **QUIET, **below)
        pixels = blend(pixels, levels, style.cmap)
    axes.imshow(pixels.astype("uint8"), interpolation="nearest", aspect="auto")
    if number and shown.patch is not None:  # a frame around the patch itself
        tall, wide = np.array(pixels.shape[:2]) / shown.maps[0][1].shape  # of a patch
        row, column = shown.patch
        corner = (column * wide - 0.5, row * tall - 0.5)
        axes.add_patch(Rectangle(corner, wide, tall, fill=False, edgecolor="white", linewidth=1.5))


LIST_GAP = 0.5


def _name_below(axes: Axes, name: str, points: float = 3) -> None:
    """Write what the values are below the axes."""
    look: dict[str, Any] = {"ha": "center", "va": "top", "gid": paper.AXIS_NAME, **QUIET}
    axes.annotate(name, (0.5, 0), (0, -points), xycoords="axes fraction", textcoords="offset points", **look)


def token_figure(view: TokenView, style: Style) -> Figure:
    """Two lists of bars side by side, on the scale of the terminal; the largest on top. Or a picture."""
    if view.overlays:
        return overlay_figure(view, style)
    name = paper.short(view.label)
    lists = [(f"{name} (token {view.position}) {verb}", bars) for verb, bars in view.lists]
    longest = max((len(bars.bars) for _, bars in lists), default=0)
    label = paper.room(_labels([bar for _, bars in lists for bar in bars.bars]), NORMAL)
    length = 2.6  # inches of the longest bar
    if style.width:
        length = max((style.width - 0.4 - LIST_GAP * (len(lists) - 1)) / len(lists) - label, 1.2)
    room = length + label + 0.3
    titles = [paper.wrap_title(title, NORMAL, room, bold=True, label=name) for title, _ in lists]
    lines = max((title.count("\n") for title in titles), default=0)
    height = 0.22 * max(longest, 1)
    whole = length * len(lists) + (label + LIST_GAP) * (len(lists) - 1)
    drawn = paper.sheet(view, whole, height, (label, 0.4, 0.35 + 0.15 * lines, 0.52))
    for i, (title, (_, bars)) in enumerate(zip(titles, lists, strict=True)):
        axes = drawn.part(i * (length + label + LIST_GAP), 0, length)
        _draw_list(axes, bars, view.full_bar, longest, style)
        left = -(label - GAP) / length  # where the bars' labels begin
        place: dict[str, Any] = {"transform": axes.transAxes, "ha": "left"}
        axes.text(left, 1 + 0.08 / height, title, size=NORMAL, weight="bold", va="bottom", **place)
        _name_below(axes, view.bar, 15)
        if bars.more:
            axes.text(left, -0.38 / height, bars.rest, va="top", **QUIET, **place)
    return drawn.figure


def _labels(bars: Sequence[Bar]) -> list[str]:
    return [f"{paper.fence(paper.short(bar.label))} {bar.position}" for bar in bars]


def _draw_list(axes: Axes, bars: Bars, full: float, longest: int, style: Style) -> None:
    weights = [bar.weight for bar in bars.bars]
    _draw_bars(axes, weights, range(len(weights)), _labels(bars.bars), style.bar)
    axes.set_ylim(longest - 0.5, -0.5)
    axes.set_xlim(0, full)
    axes.tick_params(axis="x", labelsize=SMALL, length=2, width=0.5)
    axes.set_xticks([0, full / 2, full], ["0", f"{full / 2:.3g}", f"{full:.3g}"])
    for row, weight in enumerate(weights):
        colour, side, aside = ("black", "right", -0.01) if weight > 0.8 * full else (GREY, "left", 0.01)
        at = weight + full * aside
        axes.text(
            at, row, format_number(weight, min(full, 1.0)), size=SMALL, color=colour, ha=side, va="center"
        )
    for side, spine in axes.spines.items():
        spine.set(linewidth=0.5, color="#888888", visible=side in ("left", "bottom"))


def _draw_bars(
    axes: Axes, values: Sequence[float], places: Sequence[float], labels: Sequence[str], colour: Any
) -> None:
    axes.barh(places, values, height=0.72, color=colour)
    axes.set_yticks(places, labels, size=NORMAL)
    axes.tick_params(axis="y", length=0, pad=3)


DEFAULT_WIDTH = 5.0  # inches of the text, without a given width
LEAST_WIDTH = 1.6
CURVE_HEIGHT, CURVE_GAP = 0.38, 0.1  # inches of a head, and of the space below it


def curves_figure(view: Curves, style: Style) -> Figure:
    """Step curves along the rows, each with its baseline as a line, and the ends of the scale."""
    if view.at_points:
        return _lines_figure(view, style)
    names = [curve.head for curve in view.curves]
    left, right = paper.room(names, NORMAL), paper.room([f"{view.top:.2f} {view.unit}"], SMALL)
    width = DEFAULT_WIDTH if style.width is None else max(style.width - left - right, LEAST_WIDTH)
    even = any(value is not None for curve in view.curves for value in curve.baseline)
    note = f"{view.bar}: 0 to {round_short(view.top)} in every head{'; line: baseline' * even}"
    height = len(names) * (CURVE_HEIGHT + CURVE_GAP) - CURVE_GAP
    drawn = paper.sheet(view, width, height, (left, right, 0.05, 0.3), notes=(note, *view.notes))
    first, last, least = view.edges[0], view.edges[-1], min(0.0, view.least)
    for number, curve in enumerate(view.curves):
        axes = drawn.part(0, number * (CURVE_HEIGHT + CURVE_GAP), None, CURVE_HEIGHT)
        axes.stairs(np.array(curve.values, float), view.edges, fill=True, color=style.bar)
        axes.stairs(np.array(curve.baseline, float), view.edges, baseline=None, color=GREY, linewidth=0.8)
        axes.set_xlim(first, last)
        axes.set_ylim(least, view.top)
        paper.frame(axes, ("bottom",), "#bbbbbb")
        paper.beside(axes, [view.top / 2], [curve.head], NORMAL)
    paper.beside(axes, [0, view.top], ["0", f"{view.top:.2g} {view.unit}"], SMALL, right=True)
    for side, at, name in zip(("left", "right"), (first, last), view.ends, strict=True):
        axes.annotate(name, (at, least), (0, -4), textcoords="offset points", ha=side, va="top", **QUIET)
    return drawn.figure


def _lines_figure(view: Curves, style: Style) -> Figure:
    """All curves on one axis, in different colours and dashes, with a legend."""
    right = paper.room([*(curve.head for curve in view.curves), "uniform attention"], SMALL) + 0.5
    width = DEFAULT_WIDTH if style.width is None else max(style.width - 0.7 - right, LEAST_WIDTH)
    drawn = paper.sheet(view, width, LINES_HEIGHT, (0.7, right, 0.05, 0.58), notes=view.notes)
    curves, baselines = list(view.curves), {curve.baseline for curve in view.curves}
    if len(baselines) == 1 and any(value is not None for value in view.curves[0].baseline):
        curves.append(Curve("uniform attention", view.curves[0].baseline, ()))
    axes, step = drawn.part(), min(0.2, LINES_HEIGHT / len(curves))
    for number, curve in enumerate(curves):
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
        values, name = np.array(curve.values, float), clean(curve.head)
        axes.plot(view.edges[:-1], values, ".", linestyle=dash, color=colour, label=name)
        (start, y), (end, _) = (drawn.at(width + left, (number + 0.5) * step) for left in (0.15, 0.37))
        drawn.figure.add_artist(Line2D([start, end], [y, y], color=colour, linestyle=dash, linewidth=1.3))
        drawn.figure.text(*drawn.at(width + 0.45, (number + 0.5) * step), name, size=SMALL, va="center")
    axes.set_xlabel(view.along, size=paper.BELOW, color=GREY)
    axes.set_ylabel(view.bar, size=paper.BELOW, color=GREY)
    axes.tick_params(labelsize=SMALL, length=2)
    low, high = axes.get_ylim()
    spare = max(LEAST_RISE - (high - low), 0) / 2  # differences of rounding errors are not drawn tall
    axes.set_ylim(low - spare, high + spare)
    axes.ticklabel_format(useOffset=False)
    for side, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        side.set_ticks([tick for tick in side.get_ticklocs() if low <= tick <= high])
    for name, spine in axes.spines.items():
        spine.set(visible=name in ("left", "bottom"), color="#bbbbbb")
    axes.grid(axis="y", color="#eeeeee", linewidth=0.6)
    axes.set_axisbelow(True)
    return drawn.figure


LINES_HEIGHT = 2.9  # inches
LEAST_RISE = 0.01  # of a measure, from the bottom to the top of its axis
COLOURS = ("#0072b2", "#d55e00", "#00875f", "#b0568a", "#a66f00", "#7a5195", "#1b1b1b")
"""Like those of Okabe & Ito, safe for colour-blind readers, and dark enough on paper; then dashes differ."""
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)))


def stack_figure(view: Stack, style: Style) -> Figure:
    """One row per label; below, the letter and mean share of each part."""
    labels = [paper.short(clean(label)) for label in view.labels]
    row = min(0.2, 12 / max(len(labels), 1))  # inches: twelve of all bars at most
    every = max(1, -(-int(paper.LABEL_PITCH * POINT * 1000) // int(row * 1000)))
    size = min(NORMAL, row * every / POINT * 0.75)
    left = paper.room(labels, size)
    width = 4.5 if style.width is None else max(style.width - left - 0.3, LEAST_WIDTH)
    notes = (view.legend, *view.notes)
    margins = (left + paper.NAME_ROOM, 0.3, 0.05, 0.35)
    drawn = paper.sheet(view, width, row * len(labels), margins, notes=notes)
    axes = drawn.part()
    starts = view.shares.cumsum(1) - view.shares  # [label, part]
    for part, (letter, tone) in enumerate(zip(view.letters, view.tones, strict=True)):
        colour = table(style.cmap)[round(tone * (STEPS - 1))] / 255.0
        rows = range(len(labels))
        axes.barh(rows, view.shares[:, part], left=starts[:, part], height=0.9, color=colour, linewidth=0)
        ink = "black" if is_light(colour) else "white"
        for at in rows:
            if view.shares[at, part] * width >= 0.13 and row >= SMALL * POINT:  # a letter has room
                x = starts[at, part] + view.shares[at, part] / 2
                axes.text(x, at, letter, size=SMALL, color=ink, ha="center", va="center_baseline")
    axes.set_xlim(0, 1)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    shown = range(0, len(labels), every)
    paper.beside(axes, list(shown), [labels[at] for at in shown], size)
    paper.frame(axes)
    paper.name_axes(axes, (view.axes.rows, ""), margins[0])
    _name_below(axes, view.axes.columns)
    return drawn.figure


MAP_GAP, MAP_CELL = 0.55, 0.26  # inches between bars and map, and of a cell of the map


def terms_figure(view: Terms, style: Style) -> Figure:
    """Bars of groups, their sum, and the largest terms; beside them a map of every head."""
    groups, largest = view.blocks
    terms = [*groups, *largest]
    places = [float(row) for row in range(len(groups))]
    places += [len(groups) + 0.6 + row for row in range(len(largest))]
    rows = places[-1] + 1
    label = paper.room([term.label for term in terms], NORMAL)
    heads = view.heads if view.heads is not None and view.heads.values.size else None
    wide = 0.0 if heads is None else min(MAP_CELL * heads.values.shape[1], 4.2)
    stacked = heads is not None and style.narrow
    bar, bar_above, _ = (0.0, 0.0, False) if heads is None else paper.bar_room(style, heads.bar)
    beside = 0.0 if heads is None or stacked else MAP_GAP + wide + bar
    length = 3.2 if not style.width else max(style.width - label - beside - 0.35, 1.2)
    wide = min(wide, length - bar) if stacked else wide
    tall = 0.2 * rows
    cell = 0.0 if heads is None else min(MAP_CELL * 0.8, tall / len(heads.layers))
    below = MAP_GAP + cell * len(heads.layers) if heads is not None and stacked else 0.0
    notes = (*(each.sentence for each in view.moved), *view.notes)
    drawn = paper.sheet(
        view, length + beside, tall + below, (label, 0.2, max(0.12, bar_above), 0.42), notes=notes
    )
    axes = drawn.part(0, 0, length, tall)
    _name_below(axes, view.bar)
    axes.set_ylim(rows - 0.5, -0.5)
    _draw_terms(axes, view, terms, places, style, length)
    if heads is not None:
        place = (0.0, tall + MAP_GAP) if stacked else (length + MAP_GAP, 0.0)
        map_ = drawn.part(*place, wide, cell * len(heads.layers))
        _draw_heads(map_, heads, wide / heads.values.shape[1], cell, style)
    return drawn.figure


def _draw_terms(
    axes: Axes, view: Terms, terms: Sequence[Term], places: Sequence[float], style: Style, length: float
) -> None:
    colours = table(style.cmap) / 255.0
    low, high = colours[STEPS // 6], colours[-1 - STEPS // 6]
    inks = [high if term.value >= 0 else low for term in terms]
    labels = [paper.short(clean(term.label)) for term in terms]
    _draw_bars(axes, [term.value for term in terms], places, labels, inks)
    axes.axvline(0, color="#888888", linewidth=0.5)
    for tick, term in zip(axes.get_yticklabels(), terms, strict=True):
        if term is view.total or term.label == view.marked:
            tick.set_fontweight("bold")
    low, high = view.span
    number = (low + high) * 0.42 / (length - 0.42 * (bool(low) + bool(high)))  # 0.42 inches at either end
    axes.set_xlim(-low - number * bool(low), high + number * bool(high))
    axes.set_xticks([])
    for place, term in zip(places, terms, strict=True):
        side = 1 if term.value >= 0 else -1
        at = term.value + side * 0.01 * sum(view.span)
        axes.text(at, place, f"{term.value:+.3f}", ha="left" if side > 0 else "right", va="center", **QUIET)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _draw_heads(axes: Axes, heads: HeadMap, wide: float, tall: float, style: Style) -> None:
    paper.paint(axes, heads.values, style.cmap, heads.limits)
    axes.set_title(clean(heads.title), size=SMALL, color=GREY, loc="left", pad=12)
    paper.draw_colour_bar(axes, style, [*enumerate(heads.scale_ends)], heads.bar)
    paper.name_cells(axes, heads.rows, heads.columns, (wide, tall))
    paper.frame(axes)


def sound_map_figure(view: SoundMap, style: Style) -> Figure:
    """The map with the path over it, the spectrogram and the words above it, seconds below."""
    rows, frames = view.values.shape
    labels = [paper.short(clean(token)) for token in view.tokens]
    left, bar = paper.room(labels, SMALL) + paper.NAME_ROOM, paper.bar_room(style, view.bar)
    right = bar.right
    width = 6.0 if style.width is None else max(style.width - left - right, 1.0)
    apart = paper.LABEL_PITCH * POINT * frames / width  # least frames between two readable words
    shown: list[tuple[str, int]] = []
    for word, at in view.words:
        if not shown or at - shown[-1][1] >= apart:
            shown.append((paper.short(clean(word)), at))
    strip = 0.0 if view.bands is None else paper.STRIP_HEIGHT + paper.STRIP_GAP
    top = paper.room([word for word, _ in shown], SMALL) + strip
    drawn = paper.sheet(view, width, 0.17 * rows, (left, right, max(top, bar.above), 0.42))
    axes = above = drawn.part()
    most = float(view.values.max(initial=0.0)) or 1.0
    paper.paint(axes, view.values, style.cmap, (0.0, most))
    if view.bands is not None:
        above = paper.draw_bands(drawn, view.bands, axes)
    ends = np.repeat(view.path, 2)[1:-1] - 0.5  # along a row, then down to the next
    for colour, wide in (("black", 2.4), ("white", 1.2)):
        axes.plot(ends, np.repeat(range(rows), 2), color=colour, linewidth=wide, scalex=False, scaley=False)
    for _, at in shown:
        above.axvline(at - 0.5, color="#888888", linewidth=0.5)
    paper.above(above, [at - 0.5 for _, at in shown], [word for word, _ in shown], SMALL, rotation=90)
    paper.beside(axes, range(rows), labels, SMALL)
    length = frames * view.seconds
    step = next((step for step in paper.SECONDS if step * width >= 0.4 * length), paper.SECONDS[-1])
    for number in range(math.ceil(view.begin / step), int((view.begin + length) / step + 1e-6) + 1):
        place = (number * step - view.begin) / view.seconds - 0.5
        below: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "top"}
        axes.annotate(f"{number * step:g} s", (place, rows - 0.5), (0, -3), **QUIET, **below)
    paper.frame(axes)
    paper.name_axes(axes, (view.axes.rows, ""), left)
    _name_below(axes, view.axes.columns, 13)
    paper.draw_colour_bar(axes, style, [(0, "0"), (1, f"{most:.2g}")], view.bar)
    return drawn.figure


BENDS = sorted((side * step / 20 for step in range(21) for side in (-1, 1)), key=abs)  # the least one first
ARC_POINTS, BOX_GAP = 101, 10  # of an arc, and pixels between it and a box


def _arc(start: Array, end: Array, bend: float) -> Array:
    """Points of the arc that matplotlib draws, in pixels.  -> [point, 2]"""
    (over, up), share = end - start, np.linspace(0, 1, ARC_POINTS)[:, None]
    middle = (start + end) / 2 + bend * np.array([up, -over])
    return (1 - share) ** 2 * start + 2 * share * (1 - share) * middle + share**2 * end


def _count_hits(points: Array, boxes: Sequence[Any], field: Any) -> int:
    """How many points of an arc lie in a box, or outside of the field."""
    x, y = points.T
    inside = sum(((box.x0 <= x) & (x <= box.x1) & (box.y0 <= y) & (y <= box.y1)).sum() for box in boxes)
    return int(inside + ((y < field.y0) | (y > field.y1)).sum())


NAME_INCHES = 0.075  # the width of a character of a node's name


def graph_figure(view: LayerGraph, style: Style) -> Figure:
    """Nodes as boxes with their roles below, edges as wide as what they carry, coloured by its sign."""
    places, columns = view.places(), [node.column for node in view.nodes]
    last, tallest = max(columns), max(map(columns.count, columns))
    top = max((abs(edge.effect) for edge in view.edges), default=0.0) or 1.0
    notes = (f"lines: {view.bar}; the widest {top:.2g}", *view.notes) if view.edges else view.notes
    widest = max(0.9, 0.35 + NAME_INCHES * max(len(node.name) for node in view.nodes))
    margin = (widest + 0.2) / 2
    size = (widest + 0.4) * (last or 1), 0.62 * tallest + 0.35
    drawn = paper.sheet(view, *size, (margin, margin, 0.1, 0.1), notes=notes)
    axes = drawn.part()
    axes.set_xlim(0, last or 1)
    axes.set_ylim(tallest / 2 + 0.45, -tallest / 2 - 0.15)
    colours = table(style.cmap) / 255.0
    boxes = dict[str, Any]()
    for node in view.nodes:
        look = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "#888888", "linewidth": 0.8}
        place = places[node.name]
        box = axes.text(*place, node.name, size=BELOW, ha="center", va="center", bbox=look, zorder=3)
        boxes[node.name] = box
        caption = node.role if node.effect is None else f"{node.effect:+.2f} {node.role}".strip()
        axes.annotate(caption, place, (0, -13), textcoords="offset points", ha="center", va="top", **QUIET)
    canvas: Any = drawn.figure.canvas
    extents = {name: box.get_window_extent(canvas.get_renderer()) for name, box in boxes.items()}
    for edge in view.edges:
        start, end = axes.transData.transform([places[edge.source], places[edge.target]])
        ends = edge.source, edge.target
        others = [box.padded(BOX_GAP) for name, box in extents.items() if name not in ends]
        bend = min(BENDS, key=lambda bend: _count_hits(_arc(start, end, bend), others, axes.bbox))
        ink = colours[-1 - STEPS // 6] if edge.effect >= 0 else colours[STEPS // 6]
        width = 0.6 + (5.0 - 0.6) * abs(edge.effect) / top  # points
        line: dict[str, Any] = {"linewidth": width, "color": ink, "alpha": 0.75, "zorder": 1}
        line |= {"connectionstyle": f"arc3,rad={bend}", "arrowstyle": "-", "shrinkA": 0, "shrinkB": 0}
        axes.add_patch(FancyArrowPatch(places[edge.source], places[edge.target], **line))
        if edge.way:
            x, y = axes.transData.inverted().transform(_arc(start, end, bend)[ARC_POINTS // 3])
            axes.text(x, y, edge.way, size=SMALL, ha="center", va="center", zorder=2, color="#333333")
    paper.frame(axes, ())
    axes.patch.set_visible(False)
    return drawn.figure
