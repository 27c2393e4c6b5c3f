"""A circuit: the few heads, and the edges between them, that a prediction needs.

Nodes are the token embeddings, every head, and the prediction. An edge carries a head's output to a later
one through the residual stream and the feed-forward layers; attention in between is held constant. Its score
is the difference of its source between two texts times the gradient of the prediction's score along the edge,
averaged over the straight path from one text's embeddings to the other's: edge attribution patching (Syed et
al. 2023) with integrated gradients (Hanna et al. 2024). The circuit is the fewest edges with the largest
scores that restore a share of the difference between the texts while all other edges carry the other text's
values. That share is run, not estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Annotated, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from attnscope.attention import Head
from attnscope.axes import Array
from attnscope.capture.hooks.torch_functions import edited
from attnscope.errors import InputError, ModelError
from attnscope.models import Model
from attnscope.progress import tell
from attnscope.questions.answer import Answer, csv_rows
from attnscope.questions.cause import ScoreOutcome
from attnscope.questions.composition import Feed, find_feeds
from attnscope.questions.intervention import SAME, PlainPass, naming
from attnscope.questions.patching import OTHER_CALLS, TextPair, TwoPasses
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import name_pass
from attnscope.questions.stats import measure_heads
from attnscope.records import Address, Meaning, record
from attnscope.views import Column, GraphEdge, GraphNode, Heatmap, LayerGraph, Table

STEPS = 5  # points on the path from one text's embeddings to the other's at which gradients are taken
ROUNDING = 1e-4  # tolerance of a share
PASSES = 4000  # passes after which edges are no longer tested for being necessary

Edge: TypeAlias = tuple[int, int]
"""Two nodes by number: 0 is the embeddings, then every head, last the prediction."""


@contextmanager
def embeddings_changed(module: nn.Module, change: Callable[[int, Tensor], Tensor | None]) -> Iterator[None]:
    """Let ``change`` see, and replace, the output of each embedding of a module while the block runs."""
    number = -1

    def hook(_: nn.Module, given: object, output: Tensor) -> Tensor | None:
        nonlocal number
        number += 1
        return change(number, output)

    with ExitStack() as stack:
        for part in module.modules():
            if isinstance(part, nn.Embedding):
                stack.callback(part.register_forward_hook(hook).remove)
        yield


@dataclass(frozen=True, eq=False)
class TwoTexts(TwoPasses):
    """Two texts of one length, ``here`` and ``there``, and passes in between."""

    embeds: tuple[Sequence[Tensor], Sequence[Tensor]] = ((), ())  # what embeddings gave in either text

    @classmethod
    def read(cls, model: Model, pair: TextPair) -> TwoTexts:
        """Run both texts."""
        seen = list[Tensor]()
        with (
            pair.scoring(model, noise=True) as (clean, corrupt),
            embeddings_changed(model.module, lambda _, output: seen.append(output.clone())),
        ):
            both = TwoPasses.of(clean, corrupt)
        if not seen:
            raise ModelError(f"{model.name} has no embedding of tokens: circuits are of texts")
        for each in (both.here, both.there):
            each.kept.ran.clear()  # its passes run every layer: all pairs are held, their layers need not be
        half = len(seen) // 2  # the other text runs first
        return cls(**vars(both), embeds=(seen[half:], seen[:half]))

    @cached_property
    def heads(self) -> list[int]:
        """How many heads each call has."""
        return [given.shape[2] for given in self.here.given]

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """The call and the number in it of every head."""
        return [(call, head) for call, of in enumerate(self.heads) for head in range(of)]

    def score(self, of: PlainPass) -> float:
        """The score of one of the texts."""
        return float(self.scored.score(of.before))

    def run(self, embeds: Sequence[Tensor], edit: Callable[[int, Tensor], Tensor | None]) -> Tensor:
        """The score of a pass with other embeddings, and other outputs of attention calls."""
        with embeddings_changed(self.scored.model.module, lambda number, _: embeds[number]), edited(edit):
            return self.scored.score(self.scored.logits())

    def attribute(self) -> Array:
        """The score of every edge, averaged over ``STEPS``.  -> [node, node]"""
        last = 1 + len(self.places)
        scores = np.zeros((last + 1, last + 1))
        moved = [one - other for one, other in zip(*self.embeds, strict=True)]
        apart = [one - other for one, other in zip(self.here.given, self.there.given, strict=True)]
        made, leaves = list[Tensor](), list[Tensor]()  # each call's output, and the same as a leaf

        def part(_: int, output: Tensor) -> Tensor:
            made.append(output)
            leaves.append(output.detach().requires_grad_())
            return leaves[-1]

        def add(node: int, slopes: Sequence[Tensor]) -> None:
            """Add a node's incoming edges, by the gradients of all earlier nodes."""
            products = [each * slope for each, slope in zip((*moved, *apart), slopes, strict=False)]
            embedded = sum(float(each.sum()) for each in products[: len(moved)])
            by_head = [each.sum((0, 1, 3)).double().cpu().numpy() for each in products[len(moved) :]]
            earlier = np.concatenate([[embedded], *by_head])
            scores[: len(earlier), node] += earlier

        for step in range(STEPS):
            share = (step + 0.5) / STEPS
            mixed = [
                (other + share * change).requires_grad_()
                for other, change in zip(self.embeds[1], moved, strict=True)
            ]
            made.clear()
            leaves.clear()
            direct = _slopes(self.run(mixed, part), [*mixed, *leaves])
            add(last, direct)
            totals = list(direct[len(mixed) :])
            for node, (call, head) in sorted(enumerate(self.places, 1), key=lambda each: -each[1][0]):
                alone = torch.zeros_like(totals[call])
                alone[:, :, head] = totals[call][:, :, head]
                found = _slopes(made[call], [*mixed, *leaves[:call]], alone)
                add(node, found)
                totals[:call] = map(torch.add, totals[:call], found[len(mixed) :])
        return scores / STEPS

    def restored(self, edges: frozenset[Edge]) -> float:
        """The score if these edges carry the text's values, and all others the other text's.

        One pass for each set of source nodes.
        """
        last = 1 + len(self.places)
        given: dict[int, Tensor] = {}  # of the nodes of the circuit, [batch, query, size]
        passes: dict[frozenset[int], tuple[Tensor, list[Tensor]]] = {}

        def run(sources: frozenset[int]) -> tuple[Tensor, list[Tensor]]:
            seen: list[Tensor] = []

            def put(call: int, output: Tensor) -> Tensor:
                seen.append(output)
                return self._put({node: given[node] for node in sources - {0}}, call, self.there.given[call])

            return self.run(self.embeds[0 if 0 in sources else 1], put), seen

        by_target = sources_of(edges)
        for node in sorted(by_target.keys() | {last}):
            sources = by_target.get(node, frozenset())
            if sources not in passes:
                passes[sources] = run(sources)
            if node < last:
                call, head = self.places[node - 1]
                given[node] = passes[sources][1][call][:, :, head]
        return float(passes[by_target.get(last, frozenset())][0])

    def without(self, nodes: Sequence[int]) -> float:
        """The score of the text with some heads' outputs from the other one."""
        places = {node: self.places[node - 1] for node in nodes}
        others = {node: self.there.given[call][:, :, head] for node, (call, head) in places.items()}
        return float(self.run(self.embeds[0], partial(self._put, others)))

    def _put(self, nodes: Mapping[int, Tensor], call: int, output: Tensor) -> Tensor:
        changed = output.clone()
        for node, states in nodes.items():
            at, head = self.places[node - 1]
            if at == call:
                changed[:, :, head] = states
        return changed


