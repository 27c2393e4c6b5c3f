"""The output projection of each attention call, what its heads read, and what its output was added to.

All are found by their numbers, never by name. A projection: for a few rows, weights times values times its
weight, plus bias, reproduce the module's output within ``PROOF`` of its largest number. A sum: the next
module whose input, minus the attention's output, equals the input of a module around the attention, or just
before it. If that was the attention's own input, the sum is normalised next (as in BERT), or it goes on
unchanged (as in GPT-2). A norm may apply to the attention's output before it is added (as in Gemma 2). A
block that adds attention and feed-forward part at once (as GPT-J's) is recognised by its output, the sum of
its input, the attention's output and that of another module.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from attnscope.attention import Attention, Site
from attnscope.capture.hooks.functions import quietly
from attnscope.capture.hooks.modules import Call, Guard, ModuleStack
from attnscope.capture.record import Record, tolerance
from attnscope.capture.rows.scores import ScoredRows, mix, sampled

PROOF = 1e-5  # between the sum over heads and keys and the module's output, relative to its largest number
RECENT = 8  # most modules that may run between an attention and the moment at which it is shown


@dataclass(frozen=True, eq=False)
class Projection:
    """The output projection of one call, head by head."""

    name: str
    weight: Tensor  # [head, size, width]
    bias: Tensor | None  # [width]
    difference: float  # the error of the check
    edge: GradientEdge | None = None  # where a gradient reaches its output, if the pass kept gradients
    queries_first: bool = False  # whether queries precede the batch


@dataclass(eq=False)
class Projections:
    """An observer that finds the output projection of every call of a pass, in ``by_site``, by its site.

    >>> with projections.watching(model), recording(model, [projections]):
    ...     model(**inputs)
    """

    by_site: dict[Site, Projection] = field(default_factory=dict)
    sites: list[Site] = field(default_factory=list)
    _pending: tuple[Attention, list[int], Tensor] | None = None  # a few rows: [batch, head, row, size]
    _running: list[Call] = field(default_factory=list)  # the modules that the pass is inside of
    _recent: deque[tuple[Call, object]] = field(default_factory=lambda: deque(maxlen=RECENT))

    @property
    def difference(self) -> float:
        """The largest error of all checks."""
        return max((each.difference for each in self.by_site.values()), default=0.0)

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
        places, weights = sampled(attention.read, len(attention.queries))
        self._pending = attention, places, mix(weights, attention.values)
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
        (attention, *_), result = self._pending, first_tensor(output)
        if result is None or result.ndim < 2:
            return
        inside = call.module.named_children() if call.name == attention.site.name else ()
        for name, module in [("", call.module), *inside]:
            projection = _prove(self._pending, f"{call.name}.{name}".strip("."), module, result)
            if projection is not None:
                self.by_site[attention.site] = projection
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


def _prove(
    pending: tuple[Attention, list[int], Tensor], name: str, module: nn.Module, output: Tensor
) -> Projection | None:
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
    forms = [output.reshape(batch, queries, width)]
    forms += [output.transpose(0, 1)] if output.shape == (queries, batch, width) else []
    within = PROOF if output.dtype in (torch.float32, torch.float64) else tolerance(output.dtype)
    for oriented in orientations(weight.mT, heads * size, width):
        parts = oriented.reshape(heads, size, width)
        sum_ = torch.einsum("bhrs,hsw->brw", mixed, parts.to(mixed.dtype))
        sum_ = sum_ if bias is None else sum_ + bias.to(mixed.dtype)
        for queries_first, rows in enumerate(forms):
            expected = rows[:, places].to(mixed.dtype)  # [batch, row, width]
            gap, largest = float((sum_ - expected).abs().amax()), float(expected.abs().amax())
            if largest > 0 and gap <= within * largest:
                bias = None if bias is None else bias.detach()
                edge = get_gradient_edge(output) if output.requires_grad else None
                return Projection(name, parts.detach(), bias, gap / largest, edge, bool(queries_first))
    return None


def orientations(weight: Tensor, rows: int, columns: int) -> Iterator[Tensor]:
    """A weight and its transpose, where they fit: linear layers have one form, GPT-2 the other."""
    yield from (each for each in (weight, weight.mT) if each.shape == (rows, columns))


def head_gradients(projections: Projections, score: Tensor) -> dict[Site, Tensor]:
    """By site, the gradient of a score with respect to each head's output, for a pass with gradients.

    It is the gradient after the projection, multiplied by its weight.  -> [batch, head, query, size]
    """
    projections_with_edge = {
        site: each for site, each in projections.by_site.items() if each.edge is not None
    }
    edges = [each.edge for each in projections_with_edge.values() if each.edge is not None]
    slopes = torch.autograd.grad(score, edges, allow_unused=True) if edges else ()
    before: dict[Site, Tensor] = {}
    for (site, each), slope in zip(projections_with_edge.items(), slopes, strict=True):
        if slope is not None:
            slope = slope.transpose(0, 1) if each.queries_first else slope
            slope = slope.flatten(1, -2) if slope.ndim > 3 else slope  # [batch, query, width]
            before[site] = torch.einsum("bqw,hsw->bhqs", slope, each.weight.to(slope))
    return before


ALIKE = 1e-4  # how far two equal directions may be apart


@dataclass(frozen=True, eq=False)
class Reads:
    """The projections of one call, one per query head; ``None`` if not found."""

    query: Tensor | None  # [head, width, size]
    key: Tensor | None
    value: Tensor | None
    rotated: bool = False  # whether queries and keys are rotated by position
    shared: int = 1  # heads that share a key and a value
    scored: bool = True  # whether queries and keys were seen, not the softmax's result alone


_Map: TypeAlias = tuple[Tensor, Tensor]
"""A linear map that ran, [out, width], and its output at the first and the last token, [2, out]."""


@dataclass(eq=False)
class Circuits(Projections):
    """Finds what each head reads, in ``reads``, and what it writes, in ``by_site``."""

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
        query_states, rotated = states[0], False
        if query_states is not None and query is not None and query_states.shape[2] > 1:
            rotated = _find(query_states[0, :, -1], attention.heads, maps, 1) is None
        shared = attention.heads // attention.key_heads
        self.reads[attention.site] = Reads(query, key, value, rotated, shared, call is not None)
        super().observe(attention)

    def _maps(self, length: int) -> Iterator[_Map]:
        """The linear maps among the last modules that ran, and inside the running one."""
        for call, output in reversed(self._recent):
            if isinstance(output, Tensor) and not output.is_nested:
                yield from _of_module(call, output, length)
        if not self._running or (states := self._running[-1].first) is None or not states.is_floating_point():
            return
        rows = _ends(states, length)  # for weights that a module multiplies itself, with each bias that fits
        own = [
            each for each in self._running[-1].module.parameters(recurse=False) if each.is_floating_point()
        ]
        for weight in own:
            if weight.ndim == 2 and weight.shape[1] == rows.shape[1]:
                out = rows @ weight.float().mT
                yield weight, out
                yield from ((weight, out + bias.float()) for bias in own if bias.shape == out.shape[1:])


def _ends(states: Tensor, length: int) -> Tensor:
    """The first and the last token's states of the first text.  [..., width] -> [2, width]"""
    rows = states.reshape(-1, states.shape[-1])
    return rows[[0, min(length, len(rows)) - 1]].float()


