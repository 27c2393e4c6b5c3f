"""The arguments of attention functions, with a batch and a head axis, as one ``AttentionCall``."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.attention import AttentionCall, HeldRows, OpenKeys
from attnscope.capture.hooks.functions import quietly
from attnscope.capture.record import FUSED, beyond_rounding
from attnscope.capture.rows.capture import ROUNDING, CapturedCall, Weighing, masked_keys
from attnscope.capture.rows.mixing import MixingRows
from attnscope.capture.rows.scores import MadeRows, ScoredRows, compare_rows, mix, open_gaps
from attnscope.fused.fused_pass import FusedPass, Refusal

ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
"""Arguments that may be positional."""


def sdpa_call(
    args: Sequence[Any], kwargs: Mapping[str, Any], batch: int, heads: int | None = None
) -> AttentionCall:
    """One call of ``torch.nn.functional.scaled_dot_product_attention``.

    ``batch`` splits [batch·head, query, size] inputs. ``heads`` is the number of query heads that the
    module's attention function received: for a single query, grouped heads may be in the query axis,
    ``[batch, key_head, group, size]``, and are moved back.
    """
    arguments = dict(zip(ARGUMENTS, args, strict=False)) | dict(kwargs)
    query, key, value = (cast(arguments[name]) for name in ARGUMENTS[:3])
    mask: Any = arguments.get("attn_mask")
    if hasattr(mask, "_materialize"):  # a CausalBias of torch, a tensor without the numbers
        mask = mask._materialize(query.device)
    mask = None if mask is None else _reshape_mask(mask, query, batch, heads)
    if heads is not None and query.ndim == 4 and query.shape[1] != heads:
        query = query.flatten(1, 2).unsqueeze(2)  # [batch, head, 1, size]
    elif query.ndim != 4:
        query, key, value = (
            part.reshape(*_batch_and_heads(part, batch), *part.shape[-2:]) for part in (query, key, value)
        )
    masks = () if mask is None else (mask,)
    scale = arguments.get("scale")
    return AttentionCall(
        query,
        key,
        value,
        scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
        biases=tuple(cast(mask) for mask in masks if mask.dtype != torch.bool),
        masks=tuple(mask for mask in masks if mask.dtype == torch.bool),
        diagonal=0 if arguments.get("is_causal") else None,
        dropout=arguments.get("dropout_p") or 0.0,
    )


def _reshape_mask(mask: Tensor, query: Tensor, batch: int, heads: int | None) -> Tensor:
    """A mask in the axes that the queries of its call get.  -> 4 axes"""
    if heads is not None and query.ndim == 4 and query.shape[1] != heads:
        if mask.ndim == 4 and mask.shape[1:3] == query.shape[1:3]:
            mask = mask.flatten(1, 2).unsqueeze(2)
    elif query.ndim != 4 and 2 < mask.ndim <= query.ndim:
        shape = *_batch_and_heads(query, batch), *mask.shape[-2:]
        mask = mask.expand(*query.shape[:-2], *mask.shape[-2:]).reshape(shape)
    return mask[(None,) * (4 - mask.ndim)] if mask.ndim < 4 else mask


def cast(states: Tensor) -> Tensor:
    """The arguments as the kernel sees them under autocast."""
    device = states.device.type
    if states.dtype == torch.float32 and torch.is_autocast_enabled(device):
        return states.to(torch.get_autocast_dtype(device))
    return states


def _batch_and_heads(states: Tensor, batch: int) -> tuple[int, int]:
    """The sizes of both axes of states without exactly four axes, [..., position, size]."""
    count = math.prod(states.shape[:-2])
    if states.ndim > 4:
        return states.shape[0], count // states.shape[0]
    return (batch, count // batch) if batch and count % batch == 0 else (count, 1)


_signature = inspect.signature(F.multi_head_attention_forward)


def bind(args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The function's arguments by name, defaults filled in."""
    arguments = _signature.bind(*args, **kwargs)
    arguments.apply_defaults()
    return arguments.arguments


