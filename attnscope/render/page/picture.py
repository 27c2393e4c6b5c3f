"""A scene's picture as text that a page can hold."""

from __future__ import annotations

import base64
import io

from attnscope.views.scene import Scene

SIDE = 640
"""Pixels of a picture's longer side, at most."""

LOSSLESS = 1 << 18
"""Bytes that a PNG may take; what is larger becomes a JPEG."""

HEARD = (1024, 128)
"""Frames and bands of a spectrogram, at most."""


def data_uri(scene: Scene) -> tuple[str, int, int]:
    """The pixels drawn anew, so that nothing of the file but its pixels is in the page; and their size."""
    from PIL import Image

    image = Image.fromarray(scene.pixels)
    if scene.heard:
        size = min(image.width, HEARD[0]), min(image.height, HEARD[1])
        image = image.resize(size, Image.Resampling.BOX)
    else:
        image.thumbnail((SIDE, SIDE))
    for kind, options in (("png", {"optimize": True}), ("jpeg", {"quality": 90})):
        target = io.BytesIO()
        image.save(target, kind, **options)
        if target.tell() <= LOSSLESS:
            break
    return f"data:image/{kind};base64,{base64.b64encode(target.getvalue()).decode()}", *image.size
