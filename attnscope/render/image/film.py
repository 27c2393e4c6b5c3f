"""Several pictures after each other, as one animated image."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

from attnscope.render.image.draw import DPI, drawing, encode
from attnscope.storage.files import write_whole
from attnscope.views import Drawable

SHOWN = 1200
"""Milliseconds that each picture stays."""


def save_film(
    views: Iterable[Drawable],
    path: str | Path,
    *,
    dpi: float = DPI,
    cmap: str | None = None,
    width: float | None = None,
    font: str | None = None,
) -> list[str]:
    """Write views as an APNG that shows one after the other for ever; return what to warn of.

    Smaller pictures stand in the upper left corner of the largest. Options and errors: see ``save_image``.
    """
    from PIL import Image

    frames, said = [], dict[str, None]()
    for view in views:
        with drawing(view, cmap=cmap, width=width, font=font) as (figure, warnings):
            frames.append(Image.open(io.BytesIO(encode(figure, "png", dpi))))
            said |= dict.fromkeys(warnings)
    size = max(frame.width for frame in frames), max(frame.height for frame in frames)
    sheets = [Image.new("RGB", size, "white") for _ in frames]
    for sheet, frame in zip(sheets, frames, strict=True):
        sheet.paste(frame)
    buffer = io.BytesIO()
    # an APNG is a PNG that holds several pictures
    sheets[0].save(buffer, "PNG", save_all=True, append_images=sheets[1:], duration=SHOWN, loop=0)
    write_whole(path, buffer.getvalue())
    return list(said)