def _slopes(of: Tensor, sources: Sequence[Tensor], by: Tensor | None = None) -> tuple[Tensor, ...]:
    if not of.requires_grad:
        return tuple(map(torch.zeros_like, sources))
    return torch.autograd.grad(
        of, list(sources), by, allow_unused=True, materialize_grads=True, retain_graph=True
    )


def sources_of(edges: frozenset[Edge]) -> dict[int, frozenset[int]]:
    """The sources of each node."""
    found: dict[int, set[int]] = {}
    for source, target in edges:
        found.setdefault(target, set()).add(source)
    return {target: frozenset(sources) for target, sources in found.items()}


def connected(edges: Sequence[Edge], last: int) -> frozenset[Edge]:
    """The edges that lie on a path from the embeddings to the prediction."""
    ahead, back = {0}, {last}
    for source, target in sorted(edges):
        if source in ahead:
            ahead.add(target)
    for source, target in sorted(edges, key=lambda edge: -edge[1]):
        if target in back:
            back.add(source)
    return frozenset((source, target) for source, target in edges if source in ahead and target in back)


def prune(
    edges: Sequence[Edge],
    last: int,
    share: Callable[[frozenset[Edge]], float],
    keep: float,
    passes: Callable[[], int],
) -> frozenset[Edge]:
    """The fewest edges, largest first, that keep a share; then without each one that is not needed.

    More than the full effect counts as a miss, too.
    """

    def enough(some: frozenset[Edge]) -> bool:
        return abs(1 - share(some)) <= 1 - keep + ROUNDING

    high = 1
    while high < len(edges) and not enough(connected(edges[:high], last)):
        high *= 2
    low, high = high // 2, min(high, len(edges))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(connected(edges[:middle], last)) else (middle, high)
    kept = connected(edges[:high], last)
    for edge in reversed(edges[:high]):
        if edge in kept and passes() < PASSES:
            fewer = connected(sorted(kept - {edge}), last)
            kept = fewer if enough(fewer) else kept
    return kept


