"""Heads that are modules of their own: the entries of a module list that attend to one and the same input.

A list of heads is told from a list of layers by what its entries are given: heads get one tensor, layers
get each other's output. Single-head attention inside a list is therefore held until the next entry
starts or the module around the list ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from attnscope.capture.hooks.modules import Call
from attnscope.capture.rows.found import Found
from attnscope.capture.rows.scores import JoinedHeads


@dataclass(frozen=True, eq=False)
class Pending:
    """A single head that waits for its siblings."""

    found: Found
    name: str
    entry: str  # the list's entry that it ran in
    given: Tensor | None  # what that entry was given


@dataclass(eq=False)
class SingleHeads:
    """Holds single heads by the list that they are in, and releases them joined or one by one."""

    release: Callable[[Pending], None]
    held: dict[str, list[Pending]] = field(default_factory=dict)

    def hold(self, calls: Sequence[Call], name: str, found: Found) -> bool:
        """Hold one found head if it ran inside an entry of a module list; say whether it did."""
        for outer, call in zip(reversed(calls[:-1]), reversed(calls), strict=False):
            parent, _, index = call.name.rpartition(".")
            if index.isdigit() and isinstance(_child(outer, parent), nn.ModuleList):
                self.held.setdefault(parent, []).append(Pending(found, name, call.name, call.first))
                return True
        return False

    def entered(self, call: Call) -> None:
        """A module starts: lists beside it are over, and heads that got another input were layers."""
        parent, _, _ = call.name.rpartition(".")
        for path, group in list(self.held.items()):
            outside = not call.name.startswith(f"{path}.")
            if outside or (path == parent and any(held.given is not call.first for held in group)):
                self._flush(path)

    def left(self, call: Call) -> None:
        """A module ends: the lists inside it are complete."""
        for parent in [held for held in self.held if not call.name or held.startswith(f"{call.name}.")]:
            self._flush(parent)

    def flush(self) -> None:
        """Release all that is held."""
        for parent in list(self.held):
            self._flush(parent)

    def _flush(self, parent: str) -> None:
        group = self.held.pop(parent)
        first = group[0].found
        alike = all(_size(pending.found) == _size(first) for pending in group)
        one_each = len({pending.entry for pending in group}) == len(group)
        if len(group) > 1 and alike and one_each:
            joined = JoinedHeads(tuple(p.found.read for p in group), tuple(1 for _ in group))
            count = len(group)
            found = replace(first, heads=count, key_heads=count, read=joined)
            self.release(replace(group[0], found=found, name=parent))
        else:
            for pending in group:
                self.release(pending)


def _child(outer: Call, path: str) -> nn.Module | None:
    """The module at ``path`` of the whole model, seen from a module that is or surrounds its owner."""
    prefix = outer.name + "." if outer.name else ""
    if not path.startswith(prefix):
        return None
    module: nn.Module | None = outer.module
    for part in path[len(prefix) :].split("."):
        module = getattr(module, part, None)
    return module


def _size(found: Found) -> tuple[int, int, int]:
    return found.batch, found.queries, found.keys
