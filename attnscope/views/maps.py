"""Heads as maps: one, two and their difference, several, every head as a thumbnail; what every view has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import floor, inf, isfinite, log10
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from attnscope.axes import Array, Weights, fit, shrink
from attnscope.records import Meaning, record
from attnscope.scores import WEAK
from attnscope.text import round_short


@dataclass(frozen=True, slots=True, kw_only=True)
class Titled:
    """The words of a view: a title, a subtitle, and notes below."""

    title: str = ""
    subtitle: str = ""
    notes: tuple[str, ...] = ()


class AxisNames(NamedTuple):
    """What the rows and the columns of a map are, and in a sentence how to read it."""

    rows: str
    columns: str
    sentence: str


ATTENTION = AxisNames("query (attends)", "key (attended to)", "rows attend to columns")
WEIGHT, DIFFERENCE = "attention weight", "difference of weights"  # what the colours of a map are


def name_weight(weighting: str, kind: str = "") -> str:
    """What a weight of this ``--weighting`` is, or of a mixer, for a colour bar."""
    if kind == "mixer":
        return "weight"
    return WEIGHT if weighting == "raw" else f"attention weighted by {weighting}"


Scale: TypeAlias = Literal["auto", "fixed", "row", "head"]
"""Full colour: the weight 1, or the largest of the row or head; "auto" is that of ``_full_colour``."""

SCALE_ENDS = {"row": "each row's largest", "head": "each head's largest"}  # full colour in words
IN_LONG_ROWS = " in rows with many unmasked keys"  # other rows do not set the scale: ``scale_rows``

BRIGHT = 8  # times the mean weight, beyond which cells are all as bright on the scale "auto"
BRIGHT_POOLED = 6  # in thumbnails whose cells are sums over keys: there the pattern counts, not the weight
LEAST_DIFFERENCE = 0.001  # full colour of a difference of weights, at least

THUMBNAIL_CELLS = 48  # rows and columns of a thumbnail, at most


@dataclass(frozen=True, slots=True)
class NamedScore:
    """A score of a head, its baseline (the same with uniform attention), and its meaning."""

    name: str
    value: float
    baseline: float | None = None
    unit: str = ""
    meaning: str = ""

    @property
    def texts(self) -> tuple[str, str]:
        """The number, and its baseline in parentheses; empty without one."""
        baseline = "" if self.baseline is None else f"(baseline {round_short(self.baseline)})"
        faint = self.baseline is not None and 0 < abs(self.value) < 0.005 and self.baseline < 0.01
        return (round_short(self.value) if faint else f"{self.value:.2f}"), baseline


def mean_known(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are there; ``None`` if none is."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


@dataclass(frozen=True, eq=False)
class Heatmap(Titled):
    """One head, ready to draw. A cell has a weight, or is masked, or hidden."""

    weights: Weights  # [query, key]
    scale: Scale = "fixed"
    signed: bool = False  # differences, with 0 in the middle of a diverging colour map
    limits: tuple[float, float] = (0.0, 1.0)  # of the colour bar; by row, those of the row with the largest
    readings: tuple[NamedScore, ...] = ()
    block: tuple[int, int] = (1, 1)  # how many rows and columns of the head one cell stands for
    written: int | None = None  # the first generated token
    bands: Array | None = None  # [band, moment], the columns' loudness, 0 to 1, lowest first, drawn above
    losses: tuple[float | None, ...] | None = None  # of each token of the columns in nats, drawn below
    axes: AxisNames = ATTENTION
    bar: str = WEIGHT  # what the colours are, in words
    per_cent: bool = True  # how numbers are written into cells
    min_weight: float = 0.0  # weaker cells are hidden: no colour, no number
    marks: tuple[tuple[int, int], ...] = ()  # tokens of rows and columns whose cells stand out

    @property
    def column_losses(self) -> tuple[float | None, ...] | None:
        """The mean loss of the tokens of each column; ``None`` if none of them is predicted."""
        if self.losses is None:
            return None
        return tuple(mean_known(self.losses[key.start : key.stop]) for key in self.weights.keys)

    @property
    def largest_loss(self) -> float:
        """The largest loss of a column."""
        return max((each for each in self.column_losses or () if each is not None), default=0.0) or 1.0

    @property
    def values(self) -> Array:
        """The weights.  [query, key]"""
        return self.weights.values

    @property
    def masked(self) -> Array:
        """The cells that the mask or causality hides, bool.  [query, key]"""
        return ~self.weights.allowed

    @property
    def hidden(self) -> Array:
        """The unmasked cells that are weaker than ``min_weight``, bool.  [query, key]"""
        return ~self.masked & (np.abs(self.values) < self.min_weight)

    @property
    def marked(self) -> Array:
        """The unmasked cells that stand out, bool.  [query, key]"""
        queries, keys = (
            {token: at for at, place in enumerate(axis) for token in range(place.start, place.stop)}
            for axis in (self.weights.queries, self.weights.keys)
        )
        cells = np.zeros(self.values.shape, bool)
        for row, key in self.marks:
            if row in queries and key in keys:
                cells[queries[row], keys[key]] = True
        return cells & ~self.masked

    def scale_ends(self, form: str, minus: str = "-") -> tuple[str, str]:
        """The labels of both ends of the colour bar, numbers in this format."""
        if self.scale == "row":
            return (f"{minus}largest" if self.signed else "0"), SCALE_ENDS["row"]
        return label_ends(self.limits, form, minus, self.exceeded)

    @property
    def exceeded(self) -> bool:
        """Whether weights lie beyond the limits."""
        return self.scale != "row" and exceeds(self.values, self.limits[1])

    def legend(self, masked: str, *, per_cent: bool) -> str:
        """How to read the map; ``masked`` describes the look of masked cells, if any."""
        words = [self.axes.sentence]
        if self.written is not None:
            words.append(f"bold from token {self.written} on: generated by the model")
        words += ["numbers in per cent, none below 0.5"] if per_cent and self.per_cent else []
        words += [] if self.losses is None else [f"strip: loss in nats, up to {self.largest_loss:.1f}"]
        words += [] if self.bands is None else ["strip: loudness by frequency"]
        words += [masked] if self.masked.any() else []
        return "; ".join([*words, f"hidden below {self.min_weight:g}: blank"] if self.hidden.any() else words)

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
        parts = [f"the mean over {down} queries"] * (down > 1) + [f"the sum over {across} keys"] * (
            across > 1
        )
        note = f"pooled to fit: each cell is {' of '.join(parts)}"
        limits = self.limits if self.scale == "fixed" else _limits([pooled], self.scale, self.signed)
        outdated = _hidden([self])  # the note on cells that are not drawn any more
        notes = [*(each for each in self.notes if each not in outdated), note]
        small = replace(self, weights=pooled, limits=limits, block=(down, across))
        return replace(small, notes=(*notes, *_hidden([small])))


def heatmap(
    weights: Weights,
    *,
    scale: Scale = "auto",
    signed: bool = False,
    notes: tuple[str, ...] = (),
    **more: Any,
) -> Heatmap:
    """Build the view of one head ``[query, key]``; NaNs are masked."""
    broken = ~np.isfinite(weights.values)
    if broken.any():
        values = np.where(broken, 0, weights.values)
        weights = replace(weights, values=values, allowed=weights.allowed & ~broken)
        notes = (*notes, f"{broken.sum()} weights are not numbers and drawn as masked")
    limits = _limits([weights], scale, signed)
    view = Heatmap(weights, scale, signed, limits, **more)
    return replace(view, notes=(*notes, *_hidden([view])))


def round_up(value: float) -> float:
    """The next plain number from a value on: 1, 2, 2.5 or 5 times a power of ten; 0 stays."""
    if not (value > 0 and isfinite(value)):
        return value
    power = 10.0 ** floor(log10(value))
    step = next(step for step in (1, 2, 2.5, 5, 10) if step * power >= value * 0.99999)
    return float(f"{power * step:.2g}")


def scale_rows(allowed: Array) -> Array:
    """The rows with more than half as many unmasked keys as the longest: others have large weights anyway."""
    opened = np.count_nonzero(allowed, -1)
    return np.asarray(2 * opened > opened.max(-1, keepdims=True, initial=0))


def levels(values: Array, limits: tuple[float, float], scale: Scale, signed: bool) -> Array:
    """Positions on a colour map, 0 to 1 (0.5 is zero where ``signed``).  [..., query, key] -> the same"""
    low, high = np.asarray(limits[0], values.dtype), np.asarray(limits[1], values.dtype)
    if scale == "row":
        high = np.abs(values).max(-1, keepdims=True, initial=0)  # [..., query, 1]
        low = -high if signed else 0 * high
    span = np.where(high > low, high - low, 1)
    return np.asarray(np.clip((values - low) / span, 0, 1))


def _limits(heads: Sequence[Weights], scale: Scale, signed: bool) -> tuple[float, float]:
    """The ends of the colour scale of some heads: one for all."""
    every, able, mean = _sizes_of((each.values, each.allowed) for each in heads)
    if scale == "fixed":
        top = 1.0
    elif scale == "auto":
        bright = inf if all(_is_sharp(each, BRIGHT * mean) for each in heads) else BRIGHT
        top = round_up(max(every, LEAST_DIFFERENCE)) if signed else _full_colour(every, able, mean, bright)
    else:
        top = (able if scale == "head" and not signed else every) or 1.0
    return (-top if signed else 0.0, top)


SHARP_ROWS = 0.25  # of the rows, from which a pattern of large weights is what there is to see


def _is_sharp(head: Weights, weight: float) -> bool:
    """Whether many rows exceed a ``weight``, as on a diagonal; the heaviest key, perhaps a sink, aside."""
    sizes = np.abs(head.values)[scale_rows(head.allowed)]  # [row, key]
    others = np.delete(sizes, sizes.sum(0).argmax(), -1) if sizes.size else sizes
    return bool(others.size and (others.max(-1) > weight).mean() >= SHARP_ROWS)


def _sizes_of(maps: Iterable[tuple[Array, Array]]) -> tuple[float, float, float]:
    """Of values and their unmasked cells: the largest weight, and that and the mean of ``scale_rows``."""
    every = able = total = 0.0
    count = 0
    for values, allowed in maps:
        sizes, long = np.abs(values), scale_rows(allowed)[..., None] & allowed
        every = max(every, float(sizes.max(initial=0)))
        able = max(able, float(sizes.max(initial=0, where=long)))
        total += float(sizes.sum(where=long, dtype=np.float64))
        count += np.count_nonzero(np.broadcast_to(long, sizes.shape))
    return every, able, total / max(count, 1)


def _full_colour(every: float, able: float, mean: float, bright: float = BRIGHT) -> float:
    """The weight of full colour on the scale "auto": the largest of long rows, rounded up, and 1 at most.

    In a large map, few sharp rows would leave all others dark: there it is ``bright`` times the mean weight.
    What lies beyond has the same colour.
    """
    return min(round_up(able or every), round_up(bright * mean) or 1.0, 1.0) or 1.0


def exceeds(values: Array, top: float) -> bool:
    """Whether values lie beyond the end of a scale, rounding errors aside."""
    return bool((np.abs(values) > top + 1e-4).any())


def label_ends(limits: tuple[float, float], form: str, minus: str, exceeded: bool) -> tuple[str, str]:
    """The labels of both ends of a colour bar; where values lie beyond them, with the sign for it."""
    low, high = limits
    under, over = ("≤" * (low < 0), "≥") if exceeded else ("", "")
    return f"{under}{low:{form}}".replace("-", minus), f"{over}{high:{form}}"


def _hidden(maps: Sequence[Heatmap]) -> tuple[str, ...]:
    """The note on hidden cells; rows are weighted by the number of their tokens."""
    if not any(each.hidden.any() for each in maps):
        return ()
    tokens = np.array([[place.count] for place in maps[0].weights.queries])  # [query, 1]
    weights = [np.abs(each.values) * tokens for each in maps]
    both = list(zip(weights, maps, strict=True))
    hidden = sum(float(values[each.hidden].sum()) for values, each in both)
    share = hidden / (sum(float(values[~each.masked].sum()) for values, each in both) or 1.0)
    return (f"hidden: cells below {maps[0].min_weight:g} (blank), {share:.0%} of the attention",)


@record("a token where they differ most", slots=True)
class RowGap:
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

    @property
    def key(self) -> Heatmap:
        """The map whose colour bar holds for all."""
        return max(self.maps, key=lambda each: each.exceeded)


def head_row(maps: Sequence[Heatmap], *, scale: Scale = "fixed", title: str = "") -> HeadRow:
    """Build the view of heads side by side; "auto" is 1, or the largest of all if all are faint."""
    signed = any(each.signed for each in maps)
    hidden = {note for each in maps for note in _hidden([each])}
    notes = dict.fromkeys(note for each in maps for note in each.notes if note not in hidden)
    notes |= dict.fromkeys(_hidden(maps))
    alike = share_scale([replace(each, scale=scale, signed=signed) for each in maps])
    return HeadRow(alike, title=title, notes=tuple(notes))


def share_scale(maps: Sequence[Heatmap]) -> tuple[Heatmap, ...]:
    """The same maps, with one colour scale for all."""
    limits = _limits([each.weights for each in maps], maps[0].scale, maps[0].signed)
    return tuple(replace(each, limits=limits) for each in maps)


@dataclass(frozen=True, eq=False)
class HeadPair(Titled):
    """Two heads and their difference, the first minus the second, on the same rows and columns."""

    names: tuple[str, str]
    maps: tuple[Heatmap, Heatmap]
    difference: Heatmap
    partings: tuple[RowGap, ...]

    @property
    def sentences(self) -> tuple[str, ...]:
        """A sentence for each token whose rows differ."""
        return tuple(
            f"{each.label} {each.position}: {each.distance:.2f} nats apart; "
            + " · ".join(
                f"{name} attends to {key} ({weight:.2f})"
                for name, key, weight in zip(self.names, each.keys, each.weights, strict=True)
            )
            for each in self.partings
        )


def head_pair(
    names: tuple[str, str],
    weights: tuple[Weights, Weights],
    partings: tuple[RowGap, ...],
    *,
    scale: Scale = "fixed",
    bar: str = WEIGHT,
    **words: Any,
) -> HeadPair:
    """Build the view of two heads ``[query, key]`` with the same labels, and of their difference."""
    one, other = weights
    signed = any(bool((each.values < 0).any()) for each in weights)
    apart = replace(one, values=one.values - other.values, allowed=one.allowed | other.allowed)
    left, right = share_scale(
        [
            heatmap(each, title=name, scale=scale, signed=signed, bar=bar)
            for name, each in zip(names, weights, strict=True)
        ]
    )
    difference = heatmap(apart, title=f"{names[0]} − {names[1]}", signed=True, bar=DIFFERENCE)
    return HeadPair(names, (left, right), difference, partings, **words)


ROLE_LETTERS: Mapping[str, str] = {
    "previous": "p", "next": "n", "self": "s", "positional": "o", "induction": "i", "duplicate": "d",
    "first": "f", "special": "x", "punctuation": "u", "sharp": "h", "broad": "b", "none": "·", "": "?",
}  # fmt: skip
"""The letter of each role, in the order of legends: a capital one, unless the head shows it only weakly."""


def letter_of(role: str) -> str:
    """The letter of a role or a weak role."""
    return ROLE_LETTERS[role.removeprefix(WEAK)] if role.startswith(WEAK) else ROLE_LETTERS[role].upper()


@dataclass(frozen=True, eq=False)
class RoleMap(Titled):
    """The role of every head, one cell per head: layers down, heads across."""

    layers: tuple[int, ...]  # the number of each row
    roles: tuple[tuple[str, ...], ...]  # [layer, head]; empty for a head without scores

    @property
    def heads(self) -> int:
        """The largest number of heads in a layer."""
        return max(map(len, self.roles), default=0)

    @property
    def legend(self) -> dict[str, str]:
        """For each role that occurs, what it is called, and how many heads have it, and have it weakly."""
        counts = Counter(role for row in self.roles for role in row)
        words = {}
        for role, letter in ROLE_LETTERS.items():
            named, weak = role or "no scores", counts[WEAK + role]
            if counts[role]:
                words[role] = f"{named} {counts[role]:,}" + f", {letter} weak {weak:,}" * bool(weak)
            elif weak:
                words[WEAK + role] = f"weak {named} {weak:,}"
        return words

    @property
    def bar(self) -> str:
        """What the colours are, in words."""
        return f"role of each head: {', '.join(self.legend.values())}"


CLEAR_CELLS = 6  # rows and columns below which a map is no picture, unless the text is as short


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
    each: str = "head"  # what a thumbnail is
    axes: AxisNames = ATTENTION
    bar: str = WEIGHT
    large: bool = False  # may exceed one screen
    roles: RoleMap | None = None  # shown where a thumbnail has too few cells

    def is_clear(self, rows: int, columns: int) -> bool:
        """Whether thumbnails of this size are pictures; so are large ones, and all without roles."""
        queries, keys = (min(size, CLEAR_CELLS) for size in self.size)
        return self.large or self.roles is None or (rows >= queries and columns >= keys)

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
        return [f"H{number}" if self.each == "head" else "" for number in range(self.heads)]

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
        if self.shown_scale != "fixed":
            return (f"{minus}largest" if self.signed else "0"), SCALE_ENDS[self.shown_scale]
        exceeded = any(exceeds(layer.values, self.top) for layer in self.layers)
        return label_ends((-self.top if self.signed else 0.0, self.top), ".2g", minus, exceeded)

    def legend(self, *, masked: str = "", line: str = "line") -> list[str]:
        """What a thumbnail is, and its colours; ``masked`` and ``line`` say how such cells look."""
        queries, keys = self.size
        cells = max((layer.values.shape[1:] for layer in self.layers), default=self.size)
        pooled = f" shown as {cells[0]} × {cells[1]}" if cells != (queries, keys) else ""
        words = [f"one map per {self.each}", f"{self.axes.sentence}; {queries:,} × {keys:,} tokens{pooled}"]
        if self.written_from(keys) < keys:
            words.append(f"{line} above columns: generated by the model, from token {self.written:,} on")
        if self.shown_scale == "head":
            aside = any(not scale_rows(~layer.masked).all() for layer in self.layers)
            most = f"each head's largest weight{IN_LONG_ROWS if aside else ''}"
            words.append(f"full scale: {'±' if self.signed else '0 to '}{most}")
        if self.without_attention:
            layers = ", ".join(f"L{each}" for each in self.without_attention)
            words.append(f"no attention of this kind in {layers}")
        return [*words, masked] if masked else words

    @property
    def shown_scale(self) -> Scale:
        """What full colour stands for: "auto" is one weight for all, or each head's largest if signed."""
        return self.scale if self.scale != "auto" else "head" if self.signed else "fixed"

    @cached_property
    def top(self) -> float:
        """The weight of full colour: 1, or that of the scale "auto"."""
        if self.scale != "auto" or self.signed:
            return 1.0
        pooled = any(layer.values.shape[1:] != self.size for layer in self.layers)
        sizes = _sizes_of((layer.values, ~layer.masked) for layer in self.layers)
        return _full_colour(*sizes, BRIGHT_POOLED if pooled else BRIGHT)

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
        finite_weights = replace(
            weights, values=np.where(finite, weights.values, 0), allowed=weights.allowed & finite
        )
        small = fit(finite_weights, cells, cells, even=True)
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
    """The largest weight of each head among the rows of ``scale_rows``.  -> [head, 1, 1]"""
    rows = scale_rows(~layer.masked)[..., None]  # [head, row, 1]
    return np.asarray(np.abs(layer.values).max((-2, -1), keepdims=True, initial=0, where=rows))
