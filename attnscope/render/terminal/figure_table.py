"""The figures of heads as a table for people: as many measures as there is room for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnscope.figures import ABLATION, IMPORTANCE, PREDICTIONS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from attnscope.figures import Figure, HeadFigures, Importance, Removal
    from attnscope.questions.stats import Stats


FIRST = ("entropy", "confidence", "distance")
"""Measures that tell something of every head; those of the roles that were found come before them."""

NOTHING = 0.005
"""A measure that is nowhere larger prints as 0.00 for every head, and is left out."""


def print_table(result: Stats, heads: Sequence[HeadFigures], sort: str | None, console: Console) -> None:
    """A line a head, its figures in the colours of a map where the terminal has any."""
    from rich.table import Table
    from rich.text import Text

    from attnscope.measures.roles import NONE
    from attnscope.text import round_short

    console.print(Text(result.title), style="bold")
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
    room = console.width - sum(
        max([len(name), *(len(cells[place]) for cells in led)]) + 1 for place, name in enumerate(names)
    )
    columns = _choose_columns(result.predictions, heads, sort, room)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for name in (*names, *columns):
        table.add_column(name, justify="right" if name in columns else "left", no_wrap=True)
    drawn = {name: _draw_column(heads, name, console) for name in columns}
    for number, cells in enumerate(led):
        table.add_row(*map(Text, cells), *(drawn[name][number] for name in columns))
    if heads:
        console.print(table)
    for note in (*_notes(result, heads, columns), *result.notes):
        console.print(Text(f"· {note}"), style="dim")


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


def _draw_column(heads: Sequence[HeadFigures], name: str, console: Console) -> Sequence[Text]:
    """The cells of a measure; the brightest is 1, or the largest where it is no share."""
    from rich.text import Text

    from attnscope.measures import MEASURES
    from attnscope.render.colour import SEQUENTIAL
    from attnscope.render.terminal.surface import TONES, Palette, style_on

    of_256 = console.color_system == "256"
    coloured = not console.no_color and (of_256 or console.color_system == "truecolor")
    share = name not in PREDICTIONS and MEASURES[name].unit == "share"
    top = 1.0 if share else _largest(heads, name) or 1.0
    width = _width(heads, name)
    cells = []
    for head in heads:
        found = head.figure(name)
        text = _cell(found).rjust(width)
        if found is None or not coloured:
            cells.append(Text(text))
            continue
        level = min(abs(found.value) / top, 1.0) if found.value == found.value else 0.0
        cells.append(Text(text, style_on(Palette(SEQUENTIAL, of_256), round(level * (TONES - 1)))))
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
