"""The output projection of each attention call: what takes the heads' outputs back to the model's width.

It is found by its numbers, never by its name: for a few rows, weights times values times the projection's
weight, with its bias, are what the module gave in this very pass, within ``PROOF`` of its largest number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attnscope.attention import Attention, Site
from attnscope.capture.hooks.guard import Guard
from attnscope.capture.hooks.modules import Call, ModuleStack
from attnscope.capture.observer import quietly
from attnscope.capture.record import Record
from attnscope.capture.rows.proof import few, few_rows, mix, tolerance

PROOF = 1e-5
"""How far the sum over heads and keys may be from what the module gave, of its largest number."""

RECENT = 8
"""Modules that may have run between an attention and the moment at which it is shown."""


@dataclass(frozen=True, eq=False)
class Projection:
    """The output projection of one call, head by head; ``difference`` is that of the proof."""

    name: str
    weight: Tensor  # [head, size, width]
    bias: Tensor | None  # [width]
    difference: float


class _Pending(NamedTuple):
    """An attention whose projection is looked for, and a few rows of what its heads gave."""

    attention: Attention
    places: list[int]
    mixed: Tensor  # [batch, head, row, size]


@dataclass(eq=False)
class Projections:
    """An observer that finds the output projection of every call of a pass, in ``found``, by its site.

    The modules that run must be watched meanwhile:

    >>> projections = Projections()
    >>> with projections.watching(model), recording(model, [projections]):
    ...     model(**inputs)
    """

    found: dict[Site, Projection] = field(default_factory=dict)
    sites: list[Site] = field(default_factory=list)
    _pending: _Pending | None = None
    _recent: deque[tuple[Call, object]] = field(default_factory=lambda: deque(maxlen=RECENT))

    @property
    def difference(self) -> float:
        """The largest difference of all proofs."""
        return max((each.difference for each in self.found.values()), default=0.0)

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Watch which modules run inside the block."""
        guard = Guard(Record(), lambda: "")
        stack = ModuleStack(model, lambda: None, lambda call: None, self._leave, lambda: None, guard)
        with stack.watch():
            yield
        self._pending = None
        self._recent.clear()

    def observe(self, attention: Attention) -> None:
        """Note a few rows of what the heads gave, and look whether their projection has run already."""
        self.sites.append(attention.site)
        self._pending = None
        if attention.values is None or not len(attention.queries):
            return
        places = few(len(attention.queries))
        mixed = mix(few_rows(attention.read, places), attention.values)
        self._pending = _Pending(attention, list(places), mixed)
        for call, output in reversed(self._recent):
            self._compare(call, output)
        self._recent.clear()

    def _leave(self, call: Call, output: object) -> None:
        """A module ended: it is the projection, or holds it, if it gave what the projection would give."""
        with quietly():
            self._compare(call, output)
        self._recent.append((call, output))

    def _compare(self, call: Call, output: object) -> None:
        if self._pending is None:
            return
        attention = self._pending.attention
        output = output[0] if isinstance(output, (tuple, list)) and output else output
        if not isinstance(output, Tensor) or output.ndim < 2 or output.is_nested:
            return
        inside = call.module.named_children() if call.name == attention.site.name else ()
        for name, module in [("", call.module), *inside]:
            projection = _prove(self._pending, f"{call.name}.{name}".strip("."), module, output)
            if projection is not None:
                self.found[attention.site] = projection
                self._pending = None
                return


def _prove(pending: _Pending, name: str, module: nn.Module, output: Tensor) -> Projection | None:
    """The projection, if a module's own weight makes of the heads what was given out."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    attention, places, mixed = pending
    batch, heads, _, size = mixed.shape
    queries, width = len(attention.queries), output.shape[-1]
    if not isinstance(weight, Tensor) or not weight.is_floating_point() or weight.ndim != 2:
        return None
    if output.numel() != batch * queries * width or sorted(weight.shape) != sorted((heads * size, width)):
        return None
    if not isinstance(bias, Tensor) or bias.shape != (width,):
        bias = None
    given = output.reshape(batch, queries, width)[:, places].to(mixed.dtype)  # [batch, row, width]
    turned = (
        [output.transpose(0, 1)[:, places].to(mixed.dtype)] if output.shape[:2] == (queries, batch) else []
    )
    largest, within = (
        float(given.abs().amax()),
        max(PROOF, 0 if _is_full(output) else tolerance(output.dtype)),
    )
    for lies in [weight.mT, weight]:  # a linear layer's, and that of GPT-2
        if lies.shape != (heads * size, width):
            continue
        parts = lies.reshape(heads, size, width)
        sum_ = torch.einsum("bhrs,hsw->brw", mixed, parts.to(mixed.dtype))
        sum_ = sum_ if bias is None else sum_ + bias.to(mixed.dtype)
        for rows in [given, *turned]:
            gap = float((sum_ - rows).abs().amax())
            if largest > 0 and gap <= within * largest:
                bias = None if bias is None else bias.detach()
                return Projection(name, parts.detach(), bias, gap / largest)
    return None


def _is_full(output: Tensor) -> bool:
    return output.dtype in (torch.float32, torch.float64)
