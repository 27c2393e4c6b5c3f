"""Single pass: the layer's output and the figures of its heads from one pass, instead of the kernel's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnscope.fused.attend import Extras, attend
from attnscope.fused.pairs import Matches, find_matches
from attnscope.fused.request import Request
from attnscope.fused.runs import Runs, is_plain, open_runs
from attnscope.fused.statistics import Statistics

SHORTEST = 512
"""With fewer keys than this the kernel runs, and reading its rows beside it is cheap."""


@dataclass(eq=False)
class SinglePass:
    """Stands in for torch's ``scaled_dot_product_attention`` while a recording measures every head.

    The scores are computed once and serve both the output and the figures; computing them again beside the
    kernel costs several times as much at length. The output then is not the kernel's own: it agrees with it
    within 1e-4. ``request`` says what is wanted of the weights; its pairs are looked for where their labels
    are as many as queries and keys.

    A recording that has one asks it first, and runs the kernel if it gets ``None``:

    >>> done = single_pass.attend(query, key, value, attn_mask, is_causal=True)
    >>> output, statistics = done or (kernel(...), None)

    ``StreamedRows(read, statistics)`` then hands the statistics to the observers that can use them.
    """

    request: Request = field(default_factory=Request)
    shortest: int = SHORTEST
    _masks: list[tuple[Tensor | None, tuple[object, ...], Runs | None, bool]] = field(default_factory=list)
    _matches: list[tuple[Runs, Mapping[str, Sequence[Matches]]]] = field(default_factory=list)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *,
        is_causal: bool = False,
        scale: float | None = None,
        dropout: float = 0.0,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> tuple[Tensor, Statistics] | None:
        """Output and statistics, or ``None`` where only the kernel will do.

        ``query`` is ``[batch, head, query, size]``, ``key`` and ``value`` ``[batch, key_head, key, size]``.
        What it leaves to the kernel: other shapes, devices than the CPU, types than float32 and float64,
        dropout, gradients, fewer than ``shortest`` keys, and masks that do not leave each row, the same for
        all heads, one run of neighbouring keys.
        """
        if not self._takes(query, key, value, attn_mask) or dropout:
            return None
        queries, keys = query.shape[2], key.shape[2]
        runs, plain = self._runs(attn_mask, queries, keys, is_causal)
        if runs is None:
            return None
        bias = None if plain else attn_mask
        while bias is not None and bias.ndim < 4:
            bias = bias[None]
        return attend(
            query,
            key,
            value,
            runs,
            1 / math.sqrt(query.shape[-1]) if scale is None else scale,
            extras=Extras(bias, softcap, sinks),
            request=self.request,
            matches=self._pairs(runs, query.shape[0]) if queries == keys else {},
        )

    def _takes(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
        tensors = [query, key, value, *([] if mask is None else [mask])]
        return (
            query.ndim == key.ndim == value.ndim == 4
            and key.shape[:3] == value.shape[:3]
            and query.shape[0] == key.shape[0]
            and query.shape[1] % key.shape[1] == 0
            and key.shape[2] >= self.shortest
            and query.shape[2] > 1
            and query.dtype == key.dtype == value.dtype
            and query.dtype in (torch.float32, torch.float64)
            and all(tensor.device.type == "cpu" for tensor in tensors)
            and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
            and not torch.is_autocast_enabled("cpu")
            and (mask is None or mask.shape[-1] == key.shape[2])
            and (mask is None or mask.dtype in (torch.bool, query.dtype))
        )

    def _runs(self, mask: Tensor | None, queries: int, keys: int, causal: bool) -> tuple[Runs | None, bool]:
        """The runs that a mask leaves open, and whether it does nothing else; kept for the next layers."""
        shape = queries, keys, causal
        for known, known_shape, runs, plain in self._masks:
            if known is mask and known_shape == shape:
                return runs, plain
        runs = open_runs(mask, queries, keys, causal)
        plain = mask is None or is_plain(mask)
        self._masks = [*self._masks[-3:], (mask, shape, runs, plain)]
        return runs, plain

    def _pairs(self, runs: Runs, batch: int) -> Mapping[str, Sequence[Matches]]:
        """Matching pairs by name, kept for the next layers."""
        for known, matches in self._matches:
            if known is runs:
                return matches
        matches = find_matches(self.request.pairs, runs, batch)
        self._matches = [*self._matches[-3:], (runs, matches)]
        return matches
