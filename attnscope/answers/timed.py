"""How well heads find when words are said, on its way out: numbers, CSV, a table for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from attnscope.text import round_short

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.analysis.gold.timed import HeadTimes, TimedAnswers


def numbers_of(result: TimedAnswers) -> dict[str, Any]:
    """Every head as plain data."""
    return {
        "notes": list(result.notes),
        "held_out": result.held_out,
        "fixed": result.fixed,
        "fixed_off": result.fixed_off,
        "picked": [head.name for head in result.picked],
        "timed": [_flat(each) for each in result.heads],
    }


def table_of(result: TimedAnswers) -> Iterator[list[Any]]:
    """The names of the columns, then a line for each head."""
    for number, each in enumerate(result.heads):
        figures = _flat(each)
        if not number:
            yield list(figures)
        yield list(figures.values())


def _flat(each: HeadTimes) -> dict[str, Any]:
    figures = asdict(each)
    where: dict[str, Any] = figures.pop("head")
    return where | figures


def print_times(result: TimedAnswers, top: int, opening: str, console: Console) -> None:
    """The heads that find most words, and a straight line beside them; ``opening`` aligns by heads."""
    from rich.table import Table
    from rich.text import Text

    console.print(Text(result.title), style="bold")
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in ("head", "right", "off", "weight", "words"):
        table.add_column(name, justify="left" if name == "head" else "right", no_wrap=True)
    for each in result.heads[:top]:
        table.add_row(
            each.head.name,
            _with_error(each.accuracy, each.accuracy_error),
            f"{_with_error(each.off, each.off_error)} s",
            f"{each.weight:.2f} ({round_short(each.baseline)})",
            f"{each.words:,}",
            style="" if each.accuracy > result.fixed else "dim",
        )
    table.add_row("line", f"{result.fixed:.2f}", f"{result.fixed_off:.2f} s", style="dim")
    console.print(table)
    for note in (*_notes(result), *result.notes):
        console.print(Text(f"· {note}"), style="dim")
    if result.picked:  # a command to be copied, so that it stays on one line
        named = ",".join(head.name for head in result.picked)
        console.print(Text(f"· {opening} --heads {named} SOUND"), style="dim", soft_wrap=True)


def _with_error(value: float, error: float | None) -> str:
    return f"{value:.2f}" if error is None else f"{value:.2f} ±{error:.2f}"


def _notes(result: TimedAnswers) -> list[str]:
    """What stands in the table."""
    better = sum(each.accuracy > result.fixed for each in result.heads)
    which = "no head is" if not better else f"{better:,} of {len(result.heads):,} heads are"
    chosen = (
        "heads were ranked and the line laid on one half of the sounds; the figures are of the other half"
    )
    if not result.held_out:
        chosen = "heads and the line are the best of these sounds: --held-out scores them on others"
    return [
        f"{which} right more often than the best straight line from tokens to time",
        "right: before it writes a word, the head looks most at a moment inside of the word",
        "off: how far begin and end lie beside the true ones, if this head alone aligns the words",
        "weight: what goes inside of the words, and in parentheses the same on even attention",
        chosen,
    ]
