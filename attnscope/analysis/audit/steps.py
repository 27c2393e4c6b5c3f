"""Which of torch's functions mixed tokens, in the modules that do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from attnscope.analysis.audit.moves import Moves, Place


@dataclass(eq=False)
class Steps:
    """The functions that ran in the modules ``paths`` themselves, not in modules inside of them.

    The first pass is the model's own and keeps what each was given and what it made; later ones, each with
    another token, are compared with it.
    """

    paths: Collection[str]
    moves: Moves = field(default_factory=Moves)
    names: dict[tuple[str, int], str] = field(default_factory=dict)
    keeps: bool = True
    _calls: Counter[str] = field(default_factory=Counter)

    def begin(self, keeps: bool) -> None:
        """Begin a pass."""
        self.keeps = keeps
        self._calls.clear()

    def enter(self, path: str, name: str, given: Sequence[Tensor]) -> Place:
        """A function is about to run in one of the modules."""
        place = Place(path, self._calls[path], "in")
        self._calls[path] += 1
        self.names[path, place.call] = name
        self._look(place, given)
        return place

    def leave(self, place: Place, result: Any, given: Sequence[Tensor]) -> None:
        """It has run; functions may write into what they were given."""
        self._look(place._replace(end="out"), (result, given))

    def find_mixing(self) -> dict[str, set[str]]:
        """The names of those that were given numbers of single tokens, and made mixed ones, by module."""
        mixing: dict[str, set[str]] = {}
        for place in self.moves.mixed:
            if place.end == "out" and place._replace(end="in") not in self.moves.mixed | self.moves.unclear:
                mixing.setdefault(place.module, set()).add(self.names[place.module, place.call])
        return mixing

    def _look(self, place: Place, value: Any) -> None:
        if self.keeps:
            self.moves.keep(place, value)
        else:
            self.moves.compare(place, value)
