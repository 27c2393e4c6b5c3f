"""What wrote the queries and the keys of an attention call: their summands, followed back through a pass.

With every norm's scale held at its value in the pass, a query is a linear function of the residual stream,
and so the sum of what each earlier head, feed-forward layer, embedding and bias gives to it. Walked back
through torch's graph, a gradient of the queries becomes at each part that gradient times the map from the
part to the queries. This product is linear in the gradient: its derivative is what the part gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.graph import Node

from attnscope.attention import Attention, AttentionCall, Head, Site
from attnscope.capture.projections import Projections
from attnscope.capture.record import tolerance
from attnscope.capture.rows.scores import call_behind, mix
from attnscope.capture.stream import (
    BIASES,
    CONVOLUTION,
    LINEAR,
    Added,
    Cut,
    Edge,
    Lost,
    Row,
    ScoreParts,
    Stream,
    StreamRows,
    Summand,
    Written,
    kind,
    parts_beside_heads,
    probe,
    pull,
)

WRITES = re.compile(r"[^_]_$|^__(i\w+|setitem)__$")
"""Names of functions that write into their first argument."""

ROWS = 512  # rows of attention of which heads' outputs are computed at a time


class State(NamedTuple):
    """A tensor of a pass, and its version, by which it is known whether it was written into since."""

    tensor: Tensor
    version: int
    module: str

    @property
    def is_overwritten(self) -> bool:
        """Whether the pass has written into it since."""
        return self.tensor._version != self.version


@dataclass(eq=False)
class StreamStates(StreamRows):
    """An observer that keeps every state of a pass that kept gradients, and every call's queries and keys.

    States are not copied: torch holds most of them for its gradients anyway. Maps of all queries and keys
    are left out.
    """

    states: dict[Edge, State] = field(default_factory=dict)
    attentions: dict[Site, Attention] = field(default_factory=dict)
    _outputs: dict[Site, Tensor] = field(default_factory=dict)
    _softmax: tuple[Node | None, Tensor] | None = None  # the last one's scores, and where they come from
    _softmaxes: dict[Site, tuple[Node | None, Tensor]] = field(default_factory=dict)

    def observe(self, attention: Attention) -> None:
        """Keep the call, and look for the output projection."""
        self.attentions[attention.site] = attention
        self._near[attention.site] = tolerance(attention.dtype)
        if call_behind(attention.read) is None and self._softmax is not None:
            self._softmaxes[attention.site] = self._softmax
        self._softmax = None
        Projections.observe(self, attention)

    def call(self, site: Site) -> AttentionCall | None:
        """What the kernel received, with its gradients; ``None`` where only weights are known."""
        with torch.enable_grad():
            call = call_behind(self.attentions[site].read)
            return call or _call_behind_softmax(
                self.attentions[site], *self._softmaxes.get(site, (None, None))
            )

    def name(self, head: Head) -> str:
        """A head's address, with its kind where the model has several."""
        return str(head) if len({site.kind for site in self.sites}) > 1 else head.name

    def enter(self, function: str, arguments: Sequence[Any]) -> None:
        """Copy the states that a function is about to write into; hold the scores that a softmax gets."""
        written = arguments[0] if arguments else None
        if function == "softmax" and isinstance(written, Tensor):
            self._softmax = written.grad_fn, written.detach()
        if not WRITES.search(function) or not isinstance(written, Tensor):
            return
        place = written.untyped_storage().data_ptr()
        for edge, state in self.states.items():
            if state.tensor.untyped_storage().data_ptr() == place and not state.is_overwritten:
                copy = state.tensor.clone()
                self.states[edge] = state._replace(tensor=copy, version=copy._version)

    def keep(self, output: object) -> None:
        """Keep a function's or a module's output, unless it is a map of queries and keys."""
        for each in output if isinstance(output, (tuple, list)) else (output,):
            if not isinstance(each, Tensor) or each.grad_fn is None or each.is_nested:
                continue
            square = each.ndim > 3 and each.shape[-1] == each.shape[-2]
            if not square or kind(each.grad_fn) == CONVOLUTION:  # a picture's patches
                module = self._running[-1].name if self._running else ""
                edge = each.grad_fn, each.output_nr
                self.states.setdefault(edge, State(each.detach(), each._version, module))
                self.rows[edge] = Row({}, module)

    def value(self, place: Edge | Added | Tensor) -> Tensor:
        """A tensor, what a constant added, or the whole tensor at an edge.

        Raises ``Lost`` where the pass has written into it since.
        """
        if isinstance(place, Tensor):
            return place
        if isinstance(place, Added):
            return self.value(place.total) - self.value(place.before)
        kept = self.states[place]
        if kept.is_overwritten:
            raise Lost(f"{kept.module or 'the model'} overwrites its states")
        return kept.tensor

    def mixed_rows(self) -> dict[Site, Tensor]:
        """By call, the heads' outputs at the last query.  [head, size]"""
        return {
            site: self.last(site)
            for site, each in self.attentions.items()
            if each.values is not None and (each.batch == 1 or site in self.by_site)
        }

    def rows_like(self, edge: Edge, site: Site, mixed: Tensor) -> Iterator[Tensor]:
        """The last row of the states at an edge, if they have the size of the heads' outputs."""
        count, states = len(self.attentions[site].queries), self.states[edge].tensor
        if states.numel() == count * mixed.numel():
            yield heads_apart(states, count, *mixed.shape)[:, -1]

    def last(self, site: Site) -> Tensor:
        """The heads' outputs at the last query.  -> [head, size]"""
        attention = self.attentions[site]
        assert attention.values is not None
        return mix(attention.rows(len(attention.queries) - 1, len(attention.queries)), attention.values)[
            0, :, 0
        ]

    def mixed(self, site: Site) -> Tensor:
        """The heads' outputs, before the projection.  -> [head, query, size]"""
        attention = self.attentions[site]
        if site not in self._outputs:
            assert attention.values is not None
            count = len(attention.queries)
            parts = [
                mix(attention.rows(start, min(start + ROWS, count)), attention.values)[0]
                for start in range(0, count, ROWS)
            ]
            self._outputs[site] = torch.cat(parts, 1).detach()
        return self._outputs[site]


