"""Numbers per head as a layers × heads map, heads worth a look, aligned texts, and distances."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnscope.attention import Head
from attnscope.axes import Array, Place, Weights
from attnscope.views.maps import AxisNames, NamedScore, Titled, round_up


@dataclass(frozen=True, eq=False)
class HeadMap(Titled):
    """One number per head."""

    values: Array  # [layer, head]; NaN where there is no such head or number
    layers: tuple[int, ...]  # the number of each row
    name: str
    limits: tuple[float, float]
    signed: bool  # then 0 is in the middle
    unit: str = ""
    marks: tuple[str, str] = ("L", "H")  # before the numbers of rows and columns
    labels: tuple[str, ...] = ()  # of the rows, in place of mark and number
    by_layer: bool = False  # adds the mean of each layer, and in a picture every head over its layer
    compact: bool = False  # fits a screen: numbers only if they do

    @property
    def bar(self) -> str:
        """What the colours are, in words: the measure and its unit."""
        return f"{self.name}, {self.unit}" if self.unit else self.name

    @property
    def corner(self) -> tuple[str, str]:
        """What the rows and the columns are."""
        rows, columns = (AXES_OF_MARKS.get(mark, "") for mark in self.marks)
        return rows or "token", columns or "checkpoint"

    @property
    def means(self) -> Array:
        """The mean of each layer's heads; NaN where there is none.  -> [layer]"""
        finite = np.isfinite(self.values)
        total = np.where(finite, self.values, 0).sum(1)
        return np.where(finite.any(1), total / np.maximum(finite.sum(1), 1), np.nan)

    @property
    def scale_ends(self) -> tuple[str, str]:
        """The labels of both ends of the colour bar."""
        low, high = (f"{limit:.3g}" for limit in self.limits)
        return low, high

    @property
    def rows(self) -> list[str]:
        """The name of each row."""
        return list(self.labels) or [f"{self.marks[0]}{layer}" for layer in self.layers]

    @property
    def columns(self) -> list[str]:
        """The name of each column."""
        return [f"{self.marks[1]}{head}" for head in range(self.values.shape[1])]

    @property
    def largest(self) -> float:
        """The size that sets the digits: of the largest effect, or so that most other heads have a digit."""
        sizes = np.abs(self.values[np.isfinite(self.values) & (self.values != 0)])
        size = 5 * float(np.median(sizes)) if sizes.size else 1.0
        return min(max(map(abs, self.limits)), size_of_effects(sizes) if self.signed else size)

    @property
    def texts(self) -> list[list[str]]:
        """The numbers as text."""
        return [[number(value, self.largest) for value in row] for row in self.values]

    def levels(self) -> Array:
        """Where each number lies between the limits, 0 to 1; NaN stays.  [layer, head]

        An effect counts as it is written: what reads 0.00 has no colour.
        """
        low, high = self.limits
        values = np.round(self.values, decimals_beside(self.largest)) if self.signed else self.values
        return np.clip((values - low) / ((high - low) or 1.0), 0, 1)


AXES_OF_MARKS = {"L": "layer", "H": "head", "KV": "key-value head"}


def number(value: float, largest: float = 1.0) -> str:
    """Three digits (0.42, 12.8, 128; empty for NaN); two of small ones beside a small ``largest``: 0.0014."""
    if np.isnan(value):
        return ""
    if abs(value) < 9.995:
        text = f"{value:.{decimals_beside(largest)}f}"
        return text if text.strip("-0.") else text.removeprefix("-")
    return f"{value:.1f}" if abs(value) < 99.95 else f"{value:.0f}"


def decimals_beside(largest: float) -> int:
    """So many decimals that the largest number has two digits: 2 to 6."""
    return min(6, max(2, 1 - math.floor(math.log10(largest)))) if largest > 0 else 2


@dataclass(frozen=True, slots=True)
class HeadDescription:
    """The text beside a head's picture: its role in a word and in a sentence, and its scores."""

    role: str
    sentence: str
    readings: tuple[NamedScore, ...]


@dataclass(frozen=True, slots=True)
class HeadRank:
    """A head worth a look: its name (``L5H3``), why in plain words, and the command that opens it."""

    head: str
    reason: str
    command: str = ""
    word: str = ""  # why in a word, where there is no room for more


@dataclass(frozen=True, eq=False)
class Ranking(Titled):
    """Heads worth a look, best first."""

    heads: tuple[HeadRank, ...]


