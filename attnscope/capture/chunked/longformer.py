"""Longformer's attention, which LED's encoder shares: a window around each token, and global tokens.

A first softmax gives every query weights on the global keys, the first ``most`` slots, and on its window,
``2·reach + 1`` slots. A second one, with projections of its own, gives the global queries their rows over all
keys, which replace those of the first (Beltagy, Peters & Cohan 2020, Longformer).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnscope.capture.chunked.chunks import Chunk, ChunkedRows, Notes, Proof, WholeRows, trim


def lay_out(module: Any, given: tuple[Tensor, ...], notes: Notes) -> ChunkedRows | None:
    """The rows of one call; ``given`` holds the states [batch, key, size] and the mask [batch, key].

    The mask is 0 for tokens with a window, positive for global ones and negative for masked ones.
    """
    masks = [tensor for tensor in given if tensor.ndim == 2 and tensor.is_floating_point()]
    if len(masks) != 1 or not notes.softmaxes:
        return None
    (mask,) = masks
    batch, count = mask.shape
    reach = module.one_sided_attn_window_size
    windows = notes.softmaxes[0].weights.transpose(1, 2)  # [batch, head, query, slot]
    padding = (mask < 0)[:, None, :, None]  # queries that are padding weigh nothing
    masked = notes.softmaxes[0].masked
    masked = padding if masked is None else masked.transpose(1, 2) | padding
    most = windows.shape[-1] - (2 * reach + 1)
    windows = windows.masked_fill(padding, 0.0)
    near = torch.arange(count, device=mask.device)[:, None] + torch.arange(
        -reach, reach + 1, device=mask.device
    )  # [query, slot]; those beyond the ends are masked
    near = near.clamp(0, count - 1).expand(1, 1, -1, -1)
    every_mask = masked.expand_as(windows)
    chunks = [Chunk(windows[..., most:], near, every_mask[..., most:])]
    heads = windows.shape[1]
    projected = [result.transpose(0, 1) for _, result in notes.linears]  # the module has the batch second
    if most == 0:
        proof = Proof.of(projected[2], notes.returned, heads)
        return trim(ChunkedRows(tuple(chunks), count, proof=proof), mask >= 0)
    places = _global_places(mask > 0, most)  # [batch, row]
    keys = places.clamp(min=0)[:, None, None, :].expand(-1, 1, count, -1)
    chunks.append(Chunk(windows[..., :most], keys, every_mask[..., :most]))
    second = notes.softmaxes[1]
    shape = (batch, -1, most, count)
    far = None if second.masked is None else second.masked.view(shape)
    whole = WholeRows(places, second.weights.view(shape), far)
    proof = Proof.of(projected[2], notes.returned, heads, projected[5])
    return trim(ChunkedRows(tuple(chunks), count, whole, proof), mask >= 0)


def _global_places(chosen: Tensor, most: int) -> Tensor:
    """Where the global tokens of each text stand, in order, -1 behind the last.  -> [batch, most]"""
    places = chosen.new_full((len(chosen), most), -1, dtype=torch.long)
    for text, row in enumerate(chosen):
        at = row.nonzero()[:, 0]
        places[text, : len(at)] = at
    return places
