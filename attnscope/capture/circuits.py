"""What each head reads from the model's states: its projections to queries, keys and values.

They are found by their numbers, as the output projection is: at the first position, where no rotation turns
it, a head's query, key or value is a slice of what a linear map gave, up to a factor. So fused projections,
grouped heads and heads in any order are found alike; what is normalised behind its projection is not. Where
the last query is no slice of the same map any more, positions turned it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attnscope.attention import Attention, Site
from attnscope.capture.hooks.modules import Call
from attnscope.capture.projections import Projections, lay
from attnscope.capture.rows.scores import ScoredRows

ALIKE = 1e-4
"""How far two directions may be apart that count as one."""


@dataclass(frozen=True, eq=False)
class Reads:
    """The projections of one call, one a query head; ``None`` where it was not found.

    ``turned``: queries meet keys turned by their positions. ``shared``: heads that share a key and a value.
    """

    query: Tensor | None  # [head, width, size]
    key: Tensor | None
    value: Tensor | None
    turned: bool = False
    shared: int = 1


class _Map(NamedTuple):
    """A linear map that ran, and what it gave at the first and the last position of the first text."""

    weight: Tensor  # [out, width]
    ends: Tensor  # [first | last, out]


@dataclass(eq=False)
class Circuits(Projections):
    """Finds what each head reads in ``reads``, and in ``found`` what it writes."""

    reads: dict[Site, Reads] = field(default_factory=dict)

    def observe(self, attention: Attention) -> None:
        """Compare the first query, key and value with what ran before."""
        maps = list(self._maps(len(attention.queries)))
        call = attention.read.call if isinstance(attention.read, ScoredRows) else None
        states = (None, None) if call is None else (call.query, call.key)
        query, key, value = (
            None if each is None else _find(each[0, :, 0], attention.heads, maps, 0)
            for each in (*states, attention.values)
        )
        asked, turned = states[0], False
        if asked is not None and query is not None and asked.shape[2] > 1:
            turned = _find(asked[0, :, -1], attention.heads, maps, 1) is None
        shared = attention.heads // attention.key_heads
        self.reads[attention.site] = Reads(query, key, value, turned, shared)
        super().observe(attention)

    def _maps(self, length: int) -> Iterator[_Map]:
        """The linear maps among the modules that ran last, and those that the running one holds itself."""
        for call, output in reversed(self._recent):
            if isinstance(output, Tensor) and not output.is_nested:
                yield from _of_module(call, output, length)
        running = self._running[-1] if self._running else None
        given = None if running is None else running.first
        if running is not None and given is not None and given.is_floating_point():
            yield from _of_parameters(running.module, _ends(given, length))


def _ends(states: Tensor, length: int) -> Tensor:
    """The first and the last token's states of the first text.  [..., width] -> [2, width]"""
    rows = states.reshape(-1, states.shape[-1])
    return rows[[0, min(length, len(rows)) - 1]].float()


def _of_module(call: Call, output: Tensor, length: int) -> Iterator[_Map]:
    weight, given = getattr(call.module, "weight", None), call.first
    if not isinstance(weight, Tensor) or weight.ndim != 2 or given is None or not weight.is_floating_point():
        return
    width, out = given.shape[-1], output.shape[-1]
    ends, rows = _ends(output, length), _ends(given, length)
    bias = getattr(call.module, "bias", None)
    for lies in lay(weight, out, width):
        made = rows @ lies.float().mT
        made = made + bias.float() if isinstance(bias, Tensor) and bias.shape == (out,) else made
        if torch.allclose(made[0], ends[0], atol=ALIKE * float(ends[0].abs().amax())):
            yield _Map(lies, ends)
            return


def _of_parameters(module: nn.Module, rows: Tensor) -> Iterator[_Map]:
    """Weights that a module multiplies with itself, each with every bias that fits it, and with none."""
    own = [each for each in module.parameters(recurse=False) if each.is_floating_point()]
    for weight in own:
        if weight.ndim == 2 and weight.shape[1] == rows.shape[1]:
            made = rows @ weight.float().mT
            yield _Map(weight, made)
            yield from (_Map(weight, made + bias.float()) for bias in own if bias.shape == made.shape[1:])


def _find(states: Tensor, heads: int, maps: list[_Map], end: int) -> Tensor | None:
    """Which rows of which map gave the states of each head at one end of the text.

    [key_head, size] -> [head, width, size]
    """
    size = states.shape[-1]
    wanted = nn.functional.normalize(states.float(), dim=-1)
    for weight, ends in maps:
        first = ends[end]
        if len(first) < size or not first.isfinite().all():
            continue
        slices = nn.functional.normalize(first.unfold(0, size, 1), dim=-1)  # [start, size]
        nearest = (wanted @ slices.mT).argmax(-1)  # [head]
        if bool(((slices[nearest] - wanted).abs().amax(-1) <= ALIKE).all()) and bool(wanted.any(-1).all()):
            parts = torch.stack([weight[start : start + size].mT for start in nearest.tolist()])
            return parts.detach().repeat_interleave(heads // len(parts), 0)
    return None
