"""An observer that keeps what each call's rows are computed from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.attention import Attention, AttentionCall, Axis, HeldRows, OpenKeys, RowSource
from attnscope.axes import Array
from attnscope.capture.rows.scores import JoinedHeads, ScoredRows
from attnscope.capture.rows.steps import SteppedRows
from attnscope.fused.runs import is_plain, opens
from attnscope.storage.trace.layout import (
    Bias,
    Held,
    Joined,
    Mask,
    Stepped,
    TracedRows,
    TracedScores,
    pack_mask,
)

if TYPE_CHECKING:
    from torch import Tensor


BLOCK = 1 << 24  # cells of a mask requested at a time, if a function makes it


@dataclass(eq=False)
class KeepRows:
    """Keeps each call in ``calls``: its axes and its rows; equal arrays are stored once.

    Queries, keys and masks are copied: the kernel's own may be overwritten. Weights are kept only if they
    cannot be recomputed: from queries and keys they come out bit-identical.
    """

    calls: list[tuple[Axis, Axis, TracedRows]] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    names: dict[bytes, str] = field(default_factory=dict)

    def observe(self, attention: Attention) -> None:
        """Keep one call."""
        queries, keys = attention.queries, attention.keys
        shape = attention.batch, attention.heads, len(queries), len(keys)
        self.calls.append((queries, keys, self._rows(attention.read, shape)))

    def hold(self, what: str, array: Array) -> str:
        """Store an array unless an equal one is stored; returns its name."""
        digest = hashlib.sha256(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
        name = self.names.setdefault(digest.digest(), f"{what}.{len(self.names):04}")
        self.arrays.setdefault(name, array)
        return name

    def _rows(self, read: RowSource, shape: tuple[int, int, int, int]) -> TracedRows:
        batch, _, queries, keys = shape
        if isinstance(read, ScoredRows):
            return self._scores(read.call)
        if isinstance(read, JoinedHeads):
            parts = zip(read.parts, read.counts, strict=True)
            joined = tuple(self._rows(part, (batch, count, queries, keys)) for part, count in parts)
            return Joined("heads", joined, read.counts)
        if isinstance(read, SteppedRows):
            return self._steps(read, shape)
        weights = read.weights if isinstance(read, HeldRows) else read.rows(0, queries, None)
        opened = read.open_keys if isinstance(read, HeldRows) else read.allowed(0, queries)
        mask = None if opened is None else self._mask(opened, queries, weights.shape[-1])
        return Held("weights", self._tensor("weights", weights), mask)

    def _steps(self, read: SteppedRows, shape: tuple[int, int, int, int]) -> Stepped:
        """The steps of a generation; a step shares its first keys with the one before if they are equal."""
        keys = [part.call.key for part in read.calls if isinstance(part, ScoredRows)]
        longest = max(keys, key=lambda key: key.shape[2], default=None)
        parts = [
            self._scores(part.call, longest)
            if isinstance(part, ScoredRows)
            else self._rows(part, (*shape[:2], stop - start, shape[3]))
            for part, (start, stop) in zip(read.calls, pairwise(read.starts), strict=True)
        ]
        return Stepped("steps", tuple(parts), read.starts, read.shifts, read.keys)

    def _scores(self, call: AttentionCall, longest: Tensor | None = None) -> TracedScores:
        queries, keys = call.query.shape[2], call.key.shape[2]
        begins = None  # the longest keys, where these are their beginning
        if longest is not None and keys < longest.shape[2] and longest[..., :keys, :].equal(call.key):
            begins = longest
        number = isinstance(call.scale, (int, float))
        return TracedScores(
            "scores",
            query=self._tensor("query", call.query),
            key=self._tensor("key", call.key if begins is None else begins),
            stop=None if begins is None else keys,
            scale=float(call.scale) if number else self._tensor("scale", call.scale),
            biases=tuple(self._bias(bias) for bias in call.biases),
            masks=tuple(self._mask(mask, queries, keys) for mask in call.masks),
            diagonal=call.diagonal,
            softcap=call.softcap,
            sinks=None if call.sinks is None else self._tensor("sinks", call.sinks),
        )

    def _bias(self, bias: Tensor) -> Bias:
        """An additive mask as a boolean one and one number if possible; otherwise all its numbers."""
        import torch

        bias = _narrow(bias)
        if is_plain(bias):
            opened = opens(bias)
            closed = torch.unique(bias[~opened])
            if len(closed) < 2:
                mask = pack_mask(opened.cpu().numpy(), self.hold)
                closed = closed if len(closed) else bias.new_zeros(1)
                return Bias(self._tensor("closed", closed.reshape(1, 1, 1, 1)), mask)
        return Bias(self._tensor("bias", bias), None)

    def _mask(self, mask: OpenKeys, queries: int, keys: int) -> Mask:
        if not callable(mask):
            return pack_mask(_narrow(mask).cpu().numpy(), self.hold)
        step = max(1, BLOCK // keys)
        blocks = [mask(start, min(queries, start + step)).cpu().numpy() for start in range(0, queries, step)]
        return pack_mask(np.concatenate(blocks, 2), self.hold)

    def _tensor(self, what: str, tensor: Any) -> str:
        """Store a copy of a tensor; bfloat16, which NumPy lacks, as its bits."""
        import torch

        tensor = tensor.detach().cpu().contiguous().clone()
        bits = tensor.dtype == torch.bfloat16
        return self.hold(what, tensor.view(torch.int16).numpy().view(np.uint16) if bits else tensor.numpy())


def _narrow(mask: Any) -> Any:
    """A mask with four axes; an axis along which it only repeats itself is cut to one entry."""
    while mask.ndim < 4:
        mask = mask[None]
    for axis, step in enumerate(mask.stride()):
        if step == 0:
            mask = mask.narrow(axis, 0, 1)
    return mask
