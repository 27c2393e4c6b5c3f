"""Trackers: a recording is an ordered list of them, all of which receive the same events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from torch import Tensor

from attnscope.capture.hooks.modules import PLAIN, Call, ModuleStack
from attnscope.capture.lineage.functions import Seen
from attnscope.capture.lineage.nodes import QueryKeyOrigin
from attnscope.capture.observer import is_quiet
from attnscope.capture.record import Record
from attnscope.capture.rows.capture import Capture, Unknown
from attnscope.capture.rows.kernels import Frame
from attnscope.capture.rows.weighing import Weighing


@dataclass(frozen=True, eq=False)
class Taken:
    """Attention that was captured at a module, on its way to the observers.

    ``origin`` is where its queries and keys come from, None if a function's axes are known; ``softmax``
    is the number of the softmax behind its weights, 0 for a kernel.
    """

    capture: Capture
    name: str
    calls: tuple[Call, ...]
    origin: QueryKeyOrigin | None = None
    softmax: int = 0


class Pass(ABC):
    """The state of a recording, as trackers see it, and what they can report to it.

    ``seen`` counts attention calls and gates, ``captured`` the calls alone, and ``placed`` the requested
    origins. ``frames`` are the attention functions of transformers that run.
    """

    record: Record
    stack: ModuleStack
    frames: list[Frame]
    seen: int
    captured: int
    placed: int
    rests: bool  # whether the running code needs no lineage
    batch_first: bool = False  # whether texts are known to be the first axis of the model's input

    def __init__(self) -> None:
        self._made: dict[type[Tracker], Tracker] = {}
        self.frames, self.rests = [], False
        self.seen = self.captured = self.placed = 0

    def of(self, kind: type[T]) -> T:
        """The tracker of a class; one that is not in the list gets no events, and knows nothing."""
        if kind not in self._made:
            self._made[kind] = kind(self)
        return cast(T, self._made[kind])

    @property
    def listens(self) -> bool:
        """Whether the model is running, and not an observer."""
        return bool(self.stack.calls) and not is_quiet()

    @property
    def path(self) -> tuple[str, ...]:
        """The running modules, outermost first, without those that hold one function."""
        return tuple(call.name for call in self.stack.calls if not isinstance(call.module, PLAIN))

    @property
    def owner(self) -> str:
        """The innermost of them."""
        return self.path[-1] if self.path else ""

    def call_of(self, name: str) -> Call | None:
        """The innermost call of a running module."""
        return next((call for call in reversed(self.stack.calls) if call.name == name), None)

    @abstractmethod
    def see_weighing(self, weighing: Weighing, result: Tensor) -> bool:
        """The result of a softmax met its values; False if these are not tokens."""

    @abstractmethod
    def take(
        self, capture: Capture | Unknown, name: str, origin: QueryKeyOrigin | None = None, softmax: int = 0
    ) -> None:
        """Pass what a module showed to the observers, or note why it cannot be shown."""

    @abstractmethod
    def take_kernel(self, capture: Capture, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Take what one of torch's kernels computed; its first arguments are queries and keys."""

    @abstractmethod
    def pass_on(self, taken: Taken, after: Tracker | None = None) -> None:
        """Pass it to the trackers after one, or to all, and to the observers unless a tracker holds it."""


class Tracker:
    """Follows one subject through a recording; events that it does not override do nothing.

    Trackers ask each other through ``recorder.of``. One that is not in the list gets no events and knows
    nothing, and the others run without its information.
    """

    def __init__(self, recorder: Pass) -> None:
        self.recorder = recorder

    def begin(self) -> None:
        """A pass over the model begins."""

    def enter(self, call: Call) -> None:
        """A module starts."""

    def see(self, seen: Seen) -> bool | None:
        """A torch function ran; True: the trackers after this one need not know."""

    def take(self, taken: Taken) -> bool | None:
        """Attention was captured; True: this tracker holds it, or knows it already."""

    def leave(self, call: Call, output: object) -> None:
        """A module ends."""

    def finish(self) -> None:
        """The recording ends."""


T = TypeVar("T", bound=Tracker)
