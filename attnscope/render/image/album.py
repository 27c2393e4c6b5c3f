"""Many heads as images, of which one is drawn in full.

Heads of one text differ in their cells, title and readings only. Labels, frame and colour bar of a PNG
are drawn for the first one and put under each of the others. The files are those that ``save_image`` writes.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.axes import Array
from attnscope.render.image.draw import (
    DPI,
    encode_png,
    figure_of,
    save_image,
    settings,
    style_of,
    texts_of,
)
from attnscope.render.image.maps import image_values
from attnscope.render.image.sheet import (
    BELOW,
    LARGE,
    NAME,
    SMALL,
    SUBTITLE,
    TITLE,
    VALUE,
    Style,
    families,
    value_of,
    wrap_title,
)
from attnscope.storage.files import write_whole
from attnscope.views import Drawable
from attnscope.views.heatmap import Heatmap

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure


@dataclass(eq=False)
class Album:
    """Saves pictures as ``save_image`` does; remembers what the last one may share with the next."""

    dpi: float = DPI
    cmap: str | None = None
    width: float | None = None
    font: str | None = None
    _last: SharedSheet | None = field(default=None, repr=False)

    def save(self, view: Drawable, path: str | Path) -> list[str]:
        """Write one view as an image; return what to warn of. Raises what ``save_image`` raises."""
        if not isinstance(view, Heatmap) or Path(path).suffix.lower() != ".png":
            return save_image(view, path, dpi=self.dpi, cmap=self.cmap, width=self.width, font=self.font)
        fonts, warnings = families(texts_of(view), self.font)
        style = style_of(view, self.cmap, self.width)
        with settings(fonts):
            if self._last is None or not self._last.fits(view, style, fonts):
                self._last = SharedSheet(view, style, fonts, self.dpi)
            write_whole(path, self._last.png(view))
        return warnings


class SharedSheet:
    """A drawn heatmap of which cells, title and readings can be exchanged."""

    def __init__(self, view: Heatmap, style: Style, fonts: list[str], dpi: float) -> None:
        self.figure = figure_of(view, style)
        self.figure.set_dpi(dpi)
        self._wide = _natural_width(self.figure)
        self._sheet_key = _sheet_key(view, style, fonts, self._wide)
        axes = self.figure.axes[0]
        self._image = axes.images[0]
        self._texts = [text for text in self.figure.texts if text.get_gid() in (TITLE, SUBTITLE, VALUE)]
        self._changing: list[Artist] = [*axes.spines.values(), *self._texts]
        canvas: Any = self.figure.canvas
        for artist in (self._image, *self._changing):
            artist.set_visible(False)
        canvas.draw()
        self._ground = canvas.copy_from_bbox(self.figure.bbox)
        for artist in (self._image, *self._changing):
            artist.set_visible(True)
        self._box, self._cells = _cells_of_pixels(self.figure, self._image)

    def fits(self, view: Heatmap, style: Style, fonts: list[str]) -> bool:
        """Whether everything else of a head would look as it does here."""
        return self._sheet_key == _sheet_key(view, style, fonts, self._wide)

    def png(self, view: Heatmap) -> bytes:
        """The image of a head that fits, as ``save_image`` would write it."""
        for artist, text in zip(self._texts, _changing_texts(view, self._wide), strict=True):
            artist.set_text(text)
        canvas: Any = self.figure.canvas
        canvas.restore_region(self._ground)
        picture = np.asarray(canvas.buffer_rgba()).view(np.uint32)[..., 0]  # a pixel is one number
        colours = self._image.to_rgba(image_values(view), bytes=True).view(np.uint32).ravel()  # [cell]
        np.copyto(picture[self._box], colours[self._cells], where=~view.masked.ravel()[self._cells])
        for changed in self._changing:
            self.figure.draw_artist(changed)
        return encode_png(canvas, self.figure.dpi)


def _cells_of_pixels(figure: Figure, image: Any) -> tuple[tuple[slice, slice], Array]:
    """Where on its canvas an image lies, and which cell each pixel there shows.  -> box, [row, column]

    matplotlib is asked: it draws an image whose colours are the numbers of its cells, and the same with
    all bits turned round, so that the pixels of the image are those in which the two disagree everywhere.
    Later heads are coloured a cell at a time, where matplotlib looks up a colour for every pixel.
    """
    canvas: Any = figure.canvas
    numbers = np.arange(image.get_array().size, dtype=">u4").view(np.uint8).reshape(-1, 4)[:, 1:]
    drawn = []
    for colours in (numbers, ~numbers):
        image.set_data(colours.reshape(*image.get_array().shape[:2], 3))
        figure.draw_artist(image)
        drawn.append(np.array(canvas.buffer_rgba())[..., :3])
    inside = (drawn[0] ^ drawn[1] == 255).all(-1)
    rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
    box = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    return box, drawn[0][box].astype(np.intp) @ [1 << 16, 1 << 8, 1]


def _natural_width(figure: Figure) -> float:
    """Inches of a sheet before it was brought to the width that was asked for."""
    sizes = {TITLE: LARGE, SUBTITLE: BELOW, NAME: SMALL, VALUE: SMALL}
    known = [
        float(text.get_fontsize()) / sizes[gid] for text in figure.texts if (gid := text.get_gid()) in sizes
    ]
    return float(figure.get_figwidth()) / (known[0] if known else 1.0)


def _titles(view: Heatmap, width: float) -> list[str]:
    """Title and subtitle, if there are such, in lines."""
    return [
        wrap_title(text, size, width) for text, size in ((view.title, LARGE), (view.subtitle, BELOW)) if text
    ]


def _changing_texts(view: Heatmap, width: float) -> list[str]:
    """Title and subtitle, if there are such, and the value of each reading."""
    return [*_titles(view, width), *map(value_of, view.readings)]


def _sheet_key(view: Heatmap, style: Style, fonts: list[str], width: float) -> Hashable:
    """What two heads must have alike to stand on one sheet."""
    told = tuple((reading.name, reading.baseline, reading.unit) for reading in view.readings)
    places = (view.weights.queries, view.weights.keys)
    hatched = bool(view.masked.any())
    titles = bool(view.title), *(text.count("\n") for text in _titles(view, width))
    looks = (view.scale, view.signed, view.limits, hatched, style, tuple(fonts))
    return (*places, *looks, view.notes, view.written, titles, told)
