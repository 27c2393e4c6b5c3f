"""Reformer's attention, in chunks of neighbours or of tokens with like hashes.

Either module takes one softmax over each chunk and the chunks beside it, as exponentials of scores less their
log-sum-exp. The hashed one sorts the tokens by their hash first, once in each round of hashing, and weighs
the rounds against each other by their log-sum-exps (Kitaev, Kaiser & Levskaya 2020, Reformer).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnscope.capture.chunked.chunks import Chunk, ChunkedRows, Notes, Proof, Softmax, trim


def lay_out_local(module: Any, given: tuple[Tensor, ...], notes: Notes) -> ChunkedRows | None:
    """The rows of one call of the attention in chunks of neighbours."""
    count = given[0].shape[1]
    if len(notes.softmaxes) != 1:
        return None
    (softmax,) = notes.softmaxes
    proof = _proof(notes, softmax.weights.shape[1])
    if softmax.weights.ndim == 4:
        return _plain(softmax, count, proof)
    order = torch.arange(count, device=softmax.weights.device).expand(1, 1, -1)
    return trim(ChunkedRows((_chunk(module, softmax, order),), count, proof=proof), _real(given))


def lay_out_hashed(module: Any, given: tuple[Tensor, ...], notes: Notes) -> ChunkedRows | None:
    """The rows of one call of the attention in chunks of like hashes."""
    count = given[0].shape[1]
    if not notes.softmaxes:
        return None
    softmax = notes.softmaxes[0]
    proof = _proof(notes, softmax.weights.shape[1])
    if softmax.weights.ndim == 4:
        return _plain(softmax, count, proof)
    if softmax.weights.shape[-2] != module.chunk_length or not notes.gathers:
        return None  # a step of a generation
    order = notes.gathers[0][..., 0]  # [batch, head, round · place]: which token is sorted there
    chunked = _chunk(module, softmax, order)
    rounds = order.shape[-1] // count
    chunks = []
    for number in range(rounds):
        span = slice(number * count, (number + 1) * count)
        back = order[..., span].argsort(-1)[..., None]  # [batch, head, query, 1]: where it was sorted to
        weights = chunked.weights[..., span, :].take_along_dim(back, 2)
        keys = chunked.keys[..., span, :].take_along_dim(back, 2)
        masked = chunked.masked
        if masked is not None:
            masked = masked[..., span, :].take_along_dim(back, 2)
        if rounds > 1:
            weights = weights * notes.softmaxes[1].weights[:, :, number]  # [batch, head, query, 1]
        chunks.append(Chunk(weights, keys, masked))
    return trim(ChunkedRows(tuple(chunks), count, proof=proof), _real(given))


def _proof(notes: Notes, heads: int) -> Proof | None:
    """The values, which are projected last, and what the module returns of them."""
    return Proof.of(notes.linears[-1][1], notes.returned, heads) if notes.linears else None


def _real(given: tuple[Tensor, ...]) -> Tensor:
    """Which tokens are no padding, from the states and the mask that a module was given.  -> [batch, key]"""
    masks = [tensor for tensor in given[1:] if tensor.shape == given[0].shape[:2]]
    return masks[0].bool() if masks else given[0].new_ones(given[0].shape[:2], dtype=torch.bool)


def _chunk(module: Any, softmax: Softmax, order: Tensor) -> Chunk:
    """The weights of chunks with the tokens that stand in them and beside them.

    ``order`` is [batch or 1, head or 1, place]; the weights [batch, head, chunk, place, slot].
    """
    size = module.chunk_length
    chunks = order.view(*order.shape[:-1], -1, size)  # [.., .., chunk, place]
    beside = range(-module.num_chunks_before, module.num_chunks_after + 1)
    keys = torch.cat([chunks.roll(-step, 2) for step in beside], -1)  # [.., .., chunk, slot], the ends joined
    keys = keys.repeat_interleave(size, 2)  # [.., .., place, slot]
    masked = None if softmax.masked is None else softmax.masked.expand(softmax.weights.shape).flatten(2, 3)
    return Chunk(softmax.weights.flatten(2, 3), keys, masked)


def _plain(softmax: Softmax, count: int, proof: Proof | None) -> ChunkedRows | None:
    """Rows over all keys at once, as in texts of up to one chunk; None for a step of a generation."""
    if softmax.weights.shape[-2:] != (count, count):
        return None
    keys = torch.arange(count, device=softmax.weights.device).expand(1, 1, count, -1)
    return ChunkedRows((Chunk(softmax.weights, keys, softmax.masked),), count, proof=proof)
