"""A small map of every head, out of the pass that measures them: whole layers of any length as data."""

from __future__ import annotations

from attnscope.analysis.layers import WholeLayers
from attnscope.analysis.sentences import SHARED, kinds_of, pooling_note, provenance
from attnscope.axes import Weights
from attnscope.capture import Record
from attnscope.capture.observers.coarsen import Coarsen
from attnscope.models import Model, ModelInput

CELLS = 256
"""Rows and columns of a map, at most."""

HELD = {
    "share": SHARED,
    "mean": "a cell is the mean of the weights of its open pairs",
    "max": "a cell is the largest of its weights",
}


def pooled_layers(pool: Coarsen, model: Model, prepared: ModelInput, record: Record) -> WholeLayers:
    """What a pool has kept, with the ranges of tokens that its rows and columns stand for.

    Where an attention ran over a batch (windows of an image), its mean is kept.
    """
    kinds: dict[str, list[tuple[int, Weights]]] = {}
    notes = [*model.notes, *prepared.notes, *record.notes]
    for kind in kinds_of((made.site for made in pool.maps), prepared.lead):
        maps = [made for made in pool.maps if made.site.kind == kind]
        kinds[kind] = [(made.site.layer, made.label()[0]) for made in maps]
        queries, keys = maps[0].queries.size, maps[0].keys.size
        if max(queries, keys) > CELLS:
            notes.append(pooling_note(queries, keys, HELD[pool.how]))
    return WholeLayers(kinds, model.title, provenance(record.sites), tuple(dict.fromkeys(notes)), record)
