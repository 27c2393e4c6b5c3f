"""Where a text's tokens stand in it, and the picture or sound behind tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from attnscope.attention import Token
from attnscope.axes import HEARD
from attnscope.models import ModelInput
from attnscope.models.inputs import Picture
from attnscope.questions.head import loudness
from attnscope.views import Scene, SceneRegion

SPACE = re.compile(r"\s*")

NEAR = 16  # characters that may separate a token from the next, per token not found


def locate_tokens(tokens: Sequence[Token], text: str) -> list[tuple[int, int] | None]:
    """The characters that each token covers: ``None`` for a special one, none if not found.

    Tokens are searched for in order, near the end of the last one, and farther the more were not found
    since: a tokenizer drops spaces, changes some letters, and marks unknown words after their text.
    """
    places: list[tuple[int, int] | None] = []
    at = near = 0
    for token in tokens:
        if token.special:
            places.append(None)
            continue
        spelled = token.text.strip()
        at = SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
        near += NEAR + len(spelled)
        begin = at
        for piece in filter(None, dict.fromkeys((spelled, spelled.partition(" ")[0]))):
            place = text.find(piece, at, at + near)
            if place >= 0:
                begin, at, near = place, place + len(piece), 0
                break
        places.append((begin, at))
    return places


BETWEEN = 0.03  # pixels between pictures, as a share of the largest


def pictures_of(prepared: ModelInput) -> tuple[Picture, ...]:
    """The pictures that were read, or the spectrogram of a sound, whose patches are its moments."""
    heard = prepared.heard
    if heard is None or heard.bands is None:
        return prepared.pictures
    shown = heard.bands[::-1, : heard.frames]  # [band, frame], low frequencies at the bottom, loud ones white
    grey = np.rint(255 * loudness(shown)).astype(np.uint8)
    tokens = tuple(Token("", HEARD + frame) for frame in range(heard.frames))
    return (Picture(np.repeat(grey[..., None], 3, -1), (1, heard.frames), tokens),)


def find_scene(prepared: ModelInput) -> Scene | None:
    """All pictures side by side, or the spectrogram; ``None`` for a text, and a sound without bands."""
    pictures = pictures_of(prepared)
    if not pictures:
        return None
    across = int(np.ceil(np.sqrt(len(pictures))))
    tall, wide = (max(picture.pixels.shape[axis] for picture in pictures) for axis in (0, 1))
    gap = max(1, round(BETWEEN * max(tall, wide))) if len(pictures) > 1 else 0
    down = -(-len(pictures) // across)
    whole = np.zeros((down * (tall + gap) - gap, across * (wide + gap) - gap, 3), np.uint8)
    parts: dict[int, SceneRegion] = {}
    for number, picture in enumerate(pictures):
        row, column = divmod(number, across)
        top, left = row * (tall + gap), column * (wide + gap)
        rows, columns = picture.pixels.shape[:2]
        whole[top : top + rows, left : left + columns] = picture.pixels
        for id_, part in _parts(picture):
            parts[id_] = SceneRegion(
                (left + part.left * columns) / whole.shape[1],
                (top + part.top * rows) / whole.shape[0],
                (left + part.right * columns) / whole.shape[1],
                (top + part.bottom * rows) / whole.shape[0],
                part.fine,
            )
    return Scene(whole, parts, heard=prepared.heard is not None)


def _parts(picture: Picture) -> Iterator[tuple[int, SceneRegion]]:
    """The part of each token, by the boxes of the tokens or by the grid."""
    finest = [token.id for token in picture.tokens if not token.special]
    if not picture.boxes and picture.grid is not None:
        rows, columns = picture.grid
        for number, id_ in enumerate(finest):
            row, column = divmod(number, columns)
            yield id_, SceneRegion(column / columns, row / rows, (column + 1) / columns, (row + 1) / rows)
        return
    first, last = np.zeros(2), np.array(picture.pixels.shape[1::-1])  # of what the boxes are in
    if finest:  # which tile it
        boxes = np.array([picture.boxes[id_] for id_ in finest])
        first, last = boxes[:, :2].min(0), boxes[:, 2:].max(0)
    for id_, box in picture.boxes.items():
        shares = (np.array(box).reshape(2, 2) - first) / (last - first)
        left, top, right, bottom = np.clip(shares, 0, 1).ravel().tolist()
        if left < right and top < bottom:
            yield id_, SceneRegion(left, top, right, bottom, not finest or id_ in finest)
