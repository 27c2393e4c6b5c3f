"""Numbers as lists, charts and tables: a token's bars and its pictures, curves, orders of tokens, graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from attnscope.axes import Array, Place, Weights
from attnscope.errors import SelectionError
from attnscope.records import Meaning, Notes, derived, plain, record
from attnscope.text import clean
from attnscope.views.heads import HeadMap
from attnscope.views.maps import WEIGHT, AxisNames, Heatmap, Titled, round_up

Patches = Annotated[Array | None, Meaning("a weight a patch", shape=list[list[float]] | None)]


@record("on the patches of an image", eq=False)
class Overlay:
    """What a place attends to in a picture, and which patches attend to it; ``None`` without such a map."""

    pixels: Array  # [row, column, 3], uint8
    looks_at: Patches  # [patch row, patch column]
    looked_at_by: Patches  # [patch row, patch column]
    patch: tuple[int, int] | None = None  # the place itself; none for a special token
    name: Annotated[str, Meaning("which", name="picture")] = ""
    verbs: tuple[str, str] = ("attends to", "is attended to by")  # what the two maps are

    @property
    def maps(self) -> tuple[tuple[str, Array], ...]:
        """Each existing map, with the words that introduce it."""
        both = zip(self.verbs, (self.looks_at, self.looked_at_by), strict=True)
        return tuple((verb, weights) for verb, weights in both if weights is not None)


def full_light(shown: Sequence[Overlay]) -> float:
    """The largest weight of all maps over all pictures, so that they can be compared."""
    return max((float(weights.max(initial=0)) for each in shown for _, weights in each.maps), default=0.0)


class SceneRegion(NamedTuple):
    """The part of a picture behind a token, in shares of its size; ``fine`` unless finer parts overlap it."""

    left: float
    top: float
    right: float
    bottom: float
    fine: bool


@dataclass(frozen=True, eq=False)
class Scene:
    """What a model saw or heard."""

    pixels: Array  # [row, column, 3], uint8
    parts: Mapping[int, SceneRegion] = field(default_factory=dict)  # by token id; empty if unknown
    heard: bool = False  # a spectrogram, low frequencies at the bottom

    def ids_of(self, place: Place) -> tuple[int, ...]:
        """The token ids of a place (one or several neighbours) that have a part."""
        if place.id is None:
            return ()
        ids = range(place.id, place.id + place.stop - place.start)
        return tuple(id_ for id_ in ids if id_ in self.parts)


Edges: TypeAlias = tuple[float, float, float, float]

LEAST_LISTED = 0.001  # tokens with less weight are not listed by name


def describe_box(box: Edges) -> str:
    """A part of a picture in words: from where to where across, then down."""
    left, top, right, bottom = (round(edge) for edge in box)
    return f"{left}-{right} across, {top}-{bottom} down"


@record("a token and its weight", slots=True)
class Bar:
    """One ranked token: its label, its number in the text, and the weight between it and the pinned token."""

    label: Annotated[str, Meaning("its label", name="text")]
    position: Annotated[int, Meaning("its number")]
    weight: Annotated[float, Meaning("its weight")]
    box: Annotated[
        Edges | None,
        Meaning(
            "left, top, right and bottom of a part of a picture, in its pixels",
            optional=True,
            shape=list[float],
            plain=lambda box: [round(edge, 1) for edge in box],
        ),
    ] = None

    @property
    def where(self) -> str:
        """The part of a picture in words; empty for a token without one."""
        return "" if self.box is None else describe_box(self.box)


@dataclass(frozen=True, slots=True)
class Bars:
    """Ranked tokens, heaviest first; ``more`` unmasked ones follow, each at most ``most``."""

    bars: tuple[Bar, ...]
    more: int = 0
    most: float = 0.0

    @property
    def rest(self) -> str:
        """The note on those that are not shown."""
        most = f"at most {self.most:.2g}" if self.most >= LEAST_LISTED else f"less than {LEAST_LISTED}"
        return f"and {self.more} more, each {most}" if self.more else ""


def _ranked(side: str) -> Meaning:
    text = f"the heaviest of its {side}; null where it has none"
    return Meaning(text, shape=tuple[Bar, ...] | None, plain=lambda ranked: ranked and plain(ranked.bars))


@record("the token")
class TokenLabel:
    """A token's label and position."""

    text: Annotated[str, Meaning("its label")]
    position: Annotated[int, Meaning("its number")]


