"""The signed change of one measure of each head between two models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np

from attnscope.attention import Head
from attnscope.errors import SelectionError
from attnscope.measures import MEASURES
from attnscope.models import Model, ModelInput
from attnscope.questions.across import LISTED
from attnscope.questions.answer import Answer
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measure_heads
from attnscope.records import Meaning, Notes, derived, record
from attnscope.views import Ranked, Ranking
from attnscope.views.heads import maps_by_kind


@record("one measure in two models (--with-model --map)", "compare", eq=False)
class MeasureChange:
    """One measure of the heads that both models have: its value in each, and its change."""

    measure: Annotated[str, Meaning("the measure")]
    unit: Annotated[str, Meaning("its unit")]
    heads: Annotated[tuple[Head, ...], Meaning("the heads that both models have")]
    first: Annotated[tuple[float, ...], Meaning("the figures in the first model, means over texts")]
    second: Annotated[tuple[float, ...], Meaning("those in the second")]
    title: Annotated[str, Meaning("the models")]
    notes: Notes

    @derived("the second minus the first")
    def change(self) -> tuple[float, ...]:
        """The rise (+) or fall (-) of each head's figure."""
        return tuple(two - one for one, two in zip(self.first, self.second, strict=True))


def measure_change(
    model: Model,
    other: Model,
    texts: Sequence[tuple[ModelInput, ModelInput]],
    selection: Selection,
    name: str,
) -> MeasureChange:
    """Measure the heads of both models, each with its own tokens of the texts.

    Raises ``SelectionError`` for a measure that does not exist or that no common head has.
    """
    found: dict[Head, list[list[float]]] = {}
    for pair in texts:
        for side, (each, prepared) in enumerate(zip((model, other), pair, strict=True)):
            for head in measure_heads(each, prepared, selection, names=(name,)).heads:
                if name in head.figures:
                    found.setdefault(head.address, [[], []])[side].append(head.figures[name].value)
    both = {head: sides for head, sides in found.items() if all(sides)}
    if not both:
        raise SelectionError(f"no head of both {model.name} and {other.name} has a figure of {name}")
    first, second = (tuple(float(np.mean(sides[side])) for sides in both.values()) for side in (0, 1))
    title = f"{model.title} to {other.title}"
    notes = [f"{name} in {other.title} minus {name} in {model.title}", *model.notes, *other.notes]
    return MeasureChange(name, MEASURES[name].unit, tuple(both), first, second, title, tuple(notes))


def of_change(result: MeasureChange) -> Answer:
    """The change as a signed map of heads, and those that changed most."""
    changes = dict(zip(result.heads, result.change, strict=True))
    unit = "" if result.unit == "share" else f" {result.unit}"
    named = f"change of {result.measure} · {result.title}"
    maps = {
        kind: replace(view, title=named, subtitle=view.title, notes=result.notes)
        for kind, view in maps_by_kind(changes, result.measure, unit=result.unit).items()
    }
    order = sorted(range(len(result.heads)), key=lambda head: -abs(result.change[head]))
    rows = [(result.heads[at], result.first[at], result.second[at], result.change[at]) for at in order]
    listed = tuple(
        Ranked(head.name, f"from {one:.2f} to {two:.2f}{unit}: {change:+.2f}")
        for head, one, two, change in rows[:LISTED]
    )

    def table() -> Iterator[Sequence[object]]:
        yield "head", "first", "second", "change"
        yield from ((str(head), *figures) for head, *figures in rows)

    ranking = Ranking(listed, title="Heads that changed most")
    return Answer((*maps.values(), ranking), maps, lambda: result, table)
