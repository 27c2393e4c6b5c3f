"""What an attention function of Hugging Face received, ran inside, and returned, as one attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attnscope.capture.hooks.softmax import ROUNDING, Weighing
from attnscope.capture.record import Hole
from attnscope.capture.rows.found import Found, SdpaCall, from_scores, from_sdpa, from_weighing, from_weights
from attnscope.capture.rows.scores import OpenKeys, ScoredRows, causal_rows

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
    sdpa: list[SdpaCall] = field(default_factory=list)
    weighings: list[Weighing] = field(default_factory=list)

    @staticmethod
    def of(kernel: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Frame:
        """The call by the names that all attention functions of the library share."""
        given = dict(zip(RECEIVED, args, strict=False)) | kwargs
        module, query, key, value, mask = (given.pop(name, None) for name in RECEIVED)
        return Frame(kernel, module, query, key, value, mask, given)


def concluded(frame: Frame, result: Any) -> Found | None:
    """The attention of a call that has returned.

    First choice are the weights that the function returned, if they are weights: some return scores.
    Then what torch's kernel received inside of it, after all that was done to mask and heads on the way.
    Then a softmax inside of it. Last, the formula applied to what the function received; it must
    reproduce what the function returned, or the answer is None.
    """
    weights = result[1] if isinstance(result, tuple) and len(result) > 1 else None
    if isinstance(weights, Tensor) and _are_weights(weights, frame.query):
        found = from_weights(weights, _opened(frame, weights), "kernel", frame.kernel)
    elif len(frame.sdpa) == 1:
        found = from_sdpa(frame.sdpa[0], frame.kernel, frame.query.shape[0], frame.query.shape[1])
    elif frame.weighings:
        found = replace(from_weighing(frame.weighings[-1], frame.query.shape[0]), kernel=frame.kernel)
    else:
        formulas = (_scored(frame, causal) for causal in _causalities(frame))
        rows = next((rows for rows in formulas if _reproduces(rows, frame, result)), None)
        if rows is None:
            return None
        found = from_scores(rows, frame.kernel)
    key_heads = frame.key.shape[1] if found.heads % frame.key.shape[1] == 0 else found.key_heads
    window = frame.options.get("sliding_window")
    return replace(found, key_heads=key_heads, window=window if isinstance(window, int) else None)


def unknown_kernel(frame: Frame, name: str) -> Hole:
    """The note of a call whose weights cannot be had."""
    numbers = [int(part) for part in name.split(".") if part.isdigit()]
    reason = (
        f"the attention function {frame.kernel!r} computes no softmax of scaled products, "
        "or one of more terms, so its weights cannot be recomputed"
    )
    return Hole(name, numbers[-1] if numbers else 0, reason)


def _reproduces(rows: ScoredRows, frame: Frame, result: Any) -> bool:
    """Whether the formula gives what the function returned, [batch, query, head, size], in three rows."""
    output = result[0] if isinstance(result, tuple) else result
    heads, queries = frame.query.shape[1:3]
    if not isinstance(output, Tensor) or output.shape[1:3] != (queries, heads):
        return False
    value = frame.value.repeat_interleave(heads // frame.value.shape[1], 1).float()
    tolerance = 1e-4 if output.dtype in (torch.float32, torch.float64) else 0.05
    with torch.no_grad():
        for row in sorted({0, queries // 2, queries - 1}):
            mixed = rows.rows(row, row + 1, None).float() @ value  # [batch, head, 1, size]
            theirs = output[:, row].unsqueeze(2).float()
            if not torch.allclose(mixed, theirs, rtol=tolerance, atol=tolerance * float(value.abs().amax())):
                return False
    return True


def _are_weights(weights: Tensor, query: Tensor) -> bool:
    """Whether a returned tensor is [batch, head, query, key], not negative, its rows at most 1."""
    if weights.ndim != 4 or weights.shape[1:3] != query.shape[1:3] or not weights.is_floating_point():
        return False
    rows = weights.detach().float()
    return bool((rows >= 0).all()) and float(rows.sum(-1).amax()) <= 1 + ROUNDING


def _opened(frame: Frame, weights: Tensor) -> Tensor | None:
    """The open keys of returned weights, from the softmax that made them."""
    if not frame.weighings or frame.weighings[-1].closed is None:
        return None
    closed = frame.weighings[-1].closed
    return ~closed.expand(frame.weighings[-1].weights.shape).reshape(weights.shape)


def _causalities(frame: Frame) -> tuple[bool, ...]:
    """Whether the function was causal: as it was told, as its module says, else the other way."""
    told = frame.options.get("is_causal")
    if told is not None:
        return (bool(told),)
    says = bool(getattr(frame.module, "is_causal", False))
    return (says, not says)


def _scored(frame: Frame, causal: bool) -> ScoredRows:
    """The formula of the kernels that show nothing inside: flash and flex attention, and others' own."""
    options = frame.options
    scale = options.get("scaling")
    added: tuple[Tensor, ...] = ()
    opened: tuple[OpenKeys, ...] = ()
    queries, keys = frame.query.shape[2], frame.key.shape[2]
    if "flash" in frame.kernel:
        opened = _flash_masks(frame, causal)
    elif isinstance(frame.mask, Tensor):
        mask = frame.mask[..., :keys]
        opened, added = ((mask,), ()) if mask.dtype == torch.bool else ((), (mask,))
    elif frame.mask is not None:
        opened = (_block_mask(frame.mask.mask_mod, frame),)
    elif causal and queries > 1:
        opened = (causal_rows(keys, frame.key.device),)
    if options.get("position_bias") is not None:
        added = (*added, options["position_bias"])
    return ScoredRows(
        query=frame.query,
        key=frame.key,
        scale=1 / math.sqrt(frame.query.shape[-1]) if scale is None else scale,
        added=added,
        opened=opened,
        softcap=options.get("softcap"),
        sinks=options.get("s_aux"),
    )


