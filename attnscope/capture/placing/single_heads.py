"""Calls that are parts of one attention: heads in modules of their own, steps of a loop, repeated weights."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from attnscope.attention import AttentionCall, HeldRows
from attnscope.capture.hooks.functions import quietly
from attnscope.capture.hooks.modules import Call
from attnscope.capture.lineage.functions import JOINING, Seen
from attnscope.capture.record import is_within
from attnscope.capture.rows.capture import Capture
from attnscope.capture.rows.scores import JoinedHeads, ScoredRows, join_differences, sampled
from attnscope.capture.rows.steps import SteppedRows
from attnscope.capture.tracker import Pass, Taken, Tracker


class SingleHeads(Tracker):
    """Holds single heads by their list, and passes them on joined or one by one.

    Heads in modules of their own share one input, while layers in a list get each other's output. So what one
    head computed inside a list waits until the next entry starts, or the module around the list ends.
    """

    def __init__(self, recorder: Pass) -> None:
        super().__init__(recorder)
        # with the list's entry that each ran in, and its input, copied: something may be added in place
        self.held: dict[str, list[tuple[Taken, str, Tensor | None]]] = {}

    def take(self, taken: Taken) -> bool:
        """Hold one head if it ran inside an entry of a module list; returns whether it did."""
        if taken.capture.heads > 1:
            return False
        for call in reversed(taken.calls[1:]):
            parent, _, index = call.name.rpartition(".")
            if index.isdigit() and isinstance(self.recorder.stack.root.get_submodule(parent), nn.ModuleList):
                if not self._were_given(parent, call.first):
                    self._show(parent)  # a layer that was held back itself, and comes after the next began
                given = None if call.first is None else call.first.clone()
                self.held.setdefault(parent, []).append((taken, call.name, given))
                return True
        return False

    def enter(self, call: Call) -> None:
        """A module starts: lists beside it are over, and entries with another input were layers."""
        parent, _, _ = call.name.rpartition(".")
        for path in list(self.held):
            if not is_within(call.name, path) or (path == parent and not self._were_given(path, call.first)):
                self._show(path)

    def see(self, seen: Seen) -> None:
        """Outputs of all entries of a list are joined around it: it is complete."""
        for parent in list(self.held) if seen.name in JOINING else ():
            around = parent.rpartition(".")[0] == self.recorder.owner
            if around and len(self.held[parent]) == len(
                self.recorder.stack.root.get_submodule(parent)._modules
            ):
                self._show(parent)

    def leave(self, call: Call, output: object) -> None:
        """A module ends: the lists inside it are complete."""
        for parent in [held for held in self.held if is_within(held, call.name)]:
            self._show(parent)

    def finish(self) -> None:
        """Pass on all that is held."""
        for parent in list(self.held):
            self._show(parent)

    def _were_given(self, parent: str, tensor: Tensor | None) -> bool:
        """Whether all held heads of a list received the same numbers."""
        given = [given for _, _, given in self.held.get(parent, ())]
        return all(
            each is tensor if each is None or tensor is None else torch.equal(each, tensor) for each in given
        )

    def _show(self, parent: str) -> None:
        """Pass the heads of a list on, as one attention if they are."""
        shown, entries, _ = zip(*self.held.pop(parent), strict=True)
        sizes = {(one.capture.batch, one.capture.queries, one.capture.keys) for one in shown}
        if len(shown) > 1 and len(set(entries)) == len(shown) and len(sizes) == 1:
            shown = (replace(shown[0], capture=_joined([taken.capture for taken in shown]), name=parent),)
        with quietly():
            for taken in shown:
                self.recorder.pass_on(replace(taken, calls=tuple(self.recorder.stack.calls)), self)


def _joined(heads: list[Capture]) -> Capture:
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

    def __init__(self, recorder: Pass) -> None:
        super().__init__(recorder)
        self._latest: tuple[Call, AttentionCall, Tensor] | None = None

    def take(self, taken: Taken) -> bool:
        """Whether a module weighed other values with the same weights a second time in one call.

        A few rows are compared, too: the module may have written new numbers into the same tensors.
        """
        before, capture, module = self._latest, taken.capture, self.recorder.call_of(taken.name)
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
        """A module's call ends, and its tensors are freed."""
        if self._latest is not None and self._latest[0] is call:
            self._latest = None


class Loops(Tracker):
    """Joins the steps of a loop in which a module asks the same keys one query after another.

    They are rows of one attention, as in a recurrent decoder. Functions of transformers run in no such loop.
    """

    def __init__(self, recorder: Pass) -> None:
        super().__init__(recorder)
        self._held: dict[str, list[Taken]] = {}
        self._keys: dict[str, Tensor] = {}

    def take(self, taken: Taken) -> bool:
        """Hold a call of one query until the loop can have ended: until the module around it does."""
        read, capture, name = taken.capture.read, taken.capture, taken.name
        keys = read.call.key if isinstance(read, ScoredRows) else capture.values
        asks = len(capture.queries) == 1 < len(capture.keys) and not capture.apart  # as a learned query is
        if not asks or (taken.origin and taken.origin.sure):
            keys = None
        known = self._keys.get(name)
        if known is not None and (keys is None or known.shape != keys.shape or not torch.equal(known, keys)):
            self._show(name)
        if keys is None:
            return False
        if name not in self._keys:
            self._keys[name] = keys.clone()
        if isinstance(read, ScoredRows):  # the module may overwrite its own
            call = replace(read.call, query=read.call.query.clone(), key=self._keys[name])
            taken = replace(taken, capture=replace(capture, read=ScoredRows(call)))
        self._held.setdefault(name, []).append(taken)
        return True

    def leave(self, call: Call, output: object) -> None:
        """A module ends, and so do the loops in it."""
        for name, held in list(self._held.items()):
            outer = [each for each in held[0].calls if is_within(name, each.name) and each.name != name]
            if call is (outer or held[0].calls)[-1]:
                self._show(name)

    def begin(self) -> None:
        """Pass on all that is held."""
        for name in list(self._held):
            self._show(name)

    finish = begin

    def _show(self, name: str) -> None:
        """Pass the steps on, as one attention if they are several."""
        steps, _ = self._held.pop(name), self._keys.pop(name)
        first, count = steps[0], len(steps)
        if count > 1:
            reads = tuple(step.capture.read for step in steps)
            rows = SteppedRows(reads, tuple(range(count + 1)), (0,) * count, len(first.capture.keys))
            errors = [step.capture.difference for step in steps]
            capture = replace(
                first.capture,
                queries=range(count),
                read=rows,
                statistics=None,
                crossed=True,
                difference=join_differences(errors, first.capture.dtype),
            )
            first = replace(first, capture=capture)
        with quietly():
            self.recorder.pass_on(first, self)
