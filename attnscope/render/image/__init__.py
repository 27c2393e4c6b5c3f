"""Views as images: PNG, JPEG, SVG and PDF, drawn by matplotlib without a screen.

    warnings = save_image(view, "L05H03.png")  # the suffix says the format
    with drawing(view) as (figure, warnings):
        ...  # a matplotlib Figure, to look into or to change

The same view gives the same bytes: no dates, fixed ids, matplotlib's own defaults whatever the user's
style. Token text is literal (no formulas), and characters that no font has are reported.
"""

from __future__ import annotations

import html
import io
import math
import struct
import warnings as python_warnings
import zlib
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Annotation, Text
from PIL import Image
from PIL.PngImagePlugin import putchunk

from attnscope.axes import Place
from attnscope.errors import OutputError
from attnscope.render.colour import choose_map
from attnscope.render.image import charts, maps
from attnscope.render.image import sheet as paper
from attnscope.render.image.sheet import Style
from attnscope.storage.files import write_whole
from attnscope.storage.folder import PICTURES
from attnscope.text import clean
from attnscope.views import Drawable, Grid, HeadPair, HeadRow, Heatmap, RoleMap, TokenView, describe
from attnscope.views.charts import Curves, LayerGraph, Panels, SoundMap, Stack, Terms
from attnscope.views.heads import DistanceMap, HeadDistances, HeadMap


def fit_width(figure: Figure, width: float) -> None:
    """Scale a figure to a width in inches, including letters, lines and dots; the height follows."""
    wide, tall = figure.get_size_inches()
    share = width / wide
    if abs(share - 1) < 1e-6:
        return
    figure.set_size_inches(width, tall * share)
    ticks: set[int] = set()
    for side in (side for axes in figure.axes for side in (axes.xaxis, axes.yaxis) if side.get_visible()):
        labels = side.get_ticklabels()
        ticks |= set(map(id, labels))
        if labels:  # hooks that run while drawing replace these values
            side.set_tick_params(labelsize=labels[0].get_fontsize() * share, pad=3 * share)
    for artist in figure.findobj():
        if isinstance(artist, Text) and id(artist) not in ticks:
            artist.set_fontsize(artist.get_fontsize() * share)
        if isinstance(artist, Annotation):
            across, up = artist.xyann
            artist.xyann = (across * share, up * share)
        elif isinstance(artist, Line2D):
            artist.set(linewidth=artist.get_linewidth() * share, markersize=artist.get_markersize() * share)
        elif isinstance(artist, Patch):
            artist.set_linewidth(artist.get_linewidth() * share)
        elif isinstance(artist, PathCollection):
            artist.set_sizes(artist.get_sizes() * share**2)


PANELS_ASPECT = 1.4  # the shape, width over height, that a picture of several parts comes near to