EMBEDDINGS, PREDICTION = "embeddings", "prediction"

COLUMNS = "source", "target", "effect", "way", "composition", "baseline"  # of an edge, in a CSV file


@record("a head of the circuit")
class CircuitHead:
    """A head that the prediction needs."""

    head: Address
    effect: Annotated[float, Meaning("the share of the difference that it carries, estimated")]
    role: Annotated[str | None, Meaning("what it does on the first text; null for nothing that stands out")]


@record("an edge of the circuit")
class CircuitEdge:
    """What one head passes on to a later one, or to the prediction."""

    source: Annotated[str, Meaning("a head, or embeddings")]
    target: Annotated[str, Meaning("a later head, or prediction")]
    effect: Annotated[float, Meaning("the share of the difference that it carries, estimated")]
    way: Annotated[str | None, Meaning("Q, K or V: what of the target it is, by composition of the weights")]
    composition: Annotated[float | None, Meaning("the composition score of that way")]
    baseline: Annotated[float | None, Meaning("the same of random weights")]


@record("a circuit", "circuit")
class FoundCircuit(ScoreOutcome):
    """The heads and edges that restore a share of the difference between two texts."""

    heads: Annotated[tuple[CircuitHead, ...], Meaning("its heads, by layer")]
    edges: Annotated[tuple[CircuitEdge, ...], Meaning("its edges, the one that carries most first")]
    faithfulness: Annotated[float, Meaning("the share that comes back with these edges alone")]
    completeness: Annotated[float, Meaning("the share that is lost without these heads alone")]
    pairs: Annotated[int, Meaning("the pairs of texts")]
    all_heads: Annotated[int, Meaning("the heads of the model")]
    all_edges: Annotated[int, Meaning("the edges that carry anything")]

    def name(self, head: Head) -> str:
        """The name of a head in the edges: with its kind if the model has several."""
        ends = {end for each in self.edges for end in (each.source, each.target)}
        return str(head) if str(head) in ends else head.name


