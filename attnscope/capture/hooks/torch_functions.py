"""Torch's own attention functions, including its fused encoder layers, whose outer products are observed.

Below, heads are edited: what a call gives before its projection is multiplied or replaced. A gate of 1
changes nothing, a gate of 0 removes the head, and the gradient at 1 is the head's importance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from attnscope.attention import AttentionCall, OpenKeys
from attnscope.capture.hooks.functions import (
    FUSED_FUNCTIONS,
    Function,
    FusedProducts,
    attention_functions,
    quietly,
)
from attnscope.capture.hooks.modules import Call, tensors_in
from attnscope.capture.lineage.follow import SDPA, Lineage
from attnscope.capture.lineage.functions import JOINING, PRODUCTS, TorchCall
from attnscope.capture.lineage.layout import origin_of_kernel
from attnscope.capture.lineage.nodes import Contracted, Origin
from attnscope.capture.placing.without_attention import why_opaque
from attnscope.capture.record import Record
from attnscope.capture.rows.capture import MAPPED, CapturedCall, Layout, is_mapped
from attnscope.capture.rows.kernels import bind, capture_flex, capture_projection
from attnscope.capture.tracker import Tracker

ATEN = re.compile("_?(scaled_dot_product|flash|efficient)_.*attention.*")
DIRECT = "it calls torch.ops.aten.{} directly, which is not captured; F.scaled_dot_product_attention is"
UNSEEN = "it ran inside torch's fused encoder layer, which cannot be captured under a TorchDispatchMode"


@torch.no_grad()
def capture_fast_path(
    name: str, args: Sequence[Any], kwargs: dict[str, Any], products: FusedProducts, calls: Sequence[Call]
) -> tuple[CapturedCall | None, str]:
    """The attention of a fused function, None if unseen, and the path of the module that it replaces."""
    alone = name == "_native_multi_head_attention"
    names = [argument.name for argument in getattr(torch.ops.aten, name).default._schema.arguments]
    arguments = dict(zip(names, args, strict=False)) | kwargs
    states, heads = (arguments[each] for each in (("query", "num_head") if alone else ("src", "num_heads")))
    path = calls[-1].name if alone else f"{calls[-1].name}.self_attn".lstrip(".")
    if products.head_outputs is None:
        return None, path
    same_states = len(products.projected) == 1
    projected = products.projected[0] if same_states else torch.cat(products.projected, -1)
    if products.without_bias:
        projected = projected + arguments["qkv_bias"]
    real = _real_positions(states, calls) if states.is_nested else None  # None: all may be
    shape = (states.size(0), -1) if real is None else real.shape

    def split(tokens: Tensor, padding: float = 0.0) -> Tensor:
        """[token, head·size] -> [batch, head, position, size]"""
        if real is not None:
            padded = tokens.new_full((*shape, tokens.shape[-1]), padding)
            padded[real] = tokens
            tokens = padded
        return tokens.reshape(*shape, heads, tokens.shape[-1] // heads).transpose(1, 2)

    query, key, value = map(split, projected.chunk(3, -1))
    # padded positions neither are attended to nor attend
    masks: list[OpenKeys] = [] if real is None else [real[:, None, None], real[:, None, :, None]]
    if arguments.get("mask") is not None:  # True means masked: of keys, or of pairs
        mask = arguments["mask"].bool()
        masks.append(~(mask[:, None, None] if arguments.get("mask_type") == 1 else mask))
    call = AttentionCall(query, key, value, 1 / math.sqrt(query.shape[-1]), (), tuple(masks))
    capture = CapturedCall.from_call(call, name.removeprefix("_"))
    capture = capture.with_difference(value, split(products.head_outputs, math.nan))
    return replace(capture, is_cross=False if same_states else None), path


def _real_positions(states: Tensor, calls: Sequence[Call]) -> Tensor:
    """Which positions nested states have, of the length that modules around had.  -> [batch, position]"""
    lengths = torch.tensor([len(text) for text in states.unbind()], device=states.device)
    around = (call.first for call in reversed(calls))
    length = next((int(first.shape[1]) for first in around if first is not None), int(lengths.max()))
    return torch.arange(length, device=states.device) < lengths[:, None]


class AttentionFunctions(Tracker):
    """Captures torch's complete attention functions; its plain kernel is captured by the recorder."""

    def on_torch_call(self, call: TorchCall) -> None:
        """Capture the attention of one call."""
        recorder, args, kwargs, result = self.recorder, call.args, call.kwargs, call.result
        name = call.name.partition(".")[0]
        if "attention" not in name and name not in FUSED_FUNCTIONS:
            return
        with quietly():
            if name in FUSED_FUNCTIONS:
                capture, path = capture_fast_path(name, args, kwargs, call.inside, recorder.stack.calls)
                self._add_whole(capture, path, call)
            elif is_mapped(*tensors_in(args, kwargs)):
                recorder.name(recorder.owner, MAPPED)
            elif name == "multi_head_attention_forward":
                self._add_whole(capture_projection(bind(args, kwargs), result[0]), recorder.owner, call)
            elif name == "flex_attention":
                recorder.add_kernel_call(capture_flex(args, kwargs, result[0]), *call.tensors[:2])
            elif recorder.mixers:
                return  # what is left is shown by identity values
            elif ATEN.fullmatch(name) and why_opaque(recorder.stack.calls[-1].module) is None:
                recorder.name(recorder.owner, DIRECT.format(name))

    def _add_whole(self, capture: CapturedCall | None, path: str, call: TorchCall) -> None:
        """Add the attention of a function on states, [text, position, width] if it is fused."""
        if capture is None:
            return self.recorder.name(path, UNSEEN)
        states = [value for value in (*call.args, *call.kwargs.values()) if isinstance(value, Tensor)]
        query, key = states[0], states["encoder_layer" not in call.name]
        fused, lineage = call.name in FUSED_FUNCTIONS, self.recorder.tracker(Lineage)
        origin = None
        if not query.is_nested and key.shape[fused and key.ndim > 2] == len(capture.keys):  # none are added
            query_origin, key_origin = (
                _project(lineage.origin_of(states), states, capture.heads, fused) for states in (query, key)
            )
            origin = origin_of_kernel(query_origin, key_origin, capture.batch)
        self.recorder.add(capture, path, origin)


