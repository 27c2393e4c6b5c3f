"""The attention inside of torch's fused encoder layers, from the products around it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnscope.attention import AttentionCall, OpenKeys
from attnscope.capture.hooks.fast_path import FUSED_FUNCTIONS, FusedProducts, WatchingMode
from attnscope.capture.hooks.handwritten.softmax import Trails
from attnscope.capture.hooks.modules import Call
from attnscope.capture.lineage.functions import CARRYING, PRODUCTS, SOFTMAX
from attnscope.capture.lineage.pieces import INSIDE
from attnscope.capture.lineage.standing import asks_itself
from attnscope.capture.lineage.unnormalized import MAPPED
from attnscope.capture.observer import quietly
from attnscope.capture.placing.without_attention import why_opaque
from attnscope.capture.rows import kernels as aten
from attnscope.capture.rows.capture import Capture, Unknown
from attnscope.capture.rows.kernels import bind, capture_flex, capture_projection
from attnscope.capture.rows.weighing import is_mapped

if TYPE_CHECKING:
    from attnscope.capture.recorder import Recorder


UNSEEN = "it ran inside of torch's fused encoder layer, which is not watched under a TorchDispatchMode"

# fmt: off
LAYER = (
    "src", "embed_dim", "num_heads", "in_proj_weight", "in_proj_bias", "out_proj_weight", "out_proj_bias",
    "use_gelu", "norm_first", "eps", "norm1_weight", "norm1_bias", "norm2_weight", "norm2_bias",
    "linear1_weight", "linear1_bias", "linear2_weight", "linear2_bias", "mask", "mask_type",
)
ATTENTION = (
    "src", "key", "value", "embed_dim", "num_heads", "in_proj_weight", "in_proj_bias", "out_proj_weight",
    "out_proj_bias", "mask", "need_weights", "average_attn_weights", "mask_type",
)
# fmt: on
"""The arguments of the two functions, in their order; the query of the second is its states."""


@torch.no_grad()
def capture_fast_path(
    name: str, args: Sequence[Any], kwargs: dict[str, Any], products: FusedProducts, calls: Sequence[Call]
) -> tuple[Capture | Unknown, str]:
    """The attention of one of the two functions, and the path of the module that would have computed it."""
    alone = name == "_native_multi_head_attention"
    given = dict(zip(ATTENTION if alone else LAYER, args, strict=False)) | kwargs
    path = calls[-1].name if alone else f"{calls[-1].name}.self_attn".lstrip(".")
    if products.mixed is None:
        return Unknown(UNSEEN), path
    own = len(products.projected) == 1
    projected = products.projected[0] if own else torch.cat(products.projected, -1)
    if products.bare:
        projected = projected + given["in_proj_bias"]
    texts = _Texts(given["src"], calls)
    query, key, value = (texts.split(part, given["num_heads"]) for part in projected.chunk(3, -1))
    masks: list[OpenKeys] = [] if texts.real is None else [texts.open_rows]
    if given.get("mask") is not None:  # True says masked: of keys, or of pairs
        mask = given["mask"].bool()
        masks.append(~(mask[:, None, None] if given.get("mask_type") == 1 else mask))
    call = AttentionCall(query, key, value, 1 / math.sqrt(query.shape[-1]), (), tuple(masks))
    capture = Capture.of_call(call, name.removeprefix("_"))
    mixed = texts.split(products.mixed, given["num_heads"], math.nan)
    return replace(capture.proved(value, mixed), crossed=False if own else None), path


class _Texts:
    """The texts of some states, and which positions are real; None where all may be."""

    def __init__(self, states: Tensor, calls: Sequence[Call]) -> None:
        """Nested states are padded as long as the texts that the modules around them were given."""
        self.real: Tensor | None = None  # bool, [batch, position]
        self.shape = states.size(0), -1
        if states.is_nested:
            lengths = torch.tensor([len(text) for text in states.unbind()], device=states.device)
            around = (call.first for call in reversed(calls))
            length = next((int(first.shape[1]) for first in around if first is not None), int(lengths.max()))
            self.real = torch.arange(length, device=states.device) < lengths[:, None]
            self.shape = len(lengths), length

    def split(self, tokens: Tensor, heads: int, padding: float = 0.0) -> Tensor:
        """[token, head·size] -> [batch, head, position, size]"""
        if self.real is not None:
            padded = tokens.new_full((*self.real.shape, tokens.shape[-1]), padding)
            padded[self.real] = tokens
            tokens = padded
        return tokens.reshape(*self.shape, heads, tokens.shape[-1] // heads).transpose(1, 2)

    def open_rows(self, start: int, stop: int) -> Tensor:
        """Padded positions neither look nor are looked at.  -> [batch, 1, row, key]"""
        assert self.real is not None
        return (self.real[:, start:stop, None] & self.real[:, None])[:, None]


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
