"""Reformer's attention, in chunks of neighbours or of tokens with like hashes.

Either module takes one softmax over each chunk and the chunks beside it, as exponentials of scores less their
log-sum-exp. The hashed one sorts the tokens by their hash first, once in each round of hashing, and weighs
the rounds against each other by their log-sum-exps (Kitaev, Kaiser & Levskaya 2020, Reformer).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnscope.capture.chunked.pieces import Piece, PiecedRows, Softmax, Trace, trimmed


def local(module: Any, given: tuple[Tensor, ...], trace: Trace) -> PiecedRows | None:
    """The rows of one call of the attention in chunks of neighbours."""
    count = given[0].shape[1]
    if len(trace.softmaxes) != 1:
        return None
    (found,) = trace.softmaxes
    if found.weights.ndim == 4:
        return _plain(found, count)
    order = torch.arange(count, device=found.weights.device).expand(1, 1, -1)
    return trimmed(PiecedRows((_piece(module, found, order),), count), _alive(given))


def hashed(module: Any, given: tuple[Tensor, ...], trace: Trace) -> PiecedRows | None:
    """The rows of one call of the attention in chunks of like hashes."""
    count = given[0].shape[1]
    if not trace.softmaxes:
        return None
    found = trace.softmaxes[0]
    if found.weights.ndim == 4:
        return _plain(found, count)
    if found.weights.shape[-2] != module.chunk_length or not trace.gathered:
        return None  # a step of a generation
    order = trace.gathered[0][..., 0]  # [batch, head, round · place]: which token is sorted there
    chunked = _piece(module, found, order)
    rounds = order.shape[-1] // count
    pieces = []
    for number in range(rounds):
        span = slice(number * count, (number + 1) * count)
        back = order[..., span].argsort(-1)[..., None]  # [batch, head, query, 1]: where it was sorted to
        weights = chunked.weights[..., span, :].take_along_dim(back, 2)
        keys = chunked.keys[..., span, :].take_along_dim(back, 2)
        closed = chunked.closed
        if closed is not None:
            closed = closed[..., span, :].take_along_dim(back, 2)
        if rounds > 1:
            weights = weights * trace.softmaxes[1].weights[:, :, number]  # [batch, head, query, 1]
        pieces.append(Piece(weights, keys, closed))
    return trimmed(PiecedRows(tuple(pieces), count), _alive(given))


def _alive(given: tuple[Tensor, ...]) -> Tensor:
    """Which tokens are no padding, from the states and the mask that a module was given.  -> [batch, key]"""
    masks = [tensor for tensor in given[1:] if tensor.shape == given[0].shape[:2]]
    return masks[0].bool() if masks else given[0].new_ones(given[0].shape[:2], dtype=torch.bool)


def _piece(module: Any, found: Softmax, order: Tensor) -> Piece:
    """The weights of chunks with the tokens that stand in them and beside them.

    ``order`` is [batch or 1, head or 1, place]; the weights [batch, head, chunk, place, slot].
    """
    size = module.chunk_length
    chunks = order.view(*order.shape[:-1], -1, size)  # [.., .., chunk, place]
    beside = range(-module.num_chunks_before, module.num_chunks_after + 1)
    keys = torch.cat([chunks.roll(-step, 2) for step in beside], -1)  # [.., .., chunk, slot], the ends joined
    keys = keys.repeat_interleave(size, 2)  # [.., .., place, slot]
    closed = None if found.closed is None else found.closed.expand(found.weights.shape).flatten(2, 3)
    return Piece(found.weights.flatten(2, 3), keys, closed)


def _plain(found: Softmax, count: int) -> PiecedRows | None:
    """Rows over all keys at once, as in texts of up to one chunk; None for a step of a generation."""
    if found.weights.shape[-2:] != (count, count):
        return None
    keys = torch.arange(count, device=found.weights.device).expand(1, 1, count, -1)
    return PiecedRows((Piece(found.weights, keys, found.closed),), count)