def _of_module(call: Call, output: Tensor, length: int) -> Iterator[_Map]:
    weight, states = weight_of(call.module), call.first
    if weight is None or weight.ndim != 2 or states is None or not weight.is_floating_point():
        return
    width, out = states.shape[-1], output.shape[-1]
    ends, rows = _ends(output, length), _ends(states, length)
    bias = weight_of(call.module, "bias")
    for oriented in orientations(weight, out, width):
        out_of_ends = rows @ oriented.float().mT
        out_of_ends = out_of_ends + bias.float() if bias is not None and bias.shape == (out,) else out_of_ends
        if torch.allclose(out_of_ends[0], ends[0], atol=ALIKE * float(ends[0].abs().amax())):
            yield oriented, ends
            return


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


NEAR = 1e-4  # how far a norm may be from its formula, relative to its largest number, in float32
EPS = "eps", "variance_epsilon"  # names of a norm's epsilon
ROUNDINGS = 4  # roundings by which a sum may be off
TINY = 1e-30  # numbers below this count as 0


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm's effect on each summand of a row: less its own mean, if ``centred``, times ``scale``."""

    scale: Tensor  # [batch, query, width]: the norm's weight over the standard deviation of the whole row
    centred: bool

    def apply(self, vectors: Tensor) -> Tensor:
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
    """What an attention's output was added to, the sum, and the normalised sum, if that goes on."""

    before: Tensor  # [batch, query, width]
    total: Tensor  # [batch, query, width]
    normed: Tensor | None = None  # [batch, query, width]
    norm: Norm | None = None  # after the sum
    inner: Norm | None = None  # before it, of the attention's output alone

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
    _inputs_around: tuple[Tensor, ...] = ()
    _own: Tensor | None = None
    _beside: deque[Tensor] = field(default_factory=lambda: deque(maxlen=RECENT))

    def residual_at(self, site: Site) -> Residual | None:
        """What is around one call. A model norms in one way; its first layer may not show it."""
        residual = self.residuals.get(site)
        alike = [each.norm is None for other, each in self.residuals.items() if other.kind == site.kind]
        return replace(residual, normed=None, norm=None) if residual is not None and any(alike) else residual

    def observe(self, attention: Attention) -> None:
        """Store the inputs of the modules around, and look for the projection."""
        self._added = None
        self._beside.clear()
        recent = [call for call, _ in self._recent]  # a norm before it may have had the sum so far
        self._inputs_around = tuple(each for call in (*self._running, *recent) for each in call.tensors)
        self._own = self._running[-1].first if self._running else None
        super().observe(attention)

    def _compare(self, call: Call, output: object) -> None:
        if self._added is not None:
            self._find_inner_norm(self._added, call, output)
            self._find_sum(self._added, call, output)
        if self._added is not None:
            self._find_sum_with_others(self._added, call, output)
        pending = self._pending
        super()._compare(call, output)
        result = first_tensor(output)
        if pending is not None and self._pending is None and result is not None:
            self._added = _Added(pending[0].site, result.detach().clone(), self._own, self._inputs_around)

    def _find_inner_norm(self, added: _Added, call: Call, output: object) -> None:
        """Whether a norm took the attention's output alone: then the norm's output is added."""
        states, result = call.first, first_tensor(output)
        if added.inner is not None or states is None or result is None:
            return
        if states.shape != added.output.shape or not torch.equal(states, added.output):
            return
        if (norm := find_norm(call, states, result)) is not None:
            self._added = added._replace(output=result.detach().clone(), inner=norm)

    def _find_sum(self, added: _Added, call: Call, output: object) -> None:
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

    def _find_sum_with_others(self, added: _Added, call: Call, output: object) -> None:
        """Whether a block's output is its input plus the outputs of the attention and another module."""
        before, result = call.first, first_tensor(output)
        if before is None or result is None or result.shape != added.output.shape:
            return
        others = (*self._beside, *(first_tensor(other) for _, other in self._recent))
        if any(other is not None and _is_sum(result, before, added.output, other) for other in others):
            self._added = None
            before = before.detach().clone()
            self.residuals[added.site] = Residual(before, before + added.output, inner=added.inner)

    def _leave(self, call: Call, output: object) -> None:
        super()._leave(call, output)
        result = first_tensor(output)
        if self._added is not None and result is not None and result.shape == self._added.output.shape:
            self._beside.append(result.detach().clone())  # Falcon writes the sum into it


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


def find_norm(call: Call, states: Tensor, result: Tensor) -> Norm | None:
    """The norm that a module is, by its formula: a layer norm, or RMS norm."""
    weight, bias = weight_of(call.module), weight_of(call.module, "bias")
    eps = next((each for name in EPS if isinstance(each := getattr(call.module, name, None), float)), 1e-5)
    if weight is None or weight.shape != states.shape[-1:] or result.shape != states.shape:
        return None
    near = NEAR if result.dtype in (torch.float32, torch.float64) else tolerance(result.dtype)
    wide = states.detach().to(torch.promote_types(states.dtype, torch.float32))
    weight = weight.detach().to(wide)
    added = bias.detach().to(wide) if bias is not None else torch.zeros_like(weight)
    for centred in (True, False):
        vectors = wide - wide.mean(-1, keepdim=True) if centred else wide
        spread = torch.sqrt(vectors.square().mean(-1, keepdim=True) + eps)
        for factor in (weight, 1 + weight):  # Gemma's are one more than they say
            gap = (vectors / spread * factor + added - result).abs().amax()
            if gap <= near * result.abs().amax():
                return Norm(factor / spread, centred)
    return None
