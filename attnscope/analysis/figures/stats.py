"""The figures of every head of a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attnscope.analysis.figures.by_rows import SomeRows, no_rows
from attnscope.analysis.figures.kept import find_figures, pick_figures
from attnscope.analysis.figures.pooled import CELLS, pooled_layers
from attnscope.analysis.layers import WholeLayers
from attnscope.analysis.selection import Selection
from attnscope.analysis.sentences import (
    name_pass,
    provenance,
    require_selected,
)
from attnscope.attention import Head, Token
from attnscope.capture import FUSED, Record, SiteRecord
from attnscope.capture.observers.coarsen import Coarsen, How, cells
from attnscope.capture.observers.shared_rows import RowObserver, SharedRows
from attnscope.fused.request import SHORTEST
from attnscope.measures import DEFAULT, HeadFigures, Measurement, fused_request, settle_roles
from attnscope.models import Model, ModelInput

if TYPE_CHECKING:
    from attnscope.analysis.intervention.importance import Importance
    from attnscope.analysis.intervention.removal import Removal


@dataclass(frozen=True, eq=False)
class Stats:
    """The figures of the heads that are meant, what ran, and what to know.

    ``ran`` says whether the kernels ran beside the measuring, or the fused pass in their place.
    ``importance`` and ``ablation`` are empty unless they were asked for; so is ``maps``, every head on at
    most 256 × 256 cells.
    """

    heads: tuple[HeadFigures, ...]
    title: str
    ran: str
    notes: tuple[str, ...]
    importance: Mapping[Head, Importance] = field(default_factory=dict)
    ablation: Mapping[Head, Removal] = field(default_factory=dict)
    maps: WholeLayers | None = None


def stats(
    model: Model,
    prepared: ModelInput,
    selection: Selection,
    *,
    names: tuple[str, ...] = DEFAULT,
    exact_kernel: bool = False,
    importance: bool = False,
    ablation: bool = False,
    pool: How | None = None,
    rows: range | None = None,
) -> Stats:
    """Run the model once and measure every head that is meant.

    From 512 tokens on, on the CPU, the fused pass runs in the place of torch's kernel: it computes
    the layer's output (within 1e-4) and the figures together, where computing the scores again beside the
    kernel would cost several times as much. ``exact_kernel`` always leaves the kernel alone. ``importance``
    asks for each head's importance, too, of a model with an output head, ``ablation`` for its loss with each
    head set to zero, ``pool`` for a small map of every head out of the same pass (``Coarsen`` says what its
    cells may hold), ``rows`` for the figures of those rows alone. Raises ``SelectionError`` for a
    layer, kind or measure that does not exist.
    """
    known = None if pool or rows else find_figures(prepared, names)
    measured = Measurement(names)
    maps = Coarsen(cells(CELLS), pool) if pool else None
    texts = [prepared.tokens]
    if known is None:
        record, taken = measuring_pass(
            model, prepared, measured, selection, texts, exact_kernel=exact_kernel, maps=maps, rows=rows
        )
        heads = tuple(measured.figures())
        if rows is not None and not heads:
            raise no_rows(rows, record)
    else:
        record = model.run(prepared, [])
        taken = _count_fused(record)
        heads = pick_figures(known, record, selection)
    require_selected(heads, record, selection)
    important: Mapping[Head, Importance] = {}
    removed: Mapping[Head, Removal] = {}
    said: tuple[str, ...] = ()
    if importance or ablation:
        from attnscope.analysis.corpus.batches import join_texts
        from attnscope.analysis.intervention.importance import Importances
        from attnscope.analysis.intervention.removal import Removals, describe_way

        importances, removals, batch = Importances(), Removals(), join_texts([prepared])
        if importance:
            importances.add(model, batch.prepared, batch.labels)
        if ablation:
            removals.add(model, batch.prepared, batch.labels, selection)
        important, removed = importances.figures(), removals.figures()
        said = tuple(describe_way("zero" if ablation else None))
    return Stats(
        settle_roles(heads),
        f"{name_pass(model, prepared)} · {provenance(record.sites)}",
        what_ran(taken, len(record.sites), record.sites),
        (*model.notes, *prepared.notes, *record.notes, *said),
        important,
        removed,
        pooled_layers(maps, model, prepared, record) if maps else None,
    )


def measuring_pass(
    model: Model,
    prepared: ModelInput,
    measured: Measurement,
    selection: Selection,
    texts: Sequence[Sequence[Token]],
    *,
    exact_kernel: bool = False,
    maps: Coarsen | None = None,
    rows: range | None = None,
) -> tuple[Record, int]:
    """One forward pass, measured; how many calls of it the fused pass computed.

    ``texts`` are the tokens of each text of the batch; ``maps`` sees the same heads. The kernel runs where
    the fused pass could not tell all measures: every row must then be read beside it. Only ``rows`` count,
    if some are named; the fused pass tells of all rows together.
    """
    long = any(len(text) >= SHORTEST for text in texts)
    side = CELLS if maps and maps.how != "max" else None
    long = long and not exact_kernel and rows is None
    request = fused_request(measured.measures, texts, side) if long else None
    fused = None
    if request is not None:
        from attnscope.fused.fused_pass import FusedPass

        fused = FusedPass(request)
    figures = measured if rows is None else SomeRows(measured, rows.start, rows.stop)
    observers: list[RowObserver] = [figures, *([maps] if maps else [])]
    chosen = [SharedRows(observers, None if selection == Selection() else selection.heads)]
    record = model.run(prepared, chosen, fused)
    return record, _count_fused(record)


def _count_fused(record: Record) -> int:
    return sum(call.kernel == FUSED for call in record.sites)


def what_ran(taken: int, calls: int, sites: Sequence[SiteRecord] = ()) -> str:
    """How the figures were had, in words; with the calls, also what the fused pass left to the kernel."""
    ran = "figures measured beside the kernel"
    if taken:
        ran = f"{taken:,} of {calls:,} calls ran as a fused pass in the kernel's place"
    refusals = Counter(call.refusal for call in sites if call.refusal is not None)
    left = [f"{count:,} left to the kernel: {reason}" for reason, count in refusals.items()]
    return "; ".join([ran, *left])
