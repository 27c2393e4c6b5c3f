"""Two heads beside each other, their difference, and the tokens where they part most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from attnscope.analysis.comparison.compare import note_certainty
from attnscope.analysis.comparison.head_rows import even_rows, evenly, oddities
from attnscope.analysis.head import LARGEST
from attnscope.analysis.selection import Selection, head_of
from attnscope.analysis.sentences import (
    kind_title,
    name_pass,
    note_hidden,
    require_selected,
)
from attnscope.attention import Axis, Head, Site
from attnscope.axes import Place, Weights
from attnscope.capture import Record
from attnscope.capture.observers.coarse_map import CoarseMap
from attnscope.capture.observers.coarsen import Coarsen
from attnscope.capture.observers.sample import Sample, Sampled
from attnscope.capture.observers.shared_rows import SharedRows
from attnscope.comparison import LARGEST as LARGEST_DISTANCE
from attnscope.comparison import divergence, sampling_error
from attnscope.errors import SelectionError
from attnscope.models import Model, ModelInput
from attnscope.views.pair import HeadPair, Parting, head_pair

CELLS = 1 << 24
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
    coarse, sample = selection.coarsen(LARGEST), Sample(even_rows(selection, CELLS))

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
    positions = evenly(len(queries.places), len(keys.places), CELLS)
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