def _call_behind_softmax(
    attention: Attention, node: Node | None, scores: Tensor | None
) -> AttentionCall | None:
    """The queries and keys whose product led to a softmax, and what was added to it; ``None`` if several did.

    For scores that a model computes in views of other shapes, or with its bias in one step.
    """
    paths = [] if node is None or scores is None else list(_products(node))
    if len(paths) != 1 or attention.values is None or scores is None:
        return None
    ((product, way),), grad = paths, torch.ones_like(scores)
    for each, side in way:
        grad = cast(Tensor, pull(each, [grad])[side])
    saved, added = cast(Any, product), kind(product) == "Baddbmm"
    query = saved._saved_batch1 if added else saved._saved_self  # [head, query, size]
    key = saved._saved_batch2 if added else saved._saved_mat2  # [head, size, key]
    size = attention.heads, len(attention.queries), len(attention.keys)
    if (*query.shape[:2], key.shape[2]) != size:
        return None
    scale = float(grad.abs().max()) * (saved._saved_alpha if added else 1)
    call = AttentionCall(query[None], key.mT[None], attention.values, scale)
    bias = scores.reshape(1, *size) - scale * (query @ key)[None].detach()
    return replace(call, biases=(bias,))


def _products(scores: Node) -> Iterator[tuple[Node, list[tuple[Node, int]]]]:
    """The products of two states behind scores, each with the nodes on the way to it and their inputs."""
    waiting, seen = [(scores, list[tuple[Node, int]]())], {scores}
    while waiting:
        node, way = waiting.pop()
        name = kind(node)
        if name in ("Bmm", "Baddbmm"):
            yield node, way
        elif name in LINEAR or name in ("Mul", "Div", "Maximum", "Where"):
            for side, (each, _) in enumerate(node.next_functions):
                if each is not None and each not in seen:
                    seen.add(each)
                    waiting.append((each, [*way, (node, side)]))


def heads_apart(states: Tensor, queries: int, heads: int, size: int) -> Tensor:
    """Heads' outputs that lie side by side, or head by head, as a view.  -> [head, query, size]"""
    if states.shape[-3:] == (heads, queries, size):
        return states.reshape(heads, queries, size)
    return states.reshape(queries, heads, size).transpose(0, 1)


class Summands(NamedTuple):
    """The parts of some states, or of sums of them."""

    vectors: dict[Summand, Tensor]  # each [sum, size], float64; they add up to the whole
    held: tuple[str, ...]  # activations on the way, held at their slopes


