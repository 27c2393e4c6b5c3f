"""Many heads as images, of which one is drawn in full.

Heads of one text differ in their cells, title and caption only. Labels, frame and colour bar of a PNG
are drawn for the first one and put under each of the others. The files are those that ``save`` writes.
"""

from __future__ import annotations

import io
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.render.files import write_whole
from attnscope.render.image.draw import (
    DPI,
    METADATA,
    PACKING,
    Drawable,
    figure_of,
    save,
    settings,
    style_of,
    texts,
)
from attnscope.render.image.fonts import families
from attnscope.render.image.maps import shown
from attnscope.render.image.sheet import CAPTION, SUBTITLE, TITLE, Style, sentences, wrapped
from attnscope.views.heatmap import Heatmap

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure


@dataclass(eq=False)
class Album:
    """Saves pictures, with the options of ``save``; remembers what the last one may share with the next."""

    dpi: float = DPI
    cmap: str | None = None
    width: float | None = None
    font: str | None = None
    _last: Sheet | None = field(default=None, repr=False)

    def save(self, view: Drawable, path: str | Path) -> list[str]:
        """Write one view as an image; return what to warn of. Raises what ``save`` raises."""
        if not isinstance(view, Heatmap) or Path(path).suffix.lower() != ".png":
            return save(view, path, dpi=self.dpi, cmap=self.cmap, width=self.width, font=self.font)
        fonts, warnings = families(texts(view), self.font)
        style = style_of(view, self.cmap, self.width)
        with settings(fonts):
            if self._last is None or not self._last.fits(view, style, fonts):
                self._last = Sheet(view, style, fonts, self.dpi)
            write_whole(path, self._last.png(view))
        return warnings


class Sheet:
    """A drawn heatmap of which cells, title and caption can be exchanged."""

    def __init__(self, view: Heatmap, style: Style, fonts: list[str], dpi: float) -> None:
        self.figure = figure_of(view, style)
        self.figure.set_dpi(dpi)
        self._shared = _shared(view, style, fonts, self.figure)
        axes = self.figure.axes[0]
        self._image = axes.images[0]
        self._texts = {text.get_gid(): text for text in self.figure.texts}
        self._changing: list[Artist] = [self._image, *axes.spines.values(), *self.figure.texts]
        canvas: Any = self.figure.canvas
        for artist in self._changing:
            artist.set_visible(False)
        canvas.draw()
        self._ground = canvas.copy_from_bbox(self.figure.bbox)
        for artist in self._changing:
            artist.set_visible(True)

    def fits(self, view: Heatmap, style: Style, fonts: list[str]) -> bool:
        """Whether everything else of a head would look as it does here."""
        return self._shared == _shared(view, style, fonts, self.figure)

    def png(self, view: Heatmap) -> bytes:
        """The image of a head that fits, as ``save`` would write it."""
        from matplotlib.image import imsave

        self._image.set_data(shown(view))
        for gid, text in _changing_texts(view, self.figure).items():
            if gid in self._texts:
                self._texts[gid].set_text(text)
        canvas: Any = self.figure.canvas
        canvas.restore_region(self._ground)
        for artist in self._changing:
            self.figure.draw_artist(artist)
        buffer = io.BytesIO()
        imsave(
            buffer,
            canvas.buffer_rgba(),
            format="png",
            origin="upper",
            dpi=self.figure.dpi,
            metadata=METADATA["png"],
            pil_kwargs=PACKING,
        )
        return buffer.getvalue()


def _changing_texts(view: Heatmap, figure: Figure) -> dict[str, str]:
    lines = wrapped(sentences(view.readings, view.notes), figure.get_size_inches()[0])
    return {TITLE: view.title, SUBTITLE: view.subtitle, CAPTION: "\n".join(lines)}


def _shared(view: Heatmap, style: Style, fonts: list[str], figure: Figure) -> Hashable:
    """What two heads must have alike to stand on one sheet; how many lines each text takes is part of it."""
    lines = tuple(bool(text) and text.count("\n") + 1 for text in _changing_texts(view, figure).values())
    places = (view.weights.queries, view.weights.keys)
    hatched = bool(view.masked.any())
    return (*places, view.scale, view.signed, view.limits, hatched, style, tuple(fonts), lines)
