"""Guided heads: a second loss that asks chosen heads for a pattern while the rest of the model learns.

After Deshpande & Narasimhan 2020, "Guiding Attention for Self-Supervised Learning with Transformers": heads
that look at fixed patterns form late, if at all, in a short training run, and asking some of them for it
costs the others nothing. What is asked for is minus the logarithm of the weight on the pattern's keys,
averaged over the rows that have any.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.errors import ModelError
from attnscope.network.attention import MultiHeadAttention
from attnscope.network.encoder import Encoder
from attnscope.network.tokenizer import SPECIAL
from attnscope.text import MOST_DIGITS

PATTERNS = ("previous", "next", "duplicate")


@dataclass(frozen=True)
class Guide:
    """One head and the pattern it is asked for."""

    layer: int
    head: int
    pattern: str


def parse_guide(text: str) -> Guide:
    """Read ``L0H3=duplicate``; raises ``ModelError``."""
    match = re.fullmatch(rf"L(\d{{1,{MOST_DIGITS}}})H(\d{{1,{MOST_DIGITS}}})=(\w+)", text, re.ASCII)
    if match is None or match[3] not in PATTERNS:
        raise ModelError(
            f"a guide reads like L0H3=duplicate, with one of {', '.join(PATTERNS)}, not {text!r}"
        )
    return Guide(int(match[1]), int(match[2]), match[3])


def parse_guides(texts: Sequence[str], layers: int, heads: int) -> list[Guide]:
    """Read several; raises ``ModelError`` for a head that the encoder does not have."""
    guides = [parse_guide(text) for text in texts]
    for guide in guides:
        if guide.layer >= layers or guide.head >= heads:
            raise ModelError(
                f"no head L{guide.layer}H{guide.head} to guide: there are layers 0-{layers - 1}, "
                f"heads 0-{heads - 1}"
            )
    return guides


@contextmanager
def guiding(encoder: Encoder, guides: Sequence[Guide], ids: Tensor, causal: bool) -> Iterator[list[Tensor]]:
    """Collect, during a forward pass on ``ids``, one loss for each guide.  ids [batch, token]"""
    losses: list[Tensor] = []
    handles = []
    for layer in sorted({guide.layer for guide in guides}):
        module = encoder.layers[layer].self_attn
        assert isinstance(module, MultiHeadAttention)
        wanted = [guide for guide in guides if guide.layer == layer]

        def watch(
            module: MultiHeadAttention, arguments: tuple[Tensor, ...], wanted: list[Guide] = wanted
        ) -> None:
            x = arguments[0]
            q, k, _ = module.project(x, x, x)
            heads = [guide.head for guide in wanted]
            scores = module.scores(q[:, heads], k[:, heads]).float()  # [batch, guide, query, key]
            if causal:
                size = scores.shape[-1]
                future = torch.ones(size, size, dtype=torch.bool, device=x.device).triu(1)
                scores = scores.masked_fill(future, -torch.inf)
            weights = scores.softmax(-1)
            for number, guide in enumerate(wanted):
                keys = pattern_keys(guide.pattern, ids, causal)  # [batch or 1, query, key]
                asked = keys.any(-1).expand(len(ids), -1)  # [batch, query]
                mass = (weights[:, number] * keys).sum(-1)[asked]
                losses.append(-mass.clamp_min(1e-6).log().mean() if len(mass) else mass.sum())

        handles.append(module.register_forward_pre_hook(watch))
    try:
        yield losses
    finally:
        for handle in handles:
            handle.remove()


def pattern_keys(pattern: str, ids: Tensor, causal: bool) -> Tensor:
    """The keys that a pattern means.  [batch, token] -> bool [batch or 1, query, key]

    A duplicate is another place with the token of the query, and special tokens have none.
    """
    size = ids.shape[1]
    if pattern == "previous":
        return torch.ones(size, size, dtype=torch.bool, device=ids.device).tril(-1).triu(-1)[None]
    if pattern == "next":
        following = torch.ones(size, size, dtype=torch.bool, device=ids.device).triu(1).tril(1)[None]
        return following & (not causal)
    same = (ids[:, :, None] == ids[:, None]) & (ids >= len(SPECIAL))[:, :, None]
    same &= ~torch.eye(size, dtype=torch.bool, device=ids.device)
    return same.tril(-1) if causal else same