def capture_projection(arguments: Mapping[str, Any], output: Tensor) -> CapturedCall:
    """The attention of one call, [query, batch, size] or unbatched [query, size], checked."""
    query, key, call = arguments["query"], arguments["key"], project(arguments)
    difference = None
    if output.numel() and not (arguments["training"] and arguments["dropout_p"]):
        weight, bias = arguments["out_proj_weight"], arguments["out_proj_bias"]
        batched = output.unsqueeze(1) if output.ndim == 2 else output  # [query, batch, size]
        difference = compare_rows(
            ScoredRows(call),
            call.value,
            batched.transpose(0, 1).unsqueeze(1),
            lambda heads, rows: F.linear(heads.transpose(1, 2).flatten(2).to(weight.dtype), weight, bias),
        )
    is_cross = None if query is key or torch.equal(query, key) else True
    capture = CapturedCall.from_call(call, "multi_head_attention_forward")
    return replace(capture, is_cross=is_cross, difference=difference)


@torch.no_grad()
def project(arguments: Mapping[str, Any]) -> AttentionCall:
    """The call after the function's own projections."""
    query, key, value = (_project_side(arguments, part) for part in range(3))
    batch, keys = len(query), key.shape[2]
    mask, padding = arguments["attn_mask"], arguments["key_padding_mask"]
    # where causality is hinted at, torch does not read the mask
    hint = arguments["is_causal"] and padding is None and not arguments["need_weights"]
    masks = [] if padding is None else [padding.reshape(batch, 1, 1, -1)]
    if mask is not None and not hint:
        masks.insert(0, mask if mask.ndim == 2 else mask.reshape(batch, -1, *mask.shape[-2:]))
    wide = [F.pad(mask, (0, keys - mask.shape[-1])) for mask in masks]  # bias_k and the zero key are unmasked
    additive = tuple(mask for mask in wide if mask.dtype != torch.bool)
    opened = tuple(~mask for mask in wide if mask.dtype == torch.bool)  # torch's True is masked
    scale, diagonal = 1 / math.sqrt(query.shape[-1]), 0 if hint else None
    return AttentionCall(query, key, value, scale, additive, opened, diagonal)


def _project_side(arguments: Mapping[str, Any], part: int) -> Tensor:
    """Queries (part 0), keys or values, with what torch adds.  -> [batch, head, position, size]"""
    letter, states = "qkv"[part], arguments[("query", "key", "value")[part]]  # [position, batch, size]
    states = states[:, None] if states.ndim == 2 else states
    batch, heads, bias, static = states.shape[1], arguments["num_heads"], arguments["in_proj_bias"], None
    if part:
        static, added = arguments[f"static_{letter}"], arguments[f"bias_{letter}"]
    if static is not None:
        side: Tensor = static.reshape(batch, heads, *static.shape[1:])
    else:
        separate = arguments["use_separate_proj_weight"]
        weight = (
            arguments[f"{letter}_proj_weight"] if separate else arguments["in_proj_weight"].chunk(3)[part]
        )
        states = F.linear(states, weight, None if bias is None else bias.chunk(3)[part])
        if part and added is not None:
            states = torch.cat([states, added.expand(1, batch, -1)])
        side = _split(states, heads)
    return F.pad(side, (0, 0, 0, 1)) if part and arguments["add_zero_attn"] else side


def _split(states: Tensor, heads: int) -> Tensor:
    """[position, batch, head·size] -> [batch, head, position, size]"""
    positions, batch, _ = states.shape
    return states.reshape(positions, batch, heads, -1).permute(1, 2, 0, 3)


ARGUMENTS_FLEX = ("query", "key", "value", "score_mod", "block_mask", "scale")
"""The arguments of torch's operator, in order; a block mask is a tuple here, ending in its function."""


def capture_flex(args: Sequence[Any], kwargs: Mapping[str, Any], output: Tensor) -> CapturedCall:
    """The attention of one call, checked against its output, [batch, head, query, size]."""
    arguments = dict(zip(ARGUMENTS_FLEX, args, strict=False)) | dict(kwargs)
    query, key, value = (cast(arguments[name]) for name in ARGUMENTS_FLEX[:3])
    key, value = (side.expand(len(query), -1, -1, -1) for side in (key, value))
    call = AttentionCall(query, key, value, arguments["scale"])
    opened = open_rows(arguments["block_mask"][-1], len(query), query.shape[1], key.shape[2], key.device)
    rows = FlexRows(ScoredRows(call), arguments["score_mod"], opened)
    return replace(CapturedCall.from_call(call, "flex_attention"), read=rows).with_difference(value, output)


