"""``--faithful``: the order of tokens that a prediction really hangs on, as a table, numbers or a picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attnscope.cli.deliver import print_answer
from attnscope.cli.options import ModelOptions, PrintedOptions, WeighedModelOptions
from attnscope.cli.source import SourceInput, reading
from attnscope.records import plain

if TYPE_CHECKING:
    from rich.table import Table

    from attnscope.questions.selection import Selection
    from attnscope.views.charts import Faithful


TOP = 12
"""Heads that are listed, unless another number is asked for."""

CURVE = 24
"""Columns that a curve has in the terminal, at most; narrow ones have none."""

WIDE = 116
"""Columns from which curves have room."""


def check_alone(alone: bool) -> None:
    """Refuse what says nothing of a prediction."""
    if not alone:
        raise typer.BadParameter(
            "it goes with a text and a model, without --token, --layer, --from, --texts or --csv",
            param_hint="--faithful",
        )


def show_methods(
    given: SourceInput, target: str | None, out: Path | None, picture: PrintedOptions, *, as_json: bool
) -> None:
    """All ways of weighing and of following attention, the best first."""
    from attnscope.questions.faithful import compare_methods

    loaded, prepared = given.open(predicting=True)
    with reading(loaded, prepared):
        result = compare_methods(loaded, prepared, target)
    if as_json:
        return print_answer("flow", plain(result))
    _show(result, len(result.ranked), out, picture)


def show_heads(
    given: SourceInput,
    selection: Selection,
    model: WeighedModelOptions,
    top: int | None,
    out: Path | None,
    picture: PrintedOptions,
    *,
    as_json: bool,
) -> None:
    """All heads by one way of weighing, the best first."""
    from attnscope.questions.faithful import compare_heads

    unweighed: ModelOptions = replace(model, weigh="raw", target=None)  # weighed below, and asked once
    loaded, prepared = replace(given, model=unweighed).open(predicting=True)
    with reading(loaded, prepared):
        result = compare_heads(loaded, prepared, model.weigh, model.target, selection)
    if as_json:
        return print_answer("stats", plain(result) | model.metadata)
    _show(result, top or TOP, out, picture)


def _show(result: Faithful, top: int, out: Path | None, picture: PrintedOptions) -> None:
    """The first orders, drawn or printed."""
    if out is not None:
        from attnscope.cli import deliver as answers
        from attnscope.questions.answer import Answer

        shown = replace(result, ranked=result.ranked[:top])
        answers.save_pictures(Answer((), {"faithful": shown}, dict), out, picture)
    else:
        _print(result, top, letters=picture.plain)


def _print(result: Faithful, top: int, *, letters: bool) -> None:
    """One order a line, with random ones among them where they stand."""
    from rich.console import Console
    from rich.text import Text

    from attnscope.axes import visible
    from attnscope.render.terminal.surface import ASCII_SPARKS, SPARKS

    console = Console(highlight=False)
    console.print(Text(result.title), style="bold")
    console.print(Text(result.subtitle), style="dim")
    console.print()
    marks = ASCII_SPARKS if letters or not console.encoding.startswith("utf") else SPARKS
    wide = console.width >= WIDE
    table = _table(wide)
    rows = sorted([*result.ranked[:top], result.random], key=lambda each: each.deletion_area)
    for each in [result.alone, *rows]:
        errors = (each.deletion_error, each.insertion_error)
        areas = (each.deletion_area, each.insertion_area)
        figures = [
            f"{area / result.whole:.2f}" + (f" ±{error / result.whole:.2f}" if each is result.random else "")
            for area, error in zip(areas, errors, strict=True)
        ]
        style = "dim" if each in (result.random, result.alone) else ""
        first = " · ".join(visible(token) for token in each.first)
        curve = [_curve(each.deletion, marks)] if wide else []
        table.add_row(Text(each.name), *figures, *curve, Text(first), style=style)
    console.print(table)
    more = len(result.ranked) - top
    notes = [f"and {more:,} more, whose deletion is higher: --top shows them"] if more > 0 else []
    for note in (*notes, *result.notes):
        console.print(Text(f"· {note}"), style="dim")


def _table(wide: bool) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("order by", no_wrap=True)
    table.add_column("deletion", no_wrap=True)
    table.add_column("insertion", no_wrap=True)
    if wide:
        table.add_column("while they go", no_wrap=True)
    table.add_column("first", overflow="ellipsis", no_wrap=True)
    return table


def _curve(values: tuple[float, ...], marks: str) -> str:
    """A mark for each step, the taller the likelier."""
    most = max(values) or 1.0
    every = -(-len(values) // CURVE)
    return "".join(marks[round(value / most * (len(marks) - 1))] for value in values[::every])
