"""Heads as maps: one, two and their difference, several, every head as a thumbnail; what every view has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias, get_args

import numpy as np

from attnscope.axes import Array, Weights, fit, shrink
from attnscope.records import Meaning, record
from attnscope.text import round_short


@dataclass(frozen=True, slots=True, kw_only=True)
class Titled:
    """The words of a view: a title, a subtitle, and notes below."""

    title: str = ""
    subtitle: str = ""
    notes: tuple[str, ...] = ()


Scale: TypeAlias = Literal["auto", "fixed", "row", "head"]
"""Full colour: the weight 1, or the largest of the row or head; "auto" is 1, or of the head where faint."""

SCALES: tuple[Scale, ...] = get_args(Scale)
SCALE_ENDS = {"row": "each row's largest", "head": "each head's largest"}  # full colour in words
WHERE = " where most keys are open"  # a largest weight leaves out rows with few keys: ``choosing_rows``

FAINT = 0.1  # lower weights are almost invisible where full colour is 1
FAINT_ROWS = 0.05  # if fewer than this share of the rows has a weight above ``FAINT``, a head is faint
DARK = 0.25  # if fewer than one pooled cell in a hundred is above it, the scale ends at the largest cell

THUMBNAIL_CELLS = 48  # rows and columns of a thumbnail, at most


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured number of a head, its baseline (the same on even attention), and its meaning."""

    name: str
    value: float
    baseline: float | None = None
    unit: str = ""
    meaning: str = ""

    @property
    def texts(self) -> tuple[str, str]:
        """The number, and its baseline in parentheses; empty without one."""
        baseline = "" if self.baseline is None else f"(baseline {round_short(self.baseline)})"
        return f"{self.value:.2f}", baseline


