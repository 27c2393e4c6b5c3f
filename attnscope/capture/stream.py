"""The residual stream of a pass: its summands, followed back from a score through torch's autograd graph.

Torch's own nodes are called where they are linear. Of a product one side is followed and the other held at
its value in the pass: a norm's standard deviation, a gate, a weight. So is an activation's slope f(x) / x.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn import functional as F

from attnscope.attention import Attention, Head, Site
from attnscope.capture.hooks.functions import WatchingMode, is_quiet, quietly
from attnscope.capture.hooks.modules import Call
from attnscope.capture.projections import Projections
from attnscope.capture.record import NUMBER, module_lists, tolerance
from attnscope.capture.rows.scores import mix

# fmt: off
LINEAR = frozenset((
    "Add", "Sub", "Rsub", "Neg", "View", "UnsafeView", "Reshape", "ReshapeAlias", "Transpose", "T", "Permute",
    "Unsqueeze", "Squeeze", "Slice", "Select", "Index", "IndexSelect", "Gather", "Expand", "Repeat", "Clone",
    "ToCopy", "Cat", "Stack", "Split", "SplitWithSizes", "Unbind", "Sum", "Mean", "Alias", "AsStrided",
    "Narrow", "Flip", "Roll", "MaskedFill", "Unfold", "Diagonal", "Copy", "LiftFresh",
    "ConstantPadNd", "UnsafeSplit", "CopySlices", "IndexAdd", "IndexPut", "IndexCopy", "Scatter",
    "ScatterAdd",
))
# fmt: on
"""Nodes that are linear in all their inputs."""

NORMS = frozenset(("NativeLayerNorm", "FusedRmsNorm"))
"""Nodes that divide their first input by its standard deviation; weights are held, the bias is added."""

PRODUCTS = NORMS | {"Mul", "Div", "Mm", "Addmm", "Bmm", "Mv"}
"""Nodes of which one side is followed; the other side must not be the stream, too."""

FOLLOWED = LINEAR | PRODUCTS
CONVOLUTION = "Convolution"

ACTIVATIONS = frozenset(("Gelu", "Silu", "Relu", "Tanh", "Clamp"))  # elementwise functions that are 0 at 0
SIDES = {"Addmm": 1}  # how many of a node's first inputs are added to its product


def kind(node: Node) -> str:
    """The function of a node: ``Mul`` for ``MulBackward0``."""
    return re.sub(r"(Backward\d*)$", "", node.name().rpartition("::")[2])


def is_spread(node: Node, side: int) -> bool:
    """Whether a side of a product is one number per row, such as a norm's standard deviation."""
    if kind(node) not in ("Mul", "Div"):
        return False
    factor = getattr(node, "_saved_self" if side == 0 else "_saved_other", None)
    return (
        not isinstance(factor, Tensor) or factor.ndim == 0 or factor.shape[-1] == 1 or factor.stride(-1) == 0
    )


class Cut(NamedTuple):
    """Where a walk's graph is cut: a gradient without its columns of zeros, and what goes on in its place."""

    grad: Tensor  # [row, column]
    leaf: Tensor  # [row, column]


def probe(like: Tensor) -> Tensor:
    """A leaf for a walk: one random row, each time by another factor; no number is 0.  [row, column]"""
    generator = torch.Generator().manual_seed(len(like))
    factors, row = (torch.rand(size, generator=generator) + 0.5 for size in ((len(like), 1), like.shape[1:]))
    return (factors * row).to(like).requires_grad_()


def pull(node: Node, grads: list[Tensor | None], cuts: list[Cut] | None = None) -> list[Tensor | None]:
    """The gradients of a node's inputs, from those of its outputs; held inputs have none.

    With ``cuts``, zeros are zero whatever the seed is; where columns of them are left out, the graph is cut.
    """
    name, saved = kind(node), cast(Any, node)
    grad = next((grad for grad in grads if grad is not None), None)
    if grad is None:
        return [None] * len(node.next_functions)
    if name == "Div":
        return [grad / saved._saved_other, None]
    if name == "Addmm":
        left = _product(grad, saved._saved_mat2, cuts)
        right = _transposed(saved._saved_mat1, grad)
        factors = [None if side is None else side * saved._saved_alpha for side in (left, right)]
        return [grad * saved._saved_beta, *factors]
    if name in ("Mm", "Bmm"):
        return [_product(grad, saved._saved_mat2, cuts), _transposed(saved._saved_self, grad)]
    if name in NORMS:
        return _pull_norm(name, saved, grad)
    if name in ACTIVATIONS:
        return [grad * _slope(name, saved)]
    pulled = saved(*grads)
    return list(pulled) if isinstance(pulled, tuple) else [pulled]


