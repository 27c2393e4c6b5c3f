"""What stands where a person clicks: a token's row of the map, or a patch of a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rich.console import Console
from textual.widget import Widget

from attnscope.analysis.all_heads import AllHeads
from attnscope.render.terminal.heatmap import token_at
from attnscope.render.terminal.overlay import patch_under
from attnscope.render.terminal.sheet.surface import Surface
from attnscope.views import Focus


@dataclass(frozen=True)
class Shown:
    """What the browser shows of a head: the pinned token, if any, and whether it has a row; and how."""

    heads: AllHeads
    head: tuple[str, int, int]
    pinned: int | None
    row: bool
    focus: Focus | None
    console: Console
    cmap: str
    plain: bool


def halves_of(focus: Focus) -> Mapping[str, Focus]:
    """What a token looks at, and who looks at it, each with its pictures, by the widgets that show them."""
    bare = replace(focus, title="", notes=(), full=focus.full_bar)
    at = tuple(replace(each, looked_at_by=None) for each in focus.overlays if each.looks_at is not None)
    by = tuple(replace(each, looks_at=None) for each in focus.overlays if each.looked_at_by is not None)
    return {
        "#looks-at": replace(bare, looked_at_by=None, overlays=at),
        "#looked-at-by": replace(bare, looks_at=None, overlays=by),
    }


def token_under(shown: Shown, widget: Widget, x: int, y: int) -> tuple[int, bool] | None:
    """The number of the token at a place of the screen, and whether it has a row; ``None`` for none."""
    x, y = x - widget.content_region.x, y - widget.content_region.y
    options = shown.console.options.update_width(widget.content_region.width)
    surface = Surface.of(shown.console, options, shown.cmap, shown.plain)
    if widget.id == "picture":
        found = token_at(shown.heads.head(*shown.head), surface, shown.pinned if shown.row else None, x, y)
        return None if found is None else (found, True)
    if shown.focus is None or not surface.colour:
        return None
    half = halves_of(shown.focus).get(f"#{widget.id}")
    patch = patch_under(half.overlays, surface, x, y) if half is not None else None
    return None if patch is None else shown.heads.token_of(shown.head[0], patch[0].name, *patch[1:])