def head_map(
    values: Mapping[int, Sequence[float]],
    name: str,
    *,
    limits: tuple[float, float] | None = None,
    signed: bool = False,
    from_zero: bool = True,
    **more: Any,
) -> HeadMap:
    """A map from each layer's numbers, one per head; see ``plain_limits`` for the default ``limits``."""
    layers = tuple(sorted(values))
    heads = max((len(values[layer]) for layer in layers), default=0)
    table = np.full((len(layers), heads), np.nan)
    for row, layer in enumerate(layers):
        table[row, : len(values[layer])] = values[layer]
    if limits is None:
        limits = plain_limits(table[np.isfinite(table)], signed=signed, from_zero=from_zero)
    return HeadMap(table, layers, name, limits=limits, signed=signed, **more)


def plain_limits(
    values: Iterable[float], *, signed: bool = False, from_zero: bool = True, least: float = 0.0
) -> tuple[float, float]:
    """Plain numbers for the ends of a scale of finite values: 0, or ± the same, and ``least`` at least.

    Not ``from_zero``, it begins at the smallest value where otherwise all would have one colour.
    """
    numbers = [float(value) for value in values]
    low, high = min(numbers, default=0.0), max(numbers, default=0.0)
    if not signed and low < high and (low < 0 or (low > high / 2 and not from_zero)):
        step = round_up((high - low) / 4)
        first, last = math.floor(low / step), math.ceil(high / step)
        return float(f"{step * first:.6g}"), float(f"{step * last:.6g}")
    top = round_up(max(abs(low), abs(high), least)) or 1.0
    return (-top if signed else 0.0, top)


def layer_rows(values: Mapping[Head, float]) -> dict[int, list[float]]:
    """The numbers of each layer's heads; NaN for a head without one."""
    rows: dict[int, list[float]] = {}
    for head, value in values.items():
        row = rows.setdefault(head.layer, [])
        row += [math.nan] * (head.head + 1 - len(row))
        row[head.head] = value
    return rows


def maps_by_kind(
    values: Mapping[Head, float], name: str, title: Callable[[str], str], **more: Any
) -> dict[str, HeadMap]:
    """A map of heads for each kind of attention, which ``title`` gives its title; see ``head_map``."""
    kinds: dict[str, dict[Head, float]] = {}
    for head, value in values.items():
        kinds.setdefault(head.kind or "", {})[head] = value
    rows = {kind: layer_rows(heads) for kind, heads in kinds.items()}
    return {kind: head_map(each, name, title=title(kind), **more) for kind, each in rows.items()}


def effect_maps(
    values: Mapping[Head, float], name: str, *, unit: str = "", lead: str = ""
) -> dict[str, HeadMap]:
    """A signed map of heads for each kind of attention, on one scale; ``lead`` begins each title."""
    limits = effect_limits(values.values())
    several = len({head.kind for head in values}) > 1

    def title(kind: str) -> str:
        return f"{lead}every {kind} head" if several else f"{lead}every head"

    return maps_by_kind(values, name, title, unit=unit, limits=limits, signed=True)


LEAST_EFFECT = 0.01  # of nats, logits, or a share of a score's difference: smaller ones are called none
FULL_EFFECT = 5 * LEAST_EFFECT  # has full colour where none is larger
FINEST_EFFECT = LEAST_EFFECT / 10  # has two digits: further ones are rounding errors


def size_of_effects(effects: Iterable[float]) -> float:
    """The largest size, which sets the digits of all."""
    return max(FINEST_EFFECT, max(map(abs, effects), default=0.0))


def signed_number(value: float, largest: float = 1.0) -> str:
    """The same with a plus; 0.00 has no sign."""
    text = number(value, largest)
    return f"+{text}" if value > 0 and text.strip("0.") else text


def effect_limits(effects: Iterable[float]) -> tuple[float, float]:
    """The ends of the scale of effects; rounding errors alone stay without colour."""
    return plain_limits(effects, signed=True, least=FULL_EFFECT)


Step = tuple["Place | None", "Place | None"]
"""A place of the first text and its partner in the second; ``None`` where there is none."""


@dataclass(frozen=True)
class AlignedTexts(Titled):
    """Two aligned texts in reading order."""

    steps: tuple[Step, ...]


