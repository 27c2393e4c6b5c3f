"""A measure of the heads along a text, one curve per head."""

from __future__ import annotations

from itertools import pairwise
from math import isfinite, nan

from attnscope.attention import Head
from attnscope.capture.observers import SharedRows
from attnscope.errors import SelectionError
from attnscope.measures import MEASURES, Measurement
from attnscope.models import Model, ModelInput
from attnscope.questions.head import own_numbers
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import name_pass, provenance, selected_sites
from attnscope.views import Curve, Curves


def curves_by_position(
    model: Model, prepared: ModelInput, selection: Selection, name: str, *, parts: int, top: int
) -> Curves:
    """A measure of the ``top`` heads, averaged over each of up to ``parts`` runs of rows of equal length."""
    axes = [len(queries) for kind, (queries, _) in prepared.axes.items() if selection.kind in (None, kind)]
    size = max(axes, default=len(prepared.tokens))
    step = max(1, -(-size // parts))
    edges = (*range(0, size, step), size)
    measured = [Measurement([name]) for _ in pairwise(edges)]
    for each, (start, stop) in zip(measured, pairwise(edges), strict=True):
        each.rows = range(start, stop)
    record = model.run(prepared, [SharedRows(measured, selection.heads)])
    selected_sites(record, selection)
    by_part = [
        {head.address: head.scores.get(name) for head in own_numbers(each.scores(), record, selection)}
        for each in measured
    ]
    several = len({site.site.kind for site in record.sites}) > 1

    def along(head: Head, part: str) -> tuple[float | None, ...]:
        numbers = (getattr(scores.get(head), part, nan) for scores in by_part)
        return tuple(number if isfinite(number) else None for number in numbers)

    curves = [
        Curve(str(head) if several else head.name, along(head, "value"), along(head, "baseline"))
        for head in dict.fromkeys(head for scores in by_part for head in scores)
        if any(scores.get(head) for scores in by_part)
    ]
    if not curves:
        rows = MEASURES[name].rows
        raise SelectionError(f"no head has {name}: it is taken over {rows}, and there are none")
    best = sorted(curves, key=lambda curve: -curve.mean)[:top]
    return Curves(
        name,
        MEASURES[name].unit,
        edges,
        tuple(best),
        title=f"{name} by position",
        subtitle=f"{name_pass(model, prepared)} · {provenance(record.sites)}",
        notes=(
            f"{len(best)} of {len(curves)} heads; each mark averages {step:,} of the {size:,} rows",
            *model.notes,
            *prepared.notes,
            *record.notes,
        ),
    )
