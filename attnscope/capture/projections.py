"""The output projection of each attention call, from the heads' outputs to the model's width.

It is found by its numbers, never by its name: for a few rows, weights times values times the projection's
weight, plus bias, reproduce the module's output in this pass, within ``PROOF`` of its largest number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from attnscope.attention import Attention, Site
from attnscope.capture.hooks.functions import quietly
from attnscope.capture.hooks.modules import Call, Guard, ModuleStack
from attnscope.capture.record import Record, tolerance
from attnscope.capture.rows.scores import ScoredRows, mix, sample_rows, sampled_weights

PROOF = 1e-5
"""Tolerance between the sum over heads and keys and the module's output, relative to its largest number."""

RECENT = 8  # most modules that may run between an attention and the moment at which it is shown


@dataclass(frozen=True, eq=False)
class Projection:
    """The output projection of one call, head by head; ``difference`` is the error of the check.

    ``edge`` is where a gradient reaches its output, if the pass kept gradients.
    """

    name: str
    weight: Tensor  # [head, size, width]
    bias: Tensor | None  # [width]
    difference: float
    edge: GradientEdge | None = None
    turned: bool = False  # whether queries precede the batch


class _Pending(NamedTuple):
    """An attention whose projection is searched for, and a few rows of its heads' output."""

    attention: Attention
    places: list[int]
    mixed: Tensor  # [batch, head, row, size]


@dataclass(eq=False)
class Projections:
    """An observer that finds the output projection of every call of a pass, in ``found``, by its site.

    Open ``watching`` around the recording:

    >>> projections = Projections()
    >>> with projections.watching(model), recording(model, [projections]):
    ...     model(**inputs)
    """

    found: dict[Site, Projection] = field(default_factory=dict)
    sites: list[Site] = field(default_factory=list)
    _pending: _Pending | None = None
    _running: list[Call] = field(default_factory=list)  # the modules that the pass is inside of
    _recent: deque[tuple[Call, object]] = field(default_factory=lambda: deque(maxlen=RECENT))

    @property
    def difference(self) -> float:
        """The largest error of all checks."""
        return max((each.difference for each in self.found.values()), default=0.0)

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Watch which modules run inside the block."""
        guard = Guard(Record(), lambda: "")
        stack = ModuleStack(model, lambda: None, lambda call: None, self._leave, lambda: None, guard)
        self._running = stack.calls
        with stack.watch():
            yield
        self._pending = None
        self._recent.clear()

    def observe(self, attention: Attention) -> None:
        """Store a few rows of the heads' output, and check whether their projection has run already."""
        self.sites.append(attention.site)
        self._pending = None
        if attention.values is None or not len(attention.queries):
            return
        places = sample_rows(len(attention.queries))
        mixed = mix(sampled_weights(attention.read, places), attention.values)
        self._pending = _Pending(attention, list(places), mixed)
        for call, output in reversed(self._recent):
            self._compare(call, output)
        self._recent.clear()

    def _leave(self, call: Call, output: object) -> None:
        """A module ended: it is the projection, or contains it, if its output matches."""
        with quietly():
            self._compare(call, output)
        self._recent.append((call, output))

    def _compare(self, call: Call, output: object) -> None:
        if self._pending is None:
            return
        attention = self._pending.attention
        gave = first_tensor(output)
        if gave is None or gave.ndim < 2:
            return
        inside = call.module.named_children() if call.name == attention.site.name else ()
        for name, module in [("", call.module), *inside]:
            projection = _prove(self._pending, f"{call.name}.{name}".strip("."), module, gave)
            if projection is not None:
                self.found[attention.site] = projection
                self._pending = None
                return


def first_tensor(output: object) -> Tensor | None:
    """A module's tensor output, or the first of several."""
    output = output[0] if isinstance(output, (tuple, list)) and output else output
    return output if isinstance(output, Tensor) and not output.is_nested else None


def weight_of(module: nn.Module, name: str = "weight") -> Tensor | None:
    """A module's weight; one that a device map keeps on disk is read from there."""
    weight = getattr(module, name, None)
    files = getattr(getattr(module, "_hf_hook", None), "weights_map", None)
    if isinstance(weight, Tensor) and weight.is_meta and files is not None:
        weight = files[name]
    return weight if isinstance(weight, Tensor) else None