@dataclass(frozen=True, eq=False)
class FlexRows:
    """Rows of one call; a row without an unmasked key is zero, as in the kernel."""

    plain: ScoredRows
    change: Callable[..., Tensor]  # from a score and its place (text, head, query, key) to a new score
    open_keys: MadeRows

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """Weights of the queries ``start`` to ``stop``.  -> [batch, head, row, key]"""
        scores = self._scores(start, stop, heads)
        dead = scores.amax(-1, keepdim=True) == -torch.inf  # [batch, head, row, 1]
        return torch.softmax(scores, -1).masked_fill(dead, 0.0)

    def allowed(self, start: int, stop: int) -> Tensor:
        """Keys masked neither by the mask nor by the changed scores.  -> [batch, head, row, key]"""
        scores, plain = self._scores(start, stop, None), self.plain.scores(start, stop, None)
        masked = masked_keys(scores, -1, torch.softmax(scores, -1), lambda given: given - plain)
        return torch.ones_like(scores, dtype=torch.bool) if masked is None else ~masked

    @torch.no_grad()
    def _scores(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """The input of the softmax.  -> [batch, head, row, key]"""
        scores = self.plain.scores(start, stop, heads)
        chosen = list(range(scores.shape[1]) if heads is None else heads)
        places = _places(len(scores), chosen, range(start, stop), scores.shape[-1], scores.device)
        changed = _at_every_place(self.change, scores, places=places)
        return changed.masked_fill(~self.open_keys(start, stop)[:, chosen], -torch.inf)


def open_rows(
    open_key: Callable[..., Tensor], batch: int, heads: int, keys: int, device: torch.device
) -> MadeRows:
    """Keys that a function of places does not mask, for a block of rows.  -> [batch, head, row, key]"""
    return lambda start, stop: _at_every_place(
        open_key, places=_places(batch, range(heads), range(start, stop), keys, device)
    )


def _places(
    batch: int, heads: Sequence[int], rows: range, keys: int, device: torch.device
) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(list(axis), device=device) for axis in (range(batch), heads, rows, range(keys)))


def _at_every_place(function: Callable[..., Tensor], *scores: Tensor, places: Sequence[Tensor]) -> Tensor:
    """A function of one place, optionally with its score, for all texts, heads, queries and keys."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    for axis in reversed(range(4)):
        own = (None,) * axis + (0,) + (None,) * (3 - axis)
        function = torch.vmap(function, in_dims=(0, *own) if scores else own)
    with TransformGetItemToIndex():  # lets a function read ``tensor[place]`` while it is mapped over places
        return function(*scores, *places)


def fuse(fused: FusedPass | None, capture: CapturedCall) -> tuple[Tensor | None, CapturedCall]:
    """The output and statistics of the fused pass; or no output, and why the kernel has to run."""
    if fused is None or not isinstance(capture.read, ScoredRows):
        return None, capture
    call = capture.read.call
    try:
        output, statistics = fused.attend(call)
    except Refusal as refusal:
        return None, replace(capture, refusal=str(refusal))
    computed = replace(capture, source="kernel", kernel=FUSED, statistics=statistics)
    computed = computed.with_difference(call.value, output)
    if beyond_rounding(computed.difference, call.query.dtype):
        reason = f"rows of its output differ from the formula by {computed.difference:.2g}"
        return None, replace(capture, refusal=reason)
    return output, computed


def mix_rows(fused: FusedPass | None, capture: CapturedCall) -> Tensor | None:
    """Weights × values of a short call, where they are asked for in the kernel's place.

    Observers read the same weights next.  -> [batch, head, query, size]
    """
    read = capture.read
    if fused is None or not isinstance(read, ScoredRows) or not fused.takes_rows(read.call):
        return None
    with quietly():
        rows = read.all_rows()
        return None if rows is None else mix(rows, read.call.value).to(read.call.query.dtype)


NO_FORMULA = (
    "the attention function {!r} computes something other than softmax(scale·QKᵀ), so its weights cannot be "
    "recomputed"
)
RECEIVED = ("module", "query", "key", "value", "attention_mask")


@dataclass(eq=False)
class Frame:
    """One call of an attention function while it runs."""

    kernel: str
    module: Any
    query: Tensor  # [batch, head, query, size]
    key: Tensor  # [batch, key_head, key, size]
    value: Tensor
    mask: Any  # bool, additive, [batch, key] padding (flash), BlockMask (flex) or None
    options: dict[str, Any]
    sdpa: list[CapturedCall] = field(default_factory=list)  # what torch's own kernel did inside it
    weighings: list[Weighing] = field(default_factory=list)

    @staticmethod
    def from_arguments(kernel: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Frame:
        """The call by the names that all attention functions of the library share."""
        arguments = dict(zip(RECEIVED, args, strict=False)) | kwargs
        module, query, key, value, mask = (arguments.pop(name, None) for name in RECEIVED)
        return Frame(kernel, module, query, key, value, mask, arguments)

    @property
    def has_fused_form(self) -> bool:
        """Whether it is eager, with a soft cap or sinks; what calls torch's kernel is fused there."""
        learns = torch.is_grad_enabled() and self.query.requires_grad
        extras = self.options.get("softcap"), self.options.get("s_aux")
        return self.kernel == "eager" and not learns and any(extra is not None for extra in extras)