def summands_of(states: StreamStates, tensor: Tensor, head: int, sums: Tensor) -> Summands:
    """The parts of weighted sums, [sum, token], of a head's queries or keys, [1, head, token, size].

    Raises ``Lost`` where they cannot be followed back to the embeddings.
    """
    leaf, seed = probe(tensor[0, head].detach()), torch.zeros_like(tensor)
    with torch.enable_grad():
        seed[0, head] = leaf
    stream, parts = walk(states, tensor, seed)
    back, vectors = _Back(stream.cuts or [], leaf, sums.double()), dict[Summand, Tensor]()
    for several, values, weight, slope in values_and_slopes(stream, parts):
        if slope.grad_fn is not None:
            for part, each in zip(several, back.sum(slope, values, weight), strict=True):
                vectors[part] = vectors[part] + each if part in vectors else each
    return Summands(vectors, tuple(dict.fromkeys(stream.fixed_activations)))


class _Map(NamedTuple):
    """What a row of a gradient gives to the same row of a leaf, if no other row gives it anything."""

    leaf: int
    weight: Tensor  # [width, size], times a factor for each row; or [row, width, size]
    factors: Tensor  # [row, 1]

    def apply(self, values: Tensor, weight: Tensor | None = None) -> Tensor:
        """[part, row, width], or what a weight makes that -> [part, row, size]"""
        if self.weight.ndim == 2:  # heads are narrower than the stream
            return values @ (self.weight if weight is None else weight @ self.weight) * self.factors
        values = values if weight is None else values @ weight
        return (values.transpose(0, 1) @ self.weight).transpose(0, 1)


