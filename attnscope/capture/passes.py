"""Record the attention of whatever runs inside a block."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from attnscope.attention import Axis, Kind
from attnscope.capture.hooks.compiled import original, uncompiled
from attnscope.capture.hooks.fast_path import FUSED_FUNCTIONS, FusedProducts, WatchingMode
from attnscope.capture.hooks.functions import attention_functions
from attnscope.capture.hooks.modules import tensors_in
from attnscope.capture.known_passes import KnownPasses
from attnscope.capture.lineage.follow import Lineage
from attnscope.capture.lineage.functions import Seen
from attnscope.capture.observer import Observer
from attnscope.capture.placing.chunked import ChunkedModules
from attnscope.capture.placing.without_attention import why_empty
from attnscope.capture.record import Record
from attnscope.capture.recorder import Recorder
from attnscope.capture.rows.weighing import is_mapped
from attnscope.fused.fused_pass import FusedPass


@contextmanager
def recording(
    model: nn.Module,
    observers: Sequence[Observer] = (),
    axes: Mapping[Kind, tuple[Axis, Axis]] | None = None,
    fused: FusedPass | None = None,
    *,
    warn: bool = True,
) -> Iterator[Record]:
    """Show every attention call of ``model`` inside the block to each observer, and note it in a record.

    ``axes`` labels the queries and keys of a kind of attention where the lengths agree; elsewhere the axes
    are bare positions. The model's own kernels run untouched: its outputs are bit-identical, including those
    of torch's fused encoder layers (see ``hooks/fast_path``). The exception is ``fused``: a fused pass
    computes the calls that it can, with the statistics of their rows, and the record says why the kernel ran
    for the others. Put the model into ``eval`` and open ``torch.inference_mode`` as for any other pass.

    What ``torch.compile`` made runs uncompiled during the block, on every thread, and stays compiled. The
    record says so in ``changes`` if a module or an attending function is compiled.

    Failures do not affect the model: an exception in the recording or in an observer is noted in the
    record's ``failures`` with its module, and the pass goes on. Only an ``AttnscopeError``, an
    interruption, and lack of memory end it.

    Only the thread that opens the block is recorded. The model is not touched, and when the block ends,
    in whatever way, no mode or patch is left. Recordings nest, and several threads may record one model
    or several at once.

    A recording that saw no attention warns when the block ends, with the reason, and so does one that failed
    somewhere. Callers that report this themselves turn ``warn`` off.

    >>> with torch.inference_mode(), recording(model, [keep]) as record:
    ...     model(**inputs)
    """
    recorder = Recorder(original(model), observers, axes or {}, fused, KnownPasses.trace())
    functions = attention_functions(recorder.kernel_call)
    with uncompiled(), recorder.stack.watch(), functions, AttentionMode(recorder):
        yield recorder.record
        with recorder.guard:
            recorder.finish()
    recorder.settle()
    if warn:
        record, ran = recorder.record, bool(recorder.ran)
        empty = [] if record.sites else [f"no attention was seen: {why_empty(recorder.model, record, ran)}"]
        for sentence in empty or record.notes:
            warnings.warn(sentence, stacklevel=3)


class AttentionMode(WatchingMode):
    """Calls every torch function unchanged, and reports it to a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func``; the mode itself is off inside this method."""
        kwargs, recorder = kwargs or {}, self.recorder
        name = getattr(func, "__name__", "") if recorder.listens else ""
        result = self._run(name, func, args, kwargs)
        if name and recorder.trace is not None:
            with recorder.guard:
                recorder.trace.add(name, func, args, kwargs, result)
        return result

    def _run(self, name: str, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        """Run ``func``, and show it to the trackers that follow the pass."""
        recorder, inside = self.recorder, None
        if (
            name == "scaled_dot_product_attention"
            and (recorder.is_known or recorder.of(ChunkedModules).notes is None)
            and not is_mapped(*tensors_in(args, kwargs))
        ):
            result = recorder.guard.run(recorder.sdpa, func, args, kwargs)
            if not recorder.is_known:
                with recorder.guard:
                    recorder.of(Lineage).see(Seen(name, func, args, kwargs, result))
            return result
        if recorder.is_known:
            return func(*args, **kwargs)
        if name in FUSED_FUNCTIONS:
            result, inside = FusedProducts.run(func, args, kwargs)
        else:
            result = func(*args, **kwargs)
        if name:
            with recorder.guard:
                recorder.see(Seen(name, func, args, kwargs, result, inside))
        return result