@record("one token (--token)", "show", eq=False)
class TokenView:
    """One token's row and column of a head, ranked; ``None`` if it has none, as in cross-attention."""

    label: str
    position: int
    looks_at: Annotated[Bars | None, _ranked("row")]
    looked_at_by: Annotated[Bars | None, _ranked("column")]
    title: Annotated[str, Meaning("the head, or those that it is the mean of", name="which")] = ""
    subtitle: str = ""
    notes: Notes = ()
    overlays: tuple[Overlay, ...] = ()  # the same on a picture, for tokens that are patches
    verbs: tuple[str, str] = ("attends to", "is attended to by")  # what row and column are
    full: float | None = None  # the weight of a full bar, if it is not chosen from the lists
    bar: str = WEIGHT  # what a bar is, in words

    @property
    def lists(self) -> tuple[tuple[str, Bars], ...]:
        """Each existing list, with the words that introduce it."""
        both = zip(self.verbs, (self.looks_at, self.looked_at_by), strict=True)
        return tuple((verb, bars) for verb, bars in both if bars is not None)

    @derived("which it is")
    def token(self) -> TokenLabel:
        """The token in view."""
        return TokenLabel(self.label, self.position)

    @derived("with images: one each, of many those that have most", optional=True, shape=tuple[Overlay, ...])
    def patches(self) -> tuple[Overlay, ...] | None:
        """The overlays, if there are any."""
        return self.overlays or None

    @property
    def full_bar(self) -> float:
        """The weight of a full bar in both lists: the largest, rounded up."""
        if self.full is not None:
            return self.full
        heaviest = max((bar.weight for _, bars in self.lists for bar in bars.bars), default=0.0)
        return round_up(heaviest) or 1.0


def token_view(
    weights: Weights, *, query: int | None, key: int | None, top: int = 10, **words: Any
) -> TokenView:
    """Rank row ``query`` and column ``key`` of one head ``[query, key]``, by a token's number in the text.

    In cross-attention one of them is ``None``. ``words`` are title and notes. Raises ``SelectionError`` for a
    token that is not on the axis.
    """
    looks_at = looked_at_by = None
    values, allowed = weights.values, weights.allowed
    if key is not None:
        at = place_of(weights.keys, key)
        place = weights.keys[at]
        looked_at_by = rank_places(values[:, at], allowed[:, at], weights.queries, top)
    if query is not None:
        at = place_of(weights.queries, query)
        place = weights.queries[at]
        looks_at = rank_places(values[at], allowed[at], weights.keys, top)
    return TokenView(place.label, place.start, looks_at, looked_at_by, **words)


def place_of(axis: Sequence[Place], position: int) -> int:
    """The place that a token belongs to. Raises ``SelectionError`` for a token that is not there."""
    for index, place in enumerate(axis):
        if place.start <= position < place.stop:
            return index
    numbers = f"tokens {axis[0].start}-{axis[-1].stop - 1}" if axis else "no tokens"
    raise SelectionError(f"no token {position} here: this picture shows {numbers}")


def rank_places(
    values: Array, allowed: Array, axis: Sequence[Place], top: int, boxes: Mapping[int, Edges] | None = None
) -> Bars:
    """The ``top`` heaviest finite unmasked places, ties in text order; ``boxes`` by id."""
    order = [i for i in np.argsort(-values, kind="stable") if allowed[i] and np.isfinite(values[i])]
    ranked = [(axis[i], float(values[i])) for i in order]
    bars = tuple(
        Bar(place.label, place.start, weight, boxes.get(place.id) if boxes and place.id is not None else None)
        for place, weight in ranked[:top]
    )
    return Bars(bars, len(ranked[top:]), ranked[top][1] if ranked[top:] else 0.0)


@record("a head", slots=True)
class Curve:
    """A head's averages over consecutive runs of rows; ``None`` for a run without a row to average."""

    head: Annotated[str, Meaning("its address, with its kind of attention where there are several")]
    values: Annotated[
        tuple[float | None, ...],
        Meaning("its average over each run; null where no row of it counts", shape=list[float]),
    ]
    baseline: Annotated[
        tuple[float | None, ...], Meaning("the same with uniform attention", shape=list[float])
    ]

    @property
    def mean(self) -> float:
        """The mean over the runs that have a value."""
        numbers = [value for value in self.values if value is not None]
        return sum(numbers) / len(numbers)


