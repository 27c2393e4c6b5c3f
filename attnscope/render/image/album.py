"""Many heads as images, only one of which is drawn in full.

Heads of one text differ only in cells, title, readings, notes and the ends of their scale. Labels, frame
and colour bar of a PNG are drawn for the first one and copied for the others. The files are identical to
those of ``save_image``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.render.image import draw, sheet
from attnscope.render.image.maps import image_values, notes_below, scale_ticks
from attnscope.storage.files import write_whole
from attnscope.views import Drawable
from attnscope.views.heatmap import Heatmap

if TYPE_CHECKING:
    from matplotlib.artist import Artist


SHEETS = 6  # cached sheets: heads of one text differ in their notes, too


@dataclass(eq=False)
class Album:
    """Saves pictures like ``save_image``; remembers what the next ones can share."""

    dpi: float = draw.DPI
    cmap: str | None = None
    width: float | None = None
    font: str | None = None
    _sheets: deque[SharedSheet] = field(default_factory=partial(deque, maxlen=SHEETS), repr=False)

    def save(self, view: Drawable, path: str | Path) -> list[str]:
        """Write one view as an image; returns warnings. Raises what ``save_image`` raises."""
        if not isinstance(view, Heatmap) or Path(path).suffix.lower() != ".png":
            return draw.save_image(view, path, dpi=self.dpi, cmap=self.cmap, width=self.width, font=self.font)
        fonts, warnings = sheet.families(draw.texts_of(view), self.font)
        style = draw.style_of(view, self.cmap, self.width)
        with draw.settings(fonts):
            shared = next((each for each in self._sheets if each.fits(view, style, fonts)), None)
            if shared is None:
                shared = SharedSheet(view, style, fonts, self.dpi)
                self._sheets.append(shared)
            write_whole(path, shared.png(view))
        return warnings


class SharedSheet:
    """A drawn heatmap whose cells, title, readings, notes and scale ends can be exchanged."""

    def __init__(self, view: Heatmap, style: sheet.Style, fonts: list[str], dpi: float) -> None:
        self.figure = draw.figure_of(view, style)
        self.figure.set_dpi(dpi)
        # inches of a sheet before it was fitted to the requested width
        known = [(float(text.get_fontsize()), text.get_gid()) for text in self.figure.texts]
        shrunk = [size / sheet.SIZES[gid] for size, gid in known if gid in sheet.SIZES]
        self._wide = float(self.figure.get_figwidth()) / (shrunk[0] if shrunk else 1.0)
        self._looks, self._lines = _looks(view, style, fonts), self._count_lines(view)
        axes = self.figure.axes[0]
        self._image = axes.images[0]
        self._texts = [
            *(
                text
                for text in self.figure.texts
                if text.get_gid() in (sheet.TITLE, sheet.SUBTITLE, sheet.NOTES, sheet.VALUE)
            ),
            *self.figure.axes[-1].texts,  # beside the colour bar
        ]
        self._changing: list[Artist] = [*axes.spines.values(), *self._texts]
        canvas: Any = self.figure.canvas
        for artist in (self._image, *self._changing):
            artist.set_visible(False)
        canvas.draw()
        self._ground = canvas.copy_from_bbox(self.figure.bbox)
        for artist in (self._image, *self._changing):
            artist.set_visible(True)

    def fits(self, view: Heatmap, style: sheet.Style, fonts: list[str]) -> bool:
        """Whether everything else of a head would look the same here."""
        return self._looks == _looks(view, style, fonts) and self._lines == self._count_lines(view)

    def png(self, view: Heatmap) -> bytes:
        """The image of a fitting head, identical to that of ``save_image``."""
        told = [
            *self._blocks(view),
            *(reading.texts[0] for reading in view.readings),
            *(text for _, text in scale_ticks(view)),
        ]
        for artist, text in zip(self._texts, told, strict=True):
            artist.set_text(text)
        self._image.set_clim(*((0, 1) if view.scale == "row" else view.limits))
        canvas: Any = self.figure.canvas
        canvas.restore_region(self._ground)
        self._image.set_data(image_values(view))
        for changed in (self._image, *self._changing):
            self.figure.draw_artist(changed)
        return draw.encode_png(canvas, self.figure.dpi)

    def _blocks(self, view: Heatmap) -> list[str]:
        """The existing ones of title, subtitle and notes, in lines."""
        titles = [
            sheet.wrap_title(text, size, self._wide)
            for text, size in ((view.title, sheet.LARGE), (view.subtitle, sheet.BELOW))
            if text
        ]
        notes = "\n".join(sheet.note_lines(notes_below(view), self._wide))
        return [*titles, notes] if notes else titles

    def _count_lines(self, view: Heatmap) -> Hashable:
        blocks = [block.count("\n") for block in self._blocks(view)]
        return bool(view.title), bool(view.subtitle), blocks


def _looks(view: Heatmap, style: sheet.Style, fonts: list[str]) -> Hashable:
    """What two heads must have in common to share a sheet, besides their line counts."""
    told = [(reading.name, reading.baseline, reading.unit) for reading in view.readings]
    looks = (view.scale == "row", view.signed, bool(view.masked.any()), style, fonts, view.written, told)
    return (view.weights.queries, view.weights.keys, *looks)
