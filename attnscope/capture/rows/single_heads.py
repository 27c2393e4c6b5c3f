"""Heads that are modules of their own: the entries of a module list that attend to one and the same input.

A list of heads differs from a list of layers in what its entries are given: heads get one tensor, layers
get each other's output. Single-head attention inside a list is therefore held until the next entry
starts or the module around the list ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from attnscope.capture.hooks.modules import Call
from attnscope.capture.rows.capture import Capture
from attnscope.capture.rows.proof import join_differences
from attnscope.capture.rows.scores import JoinedHeads


@dataclass(frozen=True, eq=False)
class Pending:
    """A single head that waits for its siblings."""

    capture: Capture
    name: str
    entry: str  # the list's entry that it ran in
    given: Tensor | None  # what that entry was given, copied: a residual may be added to it in place

    def was_given(self, tensor: Tensor | None) -> bool:
        """Whether another entry is given the same numbers."""
        if self.given is None or tensor is None:
            return self.given is tensor
        return torch.equal(self.given, tensor)


@dataclass(eq=False)
class SingleHeads:
    """Holds single heads by the list that they are in, and releases them joined or one by one."""

    release: Callable[[Capture, str], None]
    held: dict[str, list[Pending]] = field(default_factory=dict)

    def hold(self, calls: Sequence[Call], name: str, capture: Capture) -> bool:
        """Hold one head if it ran inside an entry of a module list; say whether it did."""
        for outer, call in zip(reversed(calls[:-1]), reversed(calls), strict=False):
            parent, _, index = call.name.rpartition(".")
            if index.isdigit() and isinstance(_child(outer, parent), nn.ModuleList):
                given = None if call.first is None else call.first.clone()
                self.held.setdefault(parent, []).append(Pending(capture, name, call.name, given))
                return True
        return False

    def enter(self, call: Call) -> None:
        """A module starts: lists beside it are over, and heads that got another input were layers."""
        parent, _, _ = call.name.rpartition(".")
        for path, group in list(self.held.items()):
            outside = not call.name.startswith(f"{path}.")
            if outside or (path == parent and not all(held.was_given(call.first) for held in group)):
                self._flush(path)

    def leave(self, call: Call) -> None:
        """A module ends: the lists inside it are complete."""
        for parent in [held for held in self.held if not call.name or held.startswith(f"{call.name}.")]:
            self._flush(parent)

    def flush(self) -> None:
        """Release all that is held."""
        for parent in list(self.held):
            self._flush(parent)

    def _flush(self, parent: str) -> None:
        group = self.held.pop(parent)
        first = group[0].capture
        alike = all(_size(pending.capture) == _size(first) for pending in group)
        one_each = len({pending.entry for pending in group}) == len(group)
        if len(group) > 1 and alike and one_each:
            joined = JoinedHeads(tuple(p.capture.read for p in group), tuple(1 for _ in group))
            whole = replace(
                first,
                heads=len(group),
                key_heads=len(group),
                read=joined,
                values=_values(group),
                difference=join_differences([held.capture.difference for held in group], first.dtype),
            )
            self.release(whole, parent)
        else:
            for pending in group:
                self.release(pending.capture, pending.name)


def _child(outer: Call, path: str) -> nn.Module | None:
    """The module at ``path`` of the whole model, seen from a module that is or surrounds its owner."""
    prefix = outer.name + "." if outer.name else ""
    if not path.startswith(prefix):
        return None
    module: nn.Module | None = outer.module
    for part in path[len(prefix) :].split("."):
        module = getattr(module, part, None)
    return module


def _size(capture: Capture) -> tuple[int, int, int]:
    return capture.batch, capture.queries, capture.keys


def _values(group: Sequence[Pending]) -> Tensor | None:
    """The values of all heads, where those of each were seen.  -> [batch, head, key, size]"""
    values = [held.capture.values for held in group if held.capture.values is not None]
    return torch.cat(values, 1) if len(values) == len(group) else None