@record("a measure along the text (--by-position)", "stats", slots=True)
class Curves:
    """One measure of several heads, best first; run ``i`` begins at the row or step ``edges[i]``."""

    measure: Annotated[str, Meaning("the measure")]
    unit: Annotated[str, Meaning("its unit")]
    edges: Annotated[
        tuple[int, ...], Meaning("the first row of each run of rows, and where the last run ends")
    ]
    curves: Annotated[tuple[Curve, ...], Meaning("the heads, the largest mean first")]
    title: Annotated[str, Meaning("what it is")] = ""
    subtitle: Annotated[str, Meaning("the model and what ran")] = ""
    notes: Notes = ()
    along: str = "row"  # or the step of a checkpoint, or the axis values of separate points

    @property
    def bar(self) -> str:
        """What the values are, in words: the measure and its unit."""
        return f"{self.measure}, {self.unit}"

    @property
    def at_points(self) -> bool:
        """Whether each value belongs to one point of the axis, not to a run of rows."""
        return self.along != "row"

    @property
    def ends(self) -> tuple[str, str]:
        """The label of the first run, and the last row or step."""
        last = self.edges[-1] - 1 if self.along == "row" else self.edges[-2]
        return f"{self.along} {self.edges[0]:,}", f"{last:,}"

    @property
    def top(self) -> float:
        """The value of a full-height mark: the largest, rounded up."""
        most = max(map(abs, self._known), default=0.0) or 1.0
        return round_up(most)

    @property
    def least(self) -> float:
        """The smallest value."""
        return min(self._known, default=0.0)

    @property
    def _known(self) -> list[float]:
        lines = [curve.values for curve in self.curves] + [self.curves[0].baseline]
        return [value for line in lines for value in line if value is not None]


AreaError = Annotated[float, Meaning("its standard error over random orders; 0 of one order")]


@record("an order of the tokens, or the mean of random ones", slots=True)
class TokenOrder:
    """One order of removing tokens: the probability of the prediction after each step, and summary means."""

    name: Annotated[str, Meaning("the way of weighting or following attention, or the head, that gives it")]
    first: Annotated[
        tuple[str, ...], Meaning("the first tokens, with their numbers; empty for random orders")
    ]
    deletion: Annotated[
        tuple[float, ...],
        Meaning("the probability of the prediction after each step, the first tokens removed first"),
    ]
    insertion: Annotated[tuple[float, ...], Meaning("the same, with only the first tokens restored")]
    deletion_area: Annotated[float, Meaning("the mean of that curve: the lower, the better the order")]
    insertion_area: Annotated[float, Meaning("the mean of that curve: the higher, the better the order")]
    deletion_error: AreaError = 0.0
    insertion_error: AreaError = 0.0


@record("which order of tokens a prediction depends on (--faithful)", "stats", "flow", slots=True)
class Faithful:
    """Orders by several methods, best first; ``taken`` is the number of tokens removed after each step."""

    taken: Annotated[tuple[int, ...], Meaning("how many tokens are removed at each step")]
    ranked: Annotated[tuple[TokenOrder, ...], Meaning("every order, the lowest deletion area first")]
    random: Annotated[TokenOrder, Meaning("the mean of random orders")]
    alone: Annotated[TokenOrder, Meaning("tokens by how far the prediction falls without each")]
    title: Annotated[str, Meaning("what is shown")] = ""
    subtitle: Annotated[str, Meaning("the prediction")] = ""
    notes: Annotated[tuple[str, ...], Meaning("what to know")] = ()

    @property
    def whole(self) -> float:
        """The probability with all tokens; areas are shares of it."""
        return self.random.deletion[0] or 1.0


OF_WRITTEN = AxisNames("generated token (attends)", "share of its attention", "")
OVER_TIME = AxisNames("token (attends)", "time (attended to)", "rows attend to columns")

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, eq=False)
class Stack(Titled):
    """One line per label, divided into a share for each part."""

    parts: tuple[str, ...]
    labels: tuple[str, ...]
    shares: Array  # [label, part]
    axes: AxisNames = OF_WRITTEN

    @property
    def letters(self) -> tuple[str, ...]:
        """A letter for each part."""
        return tuple(LETTERS[part % len(LETTERS)] for part in range(len(self.parts)))

    @property
    def tones(self) -> tuple[float, ...]:
        """A place on the colour map for each part, 0 to 1, neighbours far apart."""
        count = len(self.parts)
        order = [(part * 5) % count if count % 5 else part for part in range(count)]
        return tuple(0.15 + 0.75 * place / max(1, count - 1) for place in order)

    @property
    def legend(self) -> str:
        """Which letter is which part, and its mean share."""
        named = zip(self.letters, self.parts, self.shares.mean(0).tolist(), strict=True)
        return " · ".join(f"{letter} {clean(name)} {mean:.2f}" for letter, name, mean in named)


@dataclass(frozen=True, slots=True)
class Term:
    """One summand."""

    label: str
    value: float


@dataclass(frozen=True, slots=True)
class MovedWords:
    """The words that a head's output promotes and demotes most, each with its change."""

    label: str
    raised: tuple[Term, ...]
    lowered: tuple[Term, ...]

    @property
    def sentence(self) -> str:
        """What the head's output does to words."""
        both = ("raises", self.raised), ("lowers", self.lowered)
        named = {verb: ", ".join(clean(word.label) or "␣" for word in words) for verb, words in both if words}
        parts = [f"{verb} {words}" for verb, words in named.items()]
        return f"{self.label} " + ("; ".join(parts) or "changes no word")


