"""One attention call as a kernel or a softmax showed it, before it has a kind and a number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnscope.attention import HeldRows, RowSource, Source
from attnscope.capture.hooks.softmax import Weighing, headed
from attnscope.capture.rows.scores import OpenKeys, ScoredRows, causal_rows


@dataclass(frozen=True, eq=False)
class Found:
    """What one attention call is made of.

    ``crossed`` says whether queries and keys are known to come from different sequences, None where
    nobody said so. ``window`` is the sliding window that the kernel was told of.
    """

    source: Source
    kernel: str
    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    dtype: torch.dtype
    read: RowSource
    crossed: bool | None = None
    window: int | None = None


@dataclass(frozen=True, eq=False)
class SdpaCall:
    """The arguments of one ``torch.nn.functional.scaled_dot_product_attention``."""

    query: Tensor  # [..., query, size]
    key: Tensor  # [..., key, size]
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @staticmethod
    def of(args: Sequence[Any], kwargs: dict[str, Any]) -> SdpaCall:
        """The arguments by name; all behind the sixth are given by name only."""
        return SdpaCall(*args, **kwargs)


def from_sdpa(call: SdpaCall, kernel: str, batch: int, heads: int | None = None) -> Found:
    """Attention that torch's own kernel computed.

    ``batch`` splits [batch·head, query, size] inputs. ``heads`` is the count of query heads that the
    module's attention function received: with a single query, grouped heads may have been folded into the
    query axis, ``[batch, key_head, group, size]``, and are unfolded again.
    """
    query, key = _cast(call.query), _cast(call.key)
    added: tuple[Tensor, ...] = ()
    opened: tuple[OpenKeys, ...] = ()
    if call.attn_mask is not None and call.attn_mask.dtype == torch.bool:
        opened = (call.attn_mask,)
    elif call.attn_mask is not None:
        added = (_cast(call.attn_mask),)
    if call.is_causal:
        opened = (*opened, causal_rows(key.shape[-2], key.device))
    if heads is not None and query.ndim == 4 and query.shape[1] != heads:
        folded = query.shape[1:3]
        query = query.flatten(1, 2).unsqueeze(2)  # [batch, head, 1, size]
        added = tuple(_unfold(term, folded) for term in added)
        opened = tuple(_unfold(mask, folded) if isinstance(mask, Tensor) else mask for mask in opened)
    elif query.ndim != 4:
        shape = _four_axes(query, batch)
        added = tuple(_reshaped(term, query.ndim, shape) for term in added)
        opened = tuple(_reshaped(m, query.ndim, shape) if isinstance(m, Tensor) else m for m in opened)
        key = key.reshape(*_four_axes(key, batch), *key.shape[-2:])
        query = query.reshape(*shape, *query.shape[-2:])
    scale = 1 / math.sqrt(query.shape[-1]) if call.scale is None else call.scale
    return from_scores(ScoredRows(query, key, scale, added, opened), kernel)


def from_scores(rows: ScoredRows, kernel: str, window: int | None = None) -> Found:
    """Attention recomputed from queries and keys."""
    terms = [t for t in (*rows.added, *rows.opened) if isinstance(t, Tensor) and t.ndim == 4]
    return Found(
        source="recomputed",
        kernel=kernel,
        batch=max(rows.query.shape[0], rows.key.shape[0], *(term.shape[0] for term in terms), 0),
        heads=rows.query.shape[1],
        key_heads=rows.key.shape[1],
        queries=rows.query.shape[2],
        keys=rows.key.shape[2],
        dtype=rows.query.dtype,
        read=rows,
        window=window,
    )


def from_weights(weights: Tensor, opened: Tensor | None, source: Source, kernel: str) -> Found:
    """Attention whose weights exist, [batch, head, query, key]; without ``opened`` no key is closed."""
    if opened is None:
        opened = torch.ones((), dtype=torch.bool, device=weights.device).expand(1, 1, *weights.shape[-2:])
    elif bool((opened == opened[:, :1]).all()):
        opened = opened[:, :1].clone()  # one mask for all heads, as almost always
    batch, heads, queries, keys = weights.shape
    held = HeldRows(weights.detach(), opened)
    return Found(source, kernel, batch, heads, heads, queries, keys, weights.dtype, held)


def from_weighing(weighing: Weighing, batch: int, told: int | None = None) -> Found:
    """Attention that a softmax in the module's own code computed; ``told`` is its own count of heads."""
    weights, opened = headed(weighing, batch, told)
    return from_weights(weights, opened, "softmax", "softmax")


def _cast(states: Tensor) -> Tensor:
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


def _reshaped(mask: Tensor, ndim: int, shape: tuple[int, int]) -> Tensor:
    """A mask that broadcasts to [..., query, key], with a batch and a head axis."""
    leading = mask.shape[:-2]
    if math.prod(leading) == math.prod(shape):
        return mask.reshape(*shape, *mask.shape[-2:])
    if ndim > 4 and mask.ndim == ndim:
        return mask.expand(shape[0], *(mask.shape[1:-2]), -1, -1).flatten(1, -3)
    return mask


def _unfold(mask: Tensor, folded: Sequence[int]) -> Tensor:
    """[batch, key_head, group, key] -> [batch, head, 1, key]; one mask for all heads stays as it is."""
    if mask.ndim == 4 and tuple(mask.shape[1:3]) == tuple(folded):
        return mask.flatten(1, 2).unsqueeze(2)
    return mask
