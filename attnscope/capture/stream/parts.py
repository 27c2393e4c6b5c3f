"""The share of each part of a stream in a score: its row times its gradient."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnscope.attention import Head
from attnscope.capture.stream.walk import ScoreParts, Stream, StreamRows, Written

_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)", re.ASCII)


@dataclass
class Effects:
    """The direct effects that sum to a score.

    ``feed_forward`` is what a layer adds beside attention, ``mixers`` what other modules that mix tokens
    add, and attention without separable heads (in the layers ``mixed``), by layer and by module. Heads of
    the layers ``silent`` have no direct effect, only an effect through other parts.
    """

    heads: dict[Head, float] = field(default_factory=dict)
    feed_forward: dict[int, float] = field(default_factory=dict)
    mixers: dict[tuple[int, str], float] = field(default_factory=dict)
    embeddings: float = 0.0
    biases: float = 0.0
    mixed: set[int] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    _of: dict[Head, Tensor] = field(default_factory=dict)  # the same, for gradients

    @property
    def total(self) -> float:
        """The sum of all."""
        return sum(self._each())

    @property
    def size(self) -> float:
        """The sum of all absolute effects."""
        return sum(map(abs, self._each()))

    def _each(self) -> list[float]:
        alone = [self.embeddings, self.biases]
        return [*self.heads.values(), *self.feed_forward.values(), *self.mixers.values(), *alone]

    def largest_heads(self, count: int) -> list[Head]:
        """The heads with the largest effects, largest first."""
        return sorted(self.heads, key=lambda head: -abs(self.heads[head]))[:count]

    def slopes(self, head: Head, seed: Tensor) -> Tensor:
        """How much a head's output changes each logit: its effect as a function of the logit.

        [text, vocabulary] -> [vocabulary]
        """
        effect = self._of.get(head)
        if effect is None or not effect.requires_grad:
            return torch.zeros_like(seed[0])
        (moved,) = torch.autograd.grad(effect, seed, retain_graph=True)
        return moved[0].detach()


def sum_parts(stream: Stream, parts: ScoreParts) -> Effects:
    """The effects of the parts that a walk along the stream reached."""
    effects, rows = Effects(), stream.rows
    reached = set()
    for edge, grad in parts.heads.items():
        written = stream.written[edge]
        reached.add(written.site)
        values, bias = _of_heads(written, grad, rows)
        effects.biases += bias
        for number, value in enumerate(values):
            head = Head(written.site.layer, number, written.site.kind)
            effects.heads[head] = effects.heads.get(head, 0.0) + float(value.detach())
            effects._of[head] = effects._of[head] + value if head in effects._of else value
    for written in stream.written.values():
        if written.site not in reached:
            effects.silent.add(written.site.layer)
            for number in range(len(written.mixed)):
                effects.heads.setdefault(Head(written.site.layer, number, written.site.kind), 0.0)
    effects.silent -= {site.layer for site in reached}
    _add_others(effects, stream, parts)
    for head in [each for each in effects.heads if each.layer in effects.mixed & effects.silent]:
        del effects.heads[head]  # they are in the sum of their layer
    effects.silent -= effects.mixed
    for edge, grad in parts.embeddings.items():
        effects.embeddings += rows.times(edge, grad) or 0.0
    for node, grad in parts.biases.items():
        value = node.variable.detach()  # type: ignore[attr-defined]
        effect = float((value * grad.detach()).sum())
        if value.ndim > 1 and value.shape[-2] > 1:  # a table of positions
            effects.embeddings += effect
        else:
            effects.biases += effect
    for out, given, grad in parts.constants:
        whole = rows.times(out, grad)
        before = None if given is None else rows.times(given, grad)
        if whole is None or before is None:
            continue
        if _layer_of(rows.rows[out].module) is None:
            effects.embeddings += whole - before
        else:
            effects.biases += whole - before
    return effects


def _of_heads(written: Written, grad: Tensor, rows: StreamRows) -> tuple[Tensor, float]:
    """The effect of each head of one call, and that of its projection's bias."""
    if written.weight is None:
        row = rows.cut(grad, written.mixed.numel())
        return (written.mixed.to(row) * row.reshape(written.mixed.shape)).sum(-1), 0.0
    row = rows.cut(grad, written.weight.shape[-1]).flatten()
    values = torch.einsum("hs,hsw,w->h", written.mixed.to(row), written.weight.to(row), row)
    return values, 0.0 if written.bias is None else float((written.bias.to(row) * row.detach()).sum())


def _add_others(effects: Effects, stream: Stream, parts: ScoreParts) -> None:
    """Sort everything except heads and embeddings: by layer, and by whether it mixes tokens."""
    sites = {site.name: site for site in stream.rows.sites}
    attending = {_layer_of(name) for name in sites}
    named = {edge: stream.rows.rows[edge].module for edge in parts.others}
    usual = {_tail(module) for module in named.values() if _layer_of(module) in attending}
    for edge, grad in parts.others.items():
        effect, module = stream.rows.times(edge, grad) or 0.0, named[edge]
        layer = _layer_of(module) or 0
        inside = next((site for name, site in sites.items() if f"{module}.".startswith(f"{name}.")), None)
        if inside is not None:
            effects.mixed.add(inside.layer)
            key = inside.layer, "attention"
        elif _tail(module) not in usual or stream.mixes_tokens(edge):
            key = layer, _tail(module) or "mixer"
        else:
            effects.feed_forward[layer] = effects.feed_forward.get(layer, 0.0) + effect
            continue
        effects.mixers[key] = effects.mixers.get(key, 0.0) + effect


def _layer_of(module: str) -> int | None:
    """The first number in a module's path."""
    found = _NUMBER.search(module)
    return None if found is None else int(found[1])


def _tail(module: str) -> str:
    """What follows the first number in a module's path."""
    found = _NUMBER.search(module)
    return module if found is None else module[found.end() :].strip(".")
