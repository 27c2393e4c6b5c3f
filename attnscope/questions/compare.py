"""How far all heads of a model are apart, on one text or on average over several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from attnscope.attention import Axis, Head, Site
from attnscope.axes import Place, Weights
from attnscope.capture import Record
from attnscope.capture.observers.coarsen import CoarseMap, Coarsen, SharedRows
from attnscope.capture.observers.rows import Sample, Sampled
from attnscope.comparison import (
    CUT,
    Average,
    Groups,
    Plane,
    Spread,
    average_over_texts,
    divergence,
    embed_in_plane,
    group_heads,
    measure_distances,
    sampling_error,
)
from attnscope.comparison import LARGEST as LARGEST_DISTANCE
from attnscope.errors import InputError, SelectionError
from attnscope.measures import MEASURES, HeadFigures, Measurement
from attnscope.models import Model, ModelInput
from attnscope.questions.head import LARGEST
from attnscope.questions.head_rows import even_rows, evenly, head_rows, oddities
from attnscope.questions.selection import Selection, head_of
from attnscope.questions.sentences import kind_title, name_pass, note_hidden, provenance, require_selected
from attnscope.views import grid
from attnscope.views.distances import HeadDistances, HeadPlane, distance_map
from attnscope.views.grid import CELLS, LayerStrip, Series
from attnscope.views.heatmap import HeadPair, Parting, head_pair


@dataclass(frozen=True)
class Pair:
    """Two heads, their distance in nats and its standard error (0 where every row was compared)."""

    one: Head
    other: Head
    distance: float
    error: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """The distances between all heads of one kind of attention.

    ``distances`` are Jensen-Shannon divergences in nats, 0 to log 2, averaged over rows and then over
    texts. ``error`` is their standard error: over texts if there are several, else that of sampling
    ``rows`` of ``of`` rows, 0 where all were compared. ``stability`` is the mean rank correlation of a text's
    distances with the others', ``None`` for a single text.
    """

    kind: str
    heads: tuple[Head, ...]
    distances: NDArray[np.float64]  # [head, head]
    error: NDArray[np.float64]  # [head, head]
    groups: Groups
    plane: Plane
    rows: int
    of: int
    texts: int
    stability: float | None
    title: str
    subtitle: str
    notes: tuple[str, ...]

    @property
    def singletons(self) -> tuple[Pair, ...]:
        """Each head that is in a group of its own, with the one nearest to it; the farthest first."""
        results = [self.pair(head, self.nearest_to(head)) for head in self.groups.singletons]
        return tuple(sorted(results, key=lambda pair: -pair.distance))

    def nearest(self, count: int) -> tuple[Pair, ...]:
        """The pairs of heads that are most alike, the nearest first."""
        return tuple(islice(self._by_distance(), count))

    def nearest_to(self, head: int) -> int:
        """The number of the head that is most like this one."""
        others = np.where(np.arange(len(self.heads)) == head, np.inf, self.distances[head])
        return int(others.argmin())

    def pair(self, one: int, other: int) -> Pair:
        """Two heads by their numbers in ``heads``."""
        return Pair(
            self.heads[one],
            self.heads[other],
            float(self.distances[one, other]),
            float(self.error[one, other]),
        )

    def _by_distance(self) -> Iterator[Pair]:
        rows, columns = np.triu_indices(len(self.heads), 1)
        for number in np.argsort(self.distances[rows, columns], kind="stable"):
            yield self.pair(int(rows[number]), int(columns[number]))

    @property
    def view(self) -> HeadDistances:
        """The table in the order of the groups, and the plane."""
        names = tuple(head.name for head in self.heads)
        said = (
            f"{len(self.groups.members)} groups: average linkage, cut at {CUT:g} times the median distance; "
            f"mean silhouette {self.groups.silhouette:.2f}",
        )
        table = distance_map(
            self.distances,
            names,
            names,
            groups=self.groups.members,
            title=self.title,
            subtitle=self.subtitle,
            notes=(*said, *self.notes),
        )
        share = self.plane.explained_variance
        note = f"the plane's explained variance is {share:.0%}; its axes have no unit"
        layers = tuple(head.layer for head in self.heads)
        points = HeadPlane(self.plane.points, names, layers, share, notes=(note,))
        return HeadDistances(table, points)


def compare(
    model: Model, texts: ModelInput | Sequence[ModelInput], selection: Selection | None = None
) -> Comparison:
    """Run the model once a text, and measure how far its heads are apart.

    ``layers`` of the selection compares the heads of some layers, ``number`` the same number in all layers,
    ``kind`` a kind of attention; ``words`` and ``hide_special`` coarsen rows and keys first. Up to 221
    tokens every row is compared, of longer texts an even sample. Raises ``SelectionError`` for what does not
    exist, or where fewer than two heads are meant, and ``InputError`` without a text.
    """
    selection = selection or Selection()
    given = [texts] if isinstance(texts, ModelInput) else list(texts)
    if not given:
        raise InputError("there is no text to compare heads on: give one at least")
    results = [_one_text(model, prepared, selection) for prepared in given]
    first = results[0]
    if len({text.heads for text in results}) > 1:
        raise SelectionError("the texts run through different layers: compare them one by one")
    average = average_over_texts([text.spread.mean for text in results]) if len(results) > 1 else None
    distances = first.spread.mean if average is None else average.mean
    error = first.spread.error(first.of) if average is None else average.error
    rows, of = sum(text.spread.rows for text in results), sum(text.of for text in results)
    notes = [*model.notes, *(note for text in results for note in text.notes)]
    named = name_pass(model, given[0]) if len(given) == 1 else model.title
    return Comparison(
        kind=first.kind,
        heads=first.heads,
        distances=distances,
        error=error,
        groups=group_heads(distances),
        plane=embed_in_plane(distances),
        rows=rows,
        of=of,
        texts=len(given),
        stability=None if average is None else average.stability,
        title=f"{len(first.heads)} heads compared · {named} · {kind_title(first.kind)}",
        subtitle=first.ran if average is None else f"mean over {len(given):,} texts",
        notes=(*dict.fromkeys(notes), *note_certainty(rows, of, error, average)),
    )


@dataclass(frozen=True, eq=False)
class _OneText:
    """What is kept of a text: the rows themselves are not."""

    kind: str
    heads: tuple[Head, ...]
    spread: Spread
    of: int
    ran: str
    notes: tuple[str, ...]


def _one_text(model: Model, prepared: ModelInput, selection: Selection) -> _OneText:
    result = head_rows(model, prepared, selection)
    if len(result.heads) < 2:
        raise SelectionError(f"{result.heads[0].name} alone cannot be compared: there is no other head here")
    notes = (*prepared.notes, *result.notes)
    return _OneText(
        result.kind, result.heads, measure_distances(result.rows), result.of, provenance(result.sites), notes
    )


def note_certainty(
    rows: int, of: int, error: NDArray[np.float64], average: Average | None = None
) -> Iterator[str]:
    """How sure distances are: what a sample of rows costs, or how much they differ from text to text."""
    if rows < of:
        yield f"compared on an even sample of {rows:,} of {of:,} rows"
    if average is not None:
        yield f"rank correlation of one text's distances with the other texts': {average.stability:.2f}"
    known = error[error > 0]
    if len(known):
        yield f"standard error of a distance: {known.mean():.1g} nats on average, {known.max():.1g} at most"


SHOWN = ("entropy", "confidence", "distance", "previous", "self", "next", "first", "special")
"""The measures that are shown against depth."""


@dataclass(frozen=True, eq=False)
class Depth:
    """One head number in every layer that has it.

    ``distances`` are Jensen-Shannon divergences in nats between the heads of every two layers, ``error``
    their standard error where rows were sampled; ``figures`` are the measures of each.
    """

    kind: str
    heads: tuple[Head, ...]
    distances: NDArray[np.float64]  # [layer, layer]
    error: NDArray[np.float64]  # [layer, layer]
    figures: tuple[HeadFigures, ...]
    view: LayerStrip


def through_layers(
    model: Model, prepared: ModelInput, head: int, selection: Selection | None = None
) -> Depth:
    """Run the model once, and compare head number ``head`` of every layer with that of every other.

    Raises ``SelectionError`` where there is no such head, or where one layer alone has it.
    """
    selection = replace(selection or Selection(), number=head)
    coarse, measured = selection.coarsen(CELLS, even=True), Measurement()
    result = head_rows(model, prepared, selection, others=[coarse, measured])
    if len(result.heads) < 2:
        raise SelectionError(
            f"{result.heads[0].name} is in one layer alone: there is none to compare it with"
        )
    spread = measure_distances(result.rows)
    thumbnails = [(made.site.layer, *made.label()) for made in coarse.maps if made.site.kind == result.kind]
    figures = tuple(replace(each, head=head) for each in measured.figures() if each.site.kind == result.kind)
    error = spread.error(result.of)
    notes = (
        *model.notes,
        *prepared.notes,
        *result.notes,
        *note_hidden([share for _, _, share in thumbnails], selection, f"the {kind_title(result.kind)}"),
        *note_certainty(spread.rows, result.of, error),
    )
    steps = [float(spread.mean[number, number + 1]) for number in range(len(result.heads) - 1)]
    named = name_pass(model, prepared)
    picture = grid([(layer, weights) for layer, weights, _ in thumbnails], scale=selection.scale)
    size = (result.sites[0].queries, result.sites[0].keys)
    view = LayerStrip(
        names=tuple(each.name for each in result.heads),
        roles=tuple(each.role.name if each.role else "" for each in figures),
        thumbnails=replace(picture, size=size, whole=False),
        series=(Series("change", "nats", (None, *steps)), *_series(figures)),
        apart=spread.mean,
        title=f"head {head} through {len(result.heads)} layers · {named} · {kind_title(result.kind)}",
        subtitle=provenance(result.sites),
        notes=tuple(dict.fromkeys(notes)),
    )
    return Depth(result.kind, result.heads, spread.mean, error, figures, view)


def _series(figures: tuple[HeadFigures, ...]) -> list[Series]:
    series = []
    for name in SHOWN:
        values = tuple(head.figures[name].value if name in head.figures else None for head in figures)
        if any(value is not None for value in values):
            series.append(Series(name, MEASURES[name].unit, values))
    return series


SAMPLED = 1 << 24
"""Weights of each of the two heads that are compared: every row up to 4,096 tokens."""

PARTINGS = 6
"""Tokens that are listed."""

Select = Callable[[Site, int], "list[int]"]


@dataclass(frozen=True, eq=False)
class HeadComparison:
    """Two heads on one text.

    ``distance`` is the mean of ``by_row``, the Jensen-Shannon divergence (nats) of their rows at the
    positions ``rows``; ``error`` its standard error where rows were sampled. ``weights`` are both heads as
    the picture has them, pooled where a text has more than 1,024 tokens.
    """

    kind: str
    heads: tuple[Head, Head]
    distance: float
    error: float
    rows: tuple[int, ...]
    by_row: NDArray[np.float32]  # [row]
    weights: tuple[Weights, Weights]
    view: HeadPair


def compare_heads(
    model: Model,
    prepared: ModelInput,
    one: Head | str,
    other: Head | str,
    selection: Selection | None = None,
) -> HeadComparison:
    """Run the model once, and compare two heads, each ``"L2H1"`` or a ``Head``, of one kind of attention.

    Raises ``SelectionError`` where one of them does not exist, or where they see different tokens.
    """
    selection = selection or Selection()
    heads = head_of(one), head_of(other)
    coarse, sample = selection.coarsen(LARGEST), Sample(even_rows(selection, SAMPLED))

    def select(site: Site, count: int) -> list[int]:
        if selection.kind not in (None, site.kind):
            return []
        return sorted({head.head for head in heads if head.layer == site.layer and head.head < count})

    record = model.run(prepared, [SharedRows([coarse, sample], select)])
    kind = _kind(heads, record, selection, prepared.lead if prepared.pictures else None)
    both = [_OneHead.of(head, kind, select, coarse, sample) for head in heads]
    if any(len(each.sampled.values) > 1 for each in both):
        raise SelectionError("these heads see several pieces by themselves: compare all heads instead")
    if both[0].size != both[1].size:
        sizes = " and ".join(f"{rows} × {columns}" for rows, columns in (each.size for each in both))
        raise SelectionError(f"{heads[0].name} and {heads[1].name} see different tokens: {sizes}")
    queries, keys = (selection.coarsening(axis) for axis in both[0].axes)
    positions = evenly(len(queries.places), len(keys.places), SAMPLED)
    apart = divergence(both[0].rows, both[1].rows)  # [row]
    shown, shares = zip(*(_label_weights(each) for each in both), strict=True)
    partings = tuple(
        _parting(queries.places[positions[row]], keys.places, [each.rows[row] for each in both], apart[row])
        for row in np.argsort(-apart.numpy(), kind="stable")[:PARTINGS]
    )
    error = sampling_error(apart, len(queries.places))
    notes = (
        *model.notes,
        *prepared.notes,
        *record.notes,
        *oddities([each.sampled for each in both]),
        *note_hidden(shares, selection, "their attention"),
        *note_certainty(len(positions), len(queries.places), np.array([error])),
    )
    distance = float(apart.double().mean())
    view = head_pair(
        (heads[0].name, heads[1].name),
        (shown[0], shown[1]),
        partings,
        scale=selection.scale,
        title=f"{heads[0].name} and {heads[1].name} · {name_pass(model, prepared)} · {kind_title(kind)}",
        subtitle=f"{distance:.3f} nats apart, of {LARGEST_DISTANCE:.3f} at most",
        notes=tuple(dict.fromkeys(notes)),
    )
    rows = tuple(queries.places[row].start for row in positions)
    return HeadComparison(kind, heads, distance, error, rows, apart.numpy(), (shown[0], shown[1]), view)


@dataclass(frozen=True, eq=False)
class _OneHead:
    """One of the two: its call, its number among the heads that were passed on, and its rows."""

    map: CoarseMap
    sampled: Sampled
    number: int

    @classmethod
    def of(cls, head: Head, kind: str, select: Select, coarse: Coarsen, sample: Sample) -> _OneHead:
        for made, sampled in zip(coarse.maps, sample.maps, strict=True):
            if (made.site.kind, made.site.layer) == (kind, head.layer):
                return cls(made, sampled, select(made.site, head.head + 1).index(head.head))
        raise AssertionError(head)  # _kind has found it

    @property
    def rows(self) -> Tensor:
        """[row, key]"""
        return self.sampled.values[0, self.number].cpu()

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """The queries and keys that it sees."""
        return self.sampled.queries, self.sampled.keys

    @property
    def size(self) -> tuple[int, int]:
        """How many queries and keys it sees."""
        return len(self.sampled.queries), len(self.sampled.keys)


def _kind(heads: Sequence[Head], record: Record, selection: Selection, lead: str | None) -> str:
    """The kind of attention that has both heads: the one to show first, else the first that runs."""
    kinds = dict.fromkeys(site.site.kind for site in record.sites)
    for kind in sorted(kinds, key=lambda kind: kind != lead):
        if selection.kind in (None, kind) and all(
            any(
                (site.site.kind, site.site.layer) == (kind, head.layer) and head.head < site.heads
                for site in record.sites
            )
            for head in heads
        ):
            return kind
    for head in heads:
        asked = Selection(head, kind=selection.kind)
        require_selected([site for site in record.sites if asked.heads(site.site, site.heads)], record, asked)
    raise SelectionError(f"{heads[0].name} and {heads[1].name} are in no one kind of attention")


def _label_weights(head: _OneHead) -> tuple[Weights, float]:
    """The weights of one head, [query place, key place], and the share that was hidden."""
    made, number = head.map, [head.number]
    mask = made.open if made.open.shape[1] == 1 else made.open[:, number]
    weights, share = replace(made, values=made.values[:, number], open=mask).label()
    return replace(weights, values=weights.values[0], allowed=weights.allowed[0]), share


def _parting(place: Place, keys: Sequence[Place], rows: Sequence[Tensor], apart: Tensor) -> Parting:
    """One row that differs, with the heaviest key of each head."""
    heaviest = [int(row.argmax()) for row in rows]
    labels = [
        f"{keys[key].label} {keys[key].start}" if key < len(keys) else "a special token" for key in heaviest
    ]
    weights = [float(row[key]) for row, key in zip(rows, heaviest, strict=True)]
    return Parting(place.label, place.start, float(apart), (labels[0], labels[1]), (weights[0], weights[1]))
