"""Figures of heads on their way out: a table for people, CSV and plain data for programs, maps."""

from __future__ import annotations

import csv
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnscope.look import Stats
    from attnscope.measures import Figure, HeadFigures
    from attnscope.views import HeadMap

COLUMNS = ("entropy", "confidence", "distance", "previous", "next", "first")
"""The measures in the table; --json and --csv have all of them."""

FEW, WIDE = 3, 100
"""Columns that there is room for beside standard errors in a terminal of fewer characters than that."""


def maps(seen: Stats, name: str) -> dict[str, HeadMap]:
    """One measure of all heads, a map for each kind of attention that has it."""
    from attnscope.errors import SelectionError
    from attnscope.measures import MEASURES
    from attnscope.views import head_map

    tables: dict[str, dict[int, list[float]]] = {}
    for head in seen.heads:
        figure = head.figures.get(name)
        row = tables.setdefault(head.site.kind, {}).setdefault(head.site.layer, [])
        row.append(float("nan") if figure is None else figure.value)
    known = {kind: rows for kind, rows in tables.items() if any(x == x for row in rows.values() for x in row)}
    if not known:
        raise SelectionError(f"{name} cannot be drawn: {seen.heads[0].absent[name]}")
    unit = MEASURES[name].unit
    return {
        kind: head_map(
            rows,
            name,
            unit=unit,
            limits=(0.0, 1.0) if unit == "share" else None,
            signed=name == "offset",
            title=f"{name} · {kind}",
            notes=(seen.ran, *seen.notes),
        )
        for kind, rows in known.items()
    }


def print_json(seen: Stats, heads: list[HeadFigures]) -> None:
    """All figures of the heads as JSON."""
    from attnscope.cli.answers import head_numbers

    numbers = {"ran": seen.ran, "notes": list(seen.notes), "heads": [head_numbers(head) for head in heads]}
    print(json.dumps(numbers, ensure_ascii=False))


def print_csv(heads: list[HeadFigures], names: tuple[str, ...]) -> None:
    """A line a head: each figure, what even attention would give, and over a corpus the standard error."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    errors = any(figure.error is not None for head in heads for figure in head.figures.values())
    header = ["kind", "layer", "head", "role", "score", "chance"]
    for name in names:
        header += [name, f"{name}_uniform", *([f"{name}_error"] if errors else [])]
    writer.writerow(header)
    for head in heads:
        role = ["", "", ""] if head.role is None else [head.role.name, head.role.score, head.role.baseline]
        cells: list[float | str | None] = []
        for name in names:
            figure = head.figures.get(name)
            told = ("", "", "") if figure is None else (figure.value, figure.baseline, figure.error)
            cells += told if errors else told[:2]
        writer.writerow([head.site.kind, head.site.layer, head.head, *role, *cells])


def print_table(seen: Stats, heads: list[HeadFigures], sort: str | None) -> None:
    """The heads as a table of as many measures as the terminal has room for."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    errors = any(figure.error is not None for head in heads for figure in head.figures.values())
    room = FEW if errors and console.width < WIDE else len(COLUMNS)
    columns = tuple(dict.fromkeys((*((sort,) if sort else ()), *COLUMNS)))[:room]
    console.print(Text(seen.title), style="bold")
    several = len({head.site.kind for head in seen.heads}) > 1
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for name in ("head", *(("kind",) if several else ()), "role", ""):
        table.add_column(name, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for head in heads:
        role = head.role
        told = ("", "") if role is None else (role.name, f"{role.score:.2f} ({role.baseline:.2f})")
        cells = (_cell(head.figures.get(name)) for name in columns)
        table.add_row(head.name, *((head.site.kind,) if several else ()), *told, *cells)
    console.print(table)
    notes = [f"{len(heads)} of {len(seen.heads)} heads; {seen.ran}"]
    notes += ["± is the standard error over the texts"] if errors else []
    for note in (*notes, *seen.notes):
        console.print(Text(f"· {note}"), style="dim")


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return "–"
    if figure.error is None:
        return f"{figure.value:.2f}"
    return f"{figure.value:.3f} ±{figure.error:.3f}"
