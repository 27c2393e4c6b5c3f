"""Pegasus-X's encoder attention: blocks of tokens, and global tokens that are no part of the text.

One softmax gives the global tokens their rows over all keys; another gives each token weights on the global
tokens and on its block, weighed apart afterwards. The map counts the global tokens first, then the tokens
(Phang, Zhao & Liu 2022, Investigating efficiently extending transformers for long input summarization).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.capture.chunked.chunks import Chunk, ChunkedRows, Notes, Proof, WholeRows


def lay_out(module: Any, given: tuple[Tensor, ...], notes: Notes) -> ChunkedRows | None:
    """The rows of one call: queries and keys are the global tokens and then the tokens."""
    if len(notes.softmaxes) != 2:
        return None
    whole, local = notes.softmaxes  # [batch, head, global, key], [batch, head, block, query, global + query]
    batch, _, first, count = whole.weights.shape
    block = local.weights.shape[-2]
    weights = F.pad(local.weights.flatten(2, 3), (0, 0, first, 0))  # [batch, head, query, slot]
    masked = local.masked
    if masked is not None:
        masked = F.pad(masked.expand(local.weights.shape).flatten(2, 3), (0, 0, first, 0), value=True)
    token = torch.arange(count - first, device=weights.device)
    start = first + token // block * block  # of each token's block, among the keys
    near = start[:, None] + torch.arange(block, device=weights.device)  # [token, slot]
    globally = torch.arange(first, device=weights.device).expand(len(token), -1)
    keys = F.pad(torch.cat([globally, near], -1), (0, 0, first, 0)).expand(1, 1, -1, -1)
    places = torch.arange(first, device=weights.device).expand(batch, -1)
    chunks = (Chunk(weights, keys, masked),)
    rows = WholeRows(places, whole.weights, whole.masked)
    return ChunkedRows(chunks, count, rows, _proof(notes, weights.shape[1]))


def _proof(notes: Notes, heads: int) -> Proof | None:
    """The values of global tokens and tokens, and what their output projection was given."""
    if len(notes.linears) != 8:
        return None
    values = torch.cat([notes.linears[5][1], notes.linears[2][1]], 1)  # [batch, key, head·size]
    return Proof.of(values, torch.cat([notes.linears[6][0], notes.linears[7][0]], 1), heads)
