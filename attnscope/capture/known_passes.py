"""Passes that repeat earlier ones function by function, and so need not be followed again.

Following a pass costs more than a small model's pass itself, and over a corpus the same program runs many
times. Its trace is the sequence of torch functions, each with the functions that its tensors came from and
with its other arguments. If followed passes of one trace showed all of their attention through kernels, in
axes of texts, heads and positions, the next one does the same. Whole numbers among the arguments may be the
number of texts or of tokens: each is what it was in all passes so far. Another pass runs again, followed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
from torch import Tensor

from attnscope.attention import RowSource
from attnscope.capture.hooks.functions import Function
from attnscope.capture.hooks.modules import Call
from attnscope.capture.rows.capture import CapturedCall
from attnscope.errors import AttnscopeError

Result = TypeVar("Result")
CallAxes: TypeAlias = tuple[tuple[bool, bool | None, int | None], ...]
"""For each call its ``separate_axes``, ``is_cross`` and ``offset``."""

ITEMS = {"__getitem__", "__setitem__"}
# results depend on index values: one pass says nothing about the next
INDEXING = ITEMS | {"gather", "index_select", "take", "take_along_dim", "masked_select"}
REORDERING = {"index_put_", "index_copy_", "scatter_", "masked_scatter_", "sort", "argsort", "topk"}
MOST_MISSES = 16  # after so many passes that ran twice, all are followed, and none is kept


class UnknownPass(AttnscopeError):
    """A pass that was not followed ran something new: it must run again, and be followed."""


@dataclass(eq=False)
class Program:
    """Followed passes of one trace: what their whole numbers may be."""

    first: np.ndarray  # the whole numbers of the first pass  [number]
    candidates: np.ndarray  # that number, the texts, the tokens, or all tokens of all texts  [4, number]

    def agrees(self, trace: PassTrace) -> np.ndarray:
        """Which of the four each whole number of a pass equals.  -> bool [4, number]"""
        agrees: np.ndarray = self._values(trace.shape) == trace.numbers
        return agrees

    def determines(self, shape: tuple[int, ...]) -> bool:
        """Whether each whole number of a pass of this shape is known."""
        four = np.ma.array(self._values(shape), mask=~self.candidates)
        return bool((four.max(0) == four.min(0)).all())

    def _values(self, shape: tuple[int, ...]) -> np.ndarray:
        texts, tokens = shape
        return np.stack(np.broadcast_arrays(self.first, texts, tokens, texts * tokens))


@dataclass(eq=False)
class KnownPasses:
    """What is known about the passes of one model over a corpus; safe for several threads."""

    programs: dict[tuple[object, ...], Program] = field(default_factory=dict)
    call_axes: CallAxes = ()  # by all of them
    misses: int = 0

    def run(self, work: Callable[[], Result]) -> Result:
        """The result of ``work``, which makes one recording; it runs again if its pass is not known."""
        if self.programs and self.misses < MOST_MISSES:
            try:
                return self._run(work, True)
            except UnknownPass:
                self.misses += 1
        return self._run(work, False)

    def _run(self, work: Callable[[], Result], trusted: bool) -> Result:
        token = _use.set((self, trusted))
        try:
            return work()
        finally:
            _use.reset(token)

    @staticmethod
    def trace() -> PassTrace | None:
        """The empty trace of a new recording, if its passes are compared."""
        used = _use.get()
        return None if used is None or used[0].misses >= MOST_MISSES else PassTrace(*used)


_use: ContextVar[tuple[KnownPasses, bool] | None] = ContextVar("known passes", default=None)


@dataclass(eq=False)
class PassTrace:
    """What a pass has run so far; ``trusted``: it is not followed, since it may be known."""

    known: KnownPasses
    trusted: bool
    repeatable: bool = True  # everything that ran is in the trace
    shape: tuple[int, ...] = ()  # texts, tokens
    numbers: Any = field(default_factory=list)
    call_axes: CallAxes = ()
    captured: int = 0  # how many calls kernels computed
    last: RowSource | None = None  # the attention of the last of them; earlier ones may be freed
    _steps: list[object] = field(default_factory=list)
    _makers: dict[int, int] = field(default_factory=dict)  # by the identity of a tensor, rewritten with it

    def begin(self, root: Call) -> None:
        """A pass begins with this call of the whole model; a trace covers one."""
        shape = () if root.first is None else tuple(root.first.shape)
        self.repeatable &= len(shape) >= 2 and not self.shape
        self.shape = shape[:2]
        programs = self.known.programs.values()
        if self.trusted and not (self.repeatable and any(each.determines(self.shape) for each in programs)):
            raise UnknownPass

    def add(self, name: str, func: Function, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """A function ran; its tensors are known by its number, its other results are not."""
        results = args[:1] if name == "__setitem__" else result
        results = results if isinstance(results, (tuple, list)) else [results]
        tensors = [part for part in results if isinstance(part, Tensor)]
        if not tensors:
            return
        self._steps.append((func, self._part(args), self._part(kwargs) if kwargs else None))
        for part in tensors:
            self._makers[id(part)] = len(self._steps)
        if name in INDEXING or name in REORDERING:
            self.repeatable &= name in INDEXING and not _is_indexed(name, args, kwargs)

    def show(self, capture: CapturedCall) -> CapturedCall:
        """What observers get of a call; where the pass is not followed, from what earlier ones showed."""
        number = len(self.call_axes)
        if self.trusted and number < len(self.known.call_axes):
            separate, cross, offset = self.known.call_axes[number]
            capture = replace(capture, separate_axes=separate, is_cross=cross, offset=offset)
        self.call_axes = (*self.call_axes, (capture.separate_axes, capture.is_cross, capture.offset))
        self.repeatable &= self.captured == number + 1 and capture.read is self.last
        return capture

    def settle(self) -> None:
        """Make the pass known; raises ``UnknownPass`` if it was not followed, and is no known one."""
        self.numbers, trace = np.array(self.numbers), tuple(self._steps)
        self.repeatable &= len(self.call_axes) == self.captured
        program = self.known.programs.get(trace)
        if self.trusted:
            alike = self.repeatable and program is not None and self.call_axes == self.known.call_axes
            if program is None or not alike or not (program.agrees(self) | ~program.candidates).all():
                raise UnknownPass
        elif self.repeatable and self.call_axes == (self.known.call_axes or self.call_axes):
            program = program or Program(self.numbers, np.ones((4, len(self.numbers)), bool))
            program.candidates = program.candidates & program.agrees(self)
            if program.candidates.any(0).all():
                self.known.call_axes, self.known.programs[trace] = self.call_axes, program

    def _part(self, value: Any) -> object:
        if isinstance(value, Tensor):
            return Tensor, self._makers.get(id(value), 0), value.ndim, value.dtype
        kind = type(value)
        if kind is int:
            self.numbers.append(value)
            return kind
        if isinstance(value, (tuple, list)):
            return tuple([self._part(part) for part in value])
        if kind is dict:
            return tuple([(name, self._part(part)) for name, part in value.items()])
        if kind is slice:
            return self._part((value.start, value.stop, value.step))
        if kind is type or (kind.__hash__ is not None and not gc.is_tracked(value)):  # it holds nothing
            return value
        # a function, a mask: it may hold tensors, and is another one in the next pass
        self.repeatable = False
        return kind


def _is_indexed(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether states are indexed by a computed index; masks may be."""
    base, index, *others = list(args) + list(kwargs.values())
    if name not in ITEMS:
        indices = [index, *others]
    else:
        indices = list(index) if isinstance(index, (tuple, list)) else [index]
    return any(isinstance(each, Tensor) for each in indices) and base.is_floating_point()
