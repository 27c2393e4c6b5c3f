"""Which layer number an attention call gets.

Layers count from 0 within a kind. A *stack* is the set of module paths that differ in their numbers
only. The first stack of a kind keeps the number in its paths, if there is exactly one, so that a layer
without attention keeps its number. A later stack of that kind (a second tower, a second attention in
every block) counts on from the end of the stacks before it. Where the path has no number or several
(nested lists, ALBERT's groups), and where a shared module runs again in the same pass, calls get
the next free number. So no two calls of one kind in one pass share a number, but for the pieces of one
module call, which share theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from attnscope.attention import Kind


@dataclass
class LayerNumbers:
    """Hands out layer numbers in one pass over the model; the rule is this file's docstring."""

    _starts: dict[tuple[Kind, str], int] = field(default_factory=dict)
    _ends: dict[Kind, int] = field(default_factory=dict)
    _given: dict[tuple[Kind, str, int], int] = field(default_factory=dict)
    _taken: set[tuple[Kind, int]] = field(default_factory=set)

    def number(self, kind: Kind, name: str, invocation: int, width: int) -> int:
        """The layer of one call of module ``name``, whose module list has ``width`` entries."""
        key = (kind, name, invocation)
        if key not in self._given:
            self._given[key] = self._next(kind, name, width)
            self._taken.add((kind, self._given[key]))
            self._ends[kind] = max(self._ends.get(kind, 0), self._given[key] + 1)
        return self._given[key]

    def _next(self, kind: Kind, name: str, width: int) -> int:
        numbers = [int(part) for part in name.split(".") if part.isdigit()]
        if len(numbers) == 1:
            stack = (kind, ".".join("*" if part.isdigit() else part for part in name.split(".")))
            start = self._starts.setdefault(stack, self._ends.get(kind, 0))
            self._ends[kind] = max(self._ends.get(kind, 0), start + width)
            if (kind, start + numbers[0]) not in self._taken:
                return start + numbers[0]
        return self._ends.get(kind, 0)
