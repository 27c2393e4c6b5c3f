"""Two texts above each other, token by token, so that what differs stands out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnscope.axes.places import Place
from attnscope.axes.weights import Array, Weights

Step = tuple["Place | None", "Place | None"]
"""A place of the first text and the one of the second that belongs to it; ``None`` where it has none."""


@dataclass(frozen=True)
class AlignedTexts:
    """Two texts in steps, in reading order."""

    steps: tuple[Step, ...]
    title: str = ""
    notes: tuple[str, ...] = ()


def joint(steps: Sequence[Step]) -> tuple[Place, ...]:
    """One axis for both texts: ``cat→dog`` where a token is replaced, ``−cat`` left out, ``+cat`` put in."""
    return tuple(_joint(number, *step) for number, step in enumerate(steps))


def _joint(number: int, one: Place | None, other: Place | None) -> Place:
    if one is None or other is None:
        place = one or other
        assert place is not None
        text = f"{'−' if other is None else '+'}{place.label}"
    else:
        text = one.label if one.text == other.text else f"{one.label}→{other.label}"
    return Place(text, number, number + 1, special=one is not None and one.special)


def joint_difference(maps: tuple[Array, Array], queries: Sequence[Step], keys: Sequence[Step]) -> Weights:
    """The second map minus the first, [pair of queries, pair of keys] each, on the axes of both texts.

    Cells of a token that only one of the texts has are closed, and so are those that are 0 in both,
    which is where a mask closed them.
    """
    rows, columns = ([a is not None and b is not None for a, b in axis] for axis in (queries, keys))
    values = np.zeros((len(queries), len(keys)), np.float32)
    allowed = np.zeros(values.shape, bool)
    cells = np.ix_(rows, columns)
    values[cells] = maps[1] - maps[0]
    allowed[cells] = (maps[0] != 0) | (maps[1] != 0)
    return Weights(values, allowed, joint(queries), joint(keys))
