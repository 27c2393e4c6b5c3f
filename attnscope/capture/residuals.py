"""The states around each attention: what its output was added to, and what became of the sum.

They, too, are found by their numbers: the next module whose input, minus the attention's output, equals
the input of a module around the attention, or just before it. If that was the attention's own input, the
sum is normalised next (as in BERT); otherwise the sum goes on unchanged (as in GPT-2). A norm may apply
to the attention's output before it is added (as in Gemma 2 and OLMo 2). A block that adds attention and
feed-forward part at once (as GPT-J's) never has that sum: it is recognised by its output, which is the
sum of its input, the attention's output and that of another module.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.attention import Attention, Site
from attnscope.capture.hooks.modules import Call
from attnscope.capture.projections import RECENT, Projections, first_tensor, weight_of
from attnscope.capture.record import tolerance

NEAR = 1e-4  # how far a norm may be from its formula, relative to its largest number, in float32
EPS = "eps", "variance_epsilon"  # names of a norm's epsilon
ROUNDINGS = 4  # roundings by which a sum may be off
TINY = 1e-30  # numbers below this count as 0


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm's effect on each summand of a row: less its own mean, if ``centred``, times ``scale``.

    ``scale`` is the norm's weight over the standard deviation of the whole row.
    """

    scale: Tensor  # [batch, query, width]
    centred: bool

    def of(self, vectors: Tensor) -> Tensor:
        """Vectors after the norm, with the first row's deviation.  [..., width] -> [..., width]"""
        mean = vectors.mean(-1, keepdim=True) if self.centred else 0
        return (vectors - mean) * self.scale[0, 0].to(vectors)

    @property
    def spread(self) -> Tensor:
        """The factor of each row relative to the first.  -> [batch, query, 1]"""
        sizes: Tensor = torch.linalg.vector_norm(self.scale, dim=-1, keepdim=True)
        return sizes / sizes[:1, :1]


@dataclass(frozen=True, eq=False)
class Residual:
    """What an attention's output was added to, the sum, and the normalised sum, if that goes on.

    ``norm`` is the norm after the sum, ``inner`` one before it, of the attention's output alone.
    """

    before: Tensor  # [batch, query, width]
    total: Tensor  # [batch, query, width]
    normed: Tensor | None = None  # [batch, query, width]
    norm: Norm | None = None
    inner: Norm | None = None

    @property
    def result(self) -> Tensor:
        """What goes on.  -> [batch, query, width]"""
        return self.total if self.normed is None else self.normed

    @property
    def form(self) -> str:
        """Where a norm was found, if one was."""
        before = "a norm before the sum" if self.inner is not None else "no norm follows"
        return before if self.norm is None else "a norm follows"


class _Added(NamedTuple):
    """An attention whose output waits to be added to something."""

    site: Site
    output: Tensor  # [batch, query, width]
    own: Tensor | None  # the attention's input
    around: tuple[Tensor, ...]  # the inputs of the modules around it and before it
    inner: Norm | None = None  # a norm that took the output


