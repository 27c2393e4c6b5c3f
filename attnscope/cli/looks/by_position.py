"""Figures by parts of a text: some rows alone, or a curve along all of them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attnscope.cli.heads import parse_numbers
from attnscope.cli.options.model import Said
from attnscope.cli.options.picture import PrintedOptions
from attnscope.cli.plain import print_answer
from attnscope.cli.source import Source, reading

if TYPE_CHECKING:
    from attnscope.analysis.selection import Selection

PARTS = 48
"""Runs of rows that a curve has, at most."""

TOP = 8
"""Heads whose curves are drawn, unless another number is asked for."""


def check_parts(rows: str | None, by_position: str | None, *, one: bool) -> None:
    """Refuse parts of more than one text, both parts and curves, and a measure that does not exist."""
    from attnscope.measures import MEASURES

    parse_rows(rows)
    if not one and (rows or by_position):
        asked = "--rows" if rows else "--by-position"
        raise typer.BadParameter("it goes with one text, not with --texts", param_hint=asked)
    if rows and by_position:
        raise typer.BadParameter("a curve has all rows: leave --rows away", param_hint="--by-position")
    if by_position is not None:
        MEASURES[by_position]


def parse_rows(spelling: str | None) -> range | None:
    """One run of rows, ``30-46``, both ends in it; ``None`` stays ``None``. Anything else is wrong usage."""
    rows = parse_numbers(spelling, "--rows")
    if rows is None:
        return None
    if rows != tuple(range(rows[0], rows[-1] + 1)):
        raise typer.BadParameter(f"{spelling!r}: name one run of rows, like 30-46", param_hint="--rows")
    return range(rows[0], rows[-1] + 1)


def show_curves(
    given: Source,
    selection: Selection,
    name: str,
    top: int | None,
    out: Path | None,
    picture: PrintedOptions,
    said: Said | None,
) -> None:
    """One measure of the heads along the text, as curves, or as plain data with what is ``said`` of it."""
    from attnscope.analysis.figures.by_rows import curves_by_position
    from attnscope.answers.answer import Answer
    from attnscope.cli import answers

    loaded, prepared = given.open(way="kernel")
    with reading(loaded, prepared):
        result = curves_by_position(loaded, prepared, selection, name, parts=PARTS, top=top or TOP)
    if said is not None:
        print_answer("stats", asdict(result) | said)
    elif out is not None:
        answers.save(Answer((result,), {"": result}, dict), out, picture)
    else:
        answers.print_views(Answer((result,), {}, dict), picture)
