"""What each head reads from the model's states: its projections to queries, keys and values.

They are found by their numbers, as the output projection is: at the first position, where no rotation turns
it, a head's query, key or value is a slice of what a linear map gave, up to a factor. So fused projections,
grouped heads and heads in any order are found alike; what is normalised behind its projection is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attnscope.attention import Attention, Site
from attnscope.capture.hooks.modules import Call
from attnscope.capture.projections import Projections
from attnscope.capture.rows.scores import ScoredRows

ALIKE = 1e-4
"""How far two directions may be apart that count as one."""


@dataclass(frozen=True, eq=False)
class Reads:
    """The projections of one call, one a query head; ``None`` where it was not found."""

    query: Tensor | None  # [head, width, size]
    key: Tensor | None
    value: Tensor | None


class _Map(NamedTuple):
    """A linear map that ran, and what it gave at the first position of the first text."""

    weight: Tensor  # [out, width]
    first: Tensor  # [out]


@dataclass(eq=False)
class Circuits(Projections):
    """Finds what each head reads in ``reads``, and in ``found`` what it writes."""

    reads: dict[Site, Reads] = field(default_factory=dict)

    def observe(self, attention: Attention) -> None:
        """Compare the first query, key and value with what ran before."""
        maps = list(self._maps())
        call = attention.read.call if isinstance(attention.read, ScoredRows) else None
        states = (None, None) if call is None else (call.query, call.key)
        parts = [
            None if each is None else _find(each[0, :, 0], attention.heads, maps)
            for each in (*states, attention.values)
        ]
        self.reads[attention.site] = Reads(*parts)
        super().observe(attention)

    def _maps(self) -> Iterator[_Map]:
        """The linear maps among the modules that ran last, and those that the running one holds itself."""
        for call, output in reversed(self._recent):
            if isinstance(output, Tensor) and not output.is_nested:
                yield from _of_module(call, output)
        running = self._running[-1] if self._running else None
        given = None if running is None else running.first
        if running is not None and given is not None and given.is_floating_point():
            yield from _of_parameters(running.module, given.reshape(-1, given.shape[-1])[0])


def _of_module(call: Call, output: Tensor) -> Iterator[_Map]:
    weight, given = getattr(call.module, "weight", None), call.first
    if not isinstance(weight, Tensor) or weight.ndim != 2 or given is None or not weight.is_floating_point():
        return
    width, out = given.shape[-1], output.shape[-1]
    first = output.reshape(-1, out)[0].float()
    row = given.reshape(-1, width)[0].float()
    bias = getattr(call.module, "bias", None)
    for lies in (weight, weight.mT):  # a linear layer's, and that of GPT-2
        if lies.shape == (out, width):
            made = lies.float() @ row
            made = made + bias.float() if isinstance(bias, Tensor) and bias.shape == made.shape else made
            if torch.allclose(made, first, atol=ALIKE * float(first.abs().amax())):
                yield _Map(lies, first)
                return


def _of_parameters(module: nn.Module, row: Tensor) -> Iterator[_Map]:
    """Weights that a module multiplies with itself, each with every bias that fits it, and with none."""
    own = [each for each in module.parameters(recurse=False) if each.is_floating_point()]
    for weight in own:
        if weight.ndim == 2 and weight.shape[1] == len(row):
            made = weight.float() @ row.float()
            yield _Map(weight, made)
            yield from (_Map(weight, made + bias.float()) for bias in own if bias.shape == made.shape)


def _find(states: Tensor, heads: int, maps: list[_Map]) -> Tensor | None:
    """Which rows of which map gave the states of each head.  [key_head, size] -> [head, width, size]"""
    size = states.shape[-1]
    wanted = nn.functional.normalize(states.float(), dim=-1)
    for weight, first in maps:
        if len(first) < size or not first.isfinite().all():
            continue
        slices = nn.functional.normalize(first.unfold(0, size, 1), dim=-1)  # [start, size]
        nearest = (wanted @ slices.mT).argmax(-1)  # [head]
        if bool(((slices[nearest] - wanted).abs().amax(-1) <= ALIKE).all()) and bool(wanted.any(-1).all()):
            parts = torch.stack([weight[start : start + size].mT for start in nearest.tolist()])
            return parts.detach().repeat_interleave(heads // len(parts), 0)
    return None