def _product(grad: Tensor, right: Tensor | None, cuts: list[Cut] | None) -> Tensor | None:
    """A gradient of ``x @ right`` as that of x, from rows that have any, and with ``cuts`` from columns."""
    if right is None or grad.ndim != 2:
        return None if right is None else grad @ right.mT
    there = grad.detach() != 0
    rows, columns = there.any(1).nonzero().flatten(), there.any(0).nonzero().flatten()
    length, grad = len(grad), grad if len(rows) == len(grad) else grad.index_select(0, rows)
    if cuts is not None and len(columns) < grad.shape[1]:
        grad, right = grad.index_select(1, columns), right.index_select(1, columns)
        if grad.requires_grad and grad.numel():  # experts may get no token
            cuts.append(Cut(grad, probe(grad)))
            grad = cuts[-1].leaf
    product = grad @ right.mT
    if len(rows) == length:
        return product
    return product.new_zeros(length, product.shape[-1]).index_copy(0, rows, product)


def _transposed(left: Tensor | None, grad: Tensor) -> Tensor | None:
    return None if left is None or left.ndim == 2 else left.mT @ grad


def _pull_norm(name: str, saved: Any, grad: Tensor) -> list[Tensor | None]:
    weight = saved._saved_weight
    axes = tuple(range(-len(saved._saved_normalized_shape), 0))
    scale = saved._saved_result1 if name == "FusedRmsNorm" else saved._saved_result2
    inner = grad * (scale if weight is None else scale * weight)
    if name == "FusedRmsNorm":
        return [inner, None]
    return [inner - inner.mean(axes, keepdim=True), None, grad]


def _slope(name: str, saved: Any) -> Tensor:
    """f(x) / x of an activation; 1 at 0 for those with that slope there."""
    if name == "Tanh":
        result = saved._saved_result.double()
        return torch.where(result == 0, 1.0, result / torch.atanh(result)).to(saved._saved_result.dtype)
    if name == "Relu":
        rises: Tensor = saved._saved_result > 0
        return rises.to(saved._saved_result.dtype)
    source: Tensor = saved._saved_self
    if name == "Silu":
        return source.sigmoid()
    if name == "Clamp":
        inside = source.clamp(saved._saved_min, saved._saved_max)
        return torch.where(source == 0, torch.ones_like(source), inside / source)
    result = F.gelu(source, approximate=saved._saved_approximate)
    return torch.where(source == 0, torch.full_like(source, 0.5), result / source)


Edge: TypeAlias = "tuple[Node, int]"
"""Where a gradient reaches a tensor: its node in torch's graph, and the output number."""


class Row(NamedTuple):
    """One token's row of a tensor, along each axis with the text's length, and the tensor's module."""

    at: Mapping[int, Tensor]  # by axis; the row is cut out there
    module: str


class Added(NamedTuple):
    """What a constant adds to the stream: a tensor less another."""

    total: Edge
    before: Edge


class Summand(NamedTuple):
    """What writes to a residual stream: a head, a layer's feed-forward part, embeddings, or biases."""

    kind: str  # head, feed-forward, mixer, embeddings or biases
    name: str  # as it is printed: L0H3, feed-forward 2, embeddings wpe
    layer: int | None = None
    head: Head | None = None


BIASES, POSITIONS = Summand("biases", "biases"), Summand("embeddings", "positions")


class Written(NamedTuple):
    """The heads' output of one call at the token, before the projection, or with the projection."""

    site: Site
    mixed: Tensor  # [head, size]
    weight: Tensor | None = None  # [head, size, width]
    bias: Tensor | None = None  # [width]


