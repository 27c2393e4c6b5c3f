"""One recording: gathers what the kernels and softmaxes show, names it, and hands it to the observers."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from attnscope.attention import Attention, Axis, Kind, Site
from attnscope.capture.chunked.layouts import placer_of
from attnscope.capture.chunked.pieces import Trace, from_pieces
from attnscope.capture.hooks import outputs
from attnscope.capture.hooks.modules import PLAIN, Call, ModuleStack
from attnscope.capture.hooks.softmax import Weighing, as_weighing
from attnscope.capture.placing import without_attention as holes
from attnscope.capture.placing.kinds import heads_of, is_cross, offset_of, self_kind, texts_in_batch
from attnscope.capture.placing.layers import LayerNumbers
from attnscope.capture.record import Record, SiteRecord
from attnscope.capture.rows import projection
from attnscope.capture.rows.found import Found, SdpaCall, from_sdpa, from_weighing
from attnscope.capture.rows.kernels import Frame, concluded, unknown_kernel
from attnscope.capture.rows.scores import ScoredRows
from attnscope.capture.rows.single_heads import Pending, SingleHeads

_quiet = threading.local()  # .depth: how deep this thread is in work of our own, that is no attention


class Observer(Protocol):
    """What looks at attention while it passes by."""

    def observe(self, attention: Attention) -> None:
        """Read what is needed, at once; called inside the forward pass, right after the kernel ran.

        The attention holds the kernel's own tensors, so it must not be kept when this returns.
        """
        ...


@dataclass(eq=False)
class Recorder:
    """Collects one recording; ``recording`` makes it, the hooks, the mode and the kernels feed it."""

    model: nn.Module
    observers: Sequence[Observer]
    axes: Mapping[Kind, tuple[Axis, Axis]]
    record: Record = field(default_factory=Record)

    def __post_init__(self) -> None:
        self.stack = ModuleStack(self.model, self._new_pass, self._entered, self._left)
        self.singles = SingleHeads(self._emit_joined)
        self._frames: list[Frame] = []
        self._step = -1
        self._numbers = LayerNumbers()
        self._calls: Counter[str] = Counter()
        self._kinds: dict[str, Kind] = {}  # of each site, for steps of one query that cannot tell
        self._ran: set[str] = set()
        self._seen = 0  # attention calls and gates so far
        self._before: tuple[str, weakref.ref[Tensor], weakref.ref[Tensor]] | None = None
        self._seen_before: dict[Call, int] = {}  # of each module that is running, when it started
        self.trace: Trace | None = None  # of the running module, if it attends in pieces

    @property
    def listens(self) -> bool:
        """Whether the model is running, and not an observer."""
        return bool(self.stack.calls) and not getattr(_quiet, "depth", 0)

    @property
    def path(self) -> tuple[str, ...]:
        """The modules that are running, outermost first, without those that hold one function."""
        return tuple(call.name for call in self.stack.calls if not isinstance(call.module, PLAIN))

    # what the pass shows

    def kernel_call(
        self, name: str, kernel: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a Hugging Face attention function and take its attention."""
        known = self.stack.name_of(args[0] if args else kwargs.get("module"))
        if getattr(_quiet, "depth", 0) or (known is None and not self.stack.calls):
            return kernel(*args, **kwargs)
        frame = Frame.of(name, args, kwargs)
        self._frames.append(frame)
        try:
            result = kernel(*args, **kwargs)
        finally:
            self._frames.pop()
        path = self.path[-1] if known is None and self.path else known
        with quietly():
            found = concluded(frame, result)
            if found is None:
                self._seen += 1
                self.record.holes.append(unknown_kernel(frame, path or ""))
            else:
                self._saw(found, path or "")
        return result

    def saw_sdpa(self, call: SdpaCall) -> None:
        """Torch's own kernel ran."""
        if self._frames:
            self._frames[-1].sdpa.append(call)
            return
        self._saw(from_sdpa(call, "sdpa", self._batch(call.query.shape[-2])), self._owner())

    def saw_weighing(self, weighing: Weighing) -> None:
        """The result of a softmax met its values."""
        if self._frames:
            self._frames[-1].weighings.append(weighing)
            return
        owner = ""
        for theirs, ours in zip(weighing.trail.path, self.path, strict=False):
            if theirs == ours:
                owner = ours
        call = self._call_of(owner)
        told = None if call is None else heads_of(call.module)
        self._saw(from_weighing(weighing, self._batch(weighing.weights.shape[-2]), told), owner)

    def saw_projection(self, call: dict[str, Any]) -> None:
        """Torch's multi_head_attention_forward ran, which projects and attends in one go."""
        self._saw(projection.found(call), self._owner())

    def finish(self) -> None:
        """Release what is held yet, and note the layers that ran without attention."""
        self.singles.flush()
        attended = {site.site.name for site in self.record.sites}
        failed = {hole.name for hole in self.record.holes}
        self.record.holes += holes.found(self.model, self._ran, attended | failed)

    def saw_gate(self) -> None:
        """A softmax made gates, which a module may show as it would show attention."""
        self._seen += 1

    # what becomes of it

    def _saw(self, found: Found, name: str) -> None:
        """Emit what was found, or hold a single head until its siblings ran."""
        self._seen += 1
        if self._is_again(found, name):
            return
        if found.heads == 1 and self.singles.hold(self.stack.calls, name, found):
            return
        self._emit(found, name)

    def _is_again(self, found: Found, name: str) -> bool:
        """Whether a module weighed other values with the very same weights a second time in one call."""
        if not isinstance(found.read, ScoredRows):
            return False
        query, key = found.read.query, found.read.key
        before, self._before = self._before, (name, weakref.ref(query), weakref.ref(key))
        return before is not None and before[0] == name and before[1]() is query and before[2]() is key

    def _emit(self, found: Found, name: str) -> None:
        call = self._call_of(name)
        path = [
            entry for entry in self.stack.calls if not entry.name or f"{name}.".startswith(f"{entry.name}.")
        ]
        blank = Attention(
            site=Site(name, 0, "encoder", 0),
            source=found.source,
            kernel=found.kernel,
            batch=found.batch,
            heads=found.heads,
            key_heads=found.key_heads,
            queries=range(found.queries),
            keys=range(found.keys),
            offset=None,
            dtype=found.dtype,
            read=found.read,
        )
        attention = self._placed(blank, found, path)
        invocation = call.invocation if call is not None else self._calls[name]
        layer = self._numbers.number(attention.site.kind, name, invocation, self._width(name))
        site = replace(attention.site, call=self._calls[name], layer=layer)
        self._calls[name] += 1
        attention = replace(attention, site=site)
        self.record.sites.append(SiteRecord.of(attention, self._step, found.window))
        with quietly():
            for observer in self.observers:
                observer.observe(attention)

    def _emit_joined(self, pending: Pending) -> None:
        self._emit(pending.found, pending.name)

    def _placed(self, blank: Attention, found: Found, calls: Sequence[Call]) -> Attention:
        """The attention with its kind, its offset and its labels."""
        name = blank.site.name
        kind: Kind = "cross"
        if not is_cross(found, name, calls):
            blank = replace(blank, offset=offset_of(blank))
            kind = self_kind(blank, self._call_of(name), self._kinds.get(name))
        self._kinds.setdefault(name, kind)
        attention = replace(blank, site=replace(blank.site, kind=kind))
        queries, keys = self.axes.get(kind, (range(0), range(0)))
        if (len(queries), len(keys)) == (found.queries, found.keys):
            return attention.with_axes(queries, keys)
        start = attention.offset or 0
        return attention.with_axes(range(start, start + found.queries), attention.keys)

    # where the pass is

    def _owner(self) -> str:
        return self.path[-1] if self.path else ""

    def _call_of(self, name: str) -> Call | None:
        return next((call for call in reversed(self.stack.calls) if call.name == name), None)

    def _batch(self, queries: int) -> int:
        return texts_in_batch(self.stack.calls, queries)

    def _width(self, name: str) -> int:
        """The length of the module list that the last number in a path counts in."""
        parts = name.split(".")
        numbers = [index for index, part in enumerate(parts) if part.isdigit()]
        if not numbers:
            return 1
        owner = self.model.get_submodule(".".join(parts[: numbers[-1]]))
        return sum(1 for _ in owner.children())

    def _new_pass(self) -> None:
        self._step += 1
        self._numbers = LayerNumbers()
        self._calls.clear()
        self._frames.clear()
        self._seen_before.clear()
        self.trace = None

    def _entered(self, call: Call) -> None:
        self._ran.add(call.name)
        self._seen_before[call] = self._seen
        if self.singles.held:
            with quietly():
                self.singles.entered(call)
        if placer_of(call.module) is not None:
            self.trace = Trace()

    def _left(self, call: Call, output: object) -> None:
        placer, trace = placer_of(call.module), self.trace
        if placer is not None and trace is not None:
            self.trace = None
            with quietly():
                rows = placer(call.module, call.tensors, trace)
                if rows is None:
                    self.record.holes.append(holes.unplaced(call.name, call.module))
                else:
                    self._saw(from_pieces(rows, type(call.module).__name__), call.name)
        unseen = self._seen_before.pop(call, None) == self._seen
        if unseen and self.listens and outputs.may_show(call, output):
            with quietly():
                self._look_at(call, output)
        if self.singles.held:
            with quietly():
                self.singles.left(call)

    def _look_at(self, call: Call, output: object) -> None:
        """Take the weights that a module shows itself, if nothing was seen while it ran."""
        weights = outputs.shown(call, output)
        if weights is not None:
            found = from_weighing(as_weighing(weights), self._batch(weights.shape[-2]))
            self._saw(replace(found, source="module", kernel=type(call.module).__name__), call.name)


@contextmanager
def quietly() -> Iterator[None]:
    """The recording or an observer at work: its own arithmetic needs no gradient and is not recorded."""
    _quiet.depth = getattr(_quiet, "depth", 0) + 1
    try:
        with torch.no_grad():
            yield
    finally:
        _quiet.depth -= 1
