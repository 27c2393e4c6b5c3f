"""The fused pass: a layer's output and the figures of its heads together, in the kernel's place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnscope.attention import AttentionCall
from attnscope.fused.asked.pairs import Matches, find_matches
from attnscope.fused.attend import Extras, attend, open_pairs
from attnscope.fused.digest import digest
from attnscope.fused.request import SHORTEST, Request
from attnscope.fused.runs import Runs, is_plain, open_runs
from attnscope.fused.statistics import Map, MapAlone
from attnscope.fused.widened import attend_widened, is_widened

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

SCATTERED = "its mask does not leave each row one run of neighbouring keys, the same for all heads"
"""Why a call with such a mask is left to the kernel."""


class Refusal(Exception):
    """A call that only the kernel can compute; the message says why."""


@dataclass(eq=False)
class FusedPass:
    """Computes attention calls in the kernel's place while a recording measures every head.

    The scores are computed once and serve both the output and the figures; computing them again beside the
    kernel costs several times as much at length. The output then is not the kernel's own: it agrees with it
    within 1e-4. ``request`` says what is wanted of the weights; its pairs are looked for where their labels
    are as many as queries and keys.

    >>> with torch.inference_mode(), recording(model, [measured], fused=FusedPass(request)) as record:
    ...     model(**inputs)
    """

    request: Request = field(default_factory=Request)
    shortest: int = SHORTEST
    _masks: dict[tuple[object, ...], tuple[Runs | None, bool]] = field(default_factory=dict)
    _matches: list[tuple[Runs, Mapping[str, Sequence[Matches]]]] = field(default_factory=list)
    _open: list[tuple[Runs, Tensor]] = field(default_factory=list)

    def attend(self, call: AttentionCall) -> tuple[Tensor, MapAlone]:
        """The call's output, [batch, head, query, value size], and the statistics of its weights.

        Types of 16 bits are computed in float32, and the output is rounded to them, as kernels do. Raises
        ``Refusal`` where only the kernel will do: on other devices than the CPU, in other types than
        ``DTYPES``, with dropout, gradients, fewer than ``shortest`` keys, or masks that do not leave each
        row, the same for all heads, one run of neighbouring keys.
        """
        reason = self._form(call)
        if reason is not None:
            raise Refusal(reason)
        runs, plain = self._runs(call)
        if runs is None:
            raise Refusal(SCATTERED)
        edges = self.request.edges(call.query.shape[2]), self.request.edges(call.key.shape[2])
        if self.request.map_alone and is_widened(call, len(edges[1]) - 1):
            output, total = attend_widened(call, *edges)
            return output, MapAlone(runs=runs, map=Map(total, self._open_pairs(runs, *edges), *edges))
        bias = None if plain or not call.biases else call.biases[0]
        while bias is not None and bias.ndim < 4:
            bias = bias[None]
        assert isinstance(call.scale, float)
        return attend(
            call.query,
            call.key,
            call.value,
            runs,
            call.scale,
            extras=Extras(bias, call.softcap, call.sinks),
            request=self.request,
            matches=self._pairs(runs, call.query.shape[0])
            if call.query.shape[2] == call.key.shape[2]
            else {},
        )

    def why_not(self, call: AttentionCall) -> str | None:
        """Why only the kernel can compute a call; ``None`` where the fused pass can."""
        reason = self._form(call)
        if reason is None and self._runs(call)[0] is None:
            reason = SCATTERED
        return reason

    def _form(self, call: AttentionCall) -> str | None:
        """Why the fused pass has no form for a call, its masks' contents aside."""
        query, key, value, masks = call.query, call.key, call.value, (*call.biases, *call.masks)
        tensors = [query, key, value, *(mask for mask in masks if isinstance(mask, Tensor))]
        devices = {tensor.device.type for tensor in tensors} - {"cpu"}
        types = {tensor.dtype for tensor in tensors} - {torch.bool}
        shaped = key.shape[:3] == value.shape[:3] and query.shape[0] == key.shape[0]
        odd = (
            len(masks) > 1
            or len(tensors) < 3 + len(masks)
            or any(t.shape[-1] != key.shape[2] for t in tensors[3:])
        )
        reasons = {
            f"it has fewer than {self.shortest} keys": key.shape[2] < self.shortest,
            "it has a single query": query.shape[2] < 2,
            f"it runs on {' and '.join(sorted(devices))}": bool(devices),
            f"it computes in {query.dtype}".replace("torch.", ""): query.dtype not in DTYPES,
            "its tensors are of several types": len(types) > 1,
            "it drops weights at random": bool(call.dropout),
            "its gradient is asked for": torch.is_grad_enabled() and any(t.requires_grad for t in tensors),
            "it runs under autocast": torch.is_autocast_enabled("cpu"),
            "its heads or its batch differ between queries, keys and values": not shaped
            or bool(query.shape[1] % key.shape[1]),
            "its mask is no single tensor over its keys": odd,
            "its scale or its causality is of a kind of its own": not isinstance(call.scale, float)
            or call.diagonal not in (None, 0),
        }
        return next((reason for reason, holds in reasons.items() if holds), None)

    def _runs(self, call: AttentionCall) -> tuple[Runs | None, bool]:
        """The runs that a mask leaves open, and whether it does nothing else; kept for the next layers.

        Known again by its contents: a model may write the next layer's mask into the same tensor.
        """
        mask = next((mask for mask in (*call.biases, *call.masks) if isinstance(mask, Tensor)), None)
        lengths = call.query.shape[2], call.key.shape[2]
        known = *lengths, call.diagonal, None if mask is None else digest(mask)
        if known not in self._masks:
            while len(self._masks) > 3:
                del self._masks[next(iter(self._masks))]
            runs = open_runs(mask, *lengths, call.diagonal is not None)
            self._masks[known] = runs, mask is None or is_plain(mask)
        return self._masks[known]

    def _open_pairs(self, runs: Runs, row_edges: tuple[int, ...], key_edges: tuple[int, ...]) -> Tensor:
        """The open pairs of each cell, kept for the next layers.  -> [batch or 1, row cell, key cell]"""
        for known, pairs in self._open:
            if known is runs:  # runs are never written into, and say how many rows and keys there are
                return pairs
        pairs = open_pairs(runs, row_edges, key_edges)
        self._open = [*self._open[-3:], (runs, pairs)]
        return pairs

    def _pairs(self, runs: Runs, batch: int) -> Mapping[str, Sequence[Matches]]:
        """Matching pairs by name, kept for the next layers."""
        for known, matches in self._matches:
            if known is runs:  # runs are never written into
                return matches
        matches = find_matches(self.request.pairs, runs, batch)
        self._matches = [*self._matches[-3:], (runs, matches)]
        return matches