def panels_figure(view: Panels, style: Style) -> Figure:
    """The parts in rows of equally many, side by side only where each is as wide as a sheet."""
    most = len(view.parts) if style.width is None else max(1, int(style.width / paper.LEAST_SHEET))
    layouts, figures = [], list[Any]()
    for count in range(1, min(most, len(view.parts)) + 1):
        if style.width is not None or not figures:
            own = replace(style, width=style.width and style.width / count)
            figures = [figure_of(part, own) for part in view.parts]
        wide = style.width or count * max(figure.get_figwidth() for figure in figures)
        tall = [figure.get_figheight() for figure in figures]
        rows = [max(tall[start : start + count]) for start in range(0, len(tall), count)]
        layouts.append((abs(math.log(wide / sum(rows) / PANELS_ASPECT)), count, wide, rows, figures))
    _, count, wide, rows, figures = min(layouts)
    share, gap = min(wide / paper.LEAST_SHEET, 1.0), -paper.GAP  # the parts have gaps of their own
    whole = paper.sheet(view, wide / share, sum(rows) / share, (0.0, 0.0, gap, gap)).figure
    fit_width(whole, wide)
    whole.subfigs.extend(figures)
    for number, figure in enumerate(figures):
        place = number % count * wide / count, sum(rows[number // count :]) - figure.get_figheight()
        box = figure.bbox_inches  # in which everything stands; it moves by whole dots of a PNG
        box.set_points(box.get_points() + np.floor(np.array(place) * DPI + 1e-6) / DPI)
    return whole


FIGURE_FUNCTIONS: dict[type, Callable[[Any, Style], Figure]] = {
    Heatmap: maps.heatmap_figure,
    Grid: maps.grid_figure,
    RoleMap: maps.role_figure,
    TokenView: charts.token_figure,
    HeadMap: maps.head_map_figure,
    DistanceMap: maps.distance_figure,
    HeadDistances: maps.distances_figure,
    HeadPair: maps.pair_figure,
    HeadRow: maps.row_figure,
    Terms: charts.terms_figure,
    Curves: charts.curves_figure,
    Stack: charts.stack_figure,
    SoundMap: charts.sound_map_figure,
    LayerGraph: charts.graph_figure,
    Panels: panels_figure,
}
"""The drawing function of each view."""

FORMATS = PICTURES
DPI = 150  # default dots per inch of a PNG

SETTINGS = {
    "text.parse_math": False,
    "svg.hashsalt": "attnscope",
    "svg.fonttype": "none",  # text stays text: it can be found, read aloud, and set in the reader's fonts
    "pdf.fonttype": 42,  # letters stay text, and fonts are TrueType for publishers that refuse type 3
    "axes.formatter.use_locale": False,
}


def save_image(
    view: Drawable, path: str | Path, *, dpi: float = DPI, source: str = "", **look: Any
) -> list[str]:
    """Write a view as an image in the format that the suffix names; returns warnings.

    ``source``, ASCII, says in the file where the picture comes from; ``look`` is that of ``styled``. Raises
    ``OutputError``, and ``SelectionError`` for a colour map or font.
    """
    path = Path(path)
    form = path.suffix.lower().removeprefix(".")
    if form not in FORMATS:
        named = f"{path.suffix!r} is not an image format" if path.suffix else "its name has no suffix"
        raise OutputError(f"cannot write {path}: {named}; there are {', '.join(FORMATS)}")
    with drawing(view, **look) as (figure, warnings):
        write_whole(path, encode(figure, form, dpi, view, source))
    return warnings


def encode(
    figure: Figure, form: str, dpi: float = DPI, view: Drawable | None = None, source: str = ""
) -> bytes:
    """The bytes of a figure in one of ``FORMATS``, with its ``source`` inside; the same for the same figure.

    An SVG and a PDF have the title of the ``view``, and its description for those who cannot see it.
    """
    for part in figure.subfigs:
        part.set_dpi(dpi if form in ("png", "jpg") else 72)  # the others count in points
    if form in ("png", "jpg"):
        canvas: Any = figure.canvas
        figure.set_dpi(dpi)
        canvas.draw()
        return (encode_png if form == "png" else encode_jpeg)(canvas, dpi, source)
    title, described = (clean(text) for text in describe(view)) if view is not None else ("", "")
    buffer, undated = io.BytesIO(), {"svg": "Date", "pdf": "CreationDate"}[form]
    words = {"Source": source}
    if form == "pdf":
        words = {"Title": title, "Subject": described, "Keywords": source}
    known = {name: text for name, text in words.items() if text}
    figure.savefig(buffer, format=form, dpi=max(dpi, 300), metadata={undated: None, **known})
    if form == "pdf" or view is None:
        return buffer.getvalue()
    begin, tag, rest = buffer.getvalue().partition(b"<svg ")
    inside = f"<title>{html.escape(title)}</title><desc>{html.escape(described)}</desc>"
    attributes, end, content = rest.partition(b">")
    return b"".join([begin, tag, b'role="img" ', attributes, end, inside.encode(), content])


def encode_png(canvas: Any, dpi: float, source: str = "") -> bytes:
    """A canvas as a PNG without transparency or dates, so that bytes are reproducible.

    Rows of a picture mostly repeat the row above, so each is written as the difference from it, PNG's
    filter 2. PIL tries all five filters on each row, which takes three times as long and packs no better.
    """
    pixels = np.asarray(canvas.buffer_rgba())  # [row, column, channel]
    height, width = pixels.shape[:2]
    rows = np.full((height, 1 + 3 * width), 2, np.uint8)  # the filter's number, then the differences
    for channel in range(3):
        rows[0, 1 + channel :: 3] = pixels[0, :, channel]
        np.subtract(pixels[1:, :, channel], pixels[:-1, :, channel], out=rows[1:, 1 + channel :: 3])
    dots, buffer = round(dpi / 0.0254), io.BytesIO()  # dots per metre
    buffer.write(b"\x89PNG\r\n\x1a\n")
    putchunk(buffer, b"IHDR", struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0))  # 8 bits, RGB
    putchunk(buffer, b"pHYs", struct.pack(">2IB", dots, dots, 1))
    if source:
        putchunk(buffer, b"tEXt", b"Source\0" + source.encode("ascii"))
    putchunk(buffer, b"IDAT", zlib.compress(rows.data, 1))
    putchunk(buffer, b"IEND", b"")
    return buffer.getvalue()


def encode_jpeg(canvas: Any, dpi: float, source: str = "") -> bytes:
    """A canvas as a JPEG, its letters sharp."""
    buffer = io.BytesIO()
    pixels = np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])
    how = {"quality": 95, "subsampling": 0, "dpi": (round(dpi), round(dpi)), "comment": source}
    Image.fromarray(pixels).save(buffer, "jpeg", **how)
    return buffer.getvalue()


