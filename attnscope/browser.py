"""Every head of a text in the terminal, full screen: a map, a pinned token beside it, and keys for both."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import ClassVar, TypeVar

from rich.table import Table
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.events import Click, Resize
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Footer, Static

from attnscope.errors import AttnscopeError
from attnscope.questions.layers import AllHeads
from attnscope.render.colour import SEQUENTIAL
from attnscope.render.terminal import PrintedView
from attnscope.render.terminal.charts import patch_under
from attnscope.render.terminal.heatmap import token_at
from attnscope.render.terminal.surface import Surface
from attnscope.text import clean, visible
from attnscope.views import Drawable, Grid, Heatmap, TokenView

T = TypeVar("T")

KEYS = (
    ("← →", "previous or next head"),
    ("↑ ↓", "previous or next layer"),
    ("Enter", "open the selected head"),
    ("Esc", "unpin the token; then back to the overview"),
    ("j k", "pin the next or previous token: what it attends to, and what attends to it"),
    ("click", "pin the token of a row, or of a patch of the picture or a moment of the sound"),
    ("n", "the next head worth a look"),
    ("Tab", "the next kind of attention: encoder, decoder, cross"),
    ("d", "light or dark; browse --scale and --cmap set the colours of the maps"),
    ("s", "save the view as PNG"),
    ("q", "quit"),
)


class Keys(ModalScreen[None]):
    """A list of keys; any of Esc, ? and q closes it."""

    CSS = """
    Keys { align: center middle; }
    Keys > VerticalScroll { width: 66; max-width: 90%; height: auto; max-height: 90%; padding: 1 2;
        background: $panel; border: round $primary; }
    Keys Static { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        """The table of keys."""
        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", no_wrap=True, style="bold")
        table.add_column()
        for key, does in KEYS:
            table.add_row(Text(key), Text(does))
        with VerticalScroll():
            yield Static(table)


def halves_of(focus: TokenView) -> Mapping[str, TokenView]:
    """What a token attends to, and what attends to it, each with its pictures, by widget name."""
    bare = replace(focus, title="", notes=(), full=focus.full_bar)
    at = tuple(replace(each, looked_at_by=None) for each in focus.overlays if each.looks_at is not None)
    by = tuple(replace(each, looks_at=None) for each in focus.overlays if each.looked_at_by is not None)
    return {
        "#looks-at": replace(bare, looked_at_by=None, overlays=at),
        "#looked-at-by": replace(bare, looks_at=None, overlays=by),
    }


def after(one: T, options: Sequence[T]) -> T:
    """The next of some options; the first one after the last, or if the current one is not among them."""
    return options[(options.index(one) + 1) % len(options)] if one in options else options[0]


WIDE_COLUMNS = 110  # from here on, a pinned token's lists stand beside the map instead of below it


class Browser(App[None]):
    """Browses heads. ``folder`` is where ``s`` saves to.

    ``place`` is the index into ``layers`` and the number of the head; ``opened`` tells a head's view from
    the overview, ``pinned`` is a token's number, and ``row`` whether it has a row here.
    """

    CSS = """
    #title { height: 1; padding: 0 1; background: $panel; color: $foreground; text-style: bold; }
    #said { height: auto; max-height: 2; padding: 0 1; color: $text-muted; }
    #map { width: 1fr; padding: 0 1; }
    #token { width: 48; padding: 0 1; border-left: vkey $primary; display: none; }
    #token Static { width: 1fr; margin-bottom: 1; }
    Screen.pinned #token { display: block; }
    Screen.narrow #body { layout: vertical; }
    Screen.narrow #token {
        layout: horizontal; width: 1fr; height: 9; border-left: none; border-top: hkey $primary;
    }
    Screen.narrow #token Static { margin: 0 1 0 0; }
    """
    TITLE = "attnscope"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "move(0, -1)", "Head", key_display="←→"),
        Binding("right,l", "move(0, 1)", "", show=False),
        Binding("up", "move(-1, 0)", "Layer", key_display="↑↓"),
        Binding("down", "move(1, 0)", "", show=False),
        Binding("enter,space", "open", "Open"),
        Binding("escape,backspace", "back", "Back"),
        Binding("j", "pin(1)", "Token", key_display="jk"),
        Binding("k", "pin(-1)", "", show=False),
        Binding("n", "worth", "Next"),
        Binding("d", "light", "Light", show=False),
        Binding("tab", "kind", "Kind", priority=True),
        Binding("s", "save", "Save"),
        Binding("question_mark", "keys", "Keys", key_display="?"),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, heads: AllHeads, folder: Path | str = ".", cmap: str | None = None) -> None:
        super().__init__()
        self.heads, self.folder = heads, Path(folder)
        self.cmap = cmap or SEQUENTIAL
        self.kinds = list(heads.layers.kinds)
        self.kind, self.place = self.kinds[0], (0, 0)
        self.opened, self.row = False, True
        self.pinned: int | None = None
        self.plain = bool(os.environ.get("NO_COLOR"))

    def compose(self) -> ComposeResult:
        """A title, a sentence, the map beside a token's lists, and the keys."""
        yield Static(id="title")
        yield Static(id="said")
        with Horizontal(id="body"):
            with VerticalScroll(id="map", can_focus=False):
                yield Static(id="picture")
            with VerticalScroll(id="token", can_focus=False):
                yield Static(id="looks-at")
                yield Static(id="looked-at-by")
        yield Footer()

    def on_mount(self) -> None:
        """Draw for the first time."""
        self.draw()

    def on_resize(self, event: Resize) -> None:
        """Choose the arrangement for this width."""
        self.screen.set_class(event.size.width < WIDE_COLUMNS, "narrow")

    @property
    def layers(self) -> list[int]:
        """The numbers of the layers of the kind in view."""
        return [layer for layer, _ in self.heads.layers.kinds[self.kind]]

    @property
    def head(self) -> tuple[str, int, int]:
        """The chosen head as (kind, layer, head)."""
        return self.kind, self.layers[self.place[0]], self.place[1]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide keys from the footer that do nothing here."""
        return not (action == "kind" and len(self.kinds) == 1)

    def draw(self) -> None:
        """Draw the current state."""
        kind, layer, head = self.head
        scores = self.heads.scores[kind, layer][head]
        named = f"{scores.name} · {visible(self.heads.layers.title)} · {kind} attention"
        self.query_one("#title", Static).update(Text(named, no_wrap=True, overflow="ellipsis"))
        sentence = scores.role.sentence if scores.role else "no role: its scores are not finite"
        self.query_one("#said", Static).update(Text(sentence))
        view = replace(self.map_of(), title="", subtitle="")
        marked = (layer, head) if not self.opened else self.pinned if self.row else None
        self.query_one("#picture", Static).update(PrintedView(view, self.cmap, self.plain, marked))
        self.screen.set_class(self.pinned is not None, "pinned")
        if self.pinned is not None:
            for side, half in halves_of(self.focus_of(self.pinned)).items():
                empty = half.looks_at is None and half.looked_at_by is None
                self.query_one(side, Static).update("" if empty else PrintedView(half, self.cmap, self.plain))
        self.call_after_refresh(self._reveal)

    def map_of(self) -> Heatmap | Grid:
        """The map in view: the opened head, or all heads of its kind."""
        return self.heads.head(*self.head) if self.opened else self.heads.overview(self.kind)

    def focus_of(self, token: int) -> TokenView:
        """The chosen head's token view of the pinned token; one direction only in cross-attention."""
        if self.heads.weights[self.head[:2]].square:
            return self.heads.token(*self.head, token, token)
        return self.heads.token(*self.head, *((token, None) if self.row else (None, token)))

    def on_click(self, event: Click) -> None:
        """Pin the token of the clicked row or image patch."""
        if event.widget is None or not self.opened:
            return
        token = self._token_under(event.widget, event.screen_x, event.screen_y)
        if token is not None:
            self.pinned, self.row = token
            self.draw()

    def _token_under(self, widget: Widget, x: int, y: int) -> tuple[int, bool] | None:
        """The number of the token at a screen position, and whether it has a row; ``None`` for no token."""
        region = widget.content_region
        options = self.console.options.update_width(region.width)
        surface = Surface.from_console(self.console, options, self.cmap, self.plain)
        if widget.id == "picture":
            marked = self.pinned if self.row else None
            row = token_at(self.heads.head(*self.head), surface, marked, y - region.y)
            return None if row is None else (row, True)
        if self.pinned is None or not surface.colour:
            return None
        half = halves_of(self.focus_of(self.pinned)).get(f"#{widget.id}")
        patch = None if half is None else patch_under(half.overlays, surface, x - region.x, y - region.y)
        return None if patch is None else self.heads.token_of(self.kind, patch[0].name, *patch[1:])

    def _reveal(self) -> None:
        """Scroll to the marked line: the chosen head's first, or the pinned token's row."""
        picture, scroll = self.query_one("#picture", Static), self.query_one("#map", VerticalScroll)
        lines = [picture.render_line(y) for y in range(picture.size.height)]
        marked = [y for y, line in enumerate(lines) if any(s.style and s.style.reverse for s in line)]
        if marked and (self.pinned is not None or not self.opened):
            scroll.scroll_to(y=max(0, marked[-1] - scroll.size.height // 2), animate=False)

    def action_move(self, layers: int, heads: int) -> None:
        """Go to a neighbour, wrapping around."""
        row = (self.place[0] + layers) % len(self.layers)
        size = len(self.heads.weights[self.kind, self.layers[row]].values)
        self.place = (row, (self.place[1] + heads) % size if heads else min(self.place[1], size - 1))
        self.draw()

    def action_worth(self) -> None:
        """The next head worth a look."""
        if not self.heads.worth:
            self.notify("no head shows a clear pattern on this text", timeout=2)
            return
        places = [(str(head.kind), head.layer, head.head) for head in self.heads.worth]
        self.kind, layer, head = after(self.head, places)
        self.place = self.layers.index(layer), head
        self.draw()

    def action_open(self) -> None:
        """Open the chosen head."""
        self.opened = True
        self.query_one("#map", VerticalScroll).scroll_home(animate=False)
        self.draw()

    async def action_back(self) -> None:
        """Unpin the token; without one, go back to the overview."""
        if self.pinned is not None:
            self.pinned = None
        else:
            self.opened = False
        self.draw()

    def action_pin(self, step: int) -> None:
        """Pin the next token, or the first or last one if none is pinned; this opens the head."""
        places = self.heads.weights[self.head[:2]].queries
        at = next((i for i, place in enumerate(places) if place.start == self.pinned), None)
        row = (at + step) % len(places) if at is not None else (0 if step > 0 else len(places) - 1)
        self.opened, self.pinned, self.row = True, places[row].start, True
        self.draw()

    def action_kind(self) -> None:
        """The next kind of attention."""
        self.kind = after(self.kind, self.kinds)
        self.place, self.pinned = (0, 0), None
        self.draw()

    def action_light(self) -> None:
        """Switch between light and dark."""
        self.theme = "textual-light" if self.current_theme.dark else "textual-dark"

    def action_save(self) -> None:
        """Save the current view as PNG, under an unused name."""
        from attnscope.render.image import save_image

        kind, layer, head = self.head
        view: Drawable = self.map_of() if self.pinned is None else self.focus_of(self.pinned)
        name = f"{kind}-" * (len(self.kinds) > 1) + (f"L{layer:02}H{head:02}" if self.opened else "overview")
        name += "" if self.pinned is None else f"-token{self.pinned}"
        names = (name if number == 1 else f"{name}-{number}" for number in count(1))
        path = next(path for path in (self.folder / f"{each}.png" for each in names) if not path.exists())
        try:
            warnings = save_image(view, path, cmap=self.cmap)
        except AttnscopeError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        for warning in warnings:
            self.notify(warning, severity="warning", markup=False)
        self.notify(clean(f"saved {path}"), markup=False)

    def action_keys(self) -> None:
        """Say what each key does."""
        self.push_screen(Keys())