def _project(origin: Origin | None, states: Tensor, heads: int, batch_first: bool) -> Origin | None:
    """Where queries or keys come from that torch projects itself, [text, head, position, size]."""
    if origin is None:
        return None
    text, place = (None, 0) if states.ndim < 3 else (0, 1) if batch_first else (1, 0)
    shape = 1 if text is None else states.shape[text], heads, states.shape[place], states.shape[-1] // heads
    return replace(origin, node=Contracted((origin.node,), (text, None, place, None), torch.Size(shape), 0))


Edit: TypeAlias = Callable[[int, Tensor], "Tensor | None"]
"""Maps a call's number and output ``[batch, query, head, size]`` to a new output, or None."""


class Gates(TorchFunctionMode):
    """Edits the output of every attention call; ``heads`` is the number of heads of each call so far.

    It covers torch's ``scaled_dot_product_attention`` and ``multi_head_attention_forward``, transformers'
    attention functions, and products of values with the result of a softmax, which the recording around it
    notes in ``record``; other attention is neither edited nor counted.
    """

    def __init__(self, edit: Edit, record: Record | None) -> None:
        super().__init__()
        self.edit, self.record = edit, record
        self.heads: list[int] = []
        self._inside = 0
        self._single: list[tuple[Tensor, Layout]] = []  # what heads in modules of their own gave

    def __torch_function__(self, func: Function, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run ``func``, and edit what torch's own kernel returns."""
        name = getattr(func, "__name__", "")
        if name == "multi_head_attention_forward" and not self._inside:
            return self._edit_before_projection(func, bind(args, kwargs or {}))
        before = None if self.record is None else (len(self.record.calls), len(self.record.sites))
        result = func(*args, **(kwargs or {}))
        if self._inside or name != SDPA:
            if self.record is None or before is None or self._inside:
                return result
            if name in PRODUCTS and len(self.record.calls) > before[0]:
                return self._edit_weighing(self.record, result, waits=len(self.record.sites) == before[1])
            return self._edit_joined(func, args, kwargs or {}, result) if name in JOINING and args else result
        if result.ndim != 4:
            self.heads.append(0)
            return result
        return self._edit(result.transpose(1, 2)).transpose(1, 2)  # of [batch, head, query, size]

    def kernel_call(self, name: str, kernel: Function, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an attention function of transformers, and edit what it returns."""
        self._inside += 1
        try:
            output, *more = kernel(*args, **kwargs)
        finally:
            self._inside -= 1
        return (self._edit(output), *more)

    def _edit_before_projection(self, func: Function, arguments: dict[str, Any]) -> Any:
        """Run torch's attention with an identity as its last projection: else it does not return heads."""
        weight, bias = arguments["out_proj_weight"], arguments["out_proj_bias"]
        same = torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
        output, *more = func(**arguments | {"out_proj_weight": same, "out_proj_bias": None})
        heads = output.unflatten(-1, (arguments["num_heads"], -1))  # [query, batch, head, size], or no batch
        batched = heads[:, None] if heads.ndim == 3 else heads
        heads = self._edit(batched.transpose(0, 1)).transpose(0, 1).reshape(output.shape)
        return (linear(heads, weight, bias), *more)

    def _edit_weighing(self, record: Record, result: Tensor, waits: bool) -> Tensor:
        """Edit a product of a softmax's result and values, whatever its axes.

        One head of an entry of a list, which is not shown yet, waits until its output is joined with others.
        """
        arrange = record.layout
        if arrange is None:
            self.heads.append(0)
            return result
        output = arrange(result).transpose(1, 2)
        if waits and output.shape[2] == 1 and record.calls[-1].rpartition(".")[2].isdigit():
            self._single.append((result, arrange))
            return result
        other = self._edit(output)
        return result if other is output else _restore_axes(result, arrange, other)

    def _edit_joined(self, func: Function, args: Any, kwargs: dict[str, Any], result: Tensor) -> Any:
        """Edit heads that stood in modules of their own, where their outputs are joined."""
        single, parts = self._single, args[0]
        alike = isinstance(parts, (list, tuple)) and len(parts) == len(single) > 0
        if not alike or any(part is not each for part, (each, _) in zip(parts, single, strict=True)):
            return result
        self._single = []
        output = torch.cat([arrange(each).transpose(1, 2) for each, arrange in single], 2)
        if (other := self._edit(output)) is output:
            return result
        heads = zip(single, torch.split(other, 1, 2), strict=True)
        return func(
            [_restore_axes(each, arrange, head) for (each, arrange), head in heads],
            *args[1:],
            **kwargs,
        )

    def _edit(self, output: Tensor) -> Tensor:
        """The edited output.  [batch, query, head, size] -> the same"""
        self.heads.append(output.shape[2])
        other = self.edit(len(self.heads) - 1, output)
        return output if other is None else other


def _restore_axes(result: Tensor, arrange: Layout, output: Tensor) -> Tensor:
    """Another output, [batch, query, head, size], in the axes of a product."""
    places = arrange(torch.arange(result.numel(), device=result.device).view(result.shape)).flatten()
    return output.transpose(1, 2).flatten()[places.argsort()].view(result.shape)


@contextmanager
def head_edits(edit: Edit, record: Record | None = None) -> Iterator[Gates]:
    """Edit the output of every attention call on this thread while the block runs, which ``record`` notes."""
    gates = Gates(edit, record)
    with attention_functions(gates.kernel_call), gates:
        yield gates


@contextmanager
def with_forward(module: nn.Module, forward: Function) -> Iterator[None]:
    """Run another forward in the place of a module's while the block runs."""
    own = vars(module).get("forward")
    vars(module)["forward"] = forward
    try:
        yield
    finally:
        if own is None:
            del vars(module)["forward"]
        else:
            vars(module)["forward"] = own