@dataclass(eq=False)
class StreamRows(Projections):
    """An observer that keeps one token's row of every tensor of a pass that kept gradients.

    >>> with rows.watching(model), recording(model, [rows]):
    ...     score = model(**inputs)
    """

    length: int = 0  # of the text, in tokens
    at: int = 0  # the token
    rows: dict[Edge, Row] = field(default_factory=dict)
    _mixed: dict[Site, Tensor] = field(default_factory=dict)  # [head, size]
    _near: dict[Site, float] = field(default_factory=dict)

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Watch which modules and functions run inside the block."""
        with super().watching(model), _Functions(self):
            yield

    def observe(self, attention: Attention) -> None:
        """Keep the heads' output at the token, and look for the projection."""
        if attention.values is not None and attention.batch == 1 and len(attention.queries) == self.length:
            rows = attention.rows(self.at, self.at + 1)
            self._mixed[attention.site] = mix(rows, attention.values)[0, :, 0]
            self._near[attention.site] = tolerance(attention.dtype)
        super().observe(attention)

    def enter(self, function: str, arguments: Sequence[Any]) -> None:
        """Called before each function; rows are copies, which none of them changes."""

    def keep(self, output: object) -> None:
        """Store the rows of a function's or a module's output."""
        for each in output if isinstance(output, (tuple, list)) else (output,):
            if isinstance(each, Tensor) and each.grad_fn is not None and not each.is_nested:
                axes = [axis for axis, size in enumerate(each.shape[:-1]) if size == self.length]
                if axes:
                    with torch.no_grad():
                        cut = {axis: each.detach().select(axis, self.at).clone() for axis in axes}
                    module = self._running[-1].name if self._running else ""
                    self.rows[each.grad_fn, each.output_nr] = Row(cut, module)

    def written(self) -> dict[Edge, Written]:
        """Where heads' outputs, or their projections, are in the graph."""
        edges: dict[Edge, Written] = {}
        for site, mixed in self.mixed_rows().items():
            projection = self.by_site.get(site)
            if projection is not None and projection.edge is not None:
                edge = projection.edge.node, projection.edge.output_nr
                edges[edge] = Written(site, mixed, projection.weight, projection.bias)
                continue
            near = self._near[site] * float(mixed.abs().amax())
            for edge, row in self.rows.items():
                if row.module.startswith(site.name) and edge not in edges:
                    rows = self.rows_like(edge, site, mixed)
                    if any(float((each - mixed).abs().amax()) <= near for each in rows):
                        edges[edge] = Written(site, mixed)
        return edges

    def mixed_rows(self) -> Mapping[Site, Tensor]:
        """By call, the heads' outputs at one token, before the projection.  [head, size]"""
        return self._mixed

    def rows_like(self, edge: Edge, site: Site, mixed: Tensor) -> Iterator[Tensor]:
        """The rows at that token of what is at an edge, if they have the size of the heads' outputs."""
        for cut in self.rows[edge].at.values():
            if cut.numel() == mixed.numel():
                yield cut.reshape(mixed.shape)

    def times(self, place: Edge | Added | Tensor, grad: Tensor) -> float:
        """A tensor, what a constant added, or the value computed at an edge, times its gradient.

        0 where no row of it was kept.
        """
        if isinstance(place, Tensor):
            return float((place * grad.detach()).sum())
        if isinstance(place, Added):
            return self.times(place.total, grad) - self.times(place.before, grad)
        if (row := self.rows.get(place)) is None:
            return 0.0
        axis = self._axis(grad, row.at)
        return float((row.at[axis].double() * grad.detach().select(axis, self.at).double()).sum())

    def cut(self, grad: Tensor, size: int) -> Tensor:
        """The token's row of a gradient with this many numbers per token."""
        axes = [axis for axis, length in enumerate(grad.shape[:-1]) if length == self.length]
        fits = [axis for axis in axes if grad.numel() == size * self.length]
        return grad.select(self._axis(grad, fits), self.at)

    def _axis(self, grad: Tensor, axes: Collection[int]) -> int:
        """Along which axis the tokens lie: where the gradient is a single row's."""
        return max(axes, key=lambda axis: float(grad.detach().select(axis, self.at).abs().sum()))

    def _leave(self, call: Call, output: object) -> None:
        super()._leave(call, output)
        self.keep(output)