def find_circuit(model: Model, pairs: Sequence[TextPair], keep: float = 0.8) -> FoundCircuit:
    """The smallest circuit that restores ``keep`` of the difference between texts."""
    contrasts = list[TwoTexts]()
    for number, pair in enumerate(pairs, 1):
        tell("pair", number, len(pairs))
        with naming("pair", number, len(pairs)):
            contrasts.append(TwoTexts.read(model, pair))
    first = contrasts[0]
    if any(each.heads != first.heads for each in contrasts):
        raise InputError(OTHER_CALLS)
    sites = [each.site for each in first.here.record.sites]
    nodes = [Head(sites[call].layer, head, sites[call].kind) for call, head in first.places]
    corrupt = [each.score(each.there) for each in contrasts]
    whole, last, ran = -sum(each.scored.whole for each in contrasts), len(nodes) + 1, 0
    if abs(whole) < SAME * len(contrasts):
        raise InputError("over all pairs the texts give the same score: name the target of each")
    scores = np.zeros((last + 1, last + 1))
    for number, each in enumerate(contrasts):
        tell("gradient", number + 1, len(contrasts))
        with torch.enable_grad(), model.threads(each.scored.prepared):
            scores += each.attribute() / whole

    def share_of(run: Callable[[TwoTexts], float]) -> float:
        return sum(run(each) - score for each, score in zip(contrasts, corrupt, strict=True)) / whole

    @cache
    def share(edges: frozenset[Edge]) -> float:
        nonlocal ran
        ran += len(contrasts) * len(set(sources_of(edges).values()))
        tell("pass", min(ran, PASSES), PASSES)
        return share_of(lambda each: each.restored(edges))

    order = [divmod(int(at), last + 1) for at in np.argsort(-np.abs(scores), axis=None, kind="stable")]
    edges = [edge for edge in order if scores[edge]]
    with torch.no_grad(), model.threads(first.scored.prepared):
        kept = prune(edges, last, share, keep, lambda: ran)
        chosen = sorted({node for edge in kept for node in edge} - {0, last})
        left = share_of(lambda each: each.without(chosen))
    clean = first.scored.prepared
    roles = {
        each.address: each.role.name
        for each in measure_heads(model, clean, Selection()).heads
        if each.role is not None and each.role.name != "none"
    }
    several = len({head.kind for head in nodes}) > 1
    names = [EMBEDDINGS, *(str(head) if several else head.name for head in nodes), PREDICTION]
    ends, feeds = [None, *nodes, None], dict[tuple[Head | None, Head | None], Feed]()
    with suppress(ModelError):  # the way farthest above random weights, where the weights tell
        found = sorted(find_feeds(model, clean).feeds, key=lambda feed: feed.lift)
        feeds = {(feed.head, feed.fed): feed for feed in found}

    def edge_between(source: int, target: int) -> CircuitEdge:
        feed = feeds.get((ends[source], ends[target]))
        way = (None, None, None) if feed is None else (feed.way, feed.score, feed.baseline)
        return CircuitEdge(names[source], names[target], float(scores[source, target]), *way)

    notes = ["feed-forward parts belong to the edges", f"effects: {STEPS} gradients a pair; shares are run"]
    if ran >= PASSES:
        notes.append(f"the search stopped after {ran:,} passes: fewer edges may keep as much")
    heads = ((nodes[node - 1], scores[node]) for node in chosen)
    return FoundCircuit(
        heads=tuple(CircuitHead(head, float(each.sum()), roles.get(head)) for head, each in heads),
        edges=tuple(edge_between(*edge) for edge in sorted(kept, key=lambda edge: -abs(scores[edge]))),
        faithfulness=share(kept),
        completeness=1 - left,
        score=sum(each.score(each.here) for each in contrasts) / len(contrasts),
        reference=sum(corrupt) / len(contrasts),
        unit=first.scored.unit,
        prediction=first.scored.prediction.description,
        pairs=len(contrasts),
        all_heads=len(nodes),
        all_edges=len(edges),
        title=name_pass(model, clean),
        notes=(*notes, *model.notes, *clean.notes, *first.here.record.notes),
    )


def of_circuit(result: FoundCircuit, maps: Mapping[Head, Heatmap] | None = None) -> Answer:
    """The circuit in a line, its edges and its heads, and the graph by layers; ``maps`` are for a page."""
    count, edges = len(result.heads), len(result.edges)
    lines = [
        result.prediction,
        f"{result.unit} {result.score:.3f}, {result.reference:.3f} in the other text"
        + (f" (means of {result.pairs:,} pairs)" if result.pairs > 1 else ""),
        f"{count:,} of {result.all_heads:,} heads, {edges:,} of {result.all_edges:,} edges",
        f"faithfulness {result.faithfulness:.2f}: the share that comes back with these edges alone",
        f"completeness {result.completeness:.2f}: the share that is lost without these heads",
    ]
    lead = Table(title=f"circuit · {result.title}", subtitle="; ".join(lines[:3]), notes=tuple(lines[3:]))
    listed = Table(
        (Column("edge"), Column("effect", True), Column("composition")),
        tuple(
            (
                f"{each.source} → {each.target}",
                f"{each.effect:+.2f}",
                "" if each.way is None else f"{each.way} {each.composition:.2f} (random {each.baseline:.2f})",
            )
            for each in result.edges
        ),
    )
    heads = Table(
        (Column("head"), Column("effect", True), Column("role")),
        tuple((result.name(each.head), f"{each.effect:+.2f}", each.role or "–") for each in result.heads),
        notes=result.notes,
    )
    layers = sorted({each.head.layer for each in result.heads})
    nodes = [GraphNode(EMBEDDINGS, 0), GraphNode(PREDICTION, len(layers) + 1)]
    for each in result.heads:
        column, map_ = 1 + layers.index(each.head.layer), (maps or {}).get(each.head)
        nodes.append(GraphNode(result.name(each.head), column, each.role or "", each.effect, map_))
    graph = LayerGraph(
        tuple(nodes),
        tuple(GraphEdge(each.source, each.target, each.effect, each.way or "") for each in result.edges),
        title=lead.title,
        subtitle=result.prediction,
        notes=(*lines[1:], *result.notes),
    )
    return Answer(
        (lead, listed, heads), {"circuit": graph}, lambda: result, lambda: csv_rows(result.edges, COLUMNS)
    )
