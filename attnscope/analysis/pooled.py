"""A small map of every head, out of the pass that measures them: whole layers of any length as data."""

from __future__ import annotations

from itertools import pairwise

from attnscope.analysis.layers import WholeLayers
from attnscope.analysis.sentences import SHARED, kinds_of, pooled_from, provenance
from attnscope.attention import Axis
from attnscope.axes import Place, Weights, places
from attnscope.axes.places import joined
from attnscope.capture import Pool, Record
from attnscope.capture.observers.pool import Pooled
from attnscope.models import Model, ModelInput

CELLS = 256
"""Rows and columns of a map, at most."""

HELD = {
    "share": SHARED,
    "mean": "a cell is the mean of the weights of its open pairs",
    "max": "a cell is the largest of its weights",
}


def pooled_layers(pool: Pool, model: Model, prepared: ModelInput, record: Record) -> WholeLayers:
    """What a pool has kept, with the ranges of tokens that its rows and columns stand for.

    Where an attention ran over a batch (windows of an image), its mean is kept.
    """
    kinds: dict[str, list[tuple[int, Weights]]] = {}
    notes = [*model.notes, *prepared.notes]
    for kind in kinds_of(found.site for found in pool.maps):
        maps = [found for found in pool.maps if found.site.kind == kind]
        kinds[kind] = [(found.site.layer, _weights(found)) for found in maps]
        queries, keys = len(maps[0].queries), len(maps[0].keys)
        if max(queries, keys) > pool.cells:
            notes.append(pooled_from(queries, keys, HELD[pool.how]))
    return WholeLayers(kinds, model.title, provenance(record.sites), tuple(dict.fromkeys(notes)), record)


def _weights(found: Pooled) -> Weights:
    """One layer, [head, row cell, key cell]."""
    opened = found.open.any(0)  # [head or 1, row cell, key cell]
    return Weights(
        found.values.mean(0).cpu().numpy(),
        opened.expand(-1, *found.values.shape[-2:]).cpu().numpy(),
        _ranges(found.queries, found.row_edges),
        _ranges(found.keys, found.key_edges),
    )


def _ranges(axis: Axis, edges: tuple[int, ...]) -> tuple[Place, ...]:
    """The places that cells stand for: tokens, or ranges of them."""
    every = places(axis)
    groups = [every[start:stop] for start, stop in pairwise(edges)]
    pooled = len(groups) < len(every)
    return tuple(joined(group, pooled=True) if pooled else group[0] for group in groups)
