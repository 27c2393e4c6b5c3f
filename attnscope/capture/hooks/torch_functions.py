"""Step 2: see softmax, products and attention functions of torch as the pass calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from attnscope.capture.hooks.fast_path import FUSED_FUNCTIONS, FusedProducts, WatchingMode
from attnscope.capture.hooks.handwritten.softmax import Trails
from attnscope.capture.lineage.functions import CARRYING, PRODUCTS, SOFTMAX
from attnscope.capture.lineage.pieces import INSIDE
from attnscope.capture.lineage.standing import asks_itself
from attnscope.capture.lineage.unnormalized import MAPPED
from attnscope.capture.observer import quietly
from attnscope.capture.placing.opaque import why_opaque
from attnscope.capture.rows.capture import Unknown
from attnscope.capture.rows.kernels import aten
from attnscope.capture.rows.kernels.fast_path import capture_fast_path
from attnscope.capture.rows.kernels.flex import capture_flex
from attnscope.capture.rows.kernels.projection import bind, capture_projection
from attnscope.capture.rows.weighing import is_mapped

if TYPE_CHECKING:
    from attnscope.capture.recorder import Recorder


class AttentionMode(WatchingMode):
    """Calls every torch function as it was called, and tells a recorder of those that attend."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.trails = Trails(recorder.learned)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func``; the mode itself is off while this method runs."""
        kwargs, recorder = kwargs or {}, self.recorder
        name = getattr(func, "__name__", "") if recorder.listens else ""
        if name == "scaled_dot_product_attention" and recorder.notes is None and not _is_mapped(args, kwargs):
            result = recorder.guard.run(recorder.sdpa, func, args, kwargs)
            if not recorder.settled.rests:
                with recorder.guard:
                    recorder.lineage.see(name, func, args, kwargs, result)
            return result
        if name in FUSED_FUNCTIONS:
            result, products = FusedProducts.run(func, args, kwargs)
            with recorder.guard:
                self._see(name, func, args, kwargs, result)
                self._see_fused(name, args, kwargs, products)
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
        recorder.learned.see(name, args, result)
        rests = recorder.settled.rests
        if not rests and not any(isinstance(part, Tensor) and part.is_nested for part in (*args, result)):
            recorder.lineage.see(name, func, args, kwargs, result)  # of all that has a shape
            if not recorder.frames:
                recorder.unnormalized.see(recorder.stack.calls, name, args, kwargs, result)
        if name in CARRYING:
            self.trails.follow(name, func, args, kwargs, result)
        elif name in PRODUCTS:
            weighing = self.trails.weighing(name, args, kwargs, result)
            if weighing is not None:
                return recorder.see_weighing(weighing, result)
            if not rests and not recorder.frames:
                recorder.unnormalized.weigh(recorder.stack.calls, name, args, kwargs, result)
                self._see_pooling(name, args, kwargs)
            self.trails.multiply(args, result)
            recorder.products.see(recorder.stack.calls, name, args, kwargs, result)
        elif name == "sum" and not rests:
            self._see_pooling(name, args, kwargs)
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
        elif "attention" in name and name not in FUSED_FUNCTIONS:
            with quietly():
                self._see_attention(name.partition(".")[0], args, kwargs, result)

    def _see_pooling(self, name: str, args: Any, kwargs: dict[str, Any]) -> None:
        """Whether a function sums over tokens what a softmax weighed: its module is named."""
        if (pooled := self.trails.pooled(name, args, kwargs)) is not None:
            self.recorder.unnormalized.pool(self.recorder.stack.calls, *pooled)

    def _see_attention(self, name: str, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """A function of torch attended all by itself."""
        recorder, calls = self.recorder, self.recorder.stack.calls
        if _is_mapped(args, kwargs):
            recorder.take(Unknown(MAPPED), recorder.owner)
        elif name == "multi_head_attention_forward":
            if not self._sees_gates(name, args, kwargs):
                recorder.take(capture_projection(bind(args, kwargs), result[0]), recorder.owner)
        elif name == "flex_attention":
            recorder.take_kernel(capture_flex(args, kwargs, result[0]), args, kwargs)
            recorder.lineage.attend(args, kwargs, result[0])
        elif name in aten.KERNELS | aten.PACKED and why_opaque(calls[-1].module) is None:
            recorder.take_kernel(aten.capture_aten(name, args, kwargs, result), args, kwargs)
            recorder.lineage.attend(args, kwargs, result if isinstance(result, Tensor) else result[0])

    def _see_fused(self, name: str, args: Any, kwargs: dict[str, Any], products: FusedProducts) -> None:
        """One of torch's fused encoder layers attended inside."""
        if self.recorder.notes is None and not self._sees_gates(name, args, kwargs):
            with quietly():
                self.recorder.take(
                    *capture_fast_path(name, args, kwargs, products, self.recorder.stack.calls)
                )

    def _sees_gates(self, name: str, args: Any, kwargs: dict[str, Any]) -> bool:
        """Whether what a position is made of attends to itself: then that is no attention of tokens."""
        recorder, asks = self.recorder, asks_itself(self.recorder.lineage, name, args, kwargs)
        if asks:
            recorder.settled.ask()
            recorder.take(Unknown(INSIDE), recorder.owner)
        return asks


def _is_mapped(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether torch.vmap hides an axis of what a function was given."""
    return is_mapped(*(arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)))
