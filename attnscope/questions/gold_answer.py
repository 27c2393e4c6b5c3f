"""How well heads find known answers, on its way out: numbers, CSV, a table for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.questions.gold import GoldAnswers, Label, Scored


WIDE = 100
"""Columns from which a table has room for every error."""

RARE = 10
"""Times that one direction of a label may be asked more often than the other, and both be listed."""


def numbers_of(result: GoldAnswers) -> dict[str, Any]:
    """Every head of every label and direction as plain data."""
    return {
        "notes": list(result.notes),
        "held_out": result.held_out,
        "labels": [
            {
                "label": each.label,
                "direction": each.way,
                "heads": [_flat(head) for head in each.heads],
            }
            for each in result.labels
        ],
    }


def table_of(result: GoldAnswers) -> Iterator[list[Any]]:
    """The names of the columns, then a line for each head of each label and direction."""
    for number, each in enumerate(result.labels):
        for place, head in enumerate(each.heads):
            figures = _flat(head)
            if not number and not place:
                yield ["label", "direction", *figures]
            yield [each.label, each.way, *figures.values()]


def _flat(head: Scored) -> dict[str, Any]:
    figures = asdict(head)
    where: dict[str, Any] = figures.pop("head")
    return where | figures


def print_gold(result: GoldAnswers, top: int, console: Console) -> None:
    """For each label the heads that find most answers, in either direction."""
    from rich.table import Table
    from rich.text import Text

    console.print(Text(result.title), style="bold")
    by_label: dict[str, list[tuple[Label, Scored]]] = {}
    for each in result.labels:
        by_label.setdefault(each.label, []).extend((each, head) for head in each.heads)
    every = [head for rows in by_label.values() for _, head in rows]
    several = len({head.head.kind for head in every}) > 1
    rate = any(head.aer is not None for head in every)
    wide = console.width >= WIDE
    table = Table(box=None, padding=(0, 1 + wide, 0, 0), pad_edge=False, header_style="bold")
    for name in ("label", "direction", "head", *(("kind",) if several else ())):
        table.add_column(name, no_wrap=True)
    for name in ("right", "fixed", "weight", *(("AER",) if rate else ()), "asked"):
        table.add_column(name, justify="right", no_wrap=True)
    better = rare = 0
    for label, rows in by_label.items():
        most = max(head.rows for _, head in rows)
        rare += len({each.way for each, head in rows if head.rows * RARE < most})
        rows = [row for row in rows if row[1].rows * RARE >= most]
        rows.sort(key=lambda row: (-row[1].chosen, -row[1].weight, row[1].head))
        better += rows[0][1].accuracy > rows[0][1].fixed
        for number, (each, head) in enumerate(rows[:top]):
            led = [label if not number else "", each.way, head.head.name]
            led += [head.head.kind or ""] if several else []
            beats = head.accuracy > head.fixed
            table.add_row(*map(Text, [*led, *_cells(head, rate, wide)]), style="" if beats else "dim")
    console.print(table)
    notes = _notes(result, better, len(by_label), rate)
    if rare:
        them = ("directions", "them") if rare > 1 else ("direction", "it")
        notes.append(f"{rare:,} {them[0]} can be asked too rarely to be compared: --json has {them[1]}")
    for note in (*notes, *result.notes):
        console.print(Text(f"· {note}"), style="dim")


def _cells(head: Scored, rate: bool, wide: bool) -> list[str]:
    """The figures of a head; the error of the weight where there is room."""
    from attnscope.text import round_short

    fixed = f"{head.fixed:.2f} at {head.offset:+d}"
    weight = f"{_ratio(head.weight, head.weight_error if wide else None)} ({round_short(head.baseline)})"
    aer = [] if not rate else ["" if head.aer is None else _ratio(head.aer, head.aer_error)]
    right = _ratio(head.accuracy, head.accuracy_error)
    return [right, fixed, weight, *aer, f"{head.rows:,}"]


def _ratio(value: float, error: float | None) -> str:
    return f"{value:.2f}" if error is None else f"{value:.2f} ±{error:.2f}"


def _notes(result: GoldAnswers, better: int, labels: int, rate: bool) -> list[str]:
    """What stands in the table."""
    most = "the head" if labels == 1 else f"for {better:,} of {labels:,} labels the head"
    rest = "is right more often than the word at a fixed distance (the other lines are dim)"
    if labels == 1:
        rest = f"is {'' if better else 'not '}right more often than the word at a fixed distance"
    chosen = (
        "heads and distances were chosen on one half of the texts; the figures are those of the other half"
    )
    if not result.held_out:
        chosen = "heads and distances are the best of these texts: --held-out scores them on others"
    return [
        f"{most} {rest}",
        "right: the word's largest weight, special tokens and itself aside, goes to an answer; "
        "fixed: the best word at one distance, in words",
        "weight: what the answers get, and in parentheses the baseline: the same on even attention",
        *(["AER: alignment error rate, the smaller the better (Och and Ney 2003)"] if rate else []),
        chosen,
    ]