def _prove(pending: _Pending, name: str, module: nn.Module, output: Tensor) -> Projection | None:
    """The projection, if a module's own weight maps the heads to the output."""
    weight = getattr(module, "weight", None)
    attention, places, mixed = pending
    batch, heads, _, size = mixed.shape
    queries, width = len(attention.queries), output.shape[-1]
    if not isinstance(weight, Tensor) or not weight.is_floating_point() or weight.ndim != 2:
        return None
    if output.numel() != batch * queries * width or sorted(weight.shape) != sorted((heads * size, width)):
        return None
    weight, bias = weight_of(module), weight_of(module, "bias")
    assert weight is not None
    if bias is None or bias.shape != (width,):
        bias = None
    ways = [output.reshape(batch, queries, width)]
    ways += [output.transpose(0, 1)] if output.shape == (queries, batch, width) else []
    within = PROOF if output.dtype in (torch.float32, torch.float64) else tolerance(output.dtype)
    for lies in orientations(weight.mT, heads * size, width):
        parts = lies.reshape(heads, size, width)
        sum_ = torch.einsum("bhrs,hsw->brw", mixed, parts.to(mixed.dtype))
        sum_ = sum_ if bias is None else sum_ + bias.to(mixed.dtype)
        for turned, rows in enumerate(ways):
            given = rows[:, places].to(mixed.dtype)  # [batch, row, width]
            gap, largest = float((sum_ - given).abs().amax()), float(given.abs().amax())
            if largest > 0 and gap <= within * largest:
                bias = None if bias is None else bias.detach()
                edge = get_gradient_edge(output) if output.requires_grad else None
                return Projection(name, parts.detach(), bias, gap / largest, edge, bool(turned))
    return None


def orientations(weight: Tensor, rows: int, columns: int) -> Iterator[Tensor]:
    """A weight and its transpose, where they fit: linear layers have one form, GPT-2 the other."""
    yield from (lies for lies in (weight, weight.mT) if lies.shape == (rows, columns))


def head_gradients(projections: Projections, score: Tensor) -> dict[Site, Tensor]:
    """By site, the gradient of a score with respect to each head's output, for a pass with gradients.

    It is the gradient after the projection, multiplied by its weight.  -> [batch, head, query, size]
    """
    found = {site: each for site, each in projections.found.items() if each.edge is not None}
    edges = [each.edge for each in found.values() if each.edge is not None]
    slopes = torch.autograd.grad(score, edges, allow_unused=True) if edges else ()
    return {
        site: _through(each, slope)
        for (site, each), slope in zip(found.items(), slopes, strict=True)
        if slope is not None
    }


def _through(projection: Projection, slope: Tensor) -> Tensor:
    """A gradient after a projection as one before it.  [..., width] -> [batch, head, query, size]"""
    slope = slope.transpose(0, 1) if projection.turned else slope
    slope = slope.flatten(1, -2) if slope.ndim > 3 else slope
    return torch.einsum("bqw,hsw->bhqs", slope, projection.weight.to(slope))


ALIKE = 1e-4  # how far two equal directions may be apart


@dataclass(frozen=True, eq=False)
class Reads:
    """The projections of one call, one per query head; ``None`` if not found.

    ``turned``: queries and keys are rotated by position. ``shared``: heads that share a key and a value.
    """

    query: Tensor | None  # [head, width, size]
    key: Tensor | None
    value: Tensor | None
    turned: bool = False
    shared: int = 1


class _Map(NamedTuple):
    """A linear map that ran, and its output at the first and the last position of the first text."""

    weight: Tensor  # [out, width]
    ends: Tensor  # [first | last, out]


@dataclass(eq=False)
class Circuits(Projections):
    """Finds what each head reads, in ``reads``, and what it writes, in ``found``."""

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
        """The linear maps among the last modules that ran, and inside the running one."""
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
    weight, given = weight_of(call.module), call.first
    if weight is None or weight.ndim != 2 or given is None or not weight.is_floating_point():
        return
    width, out = given.shape[-1], output.shape[-1]
    ends, rows = _ends(output, length), _ends(given, length)
    bias = weight_of(call.module, "bias")
    for lies in orientations(weight, out, width):
        made = rows @ lies.float().mT
        made = made + bias.float() if bias is not None and bias.shape == (out,) else made
        if torch.allclose(made[0], ends[0], atol=ALIKE * float(ends[0].abs().amax())):
            yield _Map(lies, ends)
            return


def _of_parameters(module: nn.Module, rows: Tensor) -> Iterator[_Map]:
    """Weights that a module multiplies itself, each with every bias that fits, and without."""
    own = [each for each in module.parameters(recurse=False) if each.is_floating_point()]
    for weight in own:
        if weight.ndim == 2 and weight.shape[1] == rows.shape[1]:
            made = rows @ weight.float().mT
            yield _Map(weight, made)
            yield from (_Map(weight, made + bias.float()) for bias in own if bias.shape == made.shape[1:])


def _find(states: Tensor, heads: int, maps: list[_Map], end: int) -> Tensor | None:
    """Which rows of which map give the states of each head at one end of the text.

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
