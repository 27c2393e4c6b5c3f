"""What each key of the browser does, on a screen of its own."""

from __future__ import annotations

from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

KEYS = (
    ("← →", "the head before, the next head"),
    ("↑ ↓", "the layer before, the next layer"),
    ("Enter", "open the head in brackets"),
    ("Esc", "let go of the token, then back to the overview"),
    ("j k", "pin the next token, the one before: what it looks at, and who looks at it"),
    ("click", "pin the token of a row, or of a patch of the picture or a moment of the sound"),
    ("Tab", "the next kind of attention: encoder, decoder, cross"),
    ("x", "full colour is 1 (of a faint head its largest), always 1, each row's largest, or the head's"),
    ("c", "the next colour map"),
    ("d", "light or dark"),
    ("s", "save what is in view as PNG"),
    ("q", "quit"),
)


MEANING = {
    "auto": "full colour is 1, or a faint head's largest",
    "fixed": "full colour is 1",
    "row": "full colour is each row's largest",
    "head": "full colour is the head's largest",
}
"""What each scale says."""


class Keys(ModalScreen[None]):
    """A list of keys; any of Esc, ? and q closes it."""

    CSS = """
    Keys { align: center middle; }
    Keys > VerticalScroll { width: 66; max-width: 90%; height: auto; max-height: 90%; padding: 1 2;
        background: $panel; border: round $primary; }
    Keys Static { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q,enter", "dismiss", "Close"),
    ]

    def compose(self) -> ComposeResult:
        """The table of keys."""
        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", no_wrap=True, style="bold")
        table.add_column()
        for key, does in KEYS:
            table.add_row(Text(key), Text(does))
        with VerticalScroll():
            yield Static(table)
