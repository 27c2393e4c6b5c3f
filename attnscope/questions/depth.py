"""One head number through all layers: how it changes with depth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from attnscope.axes import Array
from attnscope.comparison import measure_distances
from attnscope.errors import SelectionError
from attnscope.measures import MEASURES, HeadFigures, Measurement
from attnscope.models import Model, ModelInput
from attnscope.questions.answer import Answer
from attnscope.questions.compare import Compared, Errors, Heads, addresses, in_nats, note_certainty
from attnscope.questions.head_rows import head_rows
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import kind_title, name_pass, note_hidden, provenance
from attnscope.records import Parts, derived, record
from attnscope.views import grid
from attnscope.views.grid import CELLS, LayerStrip, Series

SHOWN = ("entropy", "confidence", "distance", "previous", "self", "next", "first", "special")
"""The measures that are shown against depth."""


@record("one head number through all layers (--head 3)")
@dataclass(frozen=True, eq=False)
class DepthComparison:
    """One head number in every layer that has it.

    ``distances`` are Jensen-Shannon divergences in nats between the heads of every two layers, ``error``
    their standard error where rows were sampled; ``figures`` are the measures of each.
    """

    kind: Compared
    heads: Heads
    distances: Annotated[NDArray[np.float64], in_nats("[layer, layer]")]
    error: Errors  # [layer, layer]
    figures: tuple[HeadFigures, ...]
    view: Annotated[
        LayerStrip,
        Parts(roles="a role a head", notes="what to know about the model, the text and the answer"),
    ]

    @property
    @derived("measures against depth")
    def series(self) -> Mapping[str, Series]:
        """The measures by their names."""
        return {each.name: each for each in self.view.series}


def through_layers(
    model: Model, prepared: ModelInput, head: int, selection: Selection | None = None
) -> DepthComparison:
    """Run the model once, and compare head number ``head`` of every layer with that of every other.

    Raises ``SelectionError`` where there is no such head, or where one layer alone has it.
    """
    selection = replace(selection or Selection(), number=head)
    coarse, measured = selection.coarsen(CELLS, even=True), Measurement()
    result = head_rows(model, prepared, selection, others=[coarse, measured])
    if len(result.heads) < 2:
        raise SelectionError(
            f"{result.heads[0].name} is in one layer alone: there is none to compare it with"
        )
    spread = measure_distances(result.rows)
    thumbnails = [(made.site.layer, *made.label()) for made in coarse.maps if made.site.kind == result.kind]
    figures = tuple(replace(each, head=head) for each in measured.figures() if each.site.kind == result.kind)
    error = spread.error(result.of)
    notes = (
        *model.notes,
        *prepared.notes,
        *result.notes,
        *note_hidden([share for _, _, share in thumbnails], selection, f"the {kind_title(result.kind)}"),
        *note_certainty(spread.rows, result.of, error),
    )
    steps = [float(spread.mean[number, number + 1]) for number in range(len(result.heads) - 1)]
    named = name_pass(model, prepared)
    picture = grid([(layer, weights) for layer, weights, _ in thumbnails], scale=selection.scale)
    view = LayerStrip(
        names=tuple(each.name for each in result.heads),
        roles=tuple(each.role.name if each.role else "" for each in figures),
        thumbnails=replace(picture, whole=False),
        series=(Series("change", "nats", (None, *steps)), *_series(figures)),
        apart=spread.mean,
        title=f"head {head} through {len(result.heads)} layers · {named} · {kind_title(result.kind)}",
        subtitle=provenance(result.sites),
        notes=tuple(dict.fromkeys(notes)),
    )
    return DepthComparison(result.kind, result.heads, spread.mean, error, figures, view)


def _series(figures: tuple[HeadFigures, ...]) -> list[Series]:
    series = []
    for name in SHOWN:
        values = tuple(head.figures[name].value if name in head.figures else None for head in figures)
        if any(value is not None for value in values):
            series.append(Series(name, MEASURES[name].unit, values))
    return series


def of_depth(result: DepthComparison) -> Answer:
    """One head number through all layers."""
    series = result.view.series

    def table() -> Iterator[Sequence[object]]:
        yield "head", "role", *result.series
        for number, head in enumerate(result.heads):
            yield head.name, result.view.roles[number], *(each.values[number] for each in series)

    def arrays() -> dict[str, Array]:
        found = {"heads": addresses(result.heads), "distances": result.distances, "error": result.error}
        return found | {each.name.replace(" ", "_"): np.array(each.values, float) for each in series}

    return Answer((result.view,), {"depth": result.view}, lambda: result, table, arrays)
