"""What stands where a person clicks: a token's row of the map, or a patch of a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from textual.widget import Widget

from attnscope.render.terminal.heatmap import token_at
from attnscope.render.terminal.overlay import patch_under
from attnscope.render.terminal.surface import Surface
from attnscope.views import Focus

if TYPE_CHECKING:
    from attnscope.browser.app import Browser


def halves_of(focus: Focus) -> Mapping[str, Focus]:
    """What a token looks at, and who looks at it, each with its pictures, by the widgets that show them."""
    bare = replace(focus, title="", notes=(), full=focus.full_bar)
    at = tuple(replace(each, looked_at_by=None) for each in focus.overlays if each.looks_at is not None)
    by = tuple(replace(each, looks_at=None) for each in focus.overlays if each.looked_at_by is not None)
    return {
        "#looks-at": replace(bare, looked_at_by=None, overlays=at),
        "#looked-at-by": replace(bare, looks_at=None, overlays=by),
    }


def token_under(app: Browser, widget: Widget | None, x: int, y: int) -> tuple[int, bool] | None:
    """The number of the token at a place of the screen, and whether it has a row; ``None`` for none."""
    if widget is None or not app.opened:
        return None
    kind, layer, head = app.head
    x, y = x - widget.content_region.x, y - widget.content_region.y
    options = app.console.options.update_width(widget.content_region.width)
    surface = Surface.of(app.console, options, app.cmap, app.plain)
    if widget.id == "picture":
        found = token_at(app.heads.head(kind, layer, head), surface, app.pinned if app.row else None, x, y)
        return None if found is None else (found, True)
    if app.pinned is None or not surface.colour:
        return None
    half = halves_of(app.focus_of(app.pinned)).get(f"#{widget.id}")
    patch = patch_under(half.overlays, surface, x, y) if half is not None else None
    return None if patch is None else app.heads.token_of(kind, patch[0].name, *patch[1:])
