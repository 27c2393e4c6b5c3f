"""Modules whose attention needs no lineage, because others of their make showed it whole.

Layers of one make attend in one way. Where all attention of a layer went through functions that say
themselves which axes are texts and heads, what runs in the next layers of that make is not followed, for
following costs as much as all other watching.
"""

from __future__ import annotations

from collections.abc import Hashable
from weakref import WeakKeyDictionary

from torch import nn

from attnscope.capture.hooks.modules import Call


class Settled:
    """Knows the makes of such modules, and whether the pass is inside of one."""

    def __init__(self) -> None:
        self._makes: WeakKeyDictionary[nn.Module, Hashable] = WeakKeyDictionary()
        self._settled: set[Hashable] = set()
        self._inside: Call | None = None
        self._captured = self._placed = 0
        self._before: dict[Call, tuple[int, int]] = {}  # both counts when a module that runs started

    @property
    def rests(self) -> bool:
        """Whether nothing has to be followed here."""
        return self._inside is not None

    def begin_pass(self) -> None:
        """Nothing runs."""
        self._inside = None
        self._before.clear()

    def count(self, placed: bool) -> None:
        """A call was captured; ``placed`` says whether its lineage was asked."""
        self._captured += 1
        self._placed += placed

    def ask(self) -> None:
        """Lineage was asked, though nothing was captured."""
        self._placed += 1

    def enter(self, call: Call) -> None:
        """A module starts."""
        self._before[call] = self._captured, self._placed
        if self._inside is None and self._settled and self._make(call.module) in self._settled:
            self._inside = call

    def leave(self, call: Call) -> None:
        """A module ends, and is settled if it attended and its lineage was never asked."""
        captured, placed = self._before.pop(call, (self._captured, 0))
        if self._inside is call:
            self._inside = None
        if self._captured > captured and self._placed == placed:
            self._settled.add(self._make(call.module))

    def _make(self, module: nn.Module) -> Hashable:
        """The classes of all modules in a module, in their order."""
        if module not in self._makes:
            self._makes[module] = tuple(type(part) for part in module.modules())
        return self._makes[module]
