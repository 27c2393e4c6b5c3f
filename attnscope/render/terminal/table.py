"""Tables in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.style import Style
from rich.table import Table as RichTable
from rich.text import Text

from attnscope.render.colour import SEQUENTIAL
from attnscope.render.terminal.surface import TONES, Palette, style_on
from attnscope.text import visible
from attnscope.views.table import BREAK, Cell, Table

WIDE = 100  # least columns to show a table in full if it has a narrow form

MOST_ROWS = 2000  # most rows that are printed: laying out tens of thousands takes minutes


def table_parts(view: Table, console: Console) -> Iterator[RenderableType]:
    """The printed parts of a table: its titles, its rows, its notes."""
    if view.narrow is not None and console.width < WIDE:
        view = view.narrow
    for text, style in ((view.title, "bold"), (view.subtitle, "dim")):
        if text:
            yield Text(visible(text), style=style)
    of_256 = console.color_system == "256"
    coloured = not console.no_color and (of_256 or console.color_system == "truecolor")
    palette = Palette(SEQUENTIAL, of_256) if coloured else None
    if view.rows:
        table = RichTable(box=None, padding=(0, view.gap, 0, 0), pad_edge=view.edge, header_style="bold")
        table.show_header = any(column.name for column in view.columns)
        table.expand = any(column.long == "rest" for column in view.columns)
        for column in view.columns:
            table.add_column(
                column.name,
                justify="right" if column.right else "left",
                no_wrap=column.long not in ("wrap", "fold"),
                overflow="fold" if column.long in ("keep", "fold") else "ellipsis",
                ratio=1 if column.long == "rest" else None,
            )
        for number, row in enumerate(view.rows[:MOST_ROWS]):
            table.add_row(*(_text(cell, palette) for cell in row), style="dim" if number in view.dim else "")
        yield table
    if len(view.rows) > MOST_ROWS:
        yield Text(f"· the first {MOST_ROWS:,} of {len(view.rows):,} rows; --csv and --json have all", "dim")
    for note in view.notes:
        yield Text(f"· {visible(note)}", style="dim")
    if view.command:
        yield Text(f"· {visible(view.command)}", style="dim", no_wrap=True, overflow="ignore")


def _text(cell: Cell, palette: Palette | None) -> Text:
    text = Text()
    for piece in ((cell, ""),) if isinstance(cell, str) else cell:
        words, look = piece
        style: Style | str = look if isinstance(look, str) else ""
        if palette is not None and not isinstance(look, str):
            style = style_on(palette, round(look * (TONES - 1)))
        text.append(visible(words) if words and piece is not BREAK else words, style)
    return text
