"""What an attention function of Hugging Face received, ran inside, and returned, as one attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attnscope.attention import AttentionCall, OpenKeys
from attnscope.capture.record import LayerWithoutAttention, tolerance
from attnscope.capture.rows.capture import Capture
from attnscope.capture.rows.kernels.flex import open_rows
from attnscope.capture.rows.weighing import ROUNDING, Weighing

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
    sdpa: list[Capture] = field(default_factory=list)  # what torch's own kernel did inside of it
    weighings: list[Weighing] = field(default_factory=list)

    @staticmethod
    def of(kernel: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Frame:
        """The call by the names that all attention functions of the library share."""
        given = dict(zip(RECEIVED, args, strict=False)) | kwargs
        module, query, key, value, mask = (given.pop(name, None) for name in RECEIVED)
        return Frame(kernel, module, query, key, value, mask, given)

    @property
    def has_fused_form(self) -> bool:
        """Whether the fused pass may stand for the function: an eager one that caps scores or has sinks.

        Torch's own kernel does neither; whatever calls it is fused there.
        """
        learns = torch.is_grad_enabled() and self.query.requires_grad
        extras = self.options.get("softcap"), self.options.get("s_aux")
        return self.kernel == "eager" and not learns and any(extra is not None for extra in extras)


def conclude(frame: Frame, result: Any) -> Capture | None:
    """The attention of a call that has returned.

    First choice are the weights that the function returned, if they are weights: some return scores.
    Then what torch's kernel received inside of it, after all that was done to mask and heads on the way.
    Then a softmax inside of it. Last, the formula applied to what the function received; it must
    reproduce what the function returned, or the answer is None.
    """
    weights = result[1] if isinstance(result, tuple) and len(result) > 1 else None
    output = _output(frame, result)
    if isinstance(weights, Tensor) and _are_weights(weights, frame.query):
        capture = Capture.of_weights(weights, _open_keys(frame, weights), "kernel", frame.kernel)
        capture = capture.proved(frame.value, output)
    elif len(frame.sdpa) == 1:
        capture = frame.sdpa[0]
        if capture.statistics is None:
            capture = replace(capture, kernel=frame.kernel)
    elif frame.weighings:
        capture = Capture.of_weighing(frame.weighings[-1], frame.query.shape[0])
        capture = replace(capture, kernel=frame.kernel)
    else:
        calls = (Capture.of_call(formula(frame, causal), frame.kernel) for causal in _causalities(frame))
        captures = (capture.proved(frame.value, output) for capture in calls)
        within = tolerance(frame.query.dtype)
        best = next(
            (each for each in captures if each.difference is not None and each.difference <= within), None
        )
        if best is None:
            return None
        capture = best
    key_heads = frame.key.shape[1] if capture.heads % frame.key.shape[1] == 0 else capture.key_heads
    window = frame.options.get("sliding_window")
    return replace(capture, key_heads=key_heads, window=window if isinstance(window, int) else None)


def without_formula(frame: Frame, name: str) -> LayerWithoutAttention:
    """The note of a call whose weights cannot be had."""
    reason = (
        f"the attention function {frame.kernel!r} computes no softmax of scaled products, "
        "or one of more terms, so its weights cannot be recomputed"
    )
    return LayerWithoutAttention.at(name, reason)


def _output(frame: Frame, result: Any) -> Tensor | None:
    """What the function returned, [batch, query, head, size], with heads before queries."""
    output = result[0] if isinstance(result, (tuple, list)) else result
    heads, queries = frame.query.shape[1:3]
    if not isinstance(output, Tensor) or output.ndim < 3 or output.shape[1] != queries:
        return None
    if output.ndim == 3 and output.shape[2] % heads == 0:
        output = output.view(*output.shape[:2], heads, -1)
    return output.transpose(1, 2) if output.ndim == 4 and output.shape[2] == heads else None


def _are_weights(weights: Tensor, query: Tensor) -> bool:
    """Whether a returned tensor is [batch, head, query, key], not negative, its rows at most 1."""
    if weights.ndim != 4 or weights.shape[1:3] != query.shape[1:3] or not weights.is_floating_point():
        return False
    rows = weights.detach().float()
    return bool((rows >= 0).all()) and float(rows.sum(-1).amax()) <= 1 + ROUNDING


def _open_keys(frame: Frame, weights: Tensor) -> Tensor | None:
    """The open keys of returned weights, from the softmax that made them."""
    if not frame.weighings or frame.weighings[-1].masked is None:
        return None
    return ~frame.weighings[-1].masked.expand(frame.weighings[-1].weights.shape).reshape(weights.shape)


def _causalities(frame: Frame) -> tuple[bool, ...]:
    """Whether the function was causal: as its caller says, else as its module says, else the other way."""
    said = frame.options.get("is_causal")
    if said is not None:
        return (bool(said),)
    says = bool(getattr(frame.module, "is_causal", False))
    return (says, not says)


def formula(frame: Frame, causal: bool) -> AttentionCall:
    """What a function was given, as a call: of eager ones, and of those that show nothing inside."""
    options = frame.options
    scale, bias = options.get("scaling"), options.get("position_bias")
    biases: tuple[Tensor, ...] = ()
    masks: tuple[OpenKeys, ...] = ()
    queries, keys = frame.query.shape[2], frame.key.shape[2]
    diagonal = None
    if "flash" in frame.kernel:
        masks, diagonal = _flash_masks(frame), keys - queries if causal else None
    elif isinstance(frame.mask, Tensor):
        mask = frame.mask[..., :keys]
        masks, biases = ((mask,), ()) if mask.dtype == torch.bool else ((), (mask,))
    elif frame.mask is not None:
        masks = (
            open_rows(frame.mask.mask_mod, len(frame.query), frame.query.shape[1], keys, frame.key.device),
        )
    elif causal and queries > 1:
        diagonal = 0
    return AttentionCall(
        frame.query,
        frame.key,
        frame.value,
        scale=1 / math.sqrt(frame.query.shape[-1]) if scale is None else scale,
        biases=biases if bias is None else (*biases, bias),
        masks=masks,
        diagonal=diagonal,
        softcap=options.get("softcap"),
        sinks=options.get("s_aux"),
        dropout=options.get("dropout") or 0.0,
    )


def _flash_masks(frame: Frame) -> tuple[OpenKeys, ...]:
    """Padding and window as flash attention applies them: the last query is the last key."""
    queries, keys = frame.query.shape[2], frame.key.shape[2]
    window = frame.options.get("sliding_window")
    masks: list[OpenKeys] = []
    if isinstance(frame.mask, Tensor):
        padding = frame.mask.bool()
        masks += [padding[:, None, None, -keys:], padding[:, None, -queries:, None]]
    if window is not None and keys > window:
        masks.append(_band(window, keys, keys - queries, frame.key.device))
    return tuple(masks)


def _band(window: int, keys: int, offset: int, device: torch.device) -> Callable[[int, int], Tensor]:
    """Keys less than ``window`` away, to either side.  -> [1, 1, row, key]"""

    def open_keys(start: int, stop: int) -> Tensor:
        row = torch.arange(start, stop, device=device)[:, None] + offset
        return ((torch.arange(keys, device=device) - row).abs() < window)[None, None]

    return open_keys
