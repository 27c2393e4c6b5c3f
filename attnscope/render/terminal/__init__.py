"""Views in a terminal, as rich renderables: truecolor or 256 colours, or shades without any; or as pixels.

    print_view(view)                                  # to standard output
    console.print(PrintedView(view, cmap="viridis"))      # anywhere that rich prints

Pictures fill the console's width. Cells carry their own colours, so that they look the same on light and
dark backgrounds; text keeps the terminal's foreground. In a pipe, with NO_COLOR, on a terminal of 16
colours, or on request, shades and numbers carry the values.
"""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from operator import itemgetter
from typing import Any, Literal, TypeAlias

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group
from rich.segment import Segment, Segments

from attnscope.errors import OutputError
from attnscope.render.terminal import charts, grid, heatmap
from attnscope.render.terminal.surface import ASCII, CONTROLS, Line, Surface, strip_end
from attnscope.views import (
    Curves,
    Grid,
    HeadPair,
    HeadRow,
    Heatmap,
    RoleMap,
    Stack,
    Table,
    Terms,
    TokenView,
    View,
)
from attnscope.views.heads import AlignedTexts, DistanceMap, HeadMap, Ranking

TEXT_OF = itemgetter(0)  # a segment's text; called ten thousand times per frame


LINE_FUNCTIONS: dict[type, Callable[..., Iterator[Line]]] = {
    Heatmap: heatmap.heatmap_lines,
    Grid: grid.grid_lines,
    RoleMap: grid.role_lines,
    TokenView: charts.token_lines,
    HeadMap: heatmap.head_map_lines,
    Ranking: charts.ranking_lines,
    DistanceMap: heatmap.distance_lines,
    HeadPair: heatmap.pair_lines,
    HeadRow: heatmap.row_lines,
    AlignedTexts: charts.aligned_lines,
    Curves: charts.curves_lines,
    Stack: charts.stack_lines,
    Terms: charts.terms_lines,
}
"""The drawing function of each view, without title, subtitle and notes."""


@dataclass(frozen=True, eq=False)
class PrintedView:
    """A view that rich can print."""

    view: View
    cmap: str | None = None
    plain: bool = False  # without colour
    marked: tuple[int, int] | int | None = None  # a (layer, head) of a grid, a token of a heatmap
    height: int | None = None  # most lines, if it must fit a screen

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        surface = replace(Surface.from_console(console, options, self.cmap, self.plain), height=self.height)
        end = Segment.line()
        for line in lines(self.view, surface, self.marked):
            if not surface.colour:
                line = strip_end(line)
            if surface.ascii:
                line = [_in_ascii(segment) for segment in line]
            if not all(map(str.isprintable, map(TEXT_OF, line))):
                line = [s if s.control else Segment(s.text.translate(CONTROLS), s.style) for s in line]
            yield from line
            yield end


def _in_ascii(segment: Segment) -> Segment:
    text = segment.text.translate(ASCII)
    if not text.isascii():
        text = "".join(c if c.isascii() else "?" * cell_len(c) for c in text)
    return Segment(text, segment.style)


def lines(view: View, surface: Surface, marked: tuple[int, int] | int | None = None) -> Iterator[Line]:
    """A view's lines of segments, none wider than the surface except commands to be copied."""
    if isinstance(view, Ranking) and surface.height is not None:
        yield from charts.brief_lines(view, surface)
        return
    title = (view.title or view.name) if isinstance(view, HeadMap) else view.title
    tight = isinstance(view, Grid) and grid.layout_of(view, surface, marked is not None).tight
    if isinstance(view, RoleMap) or (isinstance(view, HeadMap) and view.compact):
        tight = surface.height is not None
    yield from surface.heading(title, view.subtitle, tight=tight)
    yield from LINE_FUNCTIONS[type(view)](view, surface, *(() if marked is None else (marked,)))
    if not isinstance(view, (Heatmap, DistanceMap)):  # these are fitted to a size, and say so themselves
        yield from surface.footing(view.notes)


def print_view(
    view: View,
    console: Console | None = None,
    *,
    cmap: str | None = None,
    plain: bool = False,
    height: int | None = None,
) -> int:
    """Print a view to a console, or to standard output; returns its lines if it has a ``height`` to fit."""
    console = console or Console(highlight=False)
    if isinstance(view, Table):
        for line in Segment.split_lines(console.render(Group(*charts.table_parts(view, console)))):
            console.print(Segments([*strip_end(line), Segment.line()]), end="", crop=False)
        return 0
    printed = PrintedView(view, cmap, plain, height=height)
    console.print(printed, crop=False)
    return 0 if height is None else sum(each == Segment.line() for each in console.render(printed))


