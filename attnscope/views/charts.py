"""Numbers as charts: curves along a text, orders of tokens, stacked shares, terms of a sum, graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from attnscope.axes import Array
from attnscope.records import Meaning, Notes, record
from attnscope.text import clean
from attnscope.views.heads import HeadMap
from attnscope.views.heatmap import Heatmap
from attnscope.views.table import Titled
from attnscope.views.token import FULL_BARS


@record("a head", slots=True)
class Curve:
    """A head's averages over consecutive runs of rows; ``None`` for a run without a row to average."""

    head: Annotated[str, Meaning("its address, with its kind of attention where there are several")]
    values: Annotated[
        tuple[float | None, ...],
        Meaning("its average over each run; null where no row of it counts", shape=list[float]),
    ]
    baseline: Annotated[tuple[float | None, ...], Meaning("the same of even attention", shape=list[float])]

    @property
    def mean(self) -> float:
        """The mean over the runs that have a value."""
        known = [value for value in self.values if value is not None]
        return sum(known) / len(known)


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
    def at_points(self) -> bool:
        """Whether each value belongs to one point of the axis, not to a run of rows."""
        return self.along not in ("row", "step")

    @property
    def ends(self) -> tuple[str, str]:
        """The label of the first run, and the last row or step."""
        last = self.edges[-1] - 1 if self.along == "row" else self.edges[-2]
        return f"{self.along} {self.edges[0]:,}", f"{last:,}"

    @property
    def top(self) -> float:
        """The value of a full-height mark: a round share, or the largest figure."""
        known = [abs(value) for value in self._known]
        most = max(known, default=0.0) or 1.0
        return next((step for step in FULL_BARS if self.unit == "share" and most <= step), most)

    @property
    def least(self) -> float:
        """The smallest figure."""
        return min(self._known, default=0.0)

    @property
    def _known(self) -> list[float]:
        lines = [curve.values for curve in self.curves] + [self.curves[0].baseline]
        return [value for line in lines for value in line if value is not None]


AreaError = Annotated[float, Meaning("its standard error over random orders; 0 of one order")]


@record("an order of the tokens, or the mean of random ones", slots=True)
class TokenOrder:
    """One order of removing tokens: the probability of the prediction after each step, and summary means.

    ``first`` are the first tokens of the order, empty for a mean over several orders; errors belong to
    such a mean.
    """

    name: Annotated[str, Meaning("the way of weighing or following attention, or the head, that gives it")]
    first: Annotated[
        tuple[str, ...], Meaning("the tokens that stand first, with their numbers; none of random orders")
    ]
    deletion: Annotated[
        tuple[float, ...],
        Meaning("the probability of the prediction after each step, the first tokens gone first"),
    ]
    insertion: Annotated[tuple[float, ...], Meaning("the same, while the first tokens alone come back")]
    deletion_area: Annotated[float, Meaning("the mean of that curve: the lower, the better the order")]
    insertion_area: Annotated[float, Meaning("the mean of that curve: the higher, the better the order")]
    deletion_error: AreaError = 0.0
    insertion_error: AreaError = 0.0


@record("which order of tokens a prediction depends on (--faithful)", "stats", "flow", slots=True)
class Faithful:
    """Orders by several methods, best first; ``taken`` is the number of tokens removed after each step."""

    taken: Annotated[tuple[int, ...], Meaning("how many tokens are taken away at each step")]
    ranked: Annotated[tuple[TokenOrder, ...], Meaning("every order, that with the lowest deletion first")]
    random: Annotated[TokenOrder, Meaning("the mean of random orders")]
    alone: Annotated[TokenOrder, Meaning("by how far the prediction falls without each token alone")]
    title: Annotated[str, Meaning("what was asked")] = ""
    subtitle: Annotated[str, Meaning("the prediction")] = ""
    notes: Annotated[tuple[str, ...], Meaning("what to know")] = ()

    @property
    def whole(self) -> float:
        """The probability with all tokens; areas are shares of it."""
        return self.random.deletion[0] or 1.0


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, eq=False)
class Stack(Titled):
    """One line per label, divided into a share for each part."""

    parts: tuple[str, ...]
    labels: tuple[str, ...]
    shares: Array  # [label, part]

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
        parts = [
            f"{verb} " + ", ".join(clean(word.label) or "␣" for word in words)
            for verb, words in (("raises", self.raised), ("lowers", self.lowered))
            if words
        ]
        return f"{self.label} " + ("; ".join(parts) or "moves no word")


@dataclass(frozen=True, eq=False)
class Terms(Titled):
    """What a number is the sum of: a few groups, and the largest single terms.

    ``groups`` sum to ``total``, and so do ``largest`` and ``rest``. ``marked`` is the label of the
    requested term. ``heads`` is a map of all heads, drawn beside the bars in a picture.
    """

    groups: tuple[Term, ...]
    total: Term
    largest: tuple[Term, ...]
    rest: Term | None = None
    moved: tuple[MovedWords, ...] = ()
    marked: str | None = None
    heads: HeadMap | None = None

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
    """The attention from a text's tokens to the frames of a sound, and the path through both.

    ``path`` has the frame in which each token begins and the last one's end, ``words`` each word and its
    first frame. A frame is ``seconds`` long, the first one starts at ``begin``. ``bands`` is the loudness
    of the sound by frequency, 0 to 1.
    """

    values: Array  # [token, frame]
    tokens: tuple[str, ...]
    path: tuple[int, ...]
    words: tuple[tuple[str, int], ...]
    seconds: float
    begin: float = 0.0
    bands: Array | None = None  # [band, frame], the lowest first


@dataclass(frozen=True, eq=False)
class GraphNode:
    """A node: its name, column, role, how much it carries, and its own map."""

    name: str
    column: int
    role: str = ""
    effect: float | None = None
    map: Heatmap | None = None


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

    def places(self) -> dict[str, tuple[float, float]]:
        """The position of each node: its column, and how far from the column's middle."""
        placed: dict[str, tuple[float, float]] = {}
        at = {node.name: node.column for node in self.nodes}
        passed = {column for edge in self.edges for column in range(at[edge.source] + 1, at[edge.target])}
        for column in sorted(set(at.values())):
            names = [name for name, its in at.items() if its == column]
            aside = column in passed and len(names) % 2 == 1  # leaves the middle to a passing edge
            beside = (0.3 if column % 2 else -0.3) if aside else 0.0
            for row, name in enumerate(names):
                placed[name] = float(column), row - (len(names) - 1) / 2 + beside
        return placed
