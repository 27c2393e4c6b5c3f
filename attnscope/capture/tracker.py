"""What follows a pass: a recording is an ordered list of trackers, all told of the same moments."""

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

    ``origin`` is where its queries and keys come from, None where a function said which axes are which;
    ``softmax`` the number of the softmax that its weights come from, 0 of a kernel.
    """

    capture: Capture
    name: str
    calls: tuple[Call, ...]
    origin: QueryKeyOrigin | None = None
    softmax: int = 0


class Pass(ABC):
    """Where a recording is, as trackers see it, and what they may tell it.

    ``seen`` counts attention calls and gates, ``captured`` the calls alone, and ``placed`` what was asked for
    where it comes from. ``frames`` are the attention functions of transformers that run.
    """

    record: Record
    stack: ModuleStack
    frames: list[Frame]
    seen: int
    captured: int
    placed: int
    rests: bool  # whether what runs needs no lineage
    batch_first: bool = False  # whether it is known that texts are the first axis of what the model is given

    def __init__(self) -> None:
        self._made: dict[type[Tracker], Tracker] = {}
        self.frames, self.rests = [], False
        self.seen = self.captured = self.placed = 0

    def of(self, kind: type[T]) -> T:
        """The tracker of a kind; one that is not in the list is told nothing, and knows nothing."""
        if kind not in self._made:
            self._made[kind] = kind(self)
        return cast(T, self._made[kind])

    @property
    def listens(self) -> bool:
        """Whether the model is running, and not an observer."""
        return bool(self.stack.calls) and not is_quiet()

    @property
    def path(self) -> tuple[str, ...]:
        """The modules that are running, outermost first, without those that hold one function."""
        return tuple(call.name for call in self.stack.calls if not isinstance(call.module, PLAIN))

    @property
    def owner(self) -> str:
        """The innermost of them."""
        return self.path[-1] if self.path else ""

    def call_of(self, name: str) -> Call | None:
        """The innermost call of a module that is running."""
        return next((call for call in reversed(self.stack.calls) if call.name == name), None)

    @abstractmethod
    def see_weighing(self, weighing: Weighing, result: Tensor) -> bool:
        """The result of a softmax met its values; False if these are no tokens."""

    @abstractmethod
    def take(
        self, capture: Capture | Unknown, name: str, origin: QueryKeyOrigin | None = None, softmax: int = 0
    ) -> None:
        """Take what a module showed to the observers, or note what cannot be shown."""

    @abstractmethod
    def take_kernel(self, capture: Capture, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Take what one of torch's kernels computed, whose first arguments are queries and keys."""

    @abstractmethod
    def pass_on(self, taken: Taken, after: Tracker | None = None) -> None:
        """Tell the trackers behind one, or all, and the observers if none of them holds it."""


class Tracker:
    """Follows one subject through a recording; at a moment that it does not override it does nothing.

    Trackers ask each other through ``recorder.of``. One that is taken out of the list is told of no moment,
    so it knows nothing, and the others run without what it would have told them.
    """

    def __init__(self, recorder: Pass) -> None:
        self.recorder = recorder

    def begin(self) -> None:
        """A pass over the model begins."""

    def enter(self, call: Call) -> None:
        """A module starts."""

    def see(self, seen: Seen) -> bool | None:
        """A function of torch ran; True: the trackers behind this one need not know."""

    def take(self, taken: Taken) -> bool | None:
        """Attention was captured; True: this tracker holds it, or knows it already."""

    def leave(self, call: Call, output: object) -> None:
        """A module ends."""

    def finish(self) -> None:
        """The recording ends."""


T = TypeVar("T", bound=Tracker)
