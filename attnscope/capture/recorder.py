"""One recording: collects what kernels and softmaxes show, and passes it to the observers as attention."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.attention import Axis, Kind
from attnscope.capture.hooks.functions import (
    FUSED_FUNCTIONS,
    Function,
    FusedProducts,
    WatchingMode,
    attention_functions,
    is_quiet,
    original,
    quietly,
    uncompiled,
)
from attnscope.capture.hooks.mixers import Mixers, kernels_of
from attnscope.capture.hooks.modules import tensors_in
from attnscope.capture.hooks.softmax import Learned, Trails
from attnscope.capture.hooks.torch_functions import AttentionFunctions
from attnscope.capture.known_passes import KnownPasses, PassTrace
from attnscope.capture.lineage.follow import Lineage
from attnscope.capture.lineage.functions import TorchCall
from attnscope.capture.lineage.layout import (
    SplitCalls,
    classify_weighing,
    drop_relative_scores,
    origin_of_kernel,
    origin_of_weighing,
)
from attnscope.capture.placing.between import AcrossTexts, ChannelSoftmaxes
from attnscope.capture.placing.chunked import ChunkedModules
from attnscope.capture.placing.kinds import heads_of, texts_in_batch
from attnscope.capture.placing.single_heads import Loops, Repeats, SingleHeads
from attnscope.capture.placing.split_heads import SplitHeads, find_group
from attnscope.capture.placing.without_attention import why_empty
from attnscope.capture.record import FUSED, Observer, Record, beyond_rounding
from attnscope.capture.rows.capture import MAPPED, CapturedCall, Weighing, is_mapped
from attnscope.capture.rows.kernels import (
    NO_FORMULA,
    Frame,
    conclude,
    formula,
    fuse,
    mix_rows,
    probe_kernel,
    probe_sdpa,
    sdpa_call,
)
from attnscope.capture.rows.scores import ScoredRows
from attnscope.capture.tracker import Pass, Tracker
from attnscope.fused.fused_pass import FusedPass
from attnscope.registry import plugins

TRACKERS: tuple[type[Tracker], ...] = (
    ChunkedModules,  # before all others, who do not need what it notes
    Learned,
    Lineage,  # before those who ask where a tensor comes from
    ChannelSoftmaxes,  # before those who need no weights that were applied to their values
    Trails,
    AcrossTexts,
    AttentionFunctions,
    Repeats,
    SplitCalls,  # joins calls, which may be a single head
    SingleHeads,
    Loops,
    SplitHeads,  # what the others made of the heads of this process
)
"""The trackers of a pass, in the order in which each event reaches them."""


NESTED = "it attends over nested tensors (texts of different lengths), which are not supported"


class Recorder(Pass):
    """Collects one recording; ``recording`` creates it, the hooks, the mode and the kernels feed it."""

    def __init__(
        self,
        model: nn.Module,
        observers: Sequence[Observer],
        axes: Mapping[Kind, tuple[Axis, Axis]],
        fused: FusedPass | None = None,
        trace: PassTrace | None = None,
        mixers: bool = False,
    ) -> None:
        beside = (Mixers,) * mixers
        super().__init__(model, observers, axes, (*TRACKERS, *beside, *plugins("hooks").values()), trace)
        self.fused, self.mixers = fused, mixers

    def kernel_call(self, name: str, kernel: Function, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a Hugging Face attention function exactly once, and capture it; not under vmap."""
        if is_mapped(*tensors_in(args, kwargs)):
            return kernel(*args, **kwargs)
        return self.guard.run(partial(self._call_kernel, name, kernel), kernel, args, kwargs)

    def _call_kernel(
        self, name: str, again: Function, kernel: Function, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Run an attention function once, or the fused pass instead, and capture it; ``again`` is it, too."""
        own_path = self.stack.names.get(id(args[0] if args else kwargs.get("module")))
        if is_quiet() or (own_path is None and not self.stack.calls):
            return kernel(*args, **kwargs)
        path = (self.path[-1] if own_path is None and self.path else own_path) or ""
        frame, refusal = Frame.from_arguments(name, args, kwargs), None
        if self.fused is not None and frame.has_fused_form:
            with quietly():
                output, capture = fuse(self.fused, CapturedCall.from_call(formula(frame, causal=False), name))
            refusal = capture.refusal
            if output is not None:
                self.add(capture, path)
                return output.transpose(1, 2).contiguous(), None  # [batch, query, head, size]
        self.frames.append(frame)
        try:
            result = kernel(*args, **kwargs)
        finally:
            self.frames.pop()
        self.mark_unrepeatable(bool(frame.weighings))
        with quietly():
            concluded = conclude(frame, result)
            probe = probe_kernel(frame, again, args, kwargs, result) if self.mixers else None
            if concluded is None and probe is not None:
                self.tracker(Mixers).show([probe], name, path)
            elif concluded is None:
                self.name(path, NO_FORMULA.format(frame.kernel))
            else:
                query, key = (self.tracker(Lineage).origin_of(states) for states in (frame.query, frame.key))
                batch = len(frame.query)
                origin = None if self.is_known else origin_of_kernel(query, key, batch, axes_known=True)
                refusal = concluded.refusal or refusal
                self.add(replace(concluded, refusal=refusal, probe=probe), path, origin)
        return result

    def sdpa(self, kernel: Function, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
        """Run torch's own kernel, or the fused pass instead, and capture it."""
        frame = self.frames[-1] if self.frames else None
        arguments = dict(zip(("query", "key"), args, strict=False)) | kwargs
        query: Tensor = arguments["query"]
        batch = texts_in_batch(self.stack.calls, query.shape[-2]) if frame is None else len(frame.query)
        call = sdpa_call(args, kwargs, batch, None if frame is None else frame.query.shape[1])
        fixed = [self.tracker(Learned).is_fixed(arguments[name]) for name in ("query", "key")]
        learned = frame is None and not self.is_known and fixed == [True, False]
        self.mark_unrepeatable(learned)
        # three ways to the output: the fused pass; for short calls of a corpus the rows that observers read
        # next; the kernel, which runs beside the rows until a pass like this one was followed
        output, capture = fuse(self.fused, CapturedCall.from_call(call, "sdpa", learned))
        mixed = mix_rows(self.fused, capture) if output is None else None
        result: Tensor
        if output is None and (mixed is None or not self.is_known):
            result = kernel(*args, **kwargs)
            with quietly():
                if not call.dropout:
                    capture = capture.with_difference(call.value, result.reshape(*call.query.shape[:3], -1))
            if mixed is not None and beyond_rounding(capture.difference, call.query.dtype):
                mixed = None  # the kernel computes something else: its output stays
                self.mark_unrepeatable()
        if mixed is not None:
            output, error = mixed, capture.difference or 0.0
            capture = replace(
                capture, source="kernel", kernel=FUSED, values=call.value, difference=error, refusal=None
            )
        if output is not None:
            result = output.reshape(*query.shape[:-1], output.shape[-1])
        with quietly():
            if self.mixers and frame is None:
                capture = replace(capture, probe=probe_sdpa(call, args, kwargs))
            self.add_kernel_call(capture, query, arguments["key"])
        return result

    def on_weighing(self, weighing: Weighing, result: Tensor) -> bool:
        """The result of a softmax was applied to its values; False if these are not tokens."""
        tokens, learned = classify_weighing(self.tracker(Lineage), weighing, result)
        owner = weighing.trail.owner(self.path)
        if not tokens:
            self.lineage_uses += 1
            self.events += 1
            return False
        if weighing.trail.reason:
            self.name(owner, weighing.trail.reason)
        elif self.frames:
            self.frames[-1].weighings.append(weighing)
        elif is_mapped(weighing.weights):
            self.name(owner, MAPPED)
        else:
            self._add_weighing(weighing, result, owner, learned)
        return True

    def _add_weighing(self, weighing: Weighing, result: Tensor, owner: str, learned: bool) -> None:
        """Add the weights that a module's own code multiplied with its values."""
        heads = heads_of(getattr(self.call_of(owner), "module", None))
        batch = texts_in_batch(self.stack.calls, weighing.weights.shape[-2])
        weighing = replace(weighing, trail=drop_relative_scores(self.tracker(Lineage), weighing.trail))
        origin = origin_of_weighing(self.tracker(Lineage).origin_of(weighing.operand), weighing, batch, heads)
        capture = CapturedCall.from_weighing(weighing, batch, heads, learned)
        if learned and len(capture.queries) > 1:
            self.tracker(ChannelSoftmaxes).expect(weighing, result)
        self.add(capture, owner, origin)

    def add_kernel_call(self, capture: CapturedCall, query: Tensor, key: Tensor) -> None:
        """Add what one of torch's kernels computed from queries and keys."""
        if not self.frames:
            origin, lineage = None, self.tracker(Lineage)
            if capture.batch and not self.is_known:
                query_origin, key_origin = lineage.origin_of(query), lineage.origin_of(key)
                origin = origin_of_kernel(query_origin, key_origin, capture.batch, query.ndim)
            return self.add(capture, self.owner, origin)
        self.note_compiled()
        if isinstance(capture.read, ScoredRows):
            self.frames[-1].sdpa.append(capture)

    def finish(self) -> None:
        """Release what is still held."""
        if self.is_known:
            return
        for tracker in self.trackers:
            tracker.finish()

    def settle(self) -> None:
        """Make the pass known, or use what is known about it; raises ``UnknownPass`` if nothing is."""
        if self.trace is not None:
            self.mark_unrepeatable(bool(self.record.warnings))
            self.trace.settle()


@contextmanager
def recording(
    model: nn.Module,
    observers: Sequence[Observer] = (),
    axes: Mapping[Kind, tuple[Axis, Axis]] | None = None,
    fused: FusedPass | None = None,
    *,
    warn: bool = True,
    mixers: bool = False,
    channel: int | None = None,
) -> Iterator[Record]:
    """Show every attention call of ``model`` inside the block to each observer, and note it in a record.

    ``axes`` labels the queries and keys of a kind of attention where the lengths agree; elsewhere the axes
    are bare positions. The model's own kernels run untouched: its outputs are bit-identical. The exception is
    ``fused``: a fused pass computes the calls that it can, with the statistics of their rows, and the record
    says why the kernel ran for the others. What ``torch.compile`` made runs uncompiled during the block, on
    every thread, and stays compiled; the record says so in ``changes``.

    An exception in the recording or in an observer is noted in the record's ``failures`` with its module, and
    the pass goes on. Only an ``AttnscopeError``, an interruption, and lack of memory end it. Only the thread
    that opens the block is recorded, and nothing is left behind. Recordings nest, and several threads may
    record one model or several at once. One that saw no attention, or failed, says why in a warning.
    ``mixers`` shows linear and state-space layers too, as signed matrices: their kernels run again. Where
    each channel has a matrix of its own, it is that of a ``channel``, or the mean of all.

    >>> with torch.inference_mode(), recording(model, [keep]) as record:
    ...     model(**inputs)
    """
    trace = KnownPasses.trace()
    if find_group(model) is not None:  # each process computes a part of the heads, and shows all
        fused = trace = None
    recorder = Recorder(original(model), observers, axes or {}, fused, None if mixers else trace, mixers)
    beside = recorder.tracker(Mixers)
    beside.many, beside.channel = trace is not None, channel
    kernels = kernels_of(recorder.model, beside) if mixers else nullcontext()
    functions = attention_functions(recorder.kernel_call)
    try:
        with uncompiled(), recorder.stack.watch(), functions, kernels, AttentionMode(recorder):
            yield recorder.record
            with recorder.guard:
                recorder.finish()
        recorder.settle()
    finally:
        recorder.free()
    if warn:
        record, ran = recorder.record, bool(recorder.ran)
        empty = [] if record.sites else [f"no attention was seen: {why_empty(recorder.model, record, ran)}"]
        for sentence in empty or record.warnings:
            warnings.warn(sentence, stacklevel=3)
    recorder.record.note_cross_attention(axes or {})


PLAIN = {int, bool, float, torch.Size, torch.dtype, torch.device}
"""Results that hold no entries of a tensor: most calls ask for a shape or a type."""


class AttentionMode(WatchingMode):
    """Calls every torch function unchanged, and reports it to a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func``; the mode itself is off inside this method."""
        kwargs, recorder = kwargs or {}, self.recorder
        name = getattr(func, "__name__", "") if recorder.listens else ""
        result = self._run(name, func, args, kwargs)
        if not recorder.stack.calls and not is_quiet():  # a prompt may be made before the model is called
            with recorder.guard:
                call = TorchCall(getattr(func, "__name__", ""), func, args, kwargs, result)
                recorder.tracker(Learned).on_torch_call(call)
        if name and recorder.trace is not None:
            with recorder.guard:
                recorder.trace.add(name, func, args, kwargs, result)
        return result

    def _run(self, name: str, func: Function, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run ``func``, and show it to the trackers that follow the pass."""
        recorder, inside = self.recorder, None
        tensors = (part for part in (*args, *kwargs.values()) if isinstance(part, Tensor))
        if name == "scaled_dot_product_attention" and any(part.is_nested for part in tensors):
            recorder.name(recorder.owner, NESTED)
            return func(*args, **kwargs)
        if (
            name == "scaled_dot_product_attention"
            and (recorder.is_known or recorder.tracker(ChunkedModules).notes is None)
            and not is_mapped(*tensors_in(args, kwargs))
        ):
            result = recorder.guard.run(recorder.sdpa, func, args, kwargs)
            if not recorder.is_known:
                with recorder.guard:
                    recorder.tracker(Lineage).on_torch_call(TorchCall(name, func, args, kwargs, result))
            return result
        if recorder.is_known:
            return func(*args, **kwargs)
        if name in FUSED_FUNCTIONS:
            result, inside = FusedProducts.run(func, args, kwargs)
        else:
            result = func(*args, **kwargs)
        if name and type(result) not in PLAIN:
            with recorder.guard:
                recorder.on_torch_call(TorchCall(name, func, args, kwargs, result, inside))
        return result