@contextmanager
def drawing(view: Drawable, **look: Any) -> Iterator[tuple[Figure, list[str]]]:
    """The figure of a view in the look of ``styled``, to be saved in the block; and warnings."""
    with styled(view, **look) as (style, warnings):
        figure = figure_of(view, style)
        if style.annotate and not figure.findobj(lambda part: part.get_gid() == maps.WEIGHT_TEXT):
            raise OutputError("weights do not fit: --annotate needs one head, few tokens and a large picture")
        if isinstance(view, Heatmap) and style.width is not None:
            warnings += paper.note_labels(figure, view.weights.keys)
        yield figure, warnings


@contextmanager
def styled(
    view: Drawable,
    *,
    cmap: str | None = None,
    width: float | None = None,
    font: str | None = None,
    annotate: bool = False,
) -> Iterator[tuple[Style, list[str]]]:
    """How to draw a view in the block, where settings are matplotlib's own, with ours; and warnings.

    ``width`` is that of the whole picture in inches (default: whatever is readable), ``font`` a preferred
    family; ``annotate`` writes the weights into the cells of one head. Raises ``SelectionError``.
    """
    fonts, warnings = paper.families(texts_of(view), font)
    with matplotlib.rc_context(), python_warnings.catch_warnings():
        python_warnings.filterwarnings("ignore", "Glyph .* missing from")  # reported once, by script
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS | {"font.family": fonts})
        if width is not None and width < paper.LEAST_SHEET:  # hinting would widen letters of two points
            matplotlib.rcParams["text.hinting"] = "none"
        yield Style(width, cmap or "", annotate), warnings


def texts_of(part: Any) -> Iterator[str]:
    """Every text that a view, or a part of one, may show."""
    if isinstance(part, (str, Place)):
        yield part if isinstance(part, str) else part.label
    elif isinstance(part, (tuple, list)):
        yield from chain.from_iterable(map(texts_of, part))
    elif is_dataclass(part):
        yield from chain.from_iterable(texts_of(getattr(part, each.name)) for each in fields(part))


def figure_of(view: Drawable, style: Style) -> Figure:
    """A view as a figure, as wide as the style says; call and save it inside ``styled``."""
    if not isinstance(view, Panels):  # whose parts have maps of their own
        signed = isinstance(view, (Terms, LayerGraph)) or getattr(view, "signed", False)
        style = replace(style, cmap=choose_map(style.cmap, signed=signed))
    figure = FIGURE_FUNCTIONS[type(view)](view, style)
    if style.width is not None:
        fit_width(figure, style.width)
    return figure


