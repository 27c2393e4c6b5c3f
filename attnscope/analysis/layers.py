"""Every head in full: whole layers, for a page or for another program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnscope.analysis.selection import Selection
from attnscope.analysis.sentences import (
    describe_proof,
    kind_title,
    kinds_of,
    note_hidden,
    note_maps,
    note_pooling,
    provenance,
    require_selected,
)
from attnscope.axes import Weights
from attnscope.capture import Record, SiteRecord
from attnscope.capture.observers.shared_rows import RowObserver, SharedRows
from attnscope.models import Model, ModelInput

LARGEST = 512
"""Rows and columns of each head; a longer text is pooled to as many."""


@dataclass(frozen=True, eq=False)
class WholeLayers:
    """By kind of attention, pairs of a layer's number and weights ``[head, query, key]``; and what ran.

    ``written`` is the number of the first token that a decoder wrote itself.
    """

    kinds: Mapping[str, list[tuple[int, Weights]]]
    title: str
    subtitle: str
    notes: tuple[str, ...]
    record: Record
    written: int | None = None

    @property
    def proofs(self) -> Mapping[tuple[str, int], str]:
        """What is known of the weights of each kind and layer, in a sentence."""
        places: dict[tuple[str, int], list[SiteRecord]] = {}
        for site in self.record.sites:
            places.setdefault((site.site.kind, site.site.layer), []).append(site)
        return {place: describe_proof(sites) for place, sites in places.items()}

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
    model: Model, prepared: ModelInput, selection: Selection, observers: Sequence[RowObserver] = ()
) -> WholeLayers:
    """Run the model once and keep all heads of the layers that are meant; ``observers`` see them too.

    Raises ``SelectionError`` if the selection names something that does not exist.
    """
    coarse = selection.coarsen(LARGEST)
    record = model.run(prepared, [SharedRows([coarse, *observers], selection.heads)])
    require_selected(coarse.maps, record, selection)
    kinds: dict[str, list[tuple[int, Weights]]] = {}
    notes = [*model.notes, *prepared.notes, *record.notes]
    for kind in kinds_of((made.site for made in coarse.maps), prepared.lead):
        maps = [made for made in coarse.maps if made.site.kind == kind]
        pairs, shares = zip(*(made.label() for made in maps), strict=True)
        kinds[kind] = [(made.site.layer, weights) for made, weights in zip(maps, pairs, strict=True)]
        notes += note_hidden(shares, selection, f"the {kind_title(kind)}") + note_maps(maps, prepared)
        notes += note_pooling(maps[0], pairs[0])
    ran = provenance(record.sites)
    return WholeLayers(kinds, model.title, ran, tuple(dict.fromkeys(notes)), record, prepared.written)