class _Functions(WatchingMode):
    """Passes each torch function's result to the rows."""

    def __init__(self, rows: StreamRows) -> None:
        super().__init__()
        self.rows = rows

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not is_quiet():
            self.rows.enter(func.__name__, args)
        result = func(*args, **(kwargs or {}))
        if not is_quiet() and torch.is_grad_enabled():
            with quietly():
                self.rows.keep(result)
        return result


Key = TypeVar("Key", Edge, Node)
LeadsOn: TypeAlias = "Callable[[tuple[Node | None, int]], bool]"
EMBEDDINGS = ("Embedding", "MaskedScatter")
"""Where a stream begins: an embedding table, or where an embedded picture or sound enters a text."""


class Lost(Exception):
    """The stream cannot be followed through a function; the message names it."""


@dataclass(eq=False)
class ScoreParts:
    """The gradients of a score with respect to all its summands."""

    heads: dict[Edge, Tensor] = field(default_factory=dict)
    others: dict[Edge, Tensor] = field(default_factory=dict)
    embeddings: dict[Edge, Tensor] = field(default_factory=dict)
    biases: dict[Node, Tensor] = field(default_factory=dict)
    constants: list[tuple[Edge, Edge | None, Tensor]] = field(default_factory=list)
    waiting: dict[Node, list[Tensor | None]] = field(default_factory=dict)  # gradients of nodes' outputs


