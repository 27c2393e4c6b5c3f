"""A picture, and the attention between one place and each of its patches."""

from __future__ import annotations

from dataclasses import dataclass

from attnscope.axes.weights import Array


@dataclass(frozen=True, eq=False)
class Overlay:
    """What a place looks at in a picture, and which patches look at it.

    ``looks_at`` and ``looked_at_by`` hold a weight a patch, ``[patch row, patch column]``; either is ``None``
    where there is no such row or column. ``patch`` is the place itself, ``None`` for a special token;
    ``name`` tells the picture from others, ``verbs`` say what the two maps are.
    """

    pixels: Array  # [row, column, 3], uint8
    looks_at: Array | None  # [patch row, patch column]
    looked_at_by: Array | None  # [patch row, patch column]
    patch: tuple[int, int] | None = None
    name: str = ""
    verbs: tuple[str, str] = ("looks at", "is looked at by")

    @property
    def maps(self) -> tuple[tuple[str, Array], ...]:
        """Each map that there is, with the words that lead to it."""
        both = zip(self.verbs, (self.looks_at, self.looked_at_by), strict=True)
        return tuple((verb, weights) for verb, weights in both if weights is not None)
