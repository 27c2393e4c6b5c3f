"""A pass in which captured attention answers as in the first one, and every module is compared with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnscope.analysis.audit.first import First
from attnscope.analysis.audit.mend import Share, mend, project
from attnscope.analysis.audit.mixer import sorts
from attnscope.analysis.audit.moves import Place, copy_tensors, differ, tensors_in, with_tensors
from attnscope.analysis.audit.paths import is_inside
from attnscope.analysis.audit.steps import Steps
from attnscope.capture import Record
from attnscope.capture.hooks.interface import attention_functions
from attnscope.capture.lineage.functions import SOFTMAX
from attnscope.capture.observer import is_quiet, quietly
from attnscope.capture.rows.kernels import aten
from attnscope.errors import ModelError

KERNELS = {*aten.KERNELS, "flex_attention", "multi_head_attention_forward"}
"""Functions of torch whose first argument is the queries, and whose result has a row for each."""

RowOf = Callable[[Tensor], Tensor]
"""From which queries moved, [..., query], to the rows of the result."""


@dataclass(eq=False)
class Frame:
    """A module that is running: its path, its how-many-th call, and where what it was given moved."""

    path: str
    call: int
    moved: list[Tensor]


class Hold(TorchFunctionMode):
    """Keeps what a first pass shows, or holds its attention, and the modules ``held``, to what was kept.

    A call is captured if the recording grew while it ran, and shows it. Held is all but the rows whose own
    query moved: they are of the token that is another one. Queries that no token moves, because the model
    learned them, stand for tokens of their own: of the calls ``fresh``, row ``number`` is moved by hand.
    ``footprint`` is what moved in the first result of another shape than what it was made of: patches.
    ``steps`` look at the single functions of some modules.
    """

    def __init__(
        self,
        root: nn.Module,
        first: First,
        held: Collection[str] | None = None,
        fresh: Collection[tuple[str, int]] = (),
        number: int = 0,
        steps: Steps | None = None,
    ) -> None:
        super().__init__()
        self.root, self.first, self.keeps = root, first, held is None
        self.fresh, self.number, self.steps = fresh, number, steps
        self.held = {*(held or ()), *first.modules}
        self.footprint: Tensor | None = None
        self._record = Record()
        self._busy = 0  # inside a captured call, or at work ourselves
        self._frames = [Frame("", 0, [])]
        self._modules: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._softmaxes: Counter[str] = Counter()

    @contextmanager
    def watch(self, record: Record) -> Iterator[None]:
        """Keep or hold what the recording captures while the block runs."""
        self._record = record
        with ExitStack() as stack:
            for path, module in self.root.named_modules():
                for handle in (
                    module.register_forward_pre_hook(self._entering(path), with_kwargs=True),
                    module.register_forward_hook(self._leaving),
                ):
                    stack.callback(handle.remove)
            stack.enter_context(attention_functions(self))
            stack.enter_context(self)
            yield
        if self.keeps:
            self.first.modules |= {path for path in record.calls if not self._calls[path]}
            self.first.hide(record)

    # attention

    def kernel_call(
        self, name: str, kernel: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an attention function of transformers, or answer for it."""
        return self._answer("attention", lambda asked: asked.transpose(1, 2), kernel, args, kwargs)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one of torch's functions, or answer for it."""
        name = getattr(func, "__name__", "").partition(".")[0]
        return self._answer(name, Tensor.detach if name in KERNELS else None, func, args, kwargs or {})

    def _answer(
        self, name: str, turn: RowOf | None, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        if self._busy or is_quiet():
            return func(*args, **kwargs)
        captured = len(self._record.calls)
        self._busy += 1
        try:
            step = self._step(name, args, kwargs)
            result = func(*args, **kwargs)
            if len(self._record.calls) == captured or self._record.calls[-1] in self.first.hidden:
                step(result)
                return self._noted(name, result)
            owner = self._record.calls[-1]
            key = owner, self._calls[owner]
            self._calls[owner] += 1
            with quietly():
                given = [*tensors_in((args, kwargs))]
                if self.keeps:
                    self.first.calls[key] = copy_tensors(given), copy_tensors(result)
                    self.first.written |= {owner} if turn is None else set()
                    return result
                return self._held(key, turn, given, result)
        finally:
            self._busy -= 1

    def _step(self, name: str, args: Any, kwargs: dict[str, Any]) -> Callable[[Any], None]:
        """Look at what a function is given, and, by what is returned here, at what it made."""
        steps, path = self.steps, self._frames[-1].path
        if steps is None or path not in steps.paths:
            return lambda result: None
        given = [*tensors_in((args, kwargs))]
        with self._working():
            place = steps.enter(path, name, given)

        def leave(result: Any) -> None:
            with self._working():
                steps.leave(place, result, given)

        return leave

    def _noted(self, name: str, result: Any) -> Any:
        """What a function returned that captured nothing.

        Models return weights beside their output, so a softmax that is captured later returns what it did
        before, written into the tensor that the recording follows.
        """
        path = self._frames[-1].path
        if next(tensors_in(result), None) is not None or sorts({name}):
            self.first.functions.setdefault(path, set()).add(name)
        if name not in SOFTMAX or not isinstance(result, Tensor):
            return result
        key = path, self._softmaxes[path]
        self._softmaxes[path] += 1
        with quietly():
            if self.keeps:
                self.first.softmaxes[key] = result.clone()
            elif any(path == owner or is_inside(path, owner) for owner in self.first.written):
                before = self.first.softmaxes.get(key, result)
                if before.shape == result.shape:
                    result.copy_(before)
        return result

    def _held(self, key: tuple[str, int], turn: RowOf | None, given: list[Tensor], result: Any) -> Any:
        """The first pass's result, with the rows of this one whose queries, which come first, moved."""
        if key not in self.first.calls:
            raise ModelError("the model attends more often when one token is another: it cannot be audited")
        earlier, before = self.first.calls[key]
        held, now = [*tensors_in(before)], [*tensors_in(result)]
        if [each.shape for each in (*earlier, *held)] != [each.shape for each in (*given, *now)]:
            return copy_tensors(before)
        moved = [torch.zeros_like(each, dtype=torch.bool) for each in now]
        if turn is not None:
            asked = differ(earlier[0], given[0]).any(-1)  # [batch, head, query], or [query, batch]
            if bool(asked.any()):
                self.first.asked.add(key)
            elif key in self.fresh:
                position = 0 if asked.ndim == 2 else -1
                asked.movedim(position, 0)[self.number : self.number + 1] = True
                now = [each + each.abs().amax() + 1 for each in now]
            rows = turn(asked)
            moved = [
                rows[..., None].expand_as(each) if each.shape[:-1] == rows.shape else none
                for each, none in zip(now, moved, strict=True)
            ]
        return with_tensors(result, map(mend, moved, now, held))

    # modules

    def _entering(self, path: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            place = Place(path, self._modules[path], "in")
            self._modules[path] += 1
            with self._working():
                moved = [] if self.keeps else self.first.moves.settle(place, (args, kwargs))
                if self.keeps:
                    self.first.moves.keep(place, (args, kwargs))
            self._frames.append(Frame(path, place.call, moved))

        return enter

    def _leaving(self, module: nn.Module, args: Any, output: Any) -> Any:
        frame = self._frames.pop()
        place = Place(frame.path, frame.call, "out")
        with self._working():
            if self.keeps:
                self.first.moves.keep(place, output)
                return None
            moved = self.first.moves.compare(place, output)
            before = self.first.moves.before.get(place, [])
            now = [*tensors_in(output)]
            if self.footprint is None and len(moved) == 1 and frame.moved and not [*module.children()]:
                recut = moved[0].shape != frame.moved[0].shape
                self.footprint = moved[0] if recut and bool(moved[0].any()) else None
            if not moved or all(map(torch.equal, before, now)):
                return None
            if frame.path in self.held:
                moved = [
                    self._own((place, index), frame, *each)
                    for index, each in enumerate(zip(moved, now, before, strict=True))
                ]
            return with_tensors(output, map(mend, moved, now, before))

    def _own(
        self, key: tuple[Place, int], frame: Frame, moved: Tensor, now: Tensor, before: Tensor
    ) -> Tensor:
        """Which of the numbers that moved stand for the token that is another one, where tokens are mixed."""
        if key in self.first.owners:
            return (self.first.owners[key] == self.number) & moved
        share = Share([project(each) for each in frame.moved], (now - before).abs() * moved)
        self.first.shares.setdefault(key, {})[self.number] = share
        return torch.zeros_like(moved)

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Our own arithmetic is neither recorded nor held; without modes it costs half as much."""
        self._busy += 1
        try:
            with quietly(), torch._C.DisableTorchFunction():
                yield
        finally:
            self._busy -= 1
