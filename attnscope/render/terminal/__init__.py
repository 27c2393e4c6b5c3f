"""Views in a terminal, as rich renderables: truecolor or 256 colours, or shades without any colour.

    print_view(view)                                  # to standard output
    console.print(PrintedView(view, cmap="viridis"))      # anywhere that rich prints

Pictures fill the console's width. Cells carry their own colours, so that they look the same on light and
dark backgrounds; text keeps the terminal's foreground. In a pipe, with NO_COLOR, on a terminal of 16
colours, or on request, shades and numbers carry the values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import itemgetter

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group
from rich.segment import Segment, Segments

from attnscope.render.terminal import charts, grid, heatmap
from attnscope.render.terminal.surface import ASCII, CONTROLS, Line, Surface, strip_end
from attnscope.views import Curves, Grid, HeadPair, HeadRow, Heatmap, Stack, Table, Terms, TokenView, View
from attnscope.views.heads import AlignedTexts, DistanceMap, HeadMap, Ranking

TEXT_OF = itemgetter(0)  # a segment's text; called ten thousand times per frame


DRAWN: dict[type, Callable[..., Iterator[Line]]] = {
    Heatmap: heatmap.heatmap_lines,
    Grid: grid.grid_lines,
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
    """A view that rich can print; ``plain`` disables colour.

    ``marked`` is highlighted: a (layer, head) of a grid, or a token of a heatmap. ``height`` is the most
    lines, if it must fit a screen.
    """

    view: View
    cmap: str | None = None
    plain: bool = False
    marked: tuple[int, int] | int | None = None
    height: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        surface = replace(Surface.of(console, options, self.cmap, self.plain), height=self.height)
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
    tight = isinstance(view, Grid) and grid.layout_of(view, surface, marked is not None).around == grid.AROUND
    yield from surface.heading(title, view.subtitle, tight=tight)
    yield from DRAWN[type(view)](view, surface, *(() if marked is None else (marked,)))
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
