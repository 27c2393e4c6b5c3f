"""What each part of a residual stream adds to a score: the direct effects that sum to it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnscope.attention import Head
from attnscope.capture.stream import (
    WHOLE,
    ScoreParts,
    Stream,
    StreamRows,
    Written,
    parts_beside_heads,
)


@dataclass
class Effects:
    """The direct effects that sum to a score.

    ``mixers`` is what other modules that mix tokens add, and attention without separable heads, by layer and
    by module.
    """

    heads: dict[Head, float] = field(default_factory=dict)
    feed_forward: dict[int, float] = field(default_factory=dict)  # what a layer adds beside attention
    mixers: dict[tuple[int, str], float] = field(default_factory=dict)
    embeddings: float = 0.0
    biases: float = 0.0
    mixed: set[int] = field(default_factory=set)  # layers without separable heads
    silent: set[int] = field(default_factory=set)  # layers whose heads have no direct effect
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
        (slopes,) = torch.autograd.grad(effect, seed, retain_graph=True)
        return slopes[0].detach()


def sum_parts(stream: Stream, parts: ScoreParts) -> Effects:
    """The effects of the parts that a walk along the stream reached."""
    effects, rows = Effects(), stream.rows
    sites = set()
    for edge, grad in parts.heads.items():
        written = stream.written[edge]
        sites.add(written.site)
        values, bias = _of_heads(written, grad, rows)
        effects.biases += bias
        for number, value in enumerate(values):
            head = Head(written.site.layer, number, written.site.kind)
            effects.heads[head] = effects.heads.get(head, 0.0) + float(value.detach())
            effects._of[head] = effects._of[head] + value if head in effects._of else value
    for written in stream.written.values():
        if written.site not in sites:
            effects.silent.add(written.site.layer)
            for number in range(len(written.mixed)):
                effects.heads.setdefault(Head(written.site.layer, number, written.site.kind), 0.0)
    effects.silent -= {site.layer for site in sites}
    for part, place, grad in parts_beside_heads(stream, parts):
        effect, layer = rows.times(place, grad), part.layer
        if layer is None:
            setattr(effects, part.kind, getattr(effects, part.kind) + effect)
        elif part.kind == "feed-forward":
            effects.feed_forward[layer] = effects.feed_forward.get(layer, 0.0) + effect
        else:
            module = part.name.rpartition(" ")[0]
            effects.mixers[layer, module] = effects.mixers.get((layer, module), 0.0) + effect
            effects.mixed |= {layer} if module == WHOLE else set()
    for head in [each for each in effects.heads if each.layer in effects.mixed & effects.silent]:
        del effects.heads[head]  # they are in the sum of their layer
    effects.silent -= effects.mixed
    return effects


def _of_heads(written: Written, grad: Tensor, rows: StreamRows) -> tuple[Tensor, float]:
    """The effect of each head of one call, and that of its projection's bias."""
    if written.weight is None:
        row = rows.cut(grad, written.mixed.numel())
        return (written.mixed.to(row) * row.reshape(written.mixed.shape)).sum(-1), 0.0
    row = rows.cut(grad, written.weight.shape[-1]).flatten()
    values = torch.einsum("hs,hsw,w->h", written.mixed.to(row), written.weight.to(row), row)
    return values, 0.0 if written.bias is None else float((written.bias.to(row) * row.detach()).sum())