def _flash_masks(frame: Frame, causal: bool) -> tuple[OpenKeys, ...]:
    """Padding, causality and window as flash attention applies them: the last query is the last key."""
    queries, keys, device = frame.query.shape[2], frame.key.shape[2], frame.key.device
    window = frame.options.get("sliding_window")
    opened: list[OpenKeys] = []
    if isinstance(frame.mask, Tensor):
        padding = frame.mask.bool()
        opened.append(padding[:, None, None, -keys:])
        opened.append(padding[:, None, -queries:, None])
    if causal:
        opened.append(causal_rows(keys, device, keys - queries))
    if window is not None and keys > window:
        opened.append(_band(window, keys, keys - queries, device))
    return tuple(opened)


def _band(window: int, keys: int, offset: int, device: torch.device) -> Callable[[int, int], Tensor]:
    """Keys less than ``window`` away, to either side.  -> [1, 1, row, key]"""

    def opened(start: int, stop: int) -> Tensor:
        row = torch.arange(start, stop, device=device)[:, None] + offset
        return ((torch.arange(keys, device=device) - row).abs() < window)[None, None]

    return opened


def _block_mask(mask_mod: Callable[..., Tensor], frame: Frame) -> Callable[[int, int], Tensor]:
    """Keys that a flex attention mask leaves open, for a block of rows.  -> [batch, head, row, key]"""
    batch, heads, keys, device = *frame.query.shape[:2], frame.key.shape[2], frame.key.device
    over_keys = torch.vmap(mask_mod, in_dims=(None, None, None, 0))
    over_rows = torch.vmap(over_keys, in_dims=(None, None, 0, None))
    over_heads = torch.vmap(over_rows, in_dims=(None, 0, None, None))
    over_batch = torch.vmap(over_heads, in_dims=(0, None, None, None))

    def opened(start: int, stop: int) -> Tensor:
        axes = (torch.arange(n, device=device) for n in (batch, heads))
        return over_batch(*axes, torch.arange(start, stop, device=device), torch.arange(keys, device=device))

    return opened
