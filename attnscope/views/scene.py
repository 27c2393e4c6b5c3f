"""A picture or the spectrogram of a sound, and the part of it that each token stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from attnscope.axes.places import Place
from attnscope.axes.weights import Array


class Part(NamedTuple):
    """What a token stands for, in shares of the whole picture; ``fine`` unless finer parts lie over it."""

    left: float
    top: float
    right: float
    bottom: float
    fine: bool = True


@dataclass(frozen=True, eq=False)
class Scene:
    """What a model saw or heard. ``parts`` are by the ids of tokens; none where they are not known.

    ``heard`` tells a spectrogram, low tones at the bottom, from a picture.
    """

    pixels: Array  # [row, column, 3], uint8
    parts: Mapping[int, Part] = field(default_factory=dict)
    heard: bool = False

    def ids_of(self, place: Place) -> tuple[int, ...]:
        """The tokens of a place that have a part, one or some neighbours."""
        if place.id is None:
            return ()
        ids = range(place.id, place.id + place.stop - place.start)
        return tuple(id_ for id_ in ids if id_ in self.parts)