Graphics: TypeAlias = Literal["auto", "kitty", "sixel", "cells"]
"""How pixels reach a terminal; ``cells`` means coloured characters instead."""

GRAPHICS_LIBRARY = "textual_image"

DOTS_PER_INCH = 150  # dots per inch of a picture in a terminal
CHUNK_LETTERS = 4096  # most letters of a kitty command


def choose_graphics(method: Graphics, console: Console) -> Graphics:
    """The method to use: ``cells`` in a pipe, without colour, and if a terminal does not answer."""
    if method == "cells" or not sys.stdout.isatty() or not console.is_terminal or console.no_color:
        return "cells"
    if method == "sixel" and find_spec(GRAPHICS_LIBRARY) is None:
        raise OutputError(f"--graphics {method} needs textual-image: pip install 'attnscope[graphics]'")
    return detect_graphics() if method == "auto" else method


@cache
def detect_graphics() -> Graphics:
    """Query the terminal's abilities; its answer comes by standard input."""
    if find_spec(GRAPHICS_LIBRARY) is None or sys.__stdin__ is None or not sys.__stdin__.isatty():
        return "cells"
    from textual_image import renderable

    methods: dict[type, Graphics] = {renderable.SixelImage: "sixel", renderable.TGPImage: "kitty"}
    return methods.get(renderable.Image, "cells")


def print_views(
    views: Iterable[View],
    console: Console,
    graphics: Graphics = "cells",
    *,
    cmap: str | None = None,
    plain: bool = False,
    below: int = 0,
) -> None:
    """Print views with an empty line between them, as pixels where requested and possible.

    On a screen, ``below`` lines stay free for what follows.
    """
    method = "cells" if plain else choose_graphics(graphics, console)
    drawable: Container[type] = ()  # others are text
    if method != "cells":
        from attnscope.render.image import FIGURE_FUNCTIONS as drawable
    views = list(views)
    grids = [view for view in views if _fits_screen(view)]
    fits = console.is_terminal and method == "cells" and bool(grids)
    left = console.height - 1 - below  # the prompt takes a line
    for number, view in enumerate(views):
        if number and not (fits and left < 5):
            console.print()
            left -= 1
        height = None
        if fits and _fits_screen(view):
            height = (left - 1) // len(grids)  # a line at least is for the heads worth a look
            grids = grids[1:]
        elif fits and isinstance(view, Ranking):
            height = max(left, 1)
        if type(view) in drawable:
            print_pixels(view, console, method, cmap)
        else:
            left -= print_view(view, console, cmap=cmap, plain=plain, height=height)


def _fits_screen(view: View) -> bool:
    """Whether a view has every head on one screen."""
    if isinstance(view, HeadMap):
        return view.compact
    return isinstance(view, RoleMap) or (isinstance(view, Grid) and not view.large)


def print_pixels(view: Any, console: Console, method: Graphics, cmap: str | None) -> None:
    """Draw a view as an image, as large as the screen allows."""
    from PIL import Image

    from attnscope.render.image import drawing, encode

    with drawing(view, cmap=cmap) as (figure, _):
        drawn = encode(figure, "png", DOTS_PER_INCH)
    image = Image.open(io.BytesIO(drawn))
    if method == "sixel":
        from textual_image.renderable import SixelImage

        shown = SixelImage(image, width="auto", height="auto")
        console.print(shown, height=max(console.height - 2, 1))  # no more than a screen: pixels do not scroll
        return
    # kitty's protocol draws at the cursor; the library's Unicode placeholders work in kitty alone
    tallest = 2 * (console.height - 2) * image.width // image.height  # columns at which it is a screen tall
    columns = max(min(console.width, image.width // 8, tallest), 1)  # a cell is some 8 × 16 pixels
    data = base64.b64encode(drawn).decode()
    for start in range(0, len(data), CHUNK_LETTERS):
        placed = f"a=T,f=100,q=2,c={columns}," if start == 0 else ""
        more = int(start + CHUNK_LETTERS < len(data))
        console.file.write(f"\x1b_G{placed}m={more};{data[start : start + CHUNK_LETTERS]}\x1b\\")
    console.file.write("\n")
