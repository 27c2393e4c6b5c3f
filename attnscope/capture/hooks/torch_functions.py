"""Step 2: see softmax, products and attention functions of torch as the pass calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from attnscope.capture.hooks.fast_path import FUSED_FUNCTIONS, WatchingMode
from attnscope.capture.hooks.softmax import ELEMENTWISE, PRODUCTS, RESHAPING, SOFTMAX, Trails
from attnscope.capture.lineage.written import find_written
from attnscope.capture.rows.mapped import count_hidden

if TYPE_CHECKING:
    from attnscope.capture.recorder import Recorder

FOLLOWED = RESHAPING | ELEMENTWISE


class AttentionMode(WatchingMode):
    """Calls every torch function as it was called, and tells a recorder of those that attend."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.trails = Trails()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func``; the mode itself is off while this method runs."""
        kwargs, recorder = kwargs or {}, self.recorder
        name = getattr(func, "__name__", "") if recorder.listens else ""
        if name == "scaled_dot_product_attention" and recorder.notes is None and not count_hidden(*args[:3]):
            result = recorder.guard.run(recorder.sdpa, func, args, kwargs)
            with recorder.guard:
                recorder.lineage.see(name, func, args, kwargs, result)
            return result
        result = func(*args, **kwargs)
        if name:
            with recorder.guard:
                self._see(name, func, args, kwargs, result)
        return result

    def _see(
        self, name: str, func: Callable[..., Any], args: Any, kwargs: dict[str, Any], result: Any
    ) -> None:
        """Follow what a function of torch computed, if it has to do with attention."""
        recorder = self.recorder
        if recorder.notes is not None:
            return recorder.notes.note(name, args, result)
        if not any(isinstance(part, Tensor) and part.is_nested for part in (*args, result)):
            recorder.lineage.see(name, func, args, kwargs, result)  # of all that has a shape
        if name in FOLLOWED:
            self.trails.follow(name, func, args, kwargs, result)
        elif name in PRODUCTS:
            weighing = self.trails.weighing(name, args, kwargs, result)
            if weighing is None:
                weighing = find_written(recorder.lineage, recorder.stack.calls, name, args, kwargs, result)
            if weighing is not None:
                recorder.see_weighing(weighing)
            else:
                self.trails.multiply(args, result)
        elif name in SOFTMAX:
            scores = args[0] if args else kwargs["input"]
            axis = args[1] if len(args) > 1 else kwargs.get("dim")
            if isinstance(axis, int) and not self.trails.start(recorder.path, scores, axis, result):
                recorder.see_gate()
        elif name == "linear":
            source = args[0] if args else kwargs["input"]
            self.trails.project(source, args[1] if len(args) > 1 else kwargs["weight"], result)
        elif name in ("conv1d", "conv2d"):
            self.trails.mix(args[0] if args else kwargs["input"], result)
        elif name == "scaled_dot_product_attention":
            recorder.see_mapped(args, kwargs, result)
        elif name in FUSED_FUNCTIONS:
            recorder.see_fast_path(name, args, kwargs, result)
        elif name == "multi_head_attention_forward":
            recorder.see_projection(args, kwargs, result)