@dataclass(eq=False)
class Stream:
    """The graph behind a score: which nodes lead to the embeddings (the stream), and which to heads."""

    root: Edge
    rows: StreamRows
    cuts: list[Cut] | None = None  # see ``pull``
    fixed_activations: list[str] = field(default_factory=list)  # activations of the output head

    def __post_init__(self) -> None:
        self.written = self.rows.written()
        self.order = _order(self.root[0])  # a node's inputs come before it
        self._open: set[Node] = set()
        self.begins = self._beginnings()
        self._varies: dict[Node, bool] = {}
        for node in self.order:
            self._varies[node] = node in self.begins or any(
                self._varies[each] for each, _ in node.next_functions if each is not None
            )
        for _ in range(3):
            self._mark_leads()
            if self.leads[self.root[0]]:
                return
            self._open_head()
        raise Lost("its output cannot be traced back to its embeddings")

    def _beginnings(self) -> set[Node]:
        """Where streams begin: at embeddings, or at what makes them of a picture or a sound by convolutions.

        That is what cannot be followed, before any attention and outside of the lists of layers that attend.
        """
        lists = tuple(module_lists(site.name for site in self.rows.sites)) or ("",)
        begins, behind = set[Node](), dict[Node, set[str]]()
        for node in self.order:
            name, row = kind(node), self.rows.rows.get((node, 0))
            found = {name} & {*EMBEDDINGS, CONVOLUTION}
            for edge in node.next_functions:
                if edge[0] is not None:
                    found |= {"heads"} if edge in self.written else behind[edge[0]]
            behind[node] = found
            inside = row is not None and row.module.startswith(lists)
            if name in EMBEDDINGS or (found == {CONVOLUTION} and name not in FOLLOWED and not inside):
                begins.add(node)
        return begins

    def _mark_leads(self) -> None:
        """Determine for every node whether it leads to the embeddings, and whether to heads."""
        self.leads: dict[Node, bool] = {}
        self._heads: dict[Node, bool] = {}
        for node in self.order:
            self.leads[node] = node in self.begins or any(self._followed_inputs(node, self.streams))
            self._heads[node] = not self.leads[node] and any(self._followed_inputs(node, self.mixes))

    def streams(self, edge: tuple[Node | None, int]) -> bool:
        """Whether an edge belongs to the stream."""
        return edge[0] is not None and edge not in self.written and self.leads[edge[0]]

    def mixes(self, edge: tuple[Node | None, int]) -> bool:
        """Whether an edge comes from heads."""
        return edge[0] is not None and (edge in self.written or self._heads[edge[0]])

    def _followed_inputs(self, node: Node, leads: LeadsOn) -> list[bool]:
        """Which inputs of a node lead on, where one may be followed at all."""
        name, inputs = kind(node), node.next_functions
        follows = [leads(edge) for edge in inputs]
        none = [False] * len(follows)
        if name in LINEAR:
            return follows
        if name in ACTIVATIONS:
            return follows if node in self._open else none
        if name in NORMS:
            return [follows[0], False, False][: len(follows)]
        if name not in PRODUCTS:
            return none
        added = SIDES.get(name, 0)
        factors = follows[added:]
        if name == "Div":
            factors = [factors[0], False] if not any(factors[1:]) else [False, False]
        if sum(factors) != 1:
            return [*follows[:added], *([False] * len(factors))]
        side = factors.index(True)
        other = inputs[1 + added - side] if len(factors) == 2 else (None, 0)
        if leads == self.streams and other[0] is not None and self._varies[other[0]]:
            length = node._input_metadata[0].shape[0]
            each_token = name == "Bmm" and length == self.rows.length  # streams are mixed in it
            if not (each_token or is_spread(node, 1 - side) or node in self._open):
                factors = [False, False]
        return [*follows[:added], *factors]

    def _open_head(self) -> None:
        """Hold the activations between the score and everything else constant."""
        waiting, visited = [self.root[0]], set[Node]()
        while waiting:
            node = waiting.pop()
            if node in visited:
                continue
            visited.add(node)
            name = kind(node)
            varying = [each for each, _ in node.next_functions if each is not None and self._varies[each]]
            gated = name == "Mul" and len(varying) == 2 and not any(is_spread(node, side) for side in (0, 1))
            blocked = name in ACTIVATIONS or (gated and not any(self._followed_inputs(node, self.streams)))
            if blocked and node not in self._open and self._varies[node]:
                self._open.add(node)
                if name in ACTIVATIONS:
                    self.fixed_activations.append(name.lower())
            elif name in LINEAR | PRODUCTS | ACTIVATIONS:
                waiting += [each for each, _ in node.next_functions if each is not None]

    def walk(self, seed: Tensor) -> ScoreParts:
        """Follow a gradient from the root back to all parts."""
        parts = ScoreParts()
        self._push(self.root, seed, parts)
        for node in reversed(self.order):
            grads, name = parts.waiting.pop(node, None), kind(node)
            if grads is None:
                continue
            if node in self.begins:
                _add(parts.embeddings, (node, 0), grads[0])
            elif name == "AccumulateGrad":
                _add(parts.biases, node, grads[0])
            else:
                inputs, follows = node.next_functions, self._inputs_of_gradient(node, name)
                tensors = [(each, output) for each, output in inputs if each is not None]
                if name in ("Add", "Sub") and len(tensors) < 2 and grads[0] is not None:
                    parts.constants.append(((node, 0), tensors[0] if tensors else None, grads[0]))
                for (each, output), grad, follow in zip(
                    inputs, pull(node, grads, self.cuts), follows, strict=False
                ):
                    if follow and each is not None and grad is not None:
                        shape = tuple(each._input_metadata[output].shape)
                        grad = grad.sum_to_size(shape) if grad.shape != shape else grad
                        self._push((each, output), grad, parts)
        return parts

    def _inputs_of_gradient(self, node: Node, name: str) -> list[bool]:
        """The inputs that the gradient goes on to: all terms of a sum, one side of a product."""
        inputs = node.next_functions
        if name in LINEAR:
            return [True] * len(inputs)
        both = self._followed_inputs(node, self.mixes), self._followed_inputs(node, self.streams)
        follows = [one or other for one, other in zip(*both, strict=True)]
        if not any(follows) and name in PRODUCTS:
            varying = [edge[0] is not None and self._varies[edge[0]] for edge in inputs]
            follows = varying if sum(varying) == 1 else follows
        if not any(follows):
            raise Lost(f"nothing is known of {name.lower()}")
        if name in NORMS:
            return [True, False, True][: len(inputs)]
        return [True if side < SIDES.get(name, 0) else way for side, way in enumerate(follows)]

    def _push(self, edge: Edge, grad: Tensor, parts: ScoreParts) -> None:
        """Add a gradient to what waits at an edge, or to a part: heads, or another with a known row."""
        node, output = edge
        if edge in self.written:
            return _add(parts.heads, edge, grad)
        on = self.streams(edge) or self.mixes(edge) or not self._varies[node]
        if not on and edge in self.rows.rows:
            return _add(parts.others, edge, grad)
        waiting = parts.waiting.setdefault(node, [None] * len(node._input_metadata))
        before = waiting[output]
        waiting[output] = grad if before is None else before + grad