@dataclass(frozen=True, eq=False)
class Terms(Titled):
    """What a number is the sum of: a few groups, and the largest single terms."""

    groups: tuple[Term, ...]
    total: Term  # of the groups, and of the largest with the rest
    largest: tuple[Term, ...]
    rest: Term | None = None
    moved: tuple[MovedWords, ...] = ()
    marked: str | None = None  # the label of the requested term
    heads: HeadMap | None = None  # a map of all heads, drawn beside the bars in a picture
    bar: str = "added to the score, logits"  # what the values are

    @property
    def blocks(self) -> tuple[tuple[Term, ...], ...]:
        """The groups with their sum, and the largest terms with the rest."""
        return (*self.groups, self.total), (*self.largest, *(() if self.rest is None else (self.rest,)))

    @property
    def span(self) -> tuple[float, float]:
        """How far the bars reach below and above zero; 1 in all if there are none."""
        values = [term.value for block in self.blocks for term in block]
        low, high = max(0.0, -min(values, default=0.0)), max(0.0, max(values, default=0.0))
        return (low, high) if low + high else (0.0, 1.0)


@dataclass(frozen=True, eq=False)
class SoundMap(Titled):
    """The attention from a text's tokens to the frames of a sound, and the path through both."""

    values: Array  # [token, frame]
    tokens: tuple[str, ...]
    path: tuple[int, ...]  # the frame in which each token begins, and the last one's end
    words: tuple[tuple[str, int], ...]  # each with its first frame
    seconds: float  # of a frame
    begin: float = 0.0  # of the first one
    bands: Array | None = None  # [band, frame], the loudness by frequency, 0 to 1, the lowest first
    axes: AxisNames = OVER_TIME
    bar: str = "attention above the mean, smoothed"


@dataclass(frozen=True, eq=False)
class GraphNode:
    """A node: its name, column, role, how much it carries, its own map, and what opens at the map's cells."""

    name: str
    column: int
    role: str = ""
    effect: float | None = None
    map: Heatmap | None = None
    opened: Mapping[tuple[int, int], Table] = field(default_factory=dict)  # by row and column
    kind: str = "attention head"
    layer: int | None = None  # None for embeddings, and what else is in no layer
    token: int | None = None  # None for a node of all tokens


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """An edge to a node in a later column: how much it carries, and by which composition."""

    source: str
    target: str
    effect: float
    way: str = ""


@dataclass(frozen=True, eq=False)
class LayerGraph(Titled):
    """A graph by layers."""

    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    value: str = "effect"  # what an edge carries, in a word
    bar: str = "share of the score's difference"  # and in more of them

    def places(self) -> dict[str, tuple[float, float]]:
        """The position of each node: its column, and how far from the column's middle."""
        placed: dict[str, tuple[float, float]] = {}
        for column in sorted({node.column for node in self.nodes}):
            names = [node.name for node in self.nodes if node.column == column]
            for row, name in enumerate(names):
                placed[name] = float(column), row - (len(names) - 1) / 2
        return placed


@dataclass(frozen=True, eq=False)
class Panels(Titled):
    """Several views in one picture, each with its own words."""

    parts: tuple[Any, ...]


Cell: TypeAlias = "str | tuple[tuple[str, str | float], ...]"
"""A text, or pieces of one, each with a style: ``bold``, ``dim``, a colour, or a level of the colour map."""

BREAK = ("\n", "")  # a piece that ends in a real line break; in any other, line breaks are made visible
SPACE = (" ", "")  # a space between two pieces; any other space that stands alone is made visible


@dataclass(frozen=True)
class Column:
    """A column: its name, whether it is right-aligned, and how overlong texts are treated.

    They wrap between words (``wrap``) or anywhere (``fold``), are cut off at the column's edge
    (``keep``), or end in an ellipsis (``cut``), in a column as wide as the line allows (``rest``).
    """

    name: str
    right: bool = False
    long: Literal["wrap", "fold", "keep", "cut", "rest"] = "wrap"


@dataclass(frozen=True)
class Table(Titled):
    """Rows under the names of their columns."""

    columns: tuple[Column, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    gap: int = 2  # spaces between columns
    edge: bool = False  # whether they follow the last column, too
    dim: frozenset[int] = frozenset()  # the numbers of dimmed rows
    commands: tuple[str, ...] = ()  # to be copied; below, each on one line
    narrow: Table | None = None  # replaces the table where space is short
