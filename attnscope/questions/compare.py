"""Distances between all heads of a model, on one text or averaged over several."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations, starmap
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from attnscope import comparison
from attnscope.attention import Attention, Head, Kind, Site
from attnscope.axes import Array, Place, Weights
from attnscope.capture import Observer, Record
from attnscope.capture.observers import CoarseMap, Rows, Sample, Sampled, SharedRows
from attnscope.comparison import MAX_DIVERGENCE
from attnscope.errors import InputError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.questions.answer import Answer, csv_rows
from attnscope.questions.head import MAX_TOKENS, pick_head
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import (
    kind_title,
    kinds_of,
    name_pass,
    note_hidden,
    provenance,
    require_selected,
    selected_sites,
)
from attnscope.records import MATRIX, Meaning, Notes, Parts, derived, record
from attnscope.views import (
    DistanceMap,
    HeadDistances,
    HeadPair,
    HeadRank,
    Ranking,
    RowGap,
    View,
    distance_map,
    head_pair,
    name_weight,
    number,
)

NEAREST = 5  # pairs that are listed; --csv has all of them

UNCLEAR = 0.25  # a silhouette up to which there is no substantial structure (Kaufman & Rousseeuw 1990)

NATS = "Jensen-Shannon divergence, in nats"
ComparedKind: TypeAlias = Annotated[str, Meaning("the kind of attention that is compared", shape=Kind)]
Errors: TypeAlias = Annotated[Array, Meaning("their standard errors", shape=MATRIX)]
Stability: TypeAlias = Annotated[
    float | None, Meaning("mean rank correlation of one text's distances with the others'")
]
TextCount: TypeAlias = Annotated[int, Meaning("how many texts it is the mean of")]


def divergences(axes: str) -> Meaning:
    """The meaning of distances on these axes."""
    return Meaning(f"{axes}, {NATS}", shape=MATRIX)


@record("two heads")
class PairDistance:
    """Two heads, their distance in nats and its standard error (0 if every row was compared)."""

    one: Annotated[Head, Meaning("a head")]
    other: Annotated[Head, Meaning("another one")]
    distance: Annotated[float, Meaning(NATS, plain=partial(round, ndigits=7))]
    error: Annotated[
        float, Meaning("its standard error; 0 where every row was compared", plain=partial(round, ndigits=7))
    ]

    @property
    def names(self) -> str:
        """The names of both heads."""
        return f"{self.one.name} {self.other.name}"

    @property
    def words(self) -> str:
        """Their distance in words."""
        return f"{with_error(self.distance, self.error)} nats apart"


def with_error(distance: float, error: float) -> str:
    """A distance in nats and its standard error, if it has one, in significant digits."""
    if error:
        return f"{number(distance, error)} ± {number(error, error)}"
    return f"{distance:.{decimals_for([distance])}f}"


def decimals_for(distances: Iterable[float]) -> int:
    """So many decimals that the smallest distance above 0 has two digits: 3 to 6."""
    smallest = min((each for each in distances if each > 0), default=1.0)
    return min(6, max(3, 1 - math.floor(math.log10(smallest))))


def pair_distance(
    cell: tuple[int, int], heads: Sequence[Head], others: Sequence[Head], distances: Array, error: Array
) -> PairDistance:
    """The two heads of one cell of a table of distances."""
    return PairDistance(heads[cell[0]], others[cell[1]], float(distances[cell]), float(error[cell]))


@record("rows")
class RowCount:
    """How many rows were compared, of how many."""

    compared: Annotated[int, Meaning("how many were compared")]
    of: Annotated[int, Meaning("how many there are")]


@record("all heads with each other", "compare", eq=False)
class Comparison:
    """The mean distances between all heads of one kind of attention, their errors, groups and a plane."""

    kind: ComparedKind
    heads: Annotated[tuple[Head, ...], Meaning("the heads, in the order of rows and columns")]
    distances: Annotated[Array, divergences("[head, head]")]
    error: Errors  # [head, head]
    texts: TextCount
    stability: Stability
    title: str
    subtitle: str
    notes: Notes
    rows: Annotated[RowCount, Meaning("rows that were compared")]
    single: Sequence[Array] = ()  # the distances of each text, if there are several

    @cached_property
    def groups(self) -> comparison.Groups:
        """Groups of similar heads, by their numbers."""
        return comparison.group_heads(self.distances)

    @derived("how well the groups are separated, -1 to 1")
    def silhouette(self) -> float:
        return self.groups.silhouette

    @derived("the heads as points")
    def plane(self) -> comparison.Plane:  # of a thousand heads it takes a second: not for every answer
        return comparison.embed_in_plane(self.distances)

    @derived("groups of similar heads", name="groups")
    def grouped_heads(self) -> tuple[tuple[Head, ...], ...]:
        return tuple(tuple(self.heads[head] for head in group) for group in self.groups.members)

    @derived("the most similar pairs")
    def nearest(self) -> tuple[PairDistance, ...]:
        rows, columns = np.triu_indices(len(self.heads), 1)
        first = np.argsort(self.distances[rows, columns], kind="stable")[:NEAREST]
        return tuple(self.pair(int(rows[number]), int(columns[number])) for number in first)

    @derived("heads that resemble no other, each with the nearest one")
    def singletons(self) -> tuple[PairDistance, ...]:
        """Each head in a group of its own, with the one nearest to it; the farthest first."""
        nearest = np.where(np.eye(len(self.heads), dtype=bool), np.inf, self.distances).argmin(1)
        pairs = (self.pair(head, int(nearest[head])) for head, *others in self.groups.members if not others)
        return tuple(sorted(pairs, key=lambda pair: -pair.distance))

    def pair(self, one: int, other: int) -> PairDistance:
        """Two heads by their numbers in ``heads``."""
        return pair_distance((one, other), self.heads, self.heads, self.distances, self.error)

    def _describe_clusters(self) -> str:
        """How many clusters there are, how many heads are in none, and how they were found."""
        sizes = [len(group) for group in self.groups.members]
        clusters, alone = sum(size > 1 for size in sizes), sizes.count(1)
        if not clusters:
            return "no two heads are similar enough to form a cluster"
        others = (
            f" of {len(self.heads) - alone:,} heads, and {alone:,} that resemble{'s' * (alone == 1)} no other"
            * (alone > 0)
        )
        return (
            f"{clusters:,} cluster{'s' * (clusters > 1)}{others} (average linkage, threshold "
            f"{comparison.CUT:g} × median distance; silhouette {self.groups.silhouette:.2f}"
            f"{': no clear structure' * (self.groups.silhouette <= UNCLEAR)})"
        )

    @property
    def table(self) -> DistanceMap:
        """The distances in the order of the groups."""
        names = [head.name for head in self.heads]
        one_a_layer = len({head.layer for head in self.heads}) == len(names)  # these stay in their order
        return distance_map(
            self.distances,
            names,
            names,
            groups=() if one_a_layer else self.groups.members,
            title=self.title,
            subtitle=self.subtitle,
            notes=(self._describe_clusters(), *self.notes),
        )

    @property
    def view(self) -> HeadDistances:
        """The table, and the plane."""
        table, plane = self.table, self.plane
        names, layers = zip(*((head.name, head.layer) for head in self.heads), strict=True)
        share = f"2-D projection of the distances (keeps {plane.explained_variance:.0%} of the variance)"
        words: dict[str, Any] = {"title": self.title, "subtitle": self.subtitle}
        notes = (*table.notes, f"plane: {share}")
        return HeadDistances(table, plane.points, names, layers, notes=notes, **words)


CELLS = 3 << 14  # weights compared per head: 221 rows of 221 keys, or 96 of 512. More rows are sampled.
FEWEST = 32  # least rows compared, however long they are


@dataclass(frozen=True, eq=False)
class HeadRows:
    """The same rows of every head of one kind; batches and windows follow each other."""

    kind: Kind
    heads: tuple[Head, ...]
    rows: Tensor  # float32, [head, row, key]
    total: int  # rows that the text has
    record: Record
    provenance: str  # of the rows, in words
    notes: tuple[str, ...]


RowChooser: TypeAlias = Callable[[Attention], Rows]


def read_head_rows(
    model: Model,
    prepared: ModelInput,
    selection: Selection,
    choose: RowChooser | None = None,
    beside: Sequence[Observer] = (),
) -> HeadRows:
    """Run the model once and keep the same rows of every selected head, an even sample if there are many.

    Without a ``kind``, the first one that the model runs is taken (for a text with pictures, the text's).
    ``choose`` picks specific rows and keys, observers ``beside`` see all heads.
    """
    asked, choose_rows = selection.kind, choose or even_rows(selection)
    first = asked or (prepared.first_kind if prepared.pictures else None)
    selection = replace(selection, kind=first)

    def choose_one_kind(attention: Attention) -> Rows | None:
        nonlocal first
        first = first or attention.site.kind
        return choose_rows(attention) if attention.site.kind == first else None

    sample = Sample(choose_one_kind)
    record = model.run(prepared, [SharedRows([sample], selection.heads), *beside])
    require_selected(sample.maps, record, selection)
    maps, kind = sample.maps, sample.maps[0].site.kind
    sizes = {(len(each.queries), len(each.keys), len(each.values)) for each in maps}
    if len(sizes) > 1:
        listed = " and ".join(f"{queries} × {keys}" for queries, keys, _ in sorted(sizes))
        raise SelectionError(
            f"heads that see {listed} tokens cannot be compared: choose a layer with --layer"
        )
    counts = {site.site: site.heads for site in record.sites}
    layers = {each.site.layer for each in maps}
    sites = [site for site in record.sites if site.site.kind == kind and site.site.layer in layers]
    notes, others = [*record.notes], [other for other in kinds_of(counts) if other != kind]
    if asked is None and others:
        kinds = " and ".join(f"{kind_title(other)} (--kind {other})" for other in others)
        notes.append(f"only {kind_title(kind)} is compared; the model also has {kinds}")
    return HeadRows(
        kind=kind,
        heads=tuple(
            Head(each.site.layer, head, kind)
            for each in maps
            for head in selection.heads(each.site, counts[each.site])
        ),
        rows=torch.cat([each.values.transpose(0, 1).flatten(1, 2).cpu() for each in maps]),
        total=len(selection.coarsening(maps[0].queries).places) * len(maps[0].values),
        record=record,
        provenance=provenance(sites),
        notes=(*notes, *note_row_sums(maps)),
    )


def even_rows(selection: Selection, cells: int = CELLS) -> RowChooser:
    """All rows of the selection, or an even sample of at most ``cells`` weights; all keys."""

    def choose(attention: Attention) -> Rows:
        queries, keys = selection.coarsening(attention.queries), selection.coarsening(attention.keys)
        rows = even_sample(len(queries.places), len(keys.places), cells)
        return Rows([queries.tokens(row) for row in rows], keys.summing())

    return choose


def even_sample(rows: int, keys: int, cells: int = CELLS) -> list[int]:
    """Which of the rows to compare: all, or an even sample of at most ``cells`` weights."""
    count = min(rows, max(FEWEST, cells // max(keys, 1)))
    return [(2 * number + 1) * rows // (2 * count) for number in range(count)]


def note_row_sums(maps: Sequence[Sampled]) -> Iterator[str]:
    """Notes on rows that are not shares of a whole."""
    broken, sums = sum(each.broken for each in maps), [each.values.sum(-1) for each in maps]
    if broken:
        yield f"{broken:,} weights are not finite numbers and count as 0"
    if max(float(each.max()) for each in sums) > 1 + 1e-2:
        yield "rows that sum to more than 1 are normalized before they are compared"
    if max(float((1 - each).max()) for each in sums) > 1e-2:
        yield "attention to tokens that are not compared counts as one more key"


class TextDistances(NamedTuple):
    """The passes of the first text, the mean distances of their heads over all texts, and notes."""

    passes: Sequence[HeadRows]
    mean: comparison.Distances
    rows: RowCount
    notes: tuple[str, ...]


MAX_COMPARED_HEADS = 6000
"""Most heads of one comparison: time grows with the cube of their number, memory with the square."""


def measure_texts(
    texts: Iterable[tuple[Sequence[ModelInput], Sequence[HeadRows]]], notes: Sequence[str]
) -> TextDistances:
    """The distances of heads from each other, or from those of a second pass of each text."""
    first, each, counts, notes = list[HeadRows](), list[comparison.Distances](), [], [*notes]
    for inputs, passes in texts:
        first = first or [*passes]
        one, heads = passes[0], [ran.heads for ran in passes]
        if heads != [ran.heads for ran in first]:
            raise SelectionError("the texts run through different layers: compare them one by one")
        if len(passes) == 1 and len(one.heads) < 2:
            raise SelectionError(f"{one.heads[0].name} alone cannot be compared: no other head is selected")
        if len(one.heads) > MAX_COMPARED_HEADS:
            limit = f"at most {MAX_COMPARED_HEADS:,} heads can be compared"
            raise SelectionError(f"{limit}, these are {len(one.heads):,}: choose some with --layer")
        each.append(comparison.measure_distances(*(ran.rows for ran in passes), population=one.total))
        counts.append((one.rows.shape[1], one.total))
        notes += [note for text in inputs for note in text.notes]
        notes += [note for ran in passes for note in ran.notes]
    if not each:
        raise InputError("no text to compare heads on: give at least one")
    mean, rows = comparison.average_over_texts(each), RowCount(*map(sum, zip(*counts, strict=True)))
    return TextDistances(first, mean, rows, tuple(dict.fromkeys(notes)))


def compare_all_heads(
    model: Model, texts: ModelInput | Sequence[ModelInput], selection: Selection | None = None
) -> Comparison:
    """Run the model once on each text, and measure the distances between its heads.

    ``words`` and ``hide_special`` of the selection coarsen rows and keys first. Up to 221 tokens every row
    is compared, beyond that an even sample.
    """
    texts, selection = [texts] if isinstance(texts, ModelInput) else texts, selection or Selection()
    passes = (([prepared], [read_head_rows(model, prepared, selection)]) for prepared in texts)
    measured = measure_texts(passes, model.notes)
    (first,), mean, one = measured.passes, measured.mean, len(texts) == 1
    name = name_pass(model, texts[0]) if one else model.title
    return Comparison(
        kind=first.kind,
        heads=first.heads,
        distances=mean.mean,
        error=mean.error,
        rows=measured.rows,
        single=mean.texts,
        texts=len(texts),
        stability=mean.stability,
        title=f"{len(first.heads)} heads compared · {name} · {kind_title(first.kind)}",
        subtitle=first.provenance if one else f"mean over {len(texts):,} texts",
        notes=(*measured.notes, *note_certainty(measured.rows, mean.error, mean.stability)),
    )


def note_certainty(rows: RowCount, error: Array, stability: float | None = None) -> Iterator[str]:
    """How certain distances are: the sampling error, or how much they vary from text to text."""
    if rows.compared < rows.of:
        yield f"{rows.compared:,} of {rows.of:,} rows were compared (an even sample)"
    if stability is not None:
        yield f"rank correlation of each text's distances with the other texts': {stability:.2f} on average"
    sampled = error[error > 0]
    if len(sampled):
        mean, most = sampled.mean(), sampled.max()
        yield f"standard error of a distance: {mean:.1g} nats on average, {most:.1g} at most"


LARGEST_CLUSTERS, MEMBERS = 8, 24  # most clusters that are listed, and heads of each; --json has all


def _name_members(group: Sequence[Head]) -> str:
    names = ", ".join(head.name for head in sorted(group)[:MEMBERS])
    return f"{len(group):,} heads: {names}" + f" and {len(group) - MEMBERS:,} more" * (len(group) > MEMBERS)


def heads_answer(result: Comparison, command: str | None, *, scatter: bool = False) -> Answer:
    """All heads: the table, the groups and the nearest pairs; a picture with ``scatter`` adds the plane."""
    table = result.table
    clusters = [(number, group) for number, group in enumerate(result.grouped_heads, 1) if len(group) > 1]
    largest = sorted(clusters, key=lambda each: -len(each[1]))[:LARGEST_CLUSTERS]
    groups = [HeadRank(str(number), _name_members(group)) for number, group in largest]
    pairs = [
        HeadRank(pair.names, pair.words, f"{command} {pair.names}" if command else "")
        for pair in result.nearest
    ]
    several = len(clusters) > LARGEST_CLUSTERS
    title = f"The {LARGEST_CLUSTERS} largest clusters" if several else "Clusters, largest first"
    lists = Ranking(tuple(groups), title=title), Ranking(tuple(pairs), title="Most similar pairs")
    views: tuple[View, ...] = (table, *(ranking for ranking in lists if ranking.heads))
    every = starmap(result.pair, combinations(range(len(result.heads)), 2))
    member = {head: number for number, group in enumerate(result.groups.members) for head in group}
    arrays = {
        "heads": addresses(result.heads),
        "distances": result.distances,
        "error": result.error,
        "points": result.plane.points,
        "groups": np.array([member[head] for head in range(len(member))]),
    }
    picture = result.view if scatter else table
    return Answer(views, {"heads": picture}, lambda: result, lambda: csv_rows(every), lambda: arrays)


def addresses(heads: Iterable[Head]) -> Array:
    """The heads as an array.  -> [head, layer | head]"""
    return np.array([(head.layer, head.head) for head in heads])


SAMPLED = 1 << 24  # weights of each compared head: every row up to 4,096 tokens
PARTINGS = 6  # tokens that are listed

MASKED: Any = Sequence[Sequence[float | None]]  # the shape of weights, null where masked


@record("a row")
class RowDistance:
    """The distance of two heads in one row."""

    row: Annotated[int, Meaning("its token")]
    distance: Annotated[float, Meaning(NATS)]


@record("two heads (L1H2 L5H3)", "compare", eq=False)
class HeadComparison:
    """Two heads on one text: their distance row by row, and both as drawn."""

    kind: ComparedKind
    heads: Annotated[tuple[Head, Head], Meaning("the two heads")]
    distance: Annotated[float, Meaning(NATS)]
    error: Annotated[float, Meaning("its standard error")]
    weights: Annotated[
        tuple[Weights, Weights],
        Meaning(
            "[head, query, key]; null where masked",
            shape=tuple[MASKED, MASKED],
            plain=lambda two: [each.values for each in two],
        ),
    ]
    view: Annotated[
        HeadPair,
        Parts(
            partings="the tokens where they differ most",
            notes="what to know about the model, the text and the answer",
        ),
    ]
    rows: Annotated[tuple[RowDistance, ...], Meaning("every row")]

    @derived("the rows' texts")
    def queries(self) -> tuple[str, ...]:
        return tuple(place.text for place in self.weights[0].queries)

    @derived("the columns' texts")
    def keys(self) -> tuple[str, ...]:
        return tuple(place.text for place in self.weights[0].keys)


class HeadReading(NamedTuple):
    """A head's drawn map and the rows that are compared."""

    drawn: CoarseMap
    sampled: Sampled
    rows: Tensor  # [row, key]


def _read_two_heads(
    model: Model, prepared: ModelInput, heads: tuple[Head, Head], selection: Selection
) -> tuple[Kind, tuple[HeadReading, HeadReading], Record]:
    """Run the model once, and read both heads of the first kind of attention that has them.

    Raises ``SelectionError`` where none has them, or where they cannot be compared.
    """
    coarse, sample = selection.coarsen(MAX_TOKENS), Sample(even_rows(selection, SAMPLED))

    def select(site: Site, count: int) -> list[int]:
        if selection.kind not in (None, site.kind):
            return []
        return sorted({head.head for head in heads if head.layer == site.layer and head.head < count})

    record = model.run(prepared, [SharedRows([coarse, sample], select)])
    counts = {site.site: site.heads for site in record.sites}
    read = {
        Head(drawn.site.layer, head, drawn.site.kind): HeadReading(
            drawn.only(number), sampled, sampled.values[0, number]
        )
        for drawn, sampled in zip(coarse.maps, sample.maps, strict=True)
        for number, head in enumerate(select(drawn.site, counts[drawn.site]))
    }
    both = " and ".join(head.name for head in heads)
    for kind in kinds_of(counts, prepared.first_kind if prepared.pictures else None):
        left, right = (read.get(Head(head.layer, head.head, kind)) for head in heads)
        if left is not None and right is not None:
            break
    else:
        for head in heads:
            selected_sites(record, Selection(head, kind=selection.kind))
        raise SelectionError(f"{both} belong to different kinds of attention")
    if any(len(each.sampled.values) > 1 for each in (left, right)):
        raise SelectionError("these heads run on several chunks of the text: compare all heads instead")
    sizes = [f"{len(each.sampled.queries)} × {len(each.sampled.keys)}" for each in (left, right)]
    if sizes[0] != sizes[1]:
        raise SelectionError(f"{both} see different tokens: {' and '.join(sizes)}")
    return kind, (left, right), record


def compare_two_heads(
    model: Model, prepared: ModelInput, one: Head | str, other: Head | str, selection: Selection | None = None
) -> HeadComparison:
    """Run the model once, and compare two heads of one kind of attention, ``"L2H1"`` or a ``Head`` each."""
    selection = selection or Selection()
    heads = Head(one), Head(other)
    kind, pair, record = _read_two_heads(model, prepared, heads, selection)
    axes = pair[0].sampled.queries, pair[0].sampled.keys
    queries, keys = (selection.coarsening(axis).places for axis in axes)
    positions = even_sample(len(queries), len(keys), SAMPLED)
    rows = torch.stack([each.rows for each in pair]).cpu()  # [head, row, key]
    distances = comparison.divergence(*rows)  # [row]
    distance, error = float(distances.double().mean()), comparison.sampling_error(distances, len(queries))
    labelled, shares = zip(*(each.drawn.label() for each in pair), strict=True)
    left, right = (pick_head(weights, 0) for weights in labelled)
    notes = (
        *model.notes,
        *prepared.notes,
        *record.notes,
        *note_row_sums([each.sampled for each in pair]),
        *note_hidden(shares, selection, "their attention", kind),
        *note_certainty(RowCount(len(positions), len(queries)), np.array([error])),
    )
    view = head_pair(
        (heads[0].name, heads[1].name),
        (left, right),
        tuple(
            _parting(queries[positions[row]], keys, rows[:, row], distances[row])
            for row in np.argsort(-distances.numpy(), kind="stable")[:PARTINGS]
        ),
        scale=selection.scale,
        bar=name_weight(model.weighting, kind),
        title=f"{heads[0].name} and {heads[1].name} · {name_pass(model, prepared)} · {kind_title(kind)}",
        subtitle=f"distance {distance:.3f} nats (maximum {MAX_DIVERGENCE:.3f})",
        notes=tuple(dict.fromkeys(notes)),
    )
    by_row = tuple(map(RowDistance, (queries[row].start for row in positions), distances.tolist()))
    return HeadComparison(kind, heads, distance, error, (left, right), view, by_row)


def two_heads_answer(result: HeadComparison) -> Answer:
    """Two heads and their difference."""
    view, (left, right) = result.view, (weights.values for weights in result.weights)
    arrays = {
        "heads": addresses(result.heads),
        "rows": np.array([each.row for each in result.rows]),
        "by_row": np.array([each.distance for each in result.rows], np.float32),
        "one": left,
        "other": right,
        "difference": left - right,
        "queries": np.array(result.queries, np.str_),
        "keys": np.array(result.keys, np.str_),
    }
    return Answer((view,), {"pair": view}, lambda: result, lambda: csv_rows(result.rows), lambda: arrays)


def _parting(place: Place, keys: Sequence[Place], rows: Tensor, distance: Tensor) -> RowGap:
    """One row that differs, with each head's largest weight.  [head, key]"""
    weights, heaviest = rows.max(-1)
    left, right = (
        f"{keys[key].label} {keys[key].start}" if key < len(keys) else "a special token"
        for key in heaviest.tolist()
    )
    shares = float(weights[0]), float(weights[1])
    return RowGap(place.label, place.start, float(distance), (left, right), shares)
