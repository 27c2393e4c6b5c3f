"""The arguments of torch's own kernel, with a batch and a head axis, as one ``AttentionCall``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from attnscope.attention import AttentionCall, OpenKeys

ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
"""Those that may be given without their names."""


def sdpa_call(
    args: Sequence[Any], kwargs: Mapping[str, Any], batch: int, heads: int | None = None
) -> AttentionCall:
    """One call of ``torch.nn.functional.scaled_dot_product_attention``.

    ``batch`` splits [batch·head, query, size] inputs. ``heads`` is the count of query heads that the
    module's attention function received: with a single query, grouped heads may have been moved into the
    query axis, ``[batch, key_head, group, size]``, and are moved back.
    """
    given = dict(zip(ARGUMENTS, args, strict=False)) | dict(kwargs)
    query, key, value = (cast(given[name]) for name in ARGUMENTS[:3])
    mask: Tensor | None = given.get("attn_mask")
    if heads is not None and query.ndim == 4 and query.shape[1] != heads:
        grouped = query.shape[1:3]
        query = query.flatten(1, 2).unsqueeze(2)  # [batch, head, 1, size]
        if mask is not None and mask.ndim == 4 and mask.shape[1:3] == grouped:
            mask = mask.flatten(1, 2).unsqueeze(2)
    elif query.ndim != 4:
        shape = _four_axes(query, batch)
        mask = None if mask is None else _with_four_axes(mask, query.ndim, shape)
        key, value = (part.reshape(*_four_axes(part, batch), *part.shape[-2:]) for part in (key, value))
        query = query.reshape(*shape, *query.shape[-2:])
    scale = given.get("scale")
    biases: tuple[Tensor, ...] = ()
    masks: tuple[OpenKeys, ...] = ()
    if mask is not None and mask.dtype == torch.bool:
        masks = (mask,)
    elif mask is not None:
        biases = (cast(mask),)
    return AttentionCall(
        query,
        key,
        value,
        scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
        biases=biases,
        masks=masks,
        diagonal=0 if given.get("is_causal") else None,
        dropout=given.get("dropout_p") or 0.0,
    )


def cast(states: Tensor) -> Tensor:
    """What the kernel sees under autocast."""
    device = states.device.type
    if states.dtype == torch.float32 and torch.is_autocast_enabled(device):
        return states.to(torch.get_autocast_dtype(device))
    return states


def _four_axes(states: Tensor, batch: int) -> tuple[int, int]:
    """Batch and heads of states with other than four axes, [..., position, size]."""
    count = math.prod(states.shape[:-2])
    if states.ndim > 4:
        return states.shape[0], count // states.shape[0]
    return (batch, count // batch) if batch and count % batch == 0 else (count, 1)


def _with_four_axes(mask: Tensor, ndim: int, shape: tuple[int, int]) -> Tensor:
    """A mask that broadcasts to [..., query, key], with a batch and a head axis."""
    leading = mask.shape[:-2]
    if math.prod(leading) == math.prod(shape):
        return mask.reshape(*shape, *mask.shape[-2:])
    if ndim > 4 and mask.ndim == ndim:
        return mask.expand(shape[0], *(mask.shape[1:-2]), -1, -1).flatten(1, -3)
    return mask