def joint(steps: Sequence[Step]) -> tuple[Place, ...]:
    """One axis for both texts: ``cat→dog`` for a replaced token, ``−cat`` deleted, ``+cat`` inserted."""
    places = []
    for number, (one, other) in enumerate(steps):
        if one is not None and other is not None:
            text = one.label if one.text == other.text else f"{one.label}→{other.label}"
        else:
            text = "".join(f"{sign}{each.label}" for sign, each in (("−", one), ("+", other)) if each)
        places.append(Place(text, number, number + 1, special=one is not None and one.special))
    return tuple(places)


def joint_difference(maps: tuple[Array, Array], queries: Sequence[Step], keys: Sequence[Step]) -> Weights:
    """The second map minus the first on the joint axes; cells of one text, or 0 in both, are masked."""
    rows, columns = ([a is not None and b is not None for a, b in axis] for axis in (queries, keys))
    values = np.zeros((len(queries), len(keys)), np.float32)
    allowed = np.zeros(values.shape, bool)
    cells = np.ix_(rows, columns)
    values[cells] = maps[1] - maps[0]
    allowed[cells] = (maps[0] != 0) | (maps[1] != 0)
    return Weights(values, allowed, joint(queries), joint(keys))


@dataclass(frozen=True, eq=False)
class DistanceMap(Titled):
    """Distances between the heads of the rows and those of the columns, in nats."""

    values: Array  # [row, column]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    groups: tuple[int, ...] = ()  # their sizes along both axes, in order; none for the heads of two models
    top: float = 1.0  # the distance at the far end of the colour bar
    low: float = 0.0  # and at its near end
    bar: str = "Jensen-Shannon divergence, nats"
    axes: AxisNames | None = None  # whose heads rows and columns are, if those of two models
    matched: bool = False  # the diagonal pairs each row with its column, nearest first

    def nearness(self) -> Array:
        """1 for equal heads or the near end, 0 for the largest distance.  [row, column]"""
        return np.clip((self.top - self.values) / ((self.top - self.low) or 1.0), 0, 1)

    @property
    def near_end(self) -> str:
        """The label of the near end of the colour bar."""
        return f"{self.low:.2g} alike"

    @property
    def far_end(self) -> str:
        """The label of its far end."""
        return f"{self.top:.2g} apart"

    @property
    def starts(self) -> tuple[int, ...]:
        """Where each group begins."""
        return tuple(int(start) for start in np.cumsum((0, *self.groups))[:-1])

    def fit(self, rows: int, columns: int) -> DistanceMap:
        """The same table on at most so many cells, each a mean of several heads; if matched, fewer heads."""
        block = max(-(-len(self.rows) // max(rows, 1)), -(-len(self.columns) // max(columns, 1)), 1)
        if block == 1:
            return self
        if self.matched:
            count = min(rows, columns)
            note = f"the first {count} of {len(self.rows):,} rows and {len(self.columns):,} columns"
            values, named, groups = self.values[:count, :count], slice(count), self.groups
        else:
            down, across = (np.arange(0, len(names), block) for names in (self.rows, self.columns))
            sums = np.add.reduceat(np.add.reduceat(self.values, down, 0), across, 1)
            sizes = np.diff([*down, len(self.rows)]), np.diff([*across, len(self.columns)])
            note = f"each cell is the mean over {block} × {block} heads; a wider picture shows every head"
            values, named, groups = sums / np.outer(*sizes), slice(None, None, block), ()
        notes, rows_, columns_ = (*self.notes, note), self.rows[named], self.columns[named]
        return replace(self, values=values, rows=rows_, columns=columns_, groups=groups, notes=notes)


def distance_map(
    values: Array,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    groups: Sequence[Sequence[int]] = (),
    **more: Any,
) -> DistanceMap:
    """Build the view of a table ``[row, column]``; ``groups`` of head numbers order both axes."""
    if groups:
        order = [head for group in groups for head in group]
        values = values[np.ix_(order, order)]
        rows = columns = [rows[head] for head in order]
    top = float(values.max(initial=0)) or 1.0
    sizes = tuple(len(group) for group in groups)
    return DistanceMap(values, tuple(rows), tuple(columns), sizes, top, **more)


@dataclass(frozen=True, eq=False)
class HeadDistances(Titled):
    """All heads compared with all others: the table, and every head as a point on a plane, with its layer."""

    table: DistanceMap
    points: Array  # without a unit; similar heads lie near each other, [head, 2]
    names: tuple[str, ...]
    layers: tuple[int, ...]
