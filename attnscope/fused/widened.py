"""A map of every head out of torch's own kernel: each cell of keys is one more column of the values.

A kernel sums whatever it is given as values. Behind the numbers of each key stands a 1 in the column of its
cell and a 0 in the others, so that a row's output ends in its attention to each cell. Queries and keys are
as wide with zeros, which change no score. At 512 tokens and ten cells this costs three tenths of the kernel,
and tiles as much as all of it.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import one_hot, scaled_dot_product_attention

from attnscope.attention import AttentionCall

MOST_CELLS = 48
"""With more cells of keys than this, tiles cost less."""

LANES = 16
"""Rows of a width that is a multiple of this are faster."""

NUMBERS = 1 << 17
"""Numbers in a widened tensor at a time, one head at least: half a megabyte stays near the core."""


def is_widened(call: AttentionCall, cells: int) -> bool:
    """Whether the kernel can tell so many cells, exactly: in full precision, with nothing but a mask."""
    masks = len(call.biases) + len(call.masks)
    exact = call.query.dtype in (torch.float32, torch.float64)
    plain = call.softcap is None and call.sinks is None and (call.diagonal is None or not masks)
    return exact and plain and cells <= MOST_CELLS


def attend_widened(
    call: AttentionCall, row_edges: tuple[int, ...], key_edges: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """The output of a call, and the sums of its weights in each cell.

    -> [batch, head, query, value size] and [batch, head, row cell, key cell]
    """
    assert isinstance(call.scale, float)
    batch, heads, queries, size = call.query.shape
    key_heads, keys, own = call.value.shape[1:]
    cells, shared = len(key_edges) - 1, heads // key_heads
    width = -(-max(size, own + cells) // LANES) * LANES
    down = _members(row_edges).to(call.query.dtype).T  # [row cell, row]
    across = _members(key_edges)  # [key, key cell]
    mask = next((mask for mask in (*call.biases, *call.masks) if isinstance(mask, Tensor)), None)
    while mask is not None and mask.ndim < 4:
        mask = mask[None]
    output = call.query.new_empty(batch, queries, heads, own).transpose(1, 2)
    total = call.query.new_empty(batch, heads, len(down), cells)
    step = max(1, NUMBERS // (batch * shared * max(queries, keys) * width))
    for first in range(0, key_heads, step):
        some = slice(first, first + step)
        mine = slice(first * shared, (first + step) * shared)
        query = _widen(call.query[:, mine], width)
        key, value = (_widen(each[:, some], width, shared) for each in (call.key, call.value))
        value[..., own : own + cells] = across
        wide = scaled_dot_product_attention(
            query,
            key,
            value,
            mask if mask is None or mask.shape[1] == 1 else mask[:, mine],
            is_causal=call.diagonal is not None,
            scale=call.scale,
        )
        output[:, mine] = wide[..., :own]
        total[:, mine] = down @ wide[..., own : own + cells]
    return output, total


@lru_cache(4)  # the layers of a model share their edges
def _members(edges: tuple[int, ...]) -> Tensor:
    """Which cell each position belongs to.  -> [position, cell], 0 or 1"""
    sizes = torch.tensor(edges).diff()
    return one_hot(torch.repeat_interleave(sizes), len(sizes))


def _widen(part: Tensor, width: int, times: int = 1) -> Tensor:
    """The same with zeros behind, each head so many times.  [batch, head, position, size] -> [..., width]"""
    batch, heads, positions, size = part.shape
    wide = part.new_empty(batch, heads, times, positions, width)
    wide[..., :size] = part[:, :, None]
    wide[..., size:] = 0
    return wide.flatten(1, 2)