@dataclass(eq=False)
class _Back:
    """Derivatives by the seed of a walk, of gradients times the values of parts, as sums over tokens.

    Most gradients are the seed times one matrix, with a factor for each row, and the same for many parts.
    Such a map is found once, and checked against a derivative. Without one, each part has its own derivative.
    """

    cuts: list[Cut]
    seed: Tensor  # [token, size]
    sums: Tensor  # [sum, token]
    maps: dict[tuple[object, ...], _Map | None] = field(default_factory=dict)  # by the gradient's memory,
    mapped: list[Tensor] = field(default_factory=list)  # which is held meanwhile: no other may come there

    def sum(self, slope: Tensor, values: Tensor, weight: Tensor | None = None) -> Tensor:
        """The sums of parts with one gradient; with a weight, values are what it multiplies.

        [part, ..., width] -> [part, sum, size]
        """
        rows, values = slope.reshape(-1, slope.shape[-1]), values.detach().to(slope)
        if weight is None:
            values = values.expand(len(values), *slope.shape).reshape(len(values), *rows.shape)
        else:
            weight = weight.detach().to(slope)
        total = torch.zeros(len(values), len(self.sums), self.seed.shape[1], dtype=torch.float64)
        for at, given in self._pull(rows, values, weight).items():
            whole = at == len(self.cuts)
            total += self.sums @ given.double().cpu() if whole else self.sum(self.cuts[at].grad, given)
        return total

    def _pull(self, slope: Tensor, values: Tensor, weight: Tensor | None) -> dict[int, Tensor]:
        """What each leaf gets of each part.  -> [part, row, size]"""
        place = slope.data_ptr(), slope.shape, slope.stride()
        if place not in self.maps and len(values) > 1:
            self.maps[place] = self._map(slope)
            self.mapped.append(slope)
        if (found := self.maps.get(place)) is not None:
            return {found.leaf: found.apply(values, weight)}
        whole = values if weight is None else map(torch.matmul, values, weight)
        given = [self._derive(slope, each) for each in whole]
        return {at: torch.stack([each[at] for each in given]) for at in given[0]}

    def _derive(self, slope: Tensor, values: Tensor) -> dict[int, Tensor]:
        """The derivatives by the leaves that a gradient depends on: of cuts, then the seed."""
        leaves = [*(cut.leaf for cut in self.cuts), self.seed]
        given = torch.autograd.grad(slope, leaves, values, retain_graph=True, allow_unused=True)
        return {at: each for at, each in enumerate(given) if each is not None}

    def _map(self, slope: Tensor) -> _Map | None:
        """The map of a gradient, [row, width], if it has one."""
        values = torch.rand(slope.shape, generator=torch.Generator().manual_seed(0)).to(slope)
        given = self._derive(slope, values)
        for at, expected in given.items() if len(given) == 1 else ():
            near = torch.finfo(slope.dtype).eps ** 0.75 * expected.abs().max()  # rounding, and nothing else
            for found in self._maps(slope, at) if len(expected) == len(slope) else ():
                if (found.apply(values[None])[0] - expected).abs().max() <= near:
                    return found
        return None

    def _maps(self, slope: Tensor, at: int) -> Iterator[_Map]:
        """One matrix for all rows; then one for each, if a row is no wider than the leaf's."""
        (rows, width), cut = slope.shape, at < len(self.cuts)
        leaf, states = self.cuts[at].leaf if cut else self.seed, slope.detach()
        sizes = states @ states[0] / leaf.detach()[:, 0]  # the rows of leaves differ by a factor
        factors = (sizes / sizes[0])[:, None]
        units = torch.eye(-(-width // rows) * rows, width).to(states).reshape(-1, rows, width)
        (given,) = torch.autograd.grad(slope, leaf, units, retain_graph=True, is_grads_batched=True)
        yield _Map(at, (given / factors).flatten(0, 1)[:width], factors)
        if width <= leaf.shape[1]:
            units = torch.eye(width).to(states)
            by_unit = [self._derive(slope, unit.expand(rows, width))[at] for unit in units]
            yield _Map(at, torch.stack(by_unit, 1), factors)


def walk(states: StreamStates, tensor: Tensor, seed: Tensor) -> tuple[Stream, ScoreParts]:
    """Follow a gradient of some states back to all parts."""
    if tensor.grad_fn is None:
        raise Lost("it keeps no gradients of its queries and keys")
    with torch.enable_grad():
        stream = Stream((tensor.grad_fn, tensor.output_nr), states, cuts=[])
        return stream, stream.walk(seed)


def carried_by(
    states: StreamStates, tensor: Tensor, slope: Tensor, head: Head
) -> dict[tuple[int, int], float]:
    """What a head carries into a number whose gradient by ``tensor`` is ``slope``, by its row and key.

    Only rows that have a part in it; the values of all cells sum to the head's part.
    """
    stream, parts = walk(states, tensor, slope)
    cells: dict[tuple[int, int], float] = {}
    for edge, grad in parts.heads.items():
        written = stream.written[edge]
        site, attention = written.site, states.attentions[written.site]
        if (site.layer, site.kind) != (head.layer, head.kind) or attention.values is None:
            continue
        rows, slopes = _slopes_of_heads(states, written, grad)
        shared = attention.heads // attention.key_heads
        by_key = attention.values[0, head.head // shared].detach()  # [key, size]
        for row, slope in zip(rows.tolist(), [*slopes][head.head], strict=True):
            weights = attention.rows(row, row + 1, [head.head])[0, 0, 0].to(by_key)
            for key, value in enumerate((weights * (by_key @ slope.to(by_key))).tolist()):
                cells[row, key] = cells.get((row, key), 0.0) + value
    return cells


def values_and_slopes(
    stream: Stream, parts: ScoreParts
) -> Iterator[tuple[list[Summand], Tensor, Tensor | None, Tensor]]:
    """Parts with the same gradient, their values, a weight for these or none, and the gradient.

    Values lie along a first axis; the gradient depends on the seed of the walk.
    """
    states = stream.rows
    assert isinstance(states, StreamStates)
    with torch.enable_grad():
        for edge, grad in parts.heads.items():
            yield from _of_heads(states, stream.written[edge], grad)
        for part, place, grad in parts_beside_heads(stream, parts):
            yield [part], states.value(place)[None], None, grad


def _of_heads(
    states: StreamStates, written: Written, grad: Tensor
) -> Iterator[tuple[list[Summand], Tensor, Tensor | None, Tensor]]:
    """The heads of one call, and their projection's bias."""
    site, mixed = written.site, states.mixed(written.site)
    heads = [Head(site.layer, number, site.kind) for number in range(len(mixed))]
    parts = [Summand("head", states.name(head), site.layer, head) for head in heads]
    if written.bias is not None:
        yield [BIASES], written.bias[None], None, grad
    if written.weight is not None:
        yield parts, mixed, written.weight, grad.reshape(mixed.shape[1], -1)
        return
    slopes = heads_apart(grad, mixed.shape[1], *written.mixed.shape)
    for part, value, slope in zip(parts, mixed, slopes, strict=True):
        yield [part], value[None], None, slope


def _slopes_of_heads(states: StreamStates, written: Written, grad: Tensor) -> tuple[Tensor, Iterable[Tensor]]:
    """The queries that have a gradient, and it, by each head's output.  -> [row], head by head [row, size]"""
    count = len(states.attentions[written.site].queries)
    if written.weight is None:
        return torch.arange(count), heads_apart(grad, count, *written.mixed.shape)
    rows, slope = _rows_with_slope(grad, count)
    return rows, (slope @ weight.to(slope).mT for weight in written.weight)


def _rows_with_slope(grad: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The queries that have a gradient, and it.  -> [row], [row, width]"""
    flat = grad.reshape(count, -1)
    rows = flat.detach().any(1).nonzero().flatten()
    return rows, flat if len(rows) == count else flat.index_select(0, rows)
