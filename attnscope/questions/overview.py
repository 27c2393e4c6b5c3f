"""Every head of a text at a glance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated

from attnscope.attention import Head
from attnscope.capture import Record
from attnscope.capture.observers import RowObserver, SharedRows
from attnscope.measures import DEFAULT, HeadFigures, Measurement, settle_roles, worth_a_look
from attnscope.models import Model, ModelInput
from attnscope.questions import sentences
from attnscope.questions.answer import Answer
from attnscope.questions.head import Losses, find_figures, of_token_losses, pick_figures
from attnscope.questions.layers import layers_of_maps
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measuring_pass
from attnscope.records import Meaning, Notes, Parts, record
from attnscope.views import CELLS, Grid, Ranked, Ranking, grid

FEWEST = 6  # least tokens for naming patterns


@record("every head", "show", eq=False)
class Overview:
    """Thumbnails by kind of attention, the figures of every head, what ran, and notes."""

    grids: Mapping[str, Grid]
    heads: Annotated[tuple[HeadFigures, ...], Meaning("every head that is meant")]
    record: Annotated[Record, Parts(sites="every attention call")]
    notes: Notes
    losses: Losses = None


def overview(
    model: Model,
    prepared: ModelInput,
    selection: Selection,
    *,
    large: bool = False,
    exact_kernel: bool = False,
) -> Overview:
    """Run the model once, and pool and measure every selected head; a long text in the fused pass.

    Its grids fit a screen; ``large`` ones do not. ``exact_kernel`` never runs the fused pass.
    """
    coarse, measured = selection.coarsen(CELLS, even=True), Measurement()
    known = find_figures(prepared, DEFAULT)
    as_read = selection.as_read and not prepared.picture  # neighbours are tokens
    if known is None and (as_read or selection.zoom) and not (selection.words or selection.hide_special):
        asked = (model, prepared, measured, selection, [prepared.tokens])
        record = measuring_pass(*asked, exact_kernel=exact_kernel, maps=coarse, side=CELLS)
    else:
        observers: list[RowObserver] = [coarse, *([measured] if known is None else [])]
        record = model.look(prepared, [SharedRows(observers, selection.heads)])
    sentences.require_selected(coarse.maps, record, selection)
    layers = layers_of_maps(coarse, model, prepared, record, selection, note_pooled=False)
    grids: dict[str, Grid] = {}
    for kind, pairs in layers.kinds.items():
        shown = {layer for layer, _ in pairs}
        calls = [site for site in record.sites if site.site.kind == kind and site.site.layer in shown]
        picture = grid(
            pairs,
            title=f"{sentences.name_pass(model, prepared)} · {sentences.kind_title(kind)}",
            subtitle=sentences.provenance(calls),
            scale=selection.scale,
            large=large,
        )
        written = prepared.written if as_read and kind == "decoder" else None
        grids[kind] = replace(picture, whole=selection.every_layer, written=written)
    heads = measured.figures() if known is None else pick_figures(known, record, selection)
    return Overview(grids, settle_roles(heads), record, layers.notes)


def of_overview(
    result: Overview, command: str | None, opening: Callable[[Head], str] | None = None
) -> Answer:
    """Every head as a thumbnail, and those most worth a look, each with a command, or ``opening`` of it."""
    several = len(result.grids) > 1
    ranked = []
    short = all(max(site.queries, site.keys) < FEWEST for site in result.record.sites)
    for head in () if short else worth_a_look(result.heads):
        extra = f" --kind {head.site.kind}" if several else ""
        words = f"{command or '...'} --head {head.name}{extra}"
        if opening is not None:
            words = opening(head.address if several else Head(head.name))
        where = f" {head.site.kind}" if several else ""
        reason = head.role.sentence if head.role else ""
        ranked.append(Ranked(head.name + where, reason, words))
    notes = result.notes
    if short:
        notes = ("too few tokens to name patterns: try a sentence", *notes)
    elif not ranked:
        notes = ("no head stands out from even attention", *notes)
    elif not command and not opening:
        notes = (*notes, "... stands for the command that you gave")
    ranking = Ranking(tuple(ranked), title="Worth a look" if ranked else "", notes=notes)
    strips = [] if result.losses is None else [of_token_losses(result.losses)]
    pictures = {kind: replace(grid, notes=result.notes) for kind, grid in result.grids.items()}
    return Answer((*result.grids.values(), *strips, ranking), pictures, lambda: result)
