"""Rows of ``torch.nn.functional.multi_head_attention_forward``, from the arguments of the call.

The function projects, masks and attends in one go. Here is its query and key side, as its documentation
and that of ``nn.MultiheadAttention`` define them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.capture.rows.found import Found
from attnscope.capture.rows.scores import LazyRows, OpenKeys, ScoredRows, causal_rows

_signature = inspect.signature(F.multi_head_attention_forward)


def bound(args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The call's arguments by name, defaults filled in."""
    call = _signature.bind(*args, **kwargs)
    call.apply_defaults()
    return call.arguments


def key_count(call: dict[str, Any]) -> int:
    """Keys that a query chooses among: the sequence's, and one for bias_k and one for add_zero_attn."""
    keys = call["key"] if call["static_k"] is None else call["static_k"]
    own = keys.shape[0] if call["static_k"] is None else keys.shape[1]
    return int(own + (call["bias_k"] is not None) + bool(call["add_zero_attn"]))


def projected_rows(call: dict[str, Any]) -> LazyRows:
    """Rows of the call; queries and keys are projected when the first row is read."""
    return LazyRows(lambda: _scored(call))


@torch.no_grad()
def _scored(call: dict[str, Any]) -> ScoredRows:
    query, key = call["query"], call["key"]  # [query, batch, size]
    if query.ndim == 2:
        query, key = query[:, None], key[:, None]
    heads, batch = call["num_heads"], query.shape[1]
    query_weight, key_weight = _weights(call)
    query_bias, key_bias = _biases(call)
    q = _heads(F.linear(query, query_weight, query_bias), heads)
    if call["static_k"] is not None:
        k = call["static_k"].reshape(batch, heads, *call["static_k"].shape[1:])
    else:
        key = F.linear(key, key_weight, key_bias)
        if call["bias_k"] is not None:
            key = torch.cat([key, call["bias_k"].expand(1, batch, -1)])
        k = _heads(key, heads)
    if call["add_zero_attn"]:
        k = F.pad(k, (0, 0, 0, 1))
    added, opened = _masks(call, batch, q, k)
    return ScoredRows(q, k, 1 / math.sqrt(q.shape[-1]), added, opened)


def _weights(call: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The projections of queries and keys, each [embed, size]."""
    if call["use_separate_proj_weight"]:
        return call["q_proj_weight"], call["k_proj_weight"]
    query, key, _ = call["in_proj_weight"].chunk(3)
    return query, key


def _biases(call: dict[str, Any]) -> tuple[Tensor | None, Tensor | None]:
    """The biases of the two projections."""
    if call["in_proj_bias"] is None:
        return None, None
    query, key, _ = call["in_proj_bias"].chunk(3)
    return query, key


def _heads(states: Tensor, heads: int) -> Tensor:
    """[position, batch, head·size] -> [batch, head, position, size]"""
    positions, batch, _ = states.shape
    return states.reshape(positions, batch, heads, -1).permute(1, 2, 0, 3)


def _masks(
    call: dict[str, Any], batch: int, q: Tensor, k: Tensor
) -> tuple[tuple[Tensor, ...], tuple[OpenKeys, ...]]:
    """Additive terms and open keys; torch's boolean masks say True for closed."""
    queries, keys = q.shape[2], k.shape[2]
    mask, padding = call["attn_mask"], call["key_padding_mask"]
    masks: list[Tensor] = []
    opened: list[OpenKeys] = []
    if call["is_causal"] and padding is None and not call["need_weights"]:
        opened.append(causal_rows(keys, q.device))  # the mask is then a hint that is not read
    elif mask is not None:
        masks.append(mask if mask.ndim == 2 else mask.reshape(batch, -1, *mask.shape[-2:]))
    if padding is not None:
        masks.append(padding.reshape(batch, 1, 1, -1))
    added = []
    for mask in masks:
        wide = F.pad(mask, (0, keys - mask.shape[-1]))  # bias_k and the zero key are open to all
        if wide.dtype == torch.bool:
            opened.append(~wide)
        else:
            added.append(wide)
    assert queries == call["query"].shape[0]
    return tuple(added), tuple(opened)


def found(call: dict[str, Any]) -> Found:
    """The attention of one call, [query, batch, size] or unbatched [query, size]."""
    query, key = call["query"], call["key"]
    heads = call["num_heads"]
    return Found(
        source="recomputed",
        kernel="multi_head_attention_forward",
        batch=query.shape[1] if query.ndim == 3 else 1,
        heads=heads,
        key_heads=heads,
        queries=query.shape[0],
        keys=key_count(call),
        dtype=query.dtype,
        read=projected_rows(call),
        crossed=None if query.shape[0] == key.shape[0] and _same(query, key) else True,
    )


def _same(query: Tensor, key: Tensor) -> bool:
    """Whether two arguments are one sequence: the same numbers in the same place."""
    return query is key or (query.data_ptr() == key.data_ptr() and query.stride() == key.stride())
