"""Rows of ``flex_attention``: one function of the model changes the scores, one says which keys are open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnscope.attention import OpenKeys
from attnscope.capture.rows.capture import Capture
from attnscope.capture.rows.kernels.sdpa import cast
from attnscope.fused.runs import opens

ARGUMENTS = ("query", "key", "value", "score_mod", "block_mask", "scale")
"""Those of torch's operator, in their order; a block mask is a tuple here, with its function at the end."""


def capture_flex(args: Sequence[Any], kwargs: Mapping[str, Any], output: Tensor) -> Capture:
    """The attention of one call, proved by its output, [batch, head, query, size]."""
    given = dict(zip(ARGUMENTS, args, strict=False)) | dict(kwargs)
    query, key, value = (cast(given[name]) for name in ARGUMENTS[:3])
    key, value = (side.expand(len(query), -1, -1, -1) for side in (key, value))
    rows = FlexRows(query, key, given["scale"], given["score_mod"], given["block_mask"][-1])
    capture = Capture(
        source="recomputed",
        kernel="flex_attention",
        batch=len(query),
        heads=query.shape[1],
        key_heads=key.shape[1],
        queries=query.shape[2],
        keys=key.shape[2],
        dtype=query.dtype,
        read=rows,
    )
    return capture.proved(value, output)


@dataclass(frozen=True, eq=False)
class FlexRows:
    """Rows of one call; a row without an open key is zero, as in the kernel.

    ``change`` makes another score of a score and its place (text, head, query, key), ``open_key`` says of a
    place whether the mask leaves it open.
    """

    query: Tensor  # [batch, head, query, size]
    key: Tensor  # [batch, key_head, key, size]
    scale: float
    change: Callable[..., Tensor]
    open_key: Callable[..., Tensor]

    def rows(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """Weights of the queries ``start`` to ``stop``.  -> [batch, head, row, key]"""
        scores = self._scores(start, stop, heads)
        dead = scores.amax(-1, keepdim=True) == -torch.inf  # [batch, head, row, 1]
        return torch.softmax(scores, -1).masked_fill(dead, 0.0)

    def allowed(self, start: int, stop: int) -> Tensor:
        """Keys that the mask, and what changes the scores, left open.  -> [batch, head, row, key]"""
        return opens(self._scores(start, stop, None))

    @torch.no_grad()
    def _scores(self, start: int, stop: int, heads: Sequence[int] | None) -> Tensor:
        """What goes into the softmax.  -> [batch, head, row, key]"""
        kind = torch.float64 if self.query.dtype == torch.float64 else torch.float32
        chosen = list(range(self.query.shape[1]) if heads is None else heads)
        groups = self.query.shape[1] // self.key.shape[1]
        key = self.key[:, [head // groups for head in chosen]].to(kind)
        scores = (self.query[:, chosen, start:stop].to(kind) @ key.mT) * self.scale
        places = _places(len(self.query), chosen, range(start, stop), self.key.shape[2], scores.device)
        with _indexed_by_tensors():
            changed = _at_every_place(self.change, scored=True)(scores, *places)
            is_open = _at_every_place(self.open_key, scored=False)(*places)
        return changed.masked_fill(~is_open, -torch.inf)


def open_rows(
    open_key: Callable[..., Tensor], batch: int, heads: int, keys: int, device: torch.device
) -> OpenKeys:
    """Keys that a function of places leaves open, for a block of rows.  -> [batch, head, row, key]"""

    def open_keys(start: int, stop: int) -> Tensor:
        places = _places(batch, range(heads), range(start, stop), keys, device)
        with _indexed_by_tensors():
            return _at_every_place(open_key, scored=False)(*places)

    return open_keys


def _places(
    batch: int, heads: Sequence[int], rows: range, keys: int, device: torch.device
) -> tuple[Tensor, ...]:
    """The numbers of texts, heads, queries and keys."""
    return tuple(torch.tensor(list(axis), device=device) for axis in (range(batch), heads, rows, range(keys)))


def _at_every_place(function: Callable[..., Tensor], scored: bool) -> Callable[..., Tensor]:
    """A function of one place, and of its score before that, over all texts, heads, queries and keys."""
    for axis in reversed(range(4)):
        own = (None,) * axis + (0,) + (None,) * (3 - axis)
        function = torch.vmap(function, in_dims=(0, *own) if scored else own)
    return function


def _indexed_by_tensors() -> Any:
    """Lets a function read ``tensor[place]`` while it is mapped over places."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    return TransformGetItemToIndex()
