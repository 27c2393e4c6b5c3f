"""Every head of a text at a glance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from attnscope.analysis.selection import Selection
from attnscope.analysis.sentences import expect, hiding, kind_title, kinds_of, provenance, remarks
from attnscope.axes import Weights
from attnscope.axes.folding import unfolded
from attnscope.capture import Record
from attnscope.capture.observers.coarsen import Fold, Folded
from attnscope.capture.observers.only import Only
from attnscope.measures import HeadFigures, Measurement
from attnscope.models import Model, ModelInput
from attnscope.views import Grid, grid

THUMBNAIL = 64
"""Rows and columns that a head is folded to before it becomes a thumbnail."""


@dataclass(frozen=True, eq=False)
class Overview:
    """Thumbnails by kind of attention, the figures of every head, what ran, and what to know."""

    grids: Mapping[str, Grid]
    heads: tuple[HeadFigures, ...]
    record: Record
    notes: tuple[str, ...]


def overview(model: Model, prepared: ModelInput, selection: Selection) -> Overview:
    """Run the model once, and fold and measure every head that is meant.

    Raises ``SelectionError`` if the selection names something that does not exist.
    """
    fold, measured = Fold(selection.folding(THUMBNAIL)), Measurement()
    record = model.run(prepared, [Only(selection.heads, [fold, measured])])
    expect(fold.maps, record, selection)
    grids: dict[str, Grid] = {}
    notes = [*model.notes, *prepared.notes]
    for kind in kinds_of(folded.site for folded in fold.maps):
        maps = [folded for folded in fold.maps if folded.site.kind == kind]
        layers, shares = [], []
        for folded in maps:
            thumbnails, hidden = labelled(folded, selection, THUMBNAIL)
            layers.append((folded.site.layer, thumbnails))
            shares.append(hidden)
        sites = {folded.site for folded in maps}
        seen = [site for site in record.sites if site.site in sites]
        picture = grid(
            layers,
            title=f"{model.title} · {kind_title(kind)}",
            subtitle=provenance(seen),
            scale=selection.scale,
        )
        grids[kind] = replace(picture, size=(seen[0].queries, seen[0].keys), whole=selection.every_layer)
        notes += hiding(shares, selection, f"the {kind_title(kind)}") + remarks(maps, prepared)
    return Overview(grids, tuple(measured.figures()), record, tuple(notes))


def labelled(folded: Folded, selection: Selection, most: int) -> tuple[Weights, float]:
    """The weights of one text, [head, query place, key place], and the share that was hidden."""
    return unfolded(
        folded.mean.cpu().numpy(),
        folded.opened.cpu().numpy(),
        selection.fold(folded.queries, most),
        selection.fold(folded.keys, most),
    )
