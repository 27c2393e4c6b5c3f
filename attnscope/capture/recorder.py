"""One recording: gathers what the kernels and softmaxes show, and hands it to the observers as attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from attnscope.attention import Axis, Kind
from attnscope.capture.hooks import outputs
from attnscope.capture.hooks.compiled import COMPILED
from attnscope.capture.hooks.handwritten.parameters import Learned
from attnscope.capture.hooks.modules import PLAIN, Call, Guard, ModuleStack
from attnscope.capture.lineage.follow import Lineage, Settled
from attnscope.capture.lineage.functions import Products
from attnscope.capture.lineage.layout import Sides
from attnscope.capture.lineage.pieces import Pieces
from attnscope.capture.lineage.standing import doubt_axes, judge
from attnscope.capture.lineage.unnormalized import MAPPED, UnnormalizedWeights
from attnscope.capture.observer import Observer, is_quiet, quietly
from attnscope.capture.placing.chunked import Notes, from_chunks, layout_of
from attnscope.capture.placing.kinds import Sites, heads_of, texts_in_batch
from attnscope.capture.placing.without_attention import find_opaque, no_distribution, note_layers
from attnscope.capture.record import LayerWithoutAttention, Record, SiteRecord
from attnscope.capture.rows.capture import Capture, Unknown
from attnscope.capture.rows.kernels import Frame, conclude, formula, fuse, sdpa_call, without_formula
from attnscope.capture.rows.repeats import Repeats
from attnscope.capture.rows.scores import ScoredRows
from attnscope.capture.rows.weighing import Weighing, is_mapped
from attnscope.fused.fused_pass import FusedPass


@dataclass(eq=False)
class Recorder:
    """Collects one recording; ``recording`` makes it, the hooks, the mode and the kernels feed it."""

    model: nn.Module
    observers: Sequence[Observer]
    axes: Mapping[Kind, tuple[Axis, Axis]]
    fused: FusedPass | None = None
    record: Record = field(default_factory=Record)

    def __post_init__(self) -> None:
        self.guard = Guard(self.record, lambda: self.owner)
        compiled = partial(self.record.note_change, COMPILED)
        self.stack = ModuleStack(self.model, self._begin_pass, self._enter, self._leave, compiled, self.guard)
        self.notes: Notes | None = None  # of the running module, if it attends in chunks
        self._sites = Sites(self.model, self.axes)
        self._pieces = Pieces(self._emit, self.record)
        self.frames: list[Frame] = []
        self._step = -1
        self.ran: set[str] = set()  # the modules that were called
        self._count = 0  # attention calls and gates so far
        self._counts: dict[Call, int] = {}  # of each module that is running, the count when it started
        self._repeats = Repeats()
        self.learned = Learned()
        self.lineage = Lineage(self.learned)
        self.settled = Settled()
        self.unnormalized = UnnormalizedWeights(self.settled.ask)
        self.products = Products()

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

    # what the pass shows

    def kernel_call(
        self, name: str, kernel: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a Hugging Face attention function, or the fused pass in its place, and take its attention."""
        known = self.stack.name_of(args[0] if args else kwargs.get("module"))
        if is_quiet() or (known is None and not self.stack.calls):
            return kernel(*args, **kwargs)
        path = (self.path[-1] if known is None and self.path else known) or ""
        frame, refusal = Frame.of(name, args, kwargs), None
        if self.fused is not None and frame.has_fused_form:
            with quietly():
                output, capture = fuse(self.fused, Capture.of_call(formula(frame, causal=False), name))
            refusal = capture.refusal
            if output is not None:
                self.take(capture, path)
                return output.transpose(1, 2).contiguous(), None  # [batch, query, head, size]
        self.frames.append(frame)
        try:
            result = kernel(*args, **kwargs)
        finally:
            self.frames.pop()
        with quietly():
            concluded = conclude(frame, result)
            if concluded is None:
                self._count += 1
                self.record.without_attention.append(without_formula(frame, path))
            else:
                sides = doubt_axes(self.lineage, frame.query, frame.key)
                self.take(replace(concluded, refusal=concluded.refusal or refusal), path, sides)
        return result

    def sdpa(self, kernel: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
        """Run torch's own kernel, or the fused pass in its place, and take its attention."""
        frame = self.frames[-1] if self.frames else None
        query: Tensor = args[0] if args else kwargs["query"]
        batch = texts_in_batch(self.stack.calls, query.shape[-2]) if frame is None else len(frame.query)
        call = sdpa_call(args, kwargs, batch, None if frame is None else frame.query.shape[1])
        learned = frame is None and self.learned.asks(args, kwargs)
        output, capture = fuse(self.fused, Capture.of_call(call, "sdpa", learned))
        result: Tensor
        if output is None:
            result = kernel(*args, **kwargs)
        else:
            result = output.reshape(*query.shape[:-1], output.shape[-1])
        with quietly():
            if output is None and not call.dropout:
                capture = capture.proved(call.value, result.reshape(*call.query.shape[:3], -1))
            self.take_kernel(capture, args, kwargs)
        return result

    def see_weighing(self, weighing: Weighing, result: Tensor) -> None:
        """The result of a softmax met its values."""
        stands = judge(self.lineage, weighing, result)
        owner = weighing.trail.owner(self.path)
        if not stands.tokens:
            self.learned.weigh(self._call_of(owner), weighing.weighed)
            self.settled.ask()
            self.unnormalized.see_gates(self.stack.calls, weighing)
            return self.see_gate()
        if weighing.trail.mixed or weighing.trail.signed:
            self.see_gate()
            return self.record.note(no_distribution(owner, weighing.trail.mixed))
        if self.frames:
            self.frames[-1].weighings.append(weighing)
            return
        if is_mapped(weighing.weights):
            return self.take(Unknown(MAPPED), owner)
        heads = heads_of(getattr(self._call_of(owner), "module", None))
        batch = texts_in_batch(self.stack.calls, weighing.weights.shape[-2])
        sides = Sides.of_weighing(self.lineage, weighing, batch, heads)
        capture = Capture.of_weighing(weighing, batch, heads, stands.learned)
        self.take(capture, owner, sides, weighing.trail.softmax)

    def take_kernel(self, capture: Capture | Unknown, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Take what one of torch's kernels computed, whose first arguments are queries and keys."""
        if not self.frames:
            batch = 0 if isinstance(capture, Unknown) else capture.batch
            sides = Sides.of_kernel(self.lineage, args, kwargs, batch) if batch else None
            self.take(capture, self.owner, sides)
        elif isinstance(capture, Capture) and isinstance(capture.read, ScoredRows):
            self.frames[-1].sdpa.append(capture)

    def see_gate(self) -> None:
        """A softmax made gates, which a module may show as it would show attention."""
        self._count += 1

    def finish(self) -> None:
        """Release what is held yet, and note the layers that ran without attention."""
        self._pieces.finish()
        self.record.without_attention += find_opaque(self.model, self.ran)
        self.record.without_attention += self.learned.memories({site.site.name for site in self.record.sites})
        note_layers(self.record, self.model, self.ran, self.unnormalized.reasons)

    # what becomes of it

    def take(
        self, capture: Capture | Unknown, name: str, sides: Sides | None = None, softmax: int = 0
    ) -> None:
        """Release what a module showed, or hold a piece until its siblings ran; note what cannot be shown."""
        self._count += 1
        if isinstance(capture, Unknown):
            return self.record.note(LayerWithoutAttention.at(name, capture.reason))
        self.record.calls.append(name)
        self.settled.count(placed=sides is not None)
        if not self._repeats.holds(capture, self._call_of(name)):
            self._pieces.take(capture, name, self.stack.calls, sides, softmax)

    def _emit(self, capture: Capture, name: str, calls: Sequence[Call] | None = None) -> None:
        with replace(self.guard, place=lambda: name):
            attention = self._sites.place(capture, name, self.stack.calls if calls is None else calls)
            notes = capture.window, capture.refusal, capture.difference
            with quietly():
                for observer in self.observers:
                    observer.observe(attention)
            self.record.sites.append(SiteRecord.of(attention, self._step, *notes))  # seen by all of them

    # where the pass is

    def _call_of(self, name: str) -> Call | None:
        return next((call for call in reversed(self.stack.calls) if call.name == name), None)

    def _begin_pass(self) -> None:
        self._step += 1
        self._sites.begin_pass()
        self.frames.clear()
        self._counts.clear()
        self._pieces.flush()
        self.lineage = Lineage(self.learned)
        self.unnormalized.begin_pass(self.lineage)
        self.settled.begin_pass()
        self.notes = None

    def _enter(self, call: Call) -> None:
        self.ran.add(call.name)
        self._counts[call] = self._count
        self.settled.enter(call)
        if not self.settled.rests:
            self.lineage.enter(call)
        self._pieces.enter(call)
        if layout_of(call.module) is not None:
            self.notes = Notes()

    def _leave(self, call: Call, output: object) -> None:
        listens, notes = self.listens, self.notes
        self._repeats.leave(call)
        if notes is not None and (layout := layout_of(call.module)) is not None:
            self.notes = None
            with quietly():
                notes.returned = next(iter(outputs.tensors_of(output)), None)
                rows = layout(call.module, call.tensors, notes)
                self.take(from_chunks(rows, type(call.module).__name__), call.name)
        if self._counts.pop(call, None) == self._count and listens:
            shown = outputs.capture_weights(self.stack.calls, output, self.lineage, self.products)
            if shown is not None:
                self.take(shown, call.name)
        self.products.leave(call)
        self._pieces.leave(call)
        self.settled.leave(call)
