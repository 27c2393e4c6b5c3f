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

from attnscope.capture.chunked.pieces import Piece, PiecedRows, Trace, WholeRows


def placed(module: Any, given: tuple[Tensor, ...], trace: Trace) -> PiecedRows | None:
    """The rows of one call: queries and keys are the global tokens and then the tokens."""
    if len(trace.softmaxes) != 2:
        return None
    whole, local = trace.softmaxes  # [batch, head, global, key], [batch, head, block, query, global + query]
    batch, _, first, count = whole.weights.shape
    block = local.weights.shape[-2]
    weights = F.pad(local.weights.flatten(2, 3), (0, 0, first, 0))  # [batch, head, query, slot]
    closed = local.closed
    if closed is not None:
        closed = F.pad(closed.expand(local.weights.shape).flatten(2, 3), (0, 0, first, 0), value=True)
    token = torch.arange(count - first, device=weights.device)
    start = first + token // block * block  # of each token's block, among the keys
    near = start[:, None] + torch.arange(block, device=weights.device)  # [token, slot]
    globally = torch.arange(first, device=weights.device).expand(len(token), -1)
    keys = F.pad(torch.cat([globally, near], -1), (0, 0, first, 0)).expand(1, 1, -1, -1)
    places = torch.arange(first, device=weights.device).expand(batch, -1)
    return PiecedRows((Piece(weights, keys, closed),), count, WholeRows(places, whole.weights, whole.closed))
