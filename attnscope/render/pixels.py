"""Views as real pixels in a terminal, if it supports them."""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeGuard

from attnscope.errors import OutputError

if TYPE_CHECKING:
    from PIL.Image import Image
    from rich.console import Console

    from attnscope.views import Drawable, View

Way: TypeAlias = Literal["auto", "kitty", "sixel", "cells"]
"""How pixels reach a terminal; ``cells`` means coloured characters instead."""

LIBRARY = "textual_image"

DOTS = 150  # dots per inch of a picture in a terminal
CELL = 8  # approximate width of a cell in pixels; it is twice as tall

BRIEF, SPACIOUS = 1, 5
"""Lines left for the heads worth a look, and how many of them earn an empty line before."""

CHUNK = 4096  # most letters of a kitty command


def choose_way(asked: Way, console: Console) -> Way:
    """The method to use: ``cells`` in a pipe, without colour, and if a terminal does not answer."""
    if asked == "cells" or not sys.stdout.isatty() or not console.is_terminal or console.no_color:
        return "cells"
    if asked == "sixel" and find_spec(LIBRARY) is None:
        raise OutputError(f"--graphics {asked} needs textual-image: pip install 'attnscope[graphics]'")
    return ask_terminal() if asked == "auto" else asked


@cache
def ask_terminal() -> Way:
    """Query the terminal's abilities; its answer comes by standard input."""
    if find_spec(LIBRARY) is None or sys.__stdin__ is None or not sys.__stdin__.isatty():
        return "cells"
    from textual_image import renderable

    known: dict[type, Way] = {renderable.SixelImage: "sixel", renderable.TGPImage: "kitty"}
    return known.get(renderable.Image, "cells")


def has_pixels(view: object) -> TypeGuard[Drawable]:
    """Whether a view can be drawn as an image; others are text."""
    from attnscope.render.image.draw import DRAWN

    return type(view) in DRAWN


def print_views(
    views: Iterable[View],
    console: Console,
    asked: Way = "cells",
    *,
    cmap: str | None = None,
    plain: bool = False,
) -> None:
    """Print views with an empty line between them, as pixels where requested and possible."""
    from attnscope.render.terminal import print_view
    from attnscope.views import Grid, Ranking

    way = "cells" if plain else choose_way(asked, console)
    views = list(views)
    grids = [view for view in views if isinstance(view, Grid) and not view.large]
    fits = console.is_terminal and way == "cells" and bool(grids)
    left = console.height - 1  # the prompt takes a line
    for number, view in enumerate(views):
        if number and not (fits and left < SPACIOUS):
            console.print()
            left -= 1
        height = None
        if fits and isinstance(view, Grid):
            height = (left - BRIEF) // len(grids)
            grids = grids[1:]
        elif fits and isinstance(view, Ranking):
            height = max(left, 1)
        if way != "cells" and has_pixels(view):
            print_pixels(view, console, way, cmap)
        else:
            left -= print_view(view, console, cmap=cmap, plain=plain, height=height)


def print_pixels(view: Drawable, console: Console, way: Way, cmap: str | None) -> None:
    """Draw a view as an image, as large as the screen allows."""
    from PIL import Image

    from attnscope.render.image import drawing, encode

    with drawing(view, cmap=cmap) as (figure, _):
        drawn = encode(figure, "png", DOTS)
    with Image.open(io.BytesIO(drawn)) as image:
        (_show_in_kitty if way == "kitty" else _show_in_sixels)(image.convert("RGB"), console)


def _show_in_sixels(image: Image, console: Console) -> None:
    from textual_image.renderable import SixelImage

    shown = SixelImage(image, width="auto", height="auto")
    console.print(shown, height=max(console.height - 2, 1))  # no more than a screen: pixels do not scroll


def _show_in_kitty(image: Image, console: Console) -> None:
    """The protocol that draws at the cursor; the library's Unicode placeholders work in kitty alone."""
    tallest = 2 * (console.height - 2) * image.width // image.height  # columns at which it is a screen tall
    columns = max(min(console.width, image.width // CELL, tallest), 1)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    data = base64.b64encode(buffer.getvalue()).decode()
    for start in range(0, len(data), CHUNK):
        placed = f"a=T,f=100,q=2,c={columns}," if start == 0 else ""
        more = int(start + CHUNK < len(data))
        console.file.write(f"\x1b_G{placed}m={more};{data[start : start + CHUNK]}\x1b\\")
    console.file.write("\n")
