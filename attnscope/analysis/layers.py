"""Every head in full: whole layers, for a page or for another program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnscope.analysis.overview import labelled
from attnscope.analysis.selection import Selection
from attnscope.analysis.sentences import expect, hiding, kind_title, kinds_of, pooling, provenance, remarks
from attnscope.axes import Weights
from attnscope.capture import Observer, Record
from attnscope.capture.observers.coarsen import Fold
from attnscope.capture.observers.only import Only
from attnscope.models import Model, ModelInput

LARGEST = 512
"""Rows and columns of each head; a longer text is pooled to as many."""


@dataclass(frozen=True, eq=False)
class WholeLayers:
    """By kind of attention, pairs of a layer's number and weights ``[head, query, key]``; and what ran."""

    kinds: Mapping[str, list[tuple[int, Weights]]]
    title: str
    subtitle: str
    notes: tuple[str, ...]
    record: Record

    @property
    def top(self) -> float:
        """The largest weight; above 1 only where a model scales its weights, or where words are merged."""
        layers = (weights for pairs in self.kinds.values() for _, weights in pairs)
        return max(float(weights.values.max(initial=0)) for weights in layers)

    @property
    def least(self) -> float:
        """The smallest weight; below 0 only in a file of other things than attention."""
        return min(
            float(weights.values.min(initial=0)) for pairs in self.kinds.values() for _, weights in pairs
        )


def whole_layers(
    model: Model, prepared: ModelInput, selection: Selection, observers: Sequence[Observer] = ()
) -> WholeLayers:
    """Run the model once and keep all heads of the layers that are meant; ``observers`` see them too.

    Raises ``SelectionError`` if the selection names something that does not exist.
    """
    fold = Fold(selection.folding(LARGEST))
    record = model.run(prepared, [Only(selection.heads, [fold, *observers])])
    expect(fold.maps, record, selection)
    kinds: dict[str, list[tuple[int, Weights]]] = {}
    notes = [*model.notes, *prepared.notes]
    for kind in kinds_of(folded.site for folded in fold.maps):
        maps = [folded for folded in fold.maps if folded.site.kind == kind]
        pairs, shares = zip(*(labelled(folded, selection, LARGEST) for folded in maps), strict=True)
        kinds[kind] = [(folded.site.layer, weights) for folded, weights in zip(maps, pairs, strict=True)]
        notes += hiding(shares, selection, f"the {kind_title(kind)}") + remarks(maps, prepared)
        notes += pooling(maps[0], pairs[0])
    return WholeLayers(kinds, model.title, provenance(record.sites), tuple(dict.fromkeys(notes)), record)