def mean_known(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are there; ``None`` if none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


@dataclass(frozen=True, eq=False)
class Heatmap(Titled):
    """One head, ready to draw. A cell has a weight, or is masked, or hidden."""

    weights: Weights  # [query, key]
    scale: Scale = "fixed"
    signed: bool = False  # differences, with 0 in the middle of a diverging colour map
    limits: tuple[float, float] = (0.0, 1.0)  # of the colour bar; by row, those of the row with the largest
    readings: tuple[Measured, ...] = ()
    block: tuple[int, int] = (1, 1)  # how many rows and columns of the head one cell stands for
    written: int | None = None  # the first generated token
    bands: Array | None = None  # [band, moment], the columns' loudness, 0 to 1, lowest first, drawn above
    losses: tuple[float | None, ...] | None = None  # of each token of the columns in nats, drawn below
    min_weight: float = 0.0  # weaker cells are hidden: no colour, no number

    @property
    def strip(self) -> tuple[float | None, ...] | None:
        """The mean loss of the tokens of each column; ``None`` if none of them is predicted."""
        if self.losses is None:
            return None
        return tuple(mean_known(self.losses[key.start : key.stop]) for key in self.weights.keys)

    @property
    def most(self) -> float:
        """The largest loss of a column."""
        return max((each for each in self.strip or () if each is not None), default=0.0) or 1.0

    @property
    def values(self) -> Array:
        """The weights.  [query, key]"""
        return self.weights.values

    @property
    def masked(self) -> Array:
        """The cells closed by mask or causality, bool.  [query, key]"""
        return ~self.weights.allowed

    @property
    def hidden(self) -> Array:
        """The unmasked cells that are weaker than ``min_weight``, bool.  [query, key]"""
        return ~self.masked & (np.abs(self.values) < self.min_weight)

    def scale_ends(self, form: str, minus: str = "-") -> tuple[str, str]:
        """The labels of both ends of the colour bar, numbers in this format."""
        if self.scale == "row":
            return (f"{minus}largest" if self.signed else "0"), SCALE_ENDS["row"]
        low, high = self.limits
        return f"{low:{form}}", f"{high:{form}}"

    def legend(self, masked: str, *, per_cent: bool) -> str:
        """How to read the map; ``masked`` describes the look of masked cells, if any."""
        said = ["rows look at columns"]
        if self.written is not None:
            said.append(f"bold, from token {self.written} on: written by the model")
        said += ["numbers are per cent"] if per_cent else []
        said += [] if self.losses is None else [f"loss: nats, the strip up to {self.most:.1f}"]
        said += [masked] if self.masked.any() else []
        return "; ".join([*said, f"hidden below {self.min_weight:g}: blank"] if self.hidden.any() else said)

    def levels(self) -> Array:
        """The position of each value on the colour map, 0 to 1.  [query, key]"""
        return levels(self.values, self.limits, self.scale, self.signed)

    def fit(self, rows: int, columns: int) -> Heatmap:
        """The same head on at most ``rows`` × ``columns`` cells; a note says so if it is pooled."""
        pooled = fit(self.weights, rows, columns)
        if pooled is self.weights:
            return self
        sizes = zip(self.values.shape, pooled.values.shape, strict=True)
        down, across = (-(-before // after) for before, after in sizes)
        givers = f"{down} queries on average give" if down > 1 else "one query gives"
        takers = f"{across} keys together" if across > 1 else "one key"
        note = f"pooled to fit: a cell is the attention that {givers} to {takers}"
        limits = self.limits if self.scale == "fixed" else _limits(pooled, self.scale, self.signed)
        told = (*_beyond(self.values, self.limits), *_hidden([self]))  # of cells that are not drawn
        kept = (*(each for each in self.notes if each not in told), note, *_beyond(pooled.values, limits))
        small = replace(self, weights=pooled, limits=limits, block=(down, across))
        return replace(small, notes=(*kept, *_hidden([small])))


def heatmap(
    weights: Weights,
    *,
    scale: Scale = "fixed",
    signed: bool = False,
    notes: tuple[str, ...] = (),
    **more: Any,
) -> Heatmap:
    """Build the view of one head ``[query, key]``; NaNs are masked, values beyond the limits told."""
    broken = ~np.isfinite(weights.values)
    if broken.any():
        values = np.where(broken, 0, weights.values)
        weights = replace(weights, values=values, allowed=weights.allowed & ~broken)
        notes = (*notes, f"{broken.sum()} weights are not numbers and are drawn as masked")
    asked, scale = scale, _settle_scale(scale, signed, [weights])
    if (asked, scale) == ("auto", "head"):
        where = "" if choosing_rows(weights.allowed).all() else WHERE
        told = f"nearly all weights are below {FAINT}: full colour is this head's largest{where}, not 1"
        notes = (*notes, told)
    limits = _limits(weights, scale, signed)
    view = Heatmap(weights, scale, signed, limits, **more)
    return replace(view, notes=(*notes, *_beyond(weights.values, limits), *_hidden([view])))


def _settle_scale(scale: Scale, signed: bool, heads: Sequence[Weights]) -> Scale:
    """The scale, "auto" resolved: "head" if every head is faint, so that nearly no row is visible."""

    if scale != "auto":
        return scale
    for head in () if signed else heads:
        clear = np.abs(head.values).max(-1, initial=0)[choosing_rows(head.allowed)] > FAINT  # [query]
        if not head.values.any() or clear.mean() >= FAINT_ROWS:
            return "fixed"
    return "fixed" if signed else "head"


def choosing_rows(allowed: Array) -> Array:
    """The rows with more than half as many unmasked keys as the longest: others have large weights anyway."""
    opened = np.count_nonzero(allowed, -1)
    rows: Array = 2 * opened > opened.max(-1, keepdims=True, initial=0)
    return rows


def levels(values: Array, limits: tuple[float, float], scale: Scale, signed: bool) -> Array:
    """Positions on a colour map, 0 to 1 (0.5 is zero where ``signed``).  [..., query, key] -> the same"""
    low, high = np.asarray(limits[0], values.dtype), np.asarray(limits[1], values.dtype)
    if scale == "row":
        high = np.abs(values).max(-1, keepdims=True, initial=0)  # [..., query, 1]
        low = -high if signed else 0 * high
    span = np.where(high > low, high - low, 1)
    found: Array = np.clip((values - low) / span, 0, 1)
    return found


def _limits(weights: Weights, scale: Scale, signed: bool) -> tuple[float, float]:
    rows = choosing_rows(weights.allowed)[..., None] | (scale != "head" or signed)  # [query, 1]
    top = 1.0 if scale == "fixed" else float(np.abs(weights.values).max(initial=0, where=rows)) or 1.0
    return (-top if signed else 0.0, top)


def _beyond(values: Array, limits: tuple[float, float]) -> tuple[str, ...]:
    low, high = limits
    beyond = int(((values < low - 1e-4) | (values > high + 1e-4)).sum())
    return (f"{beyond} values are outside {low:g} to {high:g}",) if beyond else ()


def _hidden(maps: Sequence[Heatmap]) -> tuple[str, ...]:
    """The note on hidden cells; rows are weighted by the number of their tokens."""
    if not any(each.hidden.any() for each in maps):
        return ()
    tokens = np.array([[place.count] for place in maps[0].weights.queries])  # [query, 1]
    weighed = [(np.abs(each.values) * tokens, each.hidden, ~each.masked) for each in maps]
    shares = [sum(float(each[0][each[at]].sum()) for each in weighed) for at in (1, 2)]
    share = shares[0] / (shares[1] or 1.0)
    return (f"hidden: cells below {maps[0].min_weight:g} (blank), {share:.0%} of the attention",)


@record("a token where they differ most", slots=True)
class Parting:
    """One token whose rows differ between two heads: how far (nats), and each head's largest weight there."""

    label: Annotated[str, Meaning("its label", name="token")]
    position: Annotated[int, Meaning("its number")]
    distance: Annotated[float, Meaning("Jensen-Shannon divergence, in nats")]
    keys: Annotated[tuple[str, str], Meaning("the key with the largest weight of each head", name="look_at")]
    weights: tuple[float, float]


@dataclass(frozen=True, eq=False)
class HeadRow(Titled):
    """Several heads on the same rows and columns, with the same limits."""

    maps: tuple[Heatmap, ...]


def head_row(maps: Sequence[Heatmap], *, scale: Scale = "fixed", title: str = "") -> HeadRow:
    """Build the view of heads side by side; "auto" is 1, or the largest of all if all are faint."""
    signed = any(each.signed for each in maps)
    told = {note for each in maps for note in _hidden([each])}
    notes = dict.fromkeys(note for each in maps for note in each.notes if note not in told)
    notes |= dict.fromkeys(_hidden(maps))
    asked, scale = scale, _settle_scale(scale, signed, [each.weights for each in maps])
    if (asked, scale) == ("auto", "head"):
        notes[f"nearly all weights are below {FAINT}: full colour is the largest of all, not 1"] = None
    limits = [_limits(each.weights, scale, signed) for each in maps]
    ends = min(low for low, _ in limits), max(high for _, high in limits)
    alike = tuple(replace(each, scale=scale, signed=signed, limits=ends) for each in maps)
    return HeadRow(alike, title=title, notes=tuple(notes))


@dataclass(frozen=True, eq=False)
class HeadPair(Titled):
    """Two heads and their difference, the first minus the second, on the same rows and columns."""

    names: tuple[str, str]
    maps: tuple[Heatmap, Heatmap]
    difference: Heatmap
    partings: tuple[Parting, ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        """A sentence for each token whose rows differ."""
        return tuple(
            f"{each.label} {each.position}: {each.distance:.2f} nats apart; "
            + " · ".join(
                f"{name} looks at {key} ({weight:.2f})"
                for name, key, weight in zip(self.names, each.keys, each.weights, strict=True)
            )
            for each in self.partings
        )


def head_pair(
    names: tuple[str, str],
    weights: tuple[Weights, Weights],
    partings: tuple[Parting, ...],
    *,
    scale: Scale = "fixed",
    **words: Any,
) -> HeadPair:
    """Build the view of two heads ``[query, key]`` with the same labels, and of their difference."""
    one, other = weights
    scale = _settle_scale(scale, False, weights)  # one for both
    apart = replace(one, values=one.values - other.values, allowed=one.allowed | other.allowed)
    maps = heatmap(one, title=names[0], scale=scale), heatmap(other, title=names[1], scale=scale)
    difference = heatmap(apart, title=f"{names[0]} − {names[1]}", scale="head", signed=True)
    return HeadPair(names, maps, difference, partings, **words)


@dataclass(frozen=True, eq=False)
class GridLayer:
    """The thumbnails of one layer; ``sizes`` is how many tokens rows and columns stand for."""

    layer: int
    values: Array  # [head, row, column]
    masked: Array  # [head, row, column]
    sizes: tuple[Sequence[int], Sequence[int]] | None = None

    @property
    def heads(self) -> int:
        """How many heads the layer has."""
        return len(self.values)


@dataclass(frozen=True, eq=False)
class Grid(Titled):
    """Thumbnails of every head of one kind of attention; a layer without attention leaves a gap."""

    layers: tuple[GridLayer, ...]
    size: tuple[int, int]  # how many queries and keys a thumbnail stands for
    scale: Scale = "fixed"
    whole: bool = True  # whether all layers were asked for; otherwise those left out are not named
    written: int | None = None  # the number of the first generated key
    each: str = "a head"  # what a thumbnail is
    large: bool = False  # may exceed one screen

    def written_from(self, columns: int) -> int:
        """The first generated column in a thumbnail of ``columns``; ``columns`` if there is none."""
        if self.written is None or self.written >= self.size[1]:
            return columns
        return -(-columns * self.written // max(self.size[1], 1))

    @property
    def heads(self) -> int:
        """The largest number of heads in a layer."""
        return max((layer.heads for layer in self.layers), default=0)

    @property
    def columns(self) -> list[str]:
        """The names of the columns; empty for maps that are not heads."""
        return [f"H{number}" if self.each == "a head" else "" for number in range(self.heads)]

    @cached_property
    def signed(self) -> bool:
        """Whether there are negative values: then 0 is in the middle of the colour map."""
        return any(bool((layer.values < 0).any()) for layer in self.layers)

    @property
    def without_attention(self) -> tuple[int, ...]:
        """Layer numbers from 0 to the last one that have no attention of this kind."""
        present = {layer.layer for layer in self.layers} if self.whole else set()
        return tuple(number for number in range(max(present, default=0)) if number not in present)

    @property
    def numbers(self) -> list[int]:
        """The layer numbers from top to bottom, including those without attention."""
        return sorted({*(layer.layer for layer in self.layers), *self.without_attention})

    def scale_ends(self, minus: str = "-") -> tuple[str, str]:
        """The labels of both ends of the colour bar."""
        high = f"{self.top:.2g}" if self.shown_scale == "fixed" else SCALE_ENDS[self.shown_scale]
        low = high if self.shown_scale == "fixed" else "largest"
        return f"{minus}{low}" if self.signed else "0", high

    def legend(self, *, masked: str = "", line: str = "line") -> list[str]:
        """What a thumbnail is, and its colours; ``masked`` and ``line`` say how such cells look."""
        queries, keys = self.size
        cells = max((layer.values.shape[1:] for layer in self.layers), default=self.size)
        said = [f"each map is {self.each}: {queries:,} queries × {keys:,} keys"]
        if cells != (queries, keys):
            said[0] += f", pooled to {cells[0]} × {cells[1]} (keys summed, queries averaged)"
        if self.written_from(keys) < keys:
            said.append(f"{line} above columns: written by the model, from token {self.written:,} on")
        if self.shown_scale == "head":
            auto = self.scale == "auto"
            why, not_one = (f"hardly anything is above {FAINT}: ", ", not 1") if auto else ("", "")
            aside = any(not choosing_rows(~layer.masked).all() for layer in self.layers)
            said.append(f"{why}full colour is each head's largest weight{WHERE if aside else ''}{not_one}")
        if self.top < 1:
            largest = f"the largest, {self.top:.2g}, not 1"
            said.append(f"hardly any cell is above {DARK}: full colour is {largest}")
        if self.without_attention:
            layers = ", ".join(f"L{each}" for each in self.without_attention)
            said.append(f"no attention of this kind in {layers}")
        return [*said, masked] if masked else said

    @cached_property
    def shown_scale(self) -> Scale:
        """What full colour stands for: "auto" is 1, or each head's largest if nearly all heads are faint."""
        if self.scale != "auto":
            return self.scale
        tops = (_largest(layer).ravel() for layer in self.layers)
        clear = np.concatenate([np.zeros(0), *tops]) > FAINT  # [head]
        return "head" if clear.size and clear.mean() < 0.1 else "fixed"

    @cached_property
    def top(self) -> float:
        """The weight of full colour: 1, or the largest cell of pooled maps that would be nearly black."""
        cells = max((layer.values.shape[1:] for layer in self.layers), default=self.size)
        if self.scale != "auto" or self.shown_scale != "fixed" or self.signed or cells >= self.size:
            return 1.0
        pairs = ((layer.values, ~layer.masked) for layer in self.layers)
        weights = np.concatenate([each[choosing_rows(own)[..., None] & own] for each, own in pairs])  # [cell]
        bright = (weights > DARK).mean() if weights.size else 1.0
        return 1.0 if bright >= 0.01 else float(weights.max())

    def fit(self, rows: int, columns: int) -> Grid:
        """The same thumbnails on at most ``rows`` × ``columns`` cells; each covers whole places."""
        layers = []
        for layer in self.layers:
            down, across = layer.sizes or ([1] * layer.values.shape[1], [1] * layer.values.shape[2])
            sizes = _lengthen(down, rows), _lengthen(across, columns)
            values, allowed = shrink(layer.values, ~layer.masked, rows, columns, sizes)
            layers.append(GridLayer(layer.layer, values, ~allowed))
        return replace(self, layers=tuple(layers))


def _lengthen(sizes: Sequence[int], cells: int) -> Sequence[int]:
    """The sizes, the last one enlarged if every cell then covers whole places; and one fewer."""
    places = len(sizes)
    block = -(-places // max(cells, 1))
    if set(sizes) != {1} or block * (cells - 1) >= places:
        return sizes
    return [*sizes[:-1], 1 + block * cells - places]


def grid(layers: Iterable[tuple[int, Weights]], *, cells: int = THUMBNAIL_CELLS, **more: Any) -> Grid:
    """Thumbnails from pairs of a layer's number and its weights ``[head, query, key]``; NaNs are masked.

    Each layer is pooled to ``cells`` × ``cells`` at most (keys summed, queries averaged) before the next one
    is read, so that one layer of a generator is in memory at a time. ``more`` are other fields of the grid.
    """
    thumbnails, size = [], (0, 0)
    for number, weights in layers:
        finite = np.isfinite(weights.values)
        known = replace(weights, values=np.where(finite, weights.values, 0), allowed=weights.allowed & finite)
        small = fit(known, cells, cells, even=True)
        down, across = ([place.count for place in axis] for axis in (small.queries, small.keys))
        size = (max(size[0], sum(down)), max(size[1], sum(across)))
        masked = ~np.broadcast_to(small.allowed, small.values.shape)
        thumbnails.append(GridLayer(number, small.values, masked, (down, across)))
    return Grid(tuple(sorted(thumbnails, key=lambda layer: layer.layer)), size, **more)


def thumbnail_levels(layer: GridLayer, view: Grid) -> Array:
    """Positions of a layer's values on the colour map, 0 to 1 (0.5 is zero where the view is signed)."""
    scale, top = view.shown_scale, np.float32(view.top)
    if scale == "head":
        largest = _largest(layer)
        scale, top = "fixed", np.where(largest > 0, largest, 1)
    return levels(layer.values / top, (-1.0 if view.signed else 0.0, 1.0), scale, view.signed)


def _largest(layer: GridLayer) -> Array:
    """The largest weight of each head among the rows of ``choosing_rows``.  -> [head, 1, 1]"""
    rows = choosing_rows(~layer.masked)[..., None]  # [head, row, 1]
    top: Array = np.abs(layer.values).max((-2, -1), keepdims=True, initial=0, where=rows)
    return top