def conclude(frame: Frame, result: Any) -> CapturedCall | None:
    """The attention of a call that has returned.

    First come the returned weights, unless they are scores, or only the formula reproduces the output; then
    the arguments of torch's kernel inside it, with mask and heads prepared; then a softmax inside it; last
    the formula applied to the function's arguments, which must reproduce the output, or the answer is None.
    """
    weights = result[1] if isinstance(result, tuple) and len(result) > 1 else None
    output = _output(frame, result)
    if frame.weighings and frame.weighings[-1].trail.before is not None:  # those returned are dropped
        capture = CapturedCall.from_weighing(frame.weighings[-1], frame.query.shape[0])
        capture = replace(capture, kernel=frame.kernel)
    elif isinstance(weights, Tensor) and _are_weights(weights, frame.query):
        opened: Tensor | None = None
        if frame.weighings:  # of the softmax that made the returned weights
            last = frame.weighings[-1]
            if last.masked is not None:
                opened = ~last.masked.expand(last.weights.shape).reshape(weights.shape)
        else:  # it was not followed: a masked key has no weight
            opened = (weights != 0).any(1, keepdim=True)
        capture = CapturedCall.from_weights(weights, opened, "kernel", frame.kernel)
        capture = capture.with_difference(frame.value, output)
        if beyond_rounding(capture.difference, weights.dtype):
            capture = _recomputed(frame, output) or capture  # a sink may be capture off the output alone
        if isinstance(capture.read, HeldRows):
            call = formula(frame, _causalities(frame)[0])
            capture = replace(capture, read=replace(capture.read, call=call))
    elif len(frame.sdpa) == 1:
        capture = frame.sdpa[0]
        if capture.kernel != FUSED:
            capture = replace(capture, kernel=frame.kernel)
    elif frame.weighings:
        capture = CapturedCall.from_weighing(frame.weighings[-1], frame.query.shape[0])
        capture = replace(capture, kernel=frame.kernel)
    else:
        recomputed = _recomputed(frame, output)
        if recomputed is None:
            return None
        capture = recomputed
    key_heads = frame.key.shape[1] if capture.heads % frame.key.shape[1] == 0 else capture.key_heads
    window = frame.options.get("sliding_window")
    return replace(capture, key_heads=key_heads, window=window if isinstance(window, int) else None)


def _recomputed(frame: Frame, output: Tensor | None) -> CapturedCall | None:
    """The attention by the formula; None if it does not reproduce the output, [batch, head, query, size]."""
    for causal in _causalities(frame):
        capture = CapturedCall.from_call(formula(frame, causal), frame.kernel).with_difference(
            frame.value, output
        )
        if capture.difference is not None and not beyond_rounding(capture.difference, frame.query.dtype):
            return capture
    return None


