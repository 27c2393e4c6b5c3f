"""A recording as trackers see it: an ordered list of them, all of which receive the same events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar, cast

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from attnscope.attention import Axis, Kind
from attnscope.capture.hooks.functions import COMPILED, is_quiet, quietly, runs_as_written
from attnscope.capture.hooks.modules import SINGLE_FUNCTIONS, Call, Guard, ModuleStack
from attnscope.capture.known_passes import PassTrace
from attnscope.capture.lineage.functions import TorchCall
from attnscope.capture.lineage.nodes import CallOrigin
from attnscope.capture.placing.kinds import Sites
from attnscope.capture.record import Observer, Record, SiteRecord
from attnscope.capture.rows.capture import CapturedCall, Weighing, is_mapped
from attnscope.capture.rows.kernels import Frame
from attnscope.capture.rows.mixing import MixingRows, NoMatrix
from attnscope.capture.rows.scores import ScoredRows
from attnscope.errors import SizeError
from attnscope.limits import MOST_CALLS


class Pass(ABC):
    """A recording: its state, what trackers can report to it, and what becomes of it."""

    def __init__(
        self,
        model: nn.Module,
        observers: Sequence[Observer],
        axes: Mapping[Kind, tuple[Axis, Axis]],
        trackers: Sequence[type[Tracker]],
        trace: PassTrace | None,
    ) -> None:
        self.model, self.observers, self.trace = model, observers, trace
        self.is_known = trace is not None and trace.trusted  # settled at the end; not shown to trackers
        self.record = Record()
        self.guard = Guard(self.record, lambda: self.owner)
        compiled = partial(self.record.note_change, COMPILED)
        self.stack = ModuleStack(model, self._begin_pass, self._enter, self._leave, compiled, self.guard)
        self.ran: set[str] = set()  # the modules that were called
        self.frames: list[Frame] = []  # the attention functions of transformers that run
        self.mixers = False  # whether what has no softmax or no formula is shown by identity values
        self.lineage_paused = False  # whether the running code needs no lineage
        self.label_lengths = {len(axis) for pair in axes.values() for axis in pair}
        self.events = 0  # attention calls, gates, and modules that were named
        self.captures = self.lineage_uses = 0  # attention calls, and those that needed their lineage
        self._sites, self._step = Sites(model, axes), -1
        self._by_class: dict[type[Tracker], Tracker] = {}
        self.trackers = [self.tracker(kind) for kind in trackers]
        self.active_trackers = [] if self.is_known else self.trackers
        unused = Tracker.on_torch_call
        self.torch_call_trackers = [each for each in self.trackers if type(each).on_torch_call is not unused]

    def tracker(self, kind: type[T]) -> T:
        """The tracker of a class; one that is not in the list gets no events, and knows nothing."""
        if kind not in self._by_class:
            self._by_class[kind] = kind(self)
        return cast(T, self._by_class[kind])

    def free(self) -> None:
        """Free all tensors, which else live until garbage is collected: the parts refer to each other."""
        trackers = self._by_class, self.trackers, self.active_trackers, self.torch_call_trackers
        for group in (*trackers, self.frames, self.stack.names):
            group.clear()
        self._sites.padding.clear()
        self.observers, self.trace = (), None

    # where the pass is

    @property
    def listens(self) -> bool:
        """Whether the model is running, and not an observer."""
        return bool(self.stack.calls) and not is_quiet()

    @property
    def path(self) -> tuple[str, ...]:
        """The running modules, outermost first, without those that hold one function."""
        return tuple(call.name for call in self.stack.calls if not isinstance(call.module, SINGLE_FUNCTIONS))

    @property
    def owner(self) -> str:
        """The innermost of them."""
        return self.path[-1] if self.path else ""

    def call_of(self, name: str) -> Call | None:
        """The innermost call of a running module."""
        return next((call for call in reversed(self.stack.calls) if call.name == name), None)

    def _begin_pass(self) -> None:
        for tracker in self.active_trackers:
            tracker.begin()
        self._step += 1
        self._sites.begin_pass()
        self.frames.clear()

    def _enter(self, call: Call) -> None:
        self.ran.add(call.name)
        if len(self.stack.calls) == 1:
            with quietly():
                leaves = [each for each in tree_leaves((call.args, call.kwargs)) if isinstance(each, Tensor)]
                shapes = (each.shape for each in leaves if not each.is_nested and each.ndim > 1)
                self.record.given = tuple(shapes)
            if self.trace is not None:
                self.trace.begin(call)
        for tracker in self.active_trackers:
            tracker.enter(call)

    def _leave(self, call: Call, output: object) -> None:
        before = self.events
        for tracker in self.active_trackers:
            tracker.leave(call, output)
        with quietly():
            if len(self.stack.calls) == 1 and _has_nan(output):
                self.record.note_change("the model's own output contains NaN")
        self.mark_unrepeatable(self.events != before)

    def on_torch_call(self, call: TorchCall) -> None:
        """A torch function ran."""
        before = self.events
        for tracker in self.torch_call_trackers:
            if tracker.on_torch_call(call):
                break
        self.mark_unrepeatable(self.events != before)

    def mark_unrepeatable(self, unrepeatable: bool = True) -> None:
        """A trace of the pass would not tell what was seen."""
        if unrepeatable and self.trace is not None:
            self.trace.repeatable = False

    # what it shows

    @abstractmethod
    def on_weighing(self, weighing: Weighing, result: Tensor) -> bool:
        """The result of a softmax was applied to its values; False if these are not tokens."""

    @abstractmethod
    def add_kernel_call(self, capture: CapturedCall, query: Tensor, key: Tensor) -> None:
        """Take what one of torch's kernels computed from queries and keys."""

    def note_compiled(self) -> None:
        """Note if attention runs differently than without a recording."""
        if not self.is_known and runs_as_written():  # no pass with a change becomes known
            self.record.note_change(COMPILED)

    def name(self, path: str, reason: str) -> None:
        """Name a module whose attention was seen but cannot be shown."""
        self.events += 1
        self.lineage_uses += 1
        self.note_compiled()
        self.mark_unrepeatable()
        self.record.name(path, reason)

    def add(self, capture: CapturedCall, name: str, origin: CallOrigin | None = None) -> None:
        """Note the attention that a module showed, and pass it to the observers."""
        self.events += 1
        self.note_compiled()
        self.record.calls.append(name)
        self.record.query_axes.append(capture.query_axis)
        self.record.layout = capture.layout
        self.record.dropout |= capture.dropout
        if self.trace is not None:
            self.trace.captured, self.trace.last = self.trace.captured + 1, capture.read
        self.captures += 1
        capture = replace(capture, name=name, modules=tuple(self.stack.calls), origin=origin)
        sections = self._sites.sections_of(capture)
        self.mark_unrepeatable(bool(sections))  # a trace does not hold their names
        self.lineage_uses += origin is not None and (bool(sections) or not origin.axes_known)
        self.emit(replace(capture, sections=sections))

    def emit(self, capture: CapturedCall, after: Tracker | None = None) -> None:
        """Pass a call to the remaining trackers, then to the observers unless a tracker holds it."""
        first = self.trackers.index(after) + 1 if after in self.trackers else 0
        known = self.is_known or capture.kind is not None
        if not known and any(tracker.on_capture(capture) for tracker in self.trackers[first:]):
            return
        if self.trace is not None:
            capture = self.trace.show(capture)
        with replace(self.guard, place=lambda: capture.name):
            attention = self._sites.place(capture)
            with quietly():
                if capture.kind is None:
                    attention = self._sites.close_padding(attention, self.record)
            if attention.site.call >= MOST_CALLS:
                raise SizeError(
                    f"{capture.name} attends more than {MOST_CALLS:,} times in one pass: the model repeats a "
                    "layer without end"
                )
            try:
                with quietly():
                    for observer in self.observers:
                        observer.observe(attention)
            except NoMatrix as error:
                return self.name(capture.name, str(error))
            parts = getattr(capture.read, "parts", (capture.read,))
            proofs = [each.proof.difference for each in parts if isinstance(each, MixingRows)]
            if differences := [each for each in proofs if each is not None]:
                attention = replace(attention, difference=max(differences))
            if isinstance(capture.read, ScoredRows):
                capture.read.free()
            self.record.lengths |= attention.lengths
            self.record.sites.append(SiteRecord.from_attention(attention, self._step))  # seen by all of them


MOST_CHECKED = 1 << 20  # numbers of an output, the last ones, in which a NaN is looked for


def _has_nan(output: object) -> bool:
    """Whether a model's output has a NaN among its last numbers, which later tokens get from earlier ones."""
    leaves = (each for each in tree_leaves(output) if type(each) is Tensor and each.is_floating_point())
    plain = (each for each in leaves if not each.is_nested and not each.is_meta and not is_mapped(each))
    return any(bool(each.detach().flatten()[-MOST_CHECKED:].isnan().any()) for each in plain)


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

    def on_torch_call(self, call: TorchCall) -> bool | None:
        """A torch function ran; True: the trackers after this one need not know."""

    def on_capture(self, capture: CapturedCall) -> bool | None:
        """Attention was captured; True: this tracker holds it, or knows it already."""

    def leave(self, call: Call, output: object) -> None:
        """A module ends."""

    def finish(self) -> None:
        """The recording ends."""


T = TypeVar("T", bound=Tracker)