def _add(sums: dict[Key, Tensor], key: Key, grad: Tensor | None) -> None:
    if grad is not None:
        sums[key] = sums[key] + grad if key in sums else grad


def _order(root: Node, ends: Mapping[Node, bool] | None = None) -> list[Node]:
    """All nodes behind one, each after those that it reads; nothing behind the ``ends``."""
    order: list[Node] = []
    visited = {root}
    waiting = [(root, iter(root.next_functions))]
    while waiting:
        node, inputs = waiting[-1]
        for each, _ in inputs:
            if each is not None and each not in visited and not (ends and ends[node]):
                visited.add(each)
                waiting.append((each, iter(each.next_functions)))
                break
        else:
            order.append(node)
            waiting.pop()
    return order


def parts_beside_heads(
    stream: Stream, parts: ScoreParts
) -> Iterator[tuple[Summand, Edge | Added | Tensor, Tensor]]:
    """All parts but heads: where the value of each is, and its gradient.

    Of what is the same for every text, tables of positions count as embeddings, the rest as biases.
    """
    rows = stream.rows.rows
    for edge, (layer, module) in sort_others(stream, parts).items():
        kind, name = ("mixer", module) if module else ("feed-forward", "feed-forward")
        yield Summand(kind, f"{name} {layer}", layer), edge, parts.others[edge]
    for edge, grad in parts.embeddings.items():
        module = rows[edge].module.rpartition(".")[2] if edge in rows else ""
        name = f"embeddings ({module})" if module and len(parts.embeddings) > 1 else "embeddings"
        yield Summand("embeddings", name), edge, grad
    for node, grad in parts.biases.items():
        value = node.variable.detach()  # type: ignore[attr-defined]
        yield POSITIONS if value.ndim > 1 and value.shape[-2] > 1 else BIASES, value, grad
    for out, source, grad in parts.constants:
        if source is not None and {out, source} <= rows.keys():
            place = Added(out, source)
            yield POSITIONS if layer_of(rows[out].module) is None else BIASES, place, grad


WHOLE = "attention"
"""The name of an attention whose heads are not told apart."""


def sort_others(stream: Stream, parts: ScoreParts) -> dict[Edge, tuple[int, str]]:
    """The layer of everything except heads and embeddings, and its module if it mixes tokens; else ""."""
    sites = {site.name: site for site in stream.rows.sites}
    attending = {layer_of(name) for name in sites}
    named = {edge: stream.rows.rows[edge].module for edge in parts.others}
    usual = {_tail(module) for module in named.values() if layer_of(module) in attending}
    sorted_: dict[Edge, tuple[int, str]] = {}
    for edge, module in named.items():
        layer = layer_of(module) or 0
        inside = next((site for name, site in sites.items() if f"{module}.".startswith(f"{name}.")), None)
        if inside is not None:
            sorted_[edge] = inside.layer, WHOLE
        elif _tail(module) not in usual or any(  # a convolution, beside or instead of attention
            kind(node) == "Convolution" and not stream.leads[node] for node in _order(edge[0], stream.leads)
        ):
            sorted_[edge] = layer, _tail(module) or "mixer"
        else:
            sorted_[edge] = layer, ""
    return sorted_


def layer_of(module: str) -> int | None:
    """The first number in a module's path."""
    number = NUMBER.search(module)
    return None if number is None else int(number[0])


def _tail(module: str) -> str:
    """What follows the first number in a module's path."""
    number = NUMBER.search(module)
    return module if number is None else module[number.end() :].strip(".")
