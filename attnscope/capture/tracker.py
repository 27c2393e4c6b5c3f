"""What follows a pass: a recording is an ordered list of trackers, all told of the same moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscope.capture.hooks.modules import Call
from attnscope.capture.lineage.functions import Seen
from attnscope.capture.rows.capture import Capture

if TYPE_CHECKING:
    from attnscope.capture.lineage.layout import QueryKeyOrigin
    from attnscope.capture.recorder import Recorder


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


class Tracker:
    """Follows one subject through a recording; at a moment that it does not override it does nothing.

    Trackers ask each other through ``recorder.of``. One that is taken out of the list is told of no moment,
    so it knows nothing, and the others run without what it would have told them.
    """

    def __init__(self, recorder: Recorder) -> None:
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
