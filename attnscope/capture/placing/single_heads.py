"""Calls that are parts of one attention: heads in modules of their own, steps of a loop, repeated weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from attnscope.attention import AttentionCall, HeldRows
from attnscope.capture.hooks.functions import quietly
from attnscope.capture.hooks.modules import Call
from attnscope.capture.lineage.functions import JOINING, TorchCall
from attnscope.capture.record import is_within
from attnscope.capture.rows.capture import CapturedCall
from attnscope.capture.rows.scores import JoinedHeads, ScoredRows, join_differences, sampled
from attnscope.capture.rows.steps import SteppedRows
from attnscope.capture.tracker import Pass, Tracker


class SingleHeads(Tracker):
    """Holds single heads by their list, and passes them on joined or one by one.

    Heads in modules of their own share one input, while layers in a list get each other's output. So what one
    head computed inside a list waits until the next entry starts, or the module around the list ends.
    """

    def __init__(self, recorder: Pass) -> None:
        super().__init__(recorder)
        # with the list's entry that each ran in, and its input, copied: something may be added in place
        self.waiting: dict[str, list[tuple[CapturedCall, str, Tensor | None]]] = {}

    def on_capture(self, capture: CapturedCall) -> bool:
        """Hold one head if it ran inside an entry of a module list; returns whether it did."""
        if capture.heads > 1:
            return False
        for call in reversed(capture.modules[1:]):
            parent, _, index = call.name.rpartition(".")
            if index.isdigit() and isinstance(self.recorder.stack.root.get_submodule(parent), nn.ModuleList):
                if not self._have_input(parent, call.first):
                    self._show(parent)  # a layer that was held back itself, and comes after the next began
                states = None if call.first is None else call.first.clone()
                self.waiting.setdefault(parent, []).append((capture, call.name, states))
                return True
        return False

    def enter(self, call: Call) -> None:
        """Lists beside a starting module are over, and entries with another input were layers."""
        parent, _, _ = call.name.rpartition(".")
        for path in list(self.waiting):
            if not is_within(call.name, path) or (path == parent and not self._have_input(path, call.first)):
                self._show(path)

    def on_torch_call(self, call: TorchCall) -> None:
        """Outputs of all entries of a list are joined around it: it is complete."""
        for parent in list(self.waiting) if call.name in JOINING else ():
            entries = self.recorder.stack.root.get_submodule(parent)._modules
            around = parent.rpartition(".")[0] == self.recorder.owner
            if around and len(self.waiting[parent]) == len(entries):
                self._show(parent)

    def leave(self, call: Call, output: object) -> None:
        """The lists inside a module are complete when it ends."""
        for parent in [path for path in self.waiting if is_within(path, call.name)]:
            self._show(parent)

    def finish(self) -> None:
        """Pass on all that is held."""
        for parent in list(self.waiting):
            self._show(parent)

    def _have_input(self, parent: str, tensor: Tensor | None) -> bool:
        """Whether all held heads of a list received these numbers."""
        return all(
            each is tensor if each is None or tensor is None else torch.equal(each, tensor)
            for _, _, each in self.waiting.get(parent, ())
        )

    def _show(self, parent: str) -> None:
        """Pass the heads of a list on, as one attention if they are."""
        heads, entries, _ = zip(*self.waiting.pop(parent), strict=True)
        sizes = {(head.batch, head.queries, head.keys) for head in heads}
        if len(heads) > 1 and len(set(entries)) == len(heads) and len(sizes) == 1:
            heads = (replace(_join(heads), name=parent),)
        with quietly():
            for head in heads:
                self.recorder.emit(replace(head, modules=tuple(self.recorder.stack.calls)), self)


def _join(heads: Sequence[CapturedCall]) -> CapturedCall:
    values = [head.values for head in heads if head.values is not None]
    return replace(
        heads[0],
        heads=len(heads),
        key_heads=len(heads),
        read=JoinedHeads(tuple(head.read for head in heads), (1,) * len(heads)),
        values=torch.cat(values, 1) if len(values) == len(heads) else None,  # [batch, head, key, size]
        difference=join_differences([head.difference for head in heads], heads[0].dtype),
    )


class Repeats(Tracker):
    """Remembers the attention that a module's call showed last."""

    _latest: tuple[Call, AttentionCall, Tensor] | None = None

    def on_capture(self, capture: CapturedCall) -> bool:
        """Whether a module applied the same weights to other values a second time in one call.

        A few rows are compared, too: the module may have written new numbers into the same tensors.
        """
        before, module = self._latest, self.recorder.call_of(capture.name)
        call = capture.read.call if isinstance(capture.read, (ScoredRows, HeldRows)) else None
        if module is None or not isinstance(call, AttentionCall):
            return False
        _, rows = sampled(capture.read, len(capture.queries))
        self._latest = module, call, rows
        if before is None or before[0] is not module:
            return False
        same = before[1].query is call.query and before[1].key is call.key
        return same and torch.equal(rows, before[2])

    def leave(self, call: Call, output: object) -> None:
        """Free a module's tensors when its call ends."""
        if self._latest is not None and self._latest[0] is call:
            self._latest = None


class Loops(Tracker):
    """Joins the steps of a loop in which a module asks the same keys one query after another.

    They are rows of one attention, as in a recurrent decoder. Functions of transformers run in no such loop.
    """

    def __init__(self, recorder: Pass) -> None:
        super().__init__(recorder)
        self._steps: dict[str, list[CapturedCall]] = {}
        self._keys: dict[str, Tensor] = {}

    def on_capture(self, capture: CapturedCall) -> bool:
        """Hold a call of one query until the loop can have ended: until the module around it does."""
        read, name, origin = capture.read, capture.name, capture.origin
        keys = read.call.key if isinstance(read, ScoredRows) else capture.values
        single = len(capture.queries) == 1 < len(capture.keys)
        if not single or capture.separate_axes or (origin and origin.axes_known):  # separate: learned
            keys = None
        before = self._keys.get(name)
        if before is not None and (
            keys is None or before.shape != keys.shape or not torch.equal(before, keys)
        ):
            self._show(name)
        if keys is None:
            return False
        if name not in self._keys:
            self._keys[name] = keys.clone()
        if isinstance(read, ScoredRows):  # the module may overwrite its own
            call = replace(read.call, query=read.call.query.clone(), key=self._keys[name])
            capture = replace(capture, read=ScoredRows(call))
        self._steps.setdefault(name, []).append(capture)
        return True

    def leave(self, call: Call, output: object) -> None:
        """The loops in a module end with it."""
        for name, steps in list(self._steps.items()):
            modules = steps[0].modules
            outer = [each for each in modules if is_within(name, each.name) and each.name != name]
            if call is (outer or modules)[-1]:
                self._show(name)

    def begin(self) -> None:
        """Pass on all that is held."""
        for name in list(self._steps):
            self._show(name)

    finish = begin

    def _show(self, name: str) -> None:
        """Pass the steps on, as one attention if they are several."""
        steps, _ = self._steps.pop(name), self._keys.pop(name)
        first, count = steps[0], len(steps)
        if count > 1:
            reads = tuple(step.read for step in steps)
            first = replace(
                first,
                queries=range(count),
                read=SteppedRows(reads, tuple(range(count + 1)), (0,) * count, len(first.keys)),
                statistics=None,
                is_cross=True,
                difference=join_differences([step.difference for step in steps], first.dtype),
            )
        with quietly():
            self.recorder.emit(first, self)
