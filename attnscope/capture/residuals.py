"""The states around each attention: what it was added to, and what became of the sum.

They are found by their numbers, too: the next module whose input, less what the attention gave, is something
that a module around the attention, or just before it, was given. Where that was the attention's own input,
the sum is normalised before it goes on (as in BERT); else the sum goes on as it is (as in GPT-2).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from attnscope.attention import Attention, Site
from attnscope.capture.hooks.modules import Call
from attnscope.capture.projections import Projections

NEAR = 1e-4
"""How far states may be apart that count as the same, of their largest number."""


@dataclass(frozen=True, eq=False)
class Residual:
    """What an attention's output was added to, the sum, and the sum normalised, where that is what goes on.

    ``scale`` is the norm's weight over the spread of each row, ``None`` without a norm.
    """

    before: Tensor  # [batch, query, width]
    total: Tensor  # [batch, query, width]
    normed: Tensor | None = None  # [batch, query, width]
    scale: Tensor | None = None  # [batch, query, width]

    @property
    def result(self) -> Tensor:
        """What goes on.  -> [batch, query, width]"""
        return self.total if self.normed is None else self.normed


class _Added(NamedTuple):
    """An attention whose output waits to be added to something."""

    site: Site
    output: Tensor  # [batch, query, width]
    own: Tensor | None  # what the attention was given
    around: tuple[Tensor, ...]  # what the modules around it and before it were given


@dataclass(eq=False)
class Residuals(Projections):
    """Finds what each attention was added to, in ``residuals``, beside its output projection."""

    residuals: dict[Site, Residual] = field(default_factory=dict)  # as each looks alone
    _added: _Added | None = None
    _given: tuple[Tensor, ...] = ()
    _own: Tensor | None = None

    def of(self, site: Site) -> Residual | None:
        """What is around one call. A model norms one way: its first layer may have no norm to tell it by."""
        found = self.residuals.get(site)
        alike = [each.scale is None for other, each in self.residuals.items() if other.kind == site.kind]
        return Residual(found.before, found.total) if found is not None and any(alike) else found

    def observe(self, attention: Attention) -> None:
        """Note what the modules around were given, and look for the projection."""
        self._added = None
        recent = [call for call, _ in self._recent]  # a norm before it may have had the sum so far
        self._given = tuple(each for call in (*self._running, *recent) for each in call.tensors)
        self._own = self._running[-1].first if self._running else None
        super().observe(attention)

    def _compare(self, call: Call, output: object) -> None:
        if self._added is not None:
            self._look(self._added, call, output)
        waiting = self._pending
        super()._compare(call, output)
        output = output[0] if isinstance(output, (tuple, list)) and output else output
        if waiting is not None and self._pending is None and isinstance(output, Tensor):
            self._added = _Added(waiting.attention.site, output, self._own, self._given)

    def _look(self, added: _Added, call: Call, output: object) -> None:
        """Whether a module was given the attention's output, added to what was there."""
        total, shape = call.first, added.output.shape
        if total is None or not isinstance(output, Tensor) or total.shape[-1:] != shape[-1:]:
            return
        if total.numel() != added.output.numel() or output.shape != total.shape:
            return
        total, output = total.reshape(shape), output.reshape(shape)  # of OPT's, batch and tokens are one axis
        before = total - added.output
        if not any(_same(before, given) for given in added.around):
            return
        self._added = None
        total = total.detach().clone()
        if added.own is None or not _same(before, added.own):
            self.residuals[added.site] = Residual(before.detach(), total)
        elif (scale := _scale_of(call, total, output)) is not None:
            self.residuals[added.site] = Residual(before.detach(), total, output.detach().clone(), scale)


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether states are the same, but for rounding."""
    if one.shape != other.shape or not other.is_floating_point():
        return False
    largest = float(other.abs().amax())
    return largest > 0 and float((one - other).abs().amax()) <= NEAR * largest


def _scale_of(call: Call, total: Tensor, output: Tensor) -> Tensor | None:
    """The weight of a layer norm over the spread of each row; ``None`` for what is no layer norm."""
    weight, bias = getattr(call.module, "weight", None), getattr(call.module, "bias", None)
    eps = getattr(call.module, "eps", 1e-5)
    if not isinstance(weight, Tensor) or weight.shape != total.shape[-1:] or not isinstance(eps, float):
        return None
    made = F.layer_norm(total, weight.shape, weight, bias, eps)
    if output.shape != made.shape or not _same(made, output):
        return None
    spread = torch.sqrt(total.var(-1, unbiased=False, keepdim=True) + eps)
    return (weight / spread).detach()
