"""The figures of heads as a table for people: as many measures as there is room for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnscope.figures import ABLATION, IMPORTANCE, PREDICTIONS
from attnscope.views.table import Cell, Column, Table

if TYPE_CHECKING:
    from attnscope.figures import Figure, HeadFigures, Importance, Removal
    from attnscope.questions.stats import Stats


FIRST = ("entropy", "confidence", "distance")
"""Measures that tell something of every head; those of the roles that were found come before them."""

NOTHING = 0.005
"""A measure that is nowhere larger prints as 0.00 for every head, and is left out."""


def figure_table(result: Stats, heads: Sequence[HeadFigures], sort: str | None, width: int) -> Table:
    """A line a head, and as many measures as ``width`` columns of a terminal have room for."""
    from attnscope.measures.roles import NONE
    from attnscope.text import round_short

    several = len({head.site.kind for head in heads}) > 1
    led = [
        [head.name, *([head.site.kind] if several else [])]
        + (
            [head.role.name, f"{head.role.score:.2f} ({round_short(head.role.baseline)})"]
            if head.role and head.role.name != NONE
            else ["–", ""]
        )
        for head in heads
    ]
    names = ["head", *(["kind"] if several else []), "role", "(baseline)"]
    room = width - sum(
        max([len(name), *(len(cells[place]) for cells in led)]) + 1 for place, name in enumerate(names)
    )
    measures = _choose_columns(result.predictions, heads, sort, room)
    columns = [_draw_column(heads, name) for name in measures]
    return Table(
        (*(Column(name, long="cut") for name in names), *(Column(name, True, "cut") for name in measures)),
        tuple((*cells, *figures) for cells, *figures in zip(led, *columns, strict=True)),
        title=result.title,
        notes=(*_notes(result, heads, measures), *result.notes),
        gap=1,
        edge=True,
    )


def _choose_columns(
    predictions: Sequence[str], heads: Sequence[HeadFigures], sort: str | None, room: int
) -> list[str]:
    """What was asked for, the measures of the roles that were found, and others while there is room."""
    from attnscope.measures import MEASURES
    from attnscope.measures.roles import PATTERNS
    from attnscope.measures.standard import TWO_AWAY

    roles = Counter(head.role.pattern for head in heads if head.role and head.role.pattern in MEASURES)
    asked = [*([sort] if sort else []), *predictions]
    others = sorted(PATTERNS, key=lambda name: -_largest(heads, name))
    found = [name for name, _ in roles.most_common()]
    found += [name for name in TWO_AWAY if any(_is_positional(head) for head in heads)]
    wanted = dict.fromkeys((*asked, *found, *FIRST, *others, *MEASURES))
    chosen: list[str] = []
    for name in wanted:
        width = _width(heads, name) + 1
        tells = name in asked or _largest(heads, name) > NOTHING
        if tells and width <= room:
            chosen.append(name)
            room -= width
    order = [*dict.fromkeys((*asked, *FIRST, *TWO_AWAY, *MEASURES))]
    return sorted(chosen, key=order.index)


def _is_positional(head: HeadFigures) -> bool:
    return head.role is not None and head.role.pattern == "positional"


def _largest(heads: Sequence[HeadFigures], name: str) -> float:
    known = (head.figure(name) for head in heads)
    return max((abs(found.value) for found in known if found is not None), default=0.0)


def _width(heads: Sequence[HeadFigures], name: str) -> int:
    return max([len(name), *(len(_cell(head.figure(name))) for head in heads)])


def _draw_column(heads: Sequence[HeadFigures], name: str) -> list[Cell]:
    """The cells of a measure; the brightest is 1, or the largest where it is no share."""
    from attnscope.measures import MEASURES

    share = name not in PREDICTIONS and MEASURES[name].unit == "share"
    top = 1.0 if share else _largest(heads, name) or 1.0
    width = _width(heads, name)
    cells: list[Cell] = []
    for head in heads:
        found = head.figure(name)
        text = _cell(found).rjust(width)
        value = 0.0 if found is None or found.value != found.value else found.value  # of a NaN
        cells.append(text if found is None else ((text, min(abs(value) / top, 1.0)),))
    return cells


def _notes(result: Stats, heads: Sequence[HeadFigures], columns: Sequence[str]) -> list[str]:
    """What stands in the table, and what it leaves out."""
    errors = any(each.error is not None for head in heads for each in head.figures.values())
    if not heads:
        return [f"none of the {len(result.heads)} heads meets the conditions; {result.ran}"]
    notes = [f"{len(heads)} of {len(result.heads)} heads; {result.ran}"]
    notes.append("(baseline): the role's figure on even attention; --csv has all measures")
    notes += ["± is the standard error over the texts"] if errors else []
    if IMPORTANCE in columns:
        notes.append(
            "importance: an estimate, the slope of the model's loss at a gate on the head (Michel et al. "
            "2019); --ablation measures what it stands for"
        )
    if ABLATION in columns:
        whole = next(found.loss - found.value for found in result.ablation.values())
        notes.append(
            f"ablation: how much the loss of the predictions rises without the head, in nats; with all heads "
            f"it is {whole:.3f}"
        )
    return notes


def _cell(found: Figure | Importance | Removal | None) -> str:
    if found is None:
        return "–"
    if found.error is None:
        return f"{found.value:.2f}"
    return f"{found.value:.3f} ±{found.error:.3f}"
