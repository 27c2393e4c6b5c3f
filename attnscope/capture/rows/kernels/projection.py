"""``torch.nn.functional.multi_head_attention_forward`` as a call, from its arguments.

The function projects, masks and attends in one go. Here is what goes into its softmax, as its documentation
and that of ``nn.MultiheadAttention`` define it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.attention import AttentionCall, OpenKeys
from attnscope.capture.rows.capture import Capture
from attnscope.capture.rows.proof import compare_rows
from attnscope.capture.rows.scores import ScoredRows

_signature = inspect.signature(F.multi_head_attention_forward)


def bind(args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The function's arguments by name, defaults filled in."""
    given = _signature.bind(*args, **kwargs)
    given.apply_defaults()
    return given.arguments


def capture_projection(given: Mapping[str, Any], output: Tensor) -> Capture:
    """The attention of one call, [query, batch, size] or unbatched [query, size], proved."""
    query, key, static = given["query"], given["key"], given["static_k"]
    heads = given["num_heads"]
    own = key.shape[0] if static is None else static.shape[1]
    call = project(given)
    difference = None
    if output.numel() and not (given["training"] and given["dropout_p"]):
        weight, bias = given["out_proj_weight"], given["out_proj_bias"]
        batched = output.unsqueeze(1) if output.ndim == 2 else output  # [query, batch, size]
        difference = compare_rows(
            ScoredRows(call),
            call.value,
            batched.transpose(0, 1).unsqueeze(1),
            lambda heads, rows: F.linear(heads.transpose(1, 2).flatten(2).to(weight.dtype), weight, bias),
        )
    return Capture(
        source="recomputed",
        kernel="multi_head_attention_forward",
        batch=query.shape[1] if query.ndim == 3 else 1,
        heads=heads,
        key_heads=heads,
        queries=query.shape[0],
        keys=own + (given["bias_k"] is not None) + bool(given["add_zero_attn"]),
        dtype=query.dtype,
        read=ScoredRows(call),
        crossed=None if query is key or torch.equal(query, key) else True,
        difference=difference,
        values=call.value,
    )


@torch.no_grad()
def project(given: Mapping[str, Any]) -> AttentionCall:
    """The call behind the function's own projections."""
    heads = given["num_heads"]
    inputs = [given[name] for name in ("query", "key", "value")]  # each [position, batch, size]
    inputs = [states[:, None] if states.ndim == 2 else states for states in inputs]
    batch = inputs[0].shape[1]
    weights, biases = _weights(given), (None,) * 3
    if given["in_proj_bias"] is not None:
        biases = given["in_proj_bias"].chunk(3)
    query = _split(F.linear(inputs[0], weights[0], biases[0]), heads)
    sides = []
    for part, letter in enumerate("kv", start=1):
        static, more = given[f"static_{letter}"], given[f"bias_{letter}"]
        if static is not None:
            side = static.reshape(batch, heads, *static.shape[1:])
        else:
            states = F.linear(inputs[part], weights[part], biases[part])
            if more is not None:
                states = torch.cat([states, more.expand(1, batch, -1)])
            side = _split(states, heads)
        sides.append(F.pad(side, (0, 0, 0, 1)) if given["add_zero_attn"] else side)
    additive, masks, diagonal = _masks(given, batch, sides[0].shape[2])
    scale = 1 / math.sqrt(query.shape[-1])
    return AttentionCall(query, sides[0], sides[1], scale, additive, masks, diagonal)


def _weights(given: Mapping[str, Any]) -> Sequence[Tensor]:
    """The projections of queries, keys and values, each [embed, size]."""
    if given["use_separate_proj_weight"]:
        return [given[f"{letter}_proj_weight"] for letter in "qkv"]
    weights: Sequence[Tensor] = given["in_proj_weight"].chunk(3)
    return weights


def _split(states: Tensor, heads: int) -> Tensor:
    """[position, batch, head·size] -> [batch, head, position, size]"""
    positions, batch, _ = states.shape
    return states.reshape(positions, batch, heads, -1).permute(1, 2, 0, 3)


def _masks(
    given: Mapping[str, Any], batch: int, keys: int
) -> tuple[tuple[Tensor, ...], tuple[OpenKeys, ...], int | None]:
    """Additive masks, open keys and causality; torch's boolean masks say True for masked."""
    mask, padding = given["attn_mask"], given["key_padding_mask"]
    hint = given["is_causal"] and padding is None and not given["need_weights"]  # then no mask is read
    masks: list[Tensor] = []
    if mask is not None and not hint:
        masks.append(mask if mask.ndim == 2 else mask.reshape(batch, -1, *mask.shape[-2:]))
    if padding is not None:
        masks.append(padding.reshape(batch, 1, 1, -1))
    wide = [
        F.pad(mask, (0, keys - mask.shape[-1])) for mask in masks
    ]  # bias_k and the zero key are open to all
    additive = tuple(mask for mask in wide if mask.dtype != torch.bool)
    return additive, tuple(~mask for mask in wide if mask.dtype == torch.bool), 0 if hint else None
