"""What a model saw or heard, and where its tokens are in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from attnscope.axes.places import HEARD
from attnscope.models import ModelInput
from attnscope.models.inputs import Heard, Picture
from attnscope.views.scene import Part, Scene


def find_scene(prepared: ModelInput) -> Scene | None:
    """The picture or the spectrogram that was read; ``None`` for a text, and for a sound without bands."""
    if prepared.picture is not None:
        return Scene(prepared.picture.pixels, dict(_parts(prepared.picture)))
    if prepared.heard is not None:
        return _spectrogram(prepared.heard)
    return None


def _parts(picture: Picture) -> Iterator[tuple[int, Part]]:
    """The part of each token, by the boxes of the tokens or else by the grid."""
    finest = [token.id for token in picture.tokens if not token.special]
    if not picture.boxes and picture.grid is not None:
        rows, columns = picture.grid
        for number, id_ in enumerate(finest):
            row, column = divmod(number, columns)
            yield id_, Part(column / columns, row / rows, (column + 1) / columns, (row + 1) / rows)
        return
    extent = np.array(_extent(picture, finest)).reshape(2, 2)  # [corner, x and y]
    for id_, box in picture.boxes.items():
        shares = (np.array(box).reshape(2, 2) - extent[0]) / (extent[1] - extent[0])
        left, top, right, bottom = np.clip(shares, 0, 1).ravel().tolist()
        if left < right and top < bottom:
            yield id_, Part(left, top, right, bottom, not finest or id_ in finest)


def _extent(picture: Picture, finest: list[int]) -> tuple[float, float, float, float]:
    """What the pixels show, in those of the boxes: the finest tokens where these tile it, or else all."""
    if not finest:
        rows, columns = picture.pixels.shape[:2]
        return 0, 0, columns, rows
    boxes = np.array([picture.boxes[id_] for id_ in finest])
    left, top = boxes[:, :2].min(0)
    right, bottom = boxes[:, 2:].max(0)
    return float(left), float(top), float(right), float(bottom)


def _spectrogram(heard: Heard) -> Scene | None:
    if heard.bands is None:
        return None
    bands = heard.bands[::-1, : heard.frames]  # [band, frame], low tones at the bottom
    low, high = bands.min(), bands.max()
    levels = (bands - low) / (high - low if high > low else 1)
    grey = np.rint(255 * levels).astype(np.uint8)
    edges = np.linspace(0, 1, heard.frames + 1)
    parts: Mapping[int, Part] = {
        HEARD + frame: Part(start, 0, stop, 1)
        for frame, (start, stop) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))
    }
    return Scene(np.repeat(grey[..., None], 3, -1), parts, heard=True)
