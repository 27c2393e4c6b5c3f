"""How far all heads of a model are apart, on one text or on average over several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from attnscope.analysis.comparison.head_rows import head_rows
from attnscope.analysis.selection import Selection
from attnscope.analysis.sentences import kind_title, name_pass, provenance
from attnscope.attention import Head
from attnscope.comparison import (
    Average,
    Groups,
    Plane,
    Spread,
    average_over_texts,
    embed_in_plane,
    group_heads,
    measure_distances,
)
from attnscope.comparison.groups import CUT
from attnscope.errors import InputError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.views.distances import HeadDistances, HeadPlane, distance_map


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
