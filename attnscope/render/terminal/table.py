"""Tables in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from attnscope.text import visible
from attnscope.views.table import BREAK, Cell, Table

WIDE = 100
"""Columns from which a table that has a narrow form is shown in full."""


def table_parts(view: Table, width: int) -> Iterator[RenderableType]:
    """What is printed of a table: its titles, its rows, its notes."""
    if view.narrow is not None and width < WIDE:
        view = view.narrow
    for text, style in ((view.title, "bold"), (view.subtitle, "dim")):
        if text:
            yield Text(visible(text), style=style)
    if view.rows:
        table = RichTable(box=None, padding=(0, view.gap, 0, 0), pad_edge=view.edge, header_style="bold")
        table.expand = any(column.long == "rest" for column in view.columns)
        for column in view.columns:
            table.add_column(
                column.name,
                justify="right" if column.right else "left",
                no_wrap=column.long not in ("wrap", "fold"),
                overflow="fold" if column.long in ("keep", "fold") else "ellipsis",
                ratio=1 if column.long == "rest" else None,
            )
        for number, row in enumerate(view.rows):
            table.add_row(*map(_text, row), style="dim" if number in view.dim else "")
        yield table
    for note in view.notes:
        yield Text(f"· {visible(note)}", style="dim")
    if view.command:
        yield Text(f"· {visible(view.command)}", style="dim", no_wrap=True, overflow="ignore")


def _text(cell: Cell) -> Text:
    pieces = ((cell, ""),) if isinstance(cell, str) else cell
    return Text.assemble(
        *(piece if piece is BREAK else (visible(piece[0]) if piece[0] else "", piece[1]) for piece in pieces)
    )