@dataclass(eq=False)
class Residuals(Projections):
    """Finds what each attention's output was added to, in ``residuals``, and its output projection."""

    residuals: dict[Site, Residual] = field(default_factory=dict)  # as each looks alone
    _added: _Added | None = None
    _given: tuple[Tensor, ...] = ()
    _own: Tensor | None = None
    _beside: deque[Tensor] = field(default_factory=lambda: deque(maxlen=RECENT))

    def of(self, site: Site) -> Residual | None:
        """What is around one call. A model norms in one way; its first layer may not show it."""
        found = self.residuals.get(site)
        alike = [each.norm is None for other, each in self.residuals.items() if other.kind == site.kind]
        return replace(found, normed=None, norm=None) if found is not None and any(alike) else found

    def observe(self, attention: Attention) -> None:
        """Store the inputs of the modules around, and look for the projection."""
        self._added = None
        self._beside.clear()
        recent = [call for call, _ in self._recent]  # a norm before it may have had the sum so far
        self._given = tuple(each for call in (*self._running, *recent) for each in call.tensors)
        self._own = self._running[-1].first if self._running else None
        super().observe(attention)

    def _compare(self, call: Call, output: object) -> None:
        if self._added is not None:
            self._look_inside(self._added, call, output)
            self._look(self._added, call, output)
        if self._added is not None:
            self._look_beside(self._added, call, output)
        waiting = self._pending
        super()._compare(call, output)
        gave = first_tensor(output)
        if waiting is not None and self._pending is None and gave is not None:
            self._added = _Added(waiting.attention.site, gave.detach().clone(), self._own, self._given)

    def _look_inside(self, added: _Added, call: Call, output: object) -> None:
        """Whether a norm took the attention's output alone: then the norm's output is added."""
        given, gave = call.first, first_tensor(output)
        if added.inner is not None or given is None or gave is None:
            return
        if given.shape != added.output.shape or not torch.equal(given, added.output):
            return
        if (norm := find_norm(call, given, gave)) is not None:
            self._added = added._replace(output=gave.detach().clone(), inner=norm)

    def _look(self, added: _Added, call: Call, output: object) -> None:
        """Whether a module's input is the attention's output plus an earlier state."""
        total, shape = call.first, added.output.shape
        if total is None or not isinstance(output, Tensor) or total.shape[-1:] != shape[-1:]:
            return
        if total.numel() != added.output.numel() or output.shape != total.shape:
            return
        total, output = total.reshape(shape), output.reshape(shape)  # of OPT's, batch and tokens are one axis
        before = next((each for each in added.around if _is_sum(total, each, added.output)), None)
        if before is None:
            return
        self._added = None
        before, total = before.detach().clone(), total.detach().clone()
        own = added.own is not None and added.inner is None and _is_sum(total, added.own, added.output)
        if not own:
            self.residuals[added.site] = Residual(before, total, inner=added.inner)
        elif (norm := find_norm(call, total, output)) is not None:
            self.residuals[added.site] = Residual(before, total, output.detach().clone(), norm)

    def _look_beside(self, added: _Added, call: Call, output: object) -> None:
        """Whether a block's output is its input plus the outputs of the attention and another module."""
        before, given = call.first, first_tensor(output)
        if before is None or given is None or given.shape != added.output.shape:
            return
        others = (*self._beside, *(first_tensor(other) for _, other in self._recent))
        if any(other is not None and _is_sum(given, before, added.output, other) for other in others):
            self._added = None
            before = before.detach().clone()
            self.residuals[added.site] = Residual(before, before + added.output, inner=added.inner)

    def _leave(self, call: Call, output: object) -> None:
        super()._leave(call, output)
        gave = first_tensor(output)
        if self._added is not None and gave is not None and gave.shape == self._added.output.shape:
            self._beside.append(gave.detach().clone())  # Falcon writes the sum into it


def _is_sum(total: Tensor, before: Tensor, output: Tensor, *others: Tensor) -> bool:
    """Whether a total is the sum of all parts up to rounding, and would not be without the output."""
    parts = (before, output, *others)
    if any(each.shape != total.shape or not each.is_floating_point() for each in parts):
        return False
    if _gap(*(each[:1, :1] for each in (total, *parts))) > 1:  # most fail in their first row already
        return False
    return _gap(total, *parts) <= 1 < _gap(total, before, torch.zeros_like(output), *others)


def _gap(total: Tensor, *parts: Tensor) -> float:
    """The largest distance of a total from the sum of its parts, in allowed roundings."""
    wide = [each.double() for each in parts]
    near = ROUNDINGS * torch.finfo(total.dtype).eps * sum(map(torch.abs, wide[1:]), wide[0].abs())
    return float(((total.double() - sum(wide[1:], wide[0])).abs() / near.clamp(min=TINY)).amax())


def find_norm(call: Call, given: Tensor, gave: Tensor) -> Norm | None:
    """The norm that a module is, by its formula: a layer norm, or RMS norm."""
    weight, bias = weight_of(call.module), weight_of(call.module, "bias")
    eps = next((each for name in EPS if isinstance(each := getattr(call.module, name, None), float)), 1e-5)
    if weight is None or weight.shape != given.shape[-1:] or gave.shape != given.shape:
        return None
    near = NEAR if gave.dtype in (torch.float32, torch.float64) else tolerance(gave.dtype)
    wide = given.detach().to(torch.promote_types(given.dtype, torch.float32))
    weight = weight.detach().to(wide)
    added = bias.detach().to(wide) if bias is not None else torch.zeros_like(weight)
    for centred in (True, False):
        vectors = wide - wide.mean(-1, keepdim=True) if centred else wide
        spread = torch.sqrt(vectors.square().mean(-1, keepdim=True) + eps)
        for factor in (weight, 1 + weight):  # Gemma's are one more than they say
            gap = (vectors / spread * factor + added - gave).abs().amax()
            if gap <= near * gave.abs().amax():
                return Norm(factor / spread, centred)
    return None
