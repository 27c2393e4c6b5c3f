"""Pictures with the weight that each of their patches has for one token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attnscope.axes import Array, Place
from attnscope.models.inputs import Picture
from attnscope.views import Overlay
from attnscope.views.focus import Edges

MOST = 4
"""Pictures that are drawn beside each other, at most."""


def lay_over(
    pictures: Sequence[Picture],
    place: Place,
    row: tuple[Array, Sequence[Place]] | None,
    column: tuple[Array, Sequence[Place]] | None,
) -> tuple[tuple[Overlay, ...], tuple[str, ...]]:
    """The pictures whose patches stand on an axis, with the weights there, and a note on those left out.

    ``row`` is what the place looks at and ``column`` who looks at it, each a weight for each place.
    """
    made = [overlay for picture in pictures if (overlay := _overlay(picture, place, row, column)) is not None]
    if len(made) <= MOST:
        return tuple(made), ()
    heaviest = np.argsort([-max(map_.sum() for _, map_ in each.maps) for each in made], kind="stable")[:MOST]
    note = f"of {len(made)} pictures, the {MOST} are drawn that have most of its attention"
    return tuple(made[number] for number in sorted(heaviest)), (note,)


def _overlay(
    picture: Picture,
    place: Place,
    row: tuple[Array, Sequence[Place]] | None,
    column: tuple[Array, Sequence[Place]] | None,
) -> Overlay | None:
    looks_at, looked_at_by = (None if each is None else _on_grid(picture, *each) for each in (row, column))
    if picture.grid is None or (looks_at is None and looked_at_by is None):
        return None
    patches = _patches(picture)
    patch = divmod(patches.index(place.id), picture.grid[1]) if place.id in patches else None
    return Overlay(picture.pixels, looks_at, looked_at_by, patch, picture.name)


def _on_grid(picture: Picture, weights: Array, places: Sequence[Place]) -> Array | None:
    """A weight a patch, where all of them are on the axis.  [place] -> [patch row, patch column]"""
    numbers = {place.id: number for number, place in enumerate(places)}
    patches = _patches(picture)
    if picture.grid is None or not numbers.keys() >= set(patches):
        return None
    chosen = weights[[numbers[id_] for id_ in patches]]
    return chosen.reshape(picture.grid) if chosen.any() else None  # a text behind it is seen by no patch


def _patches(picture: Picture) -> list[int]:
    return [token.id for token in picture.tokens if not token.special]


def boxes_of(pictures: Sequence[Picture]) -> Mapping[int, Edges]:
    """Which part of its picture each token stands for, by its id; of frames that share it, the same."""
    return {id_: edges for picture in pictures for id_, edges in picture.boxes.items()}
