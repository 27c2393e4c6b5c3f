"""Longformer's attention, which LED's encoder shares: a window around each token, and global tokens.

A first softmax gives every query weights on the global keys, the first ``most`` slots, and on its window,
``2·reach + 1`` slots. A second one, with projections of its own, gives the global queries their rows over all
keys, which replace those of the first (Beltagy, Peters & Cohan 2020, Longformer).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnscope.capture.chunked.pieces import Piece, PiecedRows, Trace, WholeRows, trimmed


def placed(module: Any, given: tuple[Tensor, ...], trace: Trace) -> PiecedRows | None:
    """The rows of one call; ``given`` holds the states [batch, key, size] and the mask [batch, key].

    The mask is 0 for tokens with a window, positive for global ones and negative for closed ones.
    """
    masks = [tensor for tensor in given if tensor.ndim == 2 and tensor.is_floating_point()]
    if len(masks) != 1 or not trace.softmaxes:
        return None
    (mask,) = masks
    batch, count = mask.shape
    reach = module.one_sided_attn_window_size
    windows = trace.softmaxes[0].weights.transpose(1, 2)  # [batch, head, query, slot]
    dead = (mask < 0)[:, None, :, None]  # queries that are padding weigh nothing
    closed = trace.softmaxes[0].closed
    closed = dead if closed is None else closed.transpose(1, 2) | dead
    most = windows.shape[-1] - (2 * reach + 1)
    windows = windows.masked_fill(dead, 0.0)
    near = torch.arange(count, device=mask.device)[:, None] + torch.arange(
        -reach, reach + 1, device=mask.device
    )  # [query, slot]; those beyond the ends are closed
    near = near.clamp(0, count - 1).expand(1, 1, -1, -1)
    shut = closed.expand_as(windows)
    pieces = [Piece(windows[..., most:], near, shut[..., most:])]
    if most == 0:
        return trimmed(PiecedRows(tuple(pieces), count), mask >= 0)
    places = _global_places(mask > 0, most)  # [batch, row]
    keys = places.clamp(min=0)[:, None, None, :].expand(-1, 1, count, -1)
    pieces.append(Piece(windows[..., :most], keys, shut[..., :most]))
    second = trace.softmaxes[1]
    shape = (batch, -1, most, count)
    far = None if second.closed is None else second.closed.view(shape)
    whole = WholeRows(places, second.weights.view(shape), far)
    return trimmed(PiecedRows(tuple(pieces), count, whole), mask >= 0)


def _global_places(chosen: Tensor, most: int) -> Tensor:
    """Where the global tokens of each text stand, in order, -1 behind the last.  -> [batch, most]"""
    places = chosen.new_full((len(chosen), most), -1, dtype=torch.long)
    for text, row in enumerate(chosen):
        found = row.nonzero()[:, 0]
        places[text, : len(found)] = found
    return places