def probe_kernel(frame: Frame, kernel: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> Any:
    """The rows of an attention function by identity values; None if it drops weights or mixes its output."""
    output = _output(frame, result)
    if output is None or frame.options.get("dropout"):
        return None

    def run(values: Tensor) -> Tensor:
        arguments = dict(zip(RECEIVED, args, strict=False)) | kwargs | {"value": values.transpose(1, 2)}
        first = [arguments.pop(name, None) for name in RECEIVED]
        again = _output(frame, kernel(*first, **arguments))
        assert again is not None
        return again.transpose(1, 2)

    return MixingRows(run, frame.value.transpose(1, 2), output.transpose(1, 2), shared=True)


def probe_sdpa(call: AttentionCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> MixingRows | None:
    """The rows of torch's own kernel by identity values; None if it drops weights."""
    arguments = dict(zip(ARGUMENTS, args, strict=False)) | dict(kwargs)
    if call.dropout:
        return None

    def run(values: Tensor) -> Tensor:
        value = values.transpose(1, 2).reshape(arguments["value"].shape)
        output = F.scaled_dot_product_attention(**arguments | {"value": value})
        return output.reshape(*call.query.shape[:3], -1).transpose(1, 2)

    values = call.value.transpose(1, 2)
    return MixingRows(run, values, run(values), shared=True)


def _output(frame: Frame, result: Any) -> Tensor | None:
    """The returned output, [batch, query, head, size], with heads before queries."""
    output = result[0] if isinstance(result, (tuple, list)) else result
    heads, queries = frame.query.shape[1:3]
    if not isinstance(output, Tensor) or output.ndim < 3 or output.shape[1] != queries:
        return None
    if output.ndim == 3 and output.shape[2] % heads == 0:
        output = output.view(*output.shape[:2], heads, -1)
    return output.transpose(1, 2) if output.ndim == 4 and output.shape[2] == heads else None


def _are_weights(weights: Tensor, query: Tensor) -> bool:
    """Whether a returned tensor is [batch, head, query, key], not negative, with row sums of at most 1."""
    if weights.ndim != 4 or weights.shape[1:3] != query.shape[1:3] or not weights.is_floating_point():
        return False
    rows = weights.detach().float()
    return bool((rows >= 0).all()) and float(rows.sum(-1).amax()) <= 1 + ROUNDING


def _causalities(frame: Frame) -> tuple[bool, ...]:
    """Whether the function was causal: as the caller says, or the module; then the other way."""
    declared = frame.options.get("is_causal")
    if declared is not None:
        return (bool(declared),)
    says = bool(getattr(frame.module, "is_causal", False))
    return (says, not says)


def formula(frame: Frame, causal: bool) -> AttentionCall:
    """A function's arguments as a call: for eager ones, and for those that show nothing inside."""
    options = frame.options
    scale, bias = options.get("scaling"), options.get("position_bias")
    biases = [] if bias is None else [bias]
    masks: list[OpenKeys] = []
    (batch, heads, queries, _), keys = frame.query.shape, frame.key.shape[2]
    diagonal = None
    if "flash" in frame.kernel:  # the last query is the last key
        diagonal, window = keys - queries if causal else None, options.get("sliding_window")
        if isinstance(frame.mask, Tensor):
            padding = frame.mask.bool()
            masks += [padding[:, None, None, -keys:], padding[:, None, -queries:, None]]
        if window is not None and keys > window:
            masks.append(open_gaps(frame.key, keys - queries, lambda gap: gap.abs() < window))
    elif isinstance(frame.mask, Tensor):
        mask = frame.mask[..., :keys]
        if mask.dtype == torch.bool:
            masks.append(mask)
        else:
            biases.insert(0, mask)
    elif frame.mask is not None:
        masks.append(open_rows(frame.mask.mask_mod, batch, heads, keys, frame.key.device))
    elif causal and queries > 1:
        diagonal = 0
    return AttentionCall(
        frame.query,
        frame.key,
        frame.value,
        scale=1 / math.sqrt(frame.query.shape[-1]) if scale is None else scale,
        biases=tuple(biases),
        masks=tuple(masks),
        diagonal=diagonal,
        softcap=options.get("softcap"),
        sinks=options.get("s_aux"),
        dropout=options.get("dropout") or 0.0,
    )