class Album:
    """Saves many heads like ``save_image``, to the same bytes, but draws in full only one of each look.

    Heads of one text differ only in cells, title, readings, notes and the ends of their scale. Labels,
    frame and colour bar of a PNG are drawn for the first one and copied for the others.
    """

    def __init__(self, dpi: float = DPI, **look: Any) -> None:
        self._dpi, self._look = dpi, look
        self._sheets = deque[SharedSheet](maxlen=6)  # heads of one text differ in their notes, too

    def save(self, view: Drawable, path: str | Path) -> list[str]:
        """Write one view as an image; returns warnings. Raises what ``save_image`` raises."""
        if not isinstance(view, Heatmap) or Path(path).suffix.lower() != ".png":
            return save_image(view, path, dpi=self._dpi, **self._look)
        with styled(view, **self._look) as (style, warnings):
            # what two heads must have in common to share a sheet, besides their line counts
            axes, fonts = (view.weights.queries, view.weights.keys), matplotlib.rcParams["font.family"]
            fixed = [(reading.name, reading.baseline, reading.unit) for reading in view.readings]
            kind = (view.scale == "row", view.signed, bool(view.masked.any()), view.written, view.bar)
            looks = (axes, style, fonts, fixed, kind)
            shared = next((each for each in self._sheets if each.fits(view, looks)), None)
            if shared is None:
                shared = SharedSheet(view, style, looks, self._dpi)
                self._sheets.append(shared)
            write_whole(path, shared.png(view))
        return warnings


class SharedSheet:
    """A drawn heatmap whose cells, title, readings, notes and scale ends can be exchanged."""

    def __init__(self, view: Heatmap, style: Style, looks: Hashable, dpi: float) -> None:
        self.figure = figure_of(view, style)
        self.figure.set_dpi(dpi)
        # inches of a sheet before it was fitted to the requested width
        sizes = [(float(text.get_fontsize()), text.get_gid()) for text in self.figure.texts]
        shrunk = [size / paper.SIZES[gid] for size, gid in sizes if gid in paper.SIZES]
        self._wide = float(self.figure.get_figwidth()) / (shrunk[0] if shrunk else 1.0)
        self._looks, self._lines = looks, self._count_lines(view)
        axes, changing = self.figure.axes[0], (paper.TITLE, paper.SUBTITLE, paper.NOTES, paper.VALUE)
        self._image = axes.images[0]
        beside = self.figure.axes[-1].texts  # of the colour bar
        self._texts = [*(text for text in self.figure.texts if text.get_gid() in changing), *beside]
        self._changing: list[Artist] = [self._image, *axes.spines.values(), *self._texts]
        canvas: Any = self.figure.canvas
        for artist in self._changing:
            artist.set_visible(False)
        canvas.draw()
        self._ground = canvas.copy_from_bbox(self.figure.bbox)
        for artist in self._changing:
            artist.set_visible(True)

    def fits(self, view: Heatmap, looks: Hashable) -> bool:
        """Whether everything else of a head would look the same here."""
        return self._looks == looks and self._lines == self._count_lines(view)

    def png(self, view: Heatmap) -> bytes:
        """The image of a fitting head, identical to that of ``save_image``."""
        values, ends = (reading.texts[0] for reading in view.readings), maps.scale_ticks(view)
        texts = [*self._blocks(view), *values, *(text for _, text in ends)]
        for artist, text in zip(self._texts, texts, strict=True):
            artist.set_text(text)
        self._image.set_clim(*((0, 1) if view.scale == "row" else view.limits))
        canvas: Any = self.figure.canvas
        canvas.restore_region(self._ground)
        self._image.set_data(maps.image_values(view))
        for changed in self._changing:
            self.figure.draw_artist(changed)
        return encode_png(canvas, self.figure.dpi)

    def _blocks(self, view: Heatmap) -> list[str]:
        """The existing ones of title, subtitle and notes, in lines."""
        title = paper.wrap_title(view.title, paper.LARGE, self._wide)
        subtitle = paper.wrap_title(view.subtitle, paper.BELOW, self._wide)
        notes = "\n".join(paper.note_lines(maps.notes_below(view), self._wide))
        return [block for block in (title, subtitle, notes) if block]

    def _count_lines(self, view: Heatmap) -> Hashable:
        return bool(view.title), bool(view.subtitle), [block.count("\n") for block in self._blocks(view)]
