"""A circuit: the few heads, and the edges between them, that a prediction depends on.

Nodes are the token embeddings, every head, and the prediction. An edge carries a head's output to a later
one through the residual stream and the MLPs; attention in between is held constant. Its score
is the difference of its source between two texts times the gradient of the prediction's score along the edge,
averaged over the straight path from one text's embeddings to the other's: edge attribution patching (Syed et
al. 2023) with integrated gradients (Hanna et al. 2024). The circuit is the fewest edges with the largest
scores that restore a share of the difference between the texts while all other edges carry the other text's
values. That share is run, not estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import count
from operator import itemgetter
from typing import Annotated, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from attnscope.attention import Attention, Head
from attnscope.axes import Array
from attnscope.capture import Observer
from attnscope.capture.hooks.torch_functions import Edit
from attnscope.capture.record import FunctionObserver
from attnscope.capture.rows.scores import call_behind
from attnscope.errors import InputError, ModelError
from attnscope.measures.roles import NONE
from attnscope.models import Model, ModelInput
from attnscope.progress import report
from attnscope.questions.answer import Answer, csv_rows
from attnscope.questions.cause import MIN_DIFFERENCE, ScoreOutcome, for_each_text
from attnscope.questions.composition import WAYS, measure_composition
from attnscope.questions.intervention import PlainPass, editing_again
from attnscope.questions.patching import OTHER_CALLS, TextPair, TwoPasses
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import group_by, pluralize, quote_texts
from attnscope.questions.stats import measure_heads
from attnscope.records import Address, Meaning, record
from attnscope.views import Column, GraphEdge, GraphNode, Heatmap, LayerGraph, Table

STEPS = 5  # points on the path from one text's embeddings to the other's at which gradients are taken
SHARE_TOLERANCE = 1e-4
SPLIT_TOLERANCE = 0.01  # share of an edge's effect that its three parts may lack; rounding is far below it
MAX_PASSES = 4000  # after which edges are no longer tested for being necessary

# two nodes by number: 0 is the embeddings, then every head, last the prediction
Edge: TypeAlias = tuple[int, int]
Edges: TypeAlias = frozenset[Edge]


@contextmanager
def embeddings_changed(module: nn.Module, change: Callable[[int, Tensor], Tensor | None]) -> Iterator[None]:
    """Let ``change`` see, and replace, the output of each embedding of a module while the block runs."""
    numbers = count()
    with ExitStack() as stack:
        for part in module.modules():
            if isinstance(part, nn.Embedding):
                hook = part.register_forward_hook(
                    lambda _module, _input, output: change(next(numbers), output)
                )
                stack.callback(hook.remove)
        yield


@dataclass(frozen=True, eq=False)
class TwoTexts(TwoPasses):
    """Two texts of one length, ``here`` and ``there``, and passes in between."""

    embeds: tuple[Sequence[Tensor], Sequence[Tensor]] = ((), ())  # outputs of embeddings in either text

    @classmethod
    def read(cls, model: Model, pair: TextPair) -> TwoTexts:
        """Run both texts."""
        embeds = list[Tensor]()
        with (
            pair.scoring(model, noise=True) as (clean, corrupt),
            embeddings_changed(model.module, lambda _, output: embeds.append(output.clone())),
        ):
            both = TwoPasses.of(clean, corrupt)
        if not embeds:
            raise ModelError(f"{model.name} has no embedding of tokens: circuits are of texts")
        for each in (both.here, both.there):
            each.ran.clear()  # its passes run every layer: all pairs are held, their layers need not be
        half = len(embeds) // 2  # the other text runs first
        return cls(**vars(both), embeds=(embeds[half:], embeds[:half]))

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """The call and the number in it of every head."""
        return [(call, head) for call, of in enumerate(self.here.given) for head in range(of.shape[2])]

    def score(self, of: PlainPass) -> float:
        """The score of one of the texts."""
        return float(self.scored.score(of.before))

    def run(self, embeds: Sequence[Tensor], edit: Edit, observers: Sequence[Observer] = ()) -> Tensor:
        """The score of a pass with other embeddings, and other outputs of attention calls."""
        module = self.scored.model.module
        changed = embeddings_changed(module, lambda number, _: embeds[number])
        with changed, editing_again(self.here, edit, observers):
            return self.scored.score(self.scored.logits())

    def attribute(self, split: Collection[int] = ()) -> Array:
        """The score of every edge, averaged over ``STEPS``.  -> [whole | query | key | value, node, node]

        The parts, by what the target makes of it, are those of the targets to ``split``, 0 of others.
        """
        embeds, other_embeds = self.embeds
        texts = (*embeds, *self.here.given), (*other_embeds, *self.there.given)
        differences = [here - there for here, there in zip(*texts, strict=True)]  # of embeddings, of calls
        last, calls = 1 + len(self.places), len(self.here.given)
        targets = sorted([*enumerate(self.places, 1), (last, (calls, 0))], key=lambda each: -each[1][0])
        scores = np.zeros((4, last + 1, last + 1))
        outputs, leaves = list[Tensor](), list[Tensor]()  # each call's output, and the same as a leaf
        attentions = list[Attention]()

        def detach(_: int, output: Tensor) -> Tensor:
            outputs.append(output)
            leaves.append(output.detach().requires_grad_())
            return leaves[-1]

        for step in range(STEPS):
            for collected in (outputs, leaves, attentions):
                collected.clear()
            share, pairs = (step + 0.5) / STEPS, zip(other_embeds, differences, strict=False)
            mixed = [(other + share * difference).requires_grad_() for other, difference in pairs]
            outputs.append(self.run(mixed, detach, [FunctionObserver(attentions.append)] if split else ()))
            totals = [torch.zeros_like(each) for each in leaves]  # the gradient of the score by each output
            for node, (call, head) in targets:
                if not outputs[call].requires_grad:
                    continue
                slope = None if node == last else torch.zeros_like(totals[call])
                if slope is not None:  # of this head alone
                    slope[:, :, head] = totals[call][:, :, head]
                sources = [*mixed, *leaves[:call]]
                whole = _slopes(outputs[call], sources, slope)
                parts = _parts(attentions[call]) if node in split and node < last else ()
                by_part = _slopes(outputs[call], parts, slope) if parts else ()
                for which in range(1 + len(parts)):
                    # the chain rule: from the output to the part, and from there to the sources
                    slopes = _slopes(parts[which - 1], sources, by_part[which - 1]) if which else whole
                    products = [each * change for each, change in zip(differences, slopes, strict=False)]
                    embedded = sum(float(each.sum()) for each in products[: len(mixed)])
                    by_head = [each.sum((0, 1, 3)).double().cpu().numpy() for each in products[len(mixed) :]]
                    earlier = np.concatenate([[embedded], *by_head])
                    scores[which, : len(earlier), node] += earlier
                totals[:call] = map(torch.add, totals[:call], whole[len(mixed) :])
        return scores / STEPS

    def put(
        self, embeds: Sequence[Tensor], nodes: Mapping[int, Tensor], others: Sequence[Tensor] = ()
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """The score with other embeddings and outputs of nodes, [batch, query, size], and all heads' outputs.

        ``others`` are the outputs of all other nodes; without them, they give what they give.
        """
        outputs = list[Tensor]()

        def edit(call: int, output: Tensor) -> Tensor:
            outputs.append(output)
            changed = (others[call] if others else output).clone()
            for node, states in nodes.items():
                at, head = self.places[node - 1]
                if at == call:
                    changed[:, :, head] = states
            return changed

        return self.run(embeds, edit), outputs

    def restored(self, edges: Edges) -> float:
        """The score if these edges carry the text's values, and all others the other text's.

        One pass for each set of source nodes.
        """
        by_target, last = sources_of(edges), 1 + len(self.places)
        states: dict[int, Tensor] = {}  # outputs of the nodes of the circuit
        passes: dict[frozenset[int], tuple[Tensor, Sequence[Tensor]]] = {}
        for node in sorted(by_target.keys() | {last}):
            sources = by_target.get(node, frozenset())
            if sources not in passes:
                nodes = {source: states[source] for source in sources - {0}}
                passes[sources] = self.put(self.embeds[0 if 0 in sources else 1], nodes, self.there.given)
            score, outputs = passes[sources]
            if node < last:
                call, head = self.places[node - 1]
                states[node] = outputs[call][:, :, head]
        return float(score)

    def without(self, nodes: Sequence[int]) -> float:
        """The score of the text with some heads' outputs from the other one."""
        places = {node: self.places[node - 1] for node in nodes}
        others = {node: self.there.given[call][:, :, head] for node, (call, head) in places.items()}
        return float(self.put(self.embeds[0], others)[0])


def _slopes(output: Tensor, inputs: Sequence[Tensor], slope: Tensor | None) -> Sequence[Tensor]:
    """The gradient by each input; 0 of those that do not lead to the output."""
    more = {"allow_unused": True, "materialize_grads": True, "retain_graph": True}
    slopes = torch.autograd.grad(output, inputs, slope, **more)
    return tuple(each.detach() for each in slopes)  # some releases of torch make zeros that learn


def _parts(attention: Attention) -> tuple[Tensor, ...]:
    """The queries, keys and values of a call, if a gradient reaches all of them."""
    call = call_behind(attention.read)
    parts = () if call is None else (call.query, call.key, call.value)
    return parts if all(each.requires_grad for each in parts) else ()


def sources_of(edges: Edges) -> dict[int, frozenset[int]]:
    """The sources of each node."""
    by_target = group_by(edges, itemgetter(1))
    return {target: frozenset(source for source, _ in mine) for target, mine in by_target.items()}


def connected(edges: Sequence[Edge], last: int) -> Edges:
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
    edges: Sequence[Edge], last: int, share: Callable[[Edges], float], keep: float, passes: Callable[[], int]
) -> Edges:
    """The fewest edges, largest first, that keep a share; then without each one that is not needed.

    More than the full effect counts as a miss, too.
    """

    def enough(some: Sequence[Edge]) -> bool:
        return abs(1 - share(connected(some, last))) <= 1 - keep + SHARE_TOLERANCE

    high = 1
    while high < len(edges) and not enough(edges[:high]):
        high *= 2
    low, high = high // 2, min(high, len(edges))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(edges[:middle]) else (middle, high)
    circuit = connected(edges[:high], last)
    for edge in reversed(edges[:high]):
        if edge in circuit and passes() < MAX_PASSES and enough(fewer := sorted(circuit - {edge})):
            circuit = connected(fewer, last)
    return circuit


EMBEDDINGS, PREDICTION = "embeddings", "prediction"


@record("a head of the circuit")
class CircuitHead:
    """A head that the prediction needs."""

    head: Address
    effect: Annotated[float, Meaning("its share of the score difference, estimated")]
    role: Annotated[str | None, Meaning("what it does on the first text; null for nothing that stands out")]


@record("an edge of the circuit")
class CircuitEdge:
    """What one head passes on to a later one, or to the prediction."""

    source: Annotated[str, Meaning("a head, or embeddings")]
    target: Annotated[str, Meaning("a later head, or prediction")]
    effect: Annotated[float, Meaning("its share of the score difference, estimated")]
    query: Annotated[float | None, Meaning("the part of it that the target's queries are made of")]
    key: Annotated[float | None, Meaning("the part of it that its keys are made of")]
    value: Annotated[float | None, Meaning("the part of it that its values are made of")]
    way: Annotated[str | None, Meaning("Q, K or V: the largest of these parts")]
    composition: Annotated[float | None, Meaning("the composition score of the weights for that way")]
    baseline: Annotated[float | None, Meaning("the same of random weights")]


@record("a circuit", "circuit")
class PredictionCircuit(ScoreOutcome):
    """The heads and edges that restore a share of the difference between two texts."""

    heads: Annotated[tuple[CircuitHead, ...], Meaning("its heads, by layer")]
    edges: Annotated[tuple[CircuitEdge, ...], Meaning("its edges, the one that carries most first")]
    faithfulness: Annotated[float, Meaning("how much of the score difference these edges alone restore")]
    completeness: Annotated[float, Meaning("the share of it that is lost without these heads")]
    pairs: Annotated[int, Meaning("the pairs of texts")]
    layers: Annotated[int, Meaning("the layers of the model")]
    all_heads: Annotated[int, Meaning("the heads of the model")]
    all_edges: Annotated[int, Meaning("the edges that carry anything")]


CompositionScores: TypeAlias = Mapping[tuple[Head | None, Head | None, str], tuple[float, float]]
"""The composition score and its baseline, by earlier head, later head and way."""


def find_circuit(model: Model, pairs: Sequence[TextPair], keep: float = 0.8) -> PredictionCircuit:
    """The smallest circuit that restores ``keep`` of the difference between texts."""
    contrasts = for_each_text("pair", pairs, partial(TwoTexts.read, model))
    first, clean = contrasts[0], pairs[0].clean
    if any(each.places != first.places for each in contrasts):
        raise InputError(OTHER_CALLS)
    sites = [each.site for each in first.here.record.sites]
    nodes = [Head(sites[call].layer, head, sites[call].kind) for call, head in first.places]
    whole, last, ran = -sum(each.scored.whole for each in contrasts), len(nodes) + 1, 0
    if abs(whole) < MIN_DIFFERENCE * len(contrasts):
        raise InputError("over all pairs the texts give the same score: name the target of each")

    def attribute(split: Collection[int] = ()) -> Array:
        scores = np.zeros((4, last + 1, last + 1))
        for number, each in enumerate(contrasts, 1):
            report("gradient", number, len(contrasts))
            with torch.enable_grad(), model.threads(each.scored.prepared):
                scores += each.attribute(split) / whole
        return scores

    def share_of(run: Callable[[TwoTexts], float]) -> float:
        return sum(run(each) - each.score(each.there) for each in contrasts) / whole

    @cache
    def share(edges: Edges) -> float:
        nonlocal ran
        ran += len(contrasts) * len(set(sources_of(edges).values()))
        report("pass", min(ran, MAX_PASSES), MAX_PASSES)
        return share_of(lambda each: each.restored(edges))

    scores = attribute()[0]
    order = [divmod(int(at), last + 1) for at in np.argsort(-np.abs(scores), axis=None, kind="stable")]
    edges = [edge for edge in order if scores[edge]]
    with torch.no_grad(), model.threads(clean):
        circuit = prune(edges, last, share, keep, lambda: ran)
        chosen = sorted({node for edge in circuit for node in edge} - {0, last})
        left = share_of(lambda each: each.without(chosen))
    described = _describe_edges(circuit, attribute(chosen)[1:], scores, nodes, _composition(model, clean))
    roles, effects = _roles(model, clean), [(nodes[node - 1], float(scores[node].sum())) for node in chosen]
    texts = pluralize(len(pairs), "pair") + " of texts"
    if len(pairs) == 1:
        texts = " against ".join(quote_texts(clean, pairs[0].corrupt))
    means = {
        "score": sum(each.score(each.here) for each in contrasts) / len(contrasts),
        "reference": sum(each.score(each.there) for each in contrasts) / len(contrasts),
        "title": f"{model.title} · {texts}",
    }
    return PredictionCircuit(
        **first.scored.outcome(first.here.before) | means,
        heads=tuple(CircuitHead(head, effect, roles.get(head)) for head, effect in effects),
        edges=described,
        faithfulness=share(circuit),
        completeness=1 - left,
        pairs=len(contrasts),
        layers=1 + max(head.layer for head in nodes),
        all_heads=len(nodes),
        all_edges=len(edges),
        notes=(*_note_search(described, ran), *model.notes, *clean.notes, *first.here.record.notes),
    )


def _roles(model: Model, prepared: ModelInput) -> dict[Head, str]:
    measured = measure_heads(model, prepared, Selection()).heads
    roles = {each.address: each.role.name for each in measured if each.role is not None}
    return {head: role for head, role in roles.items() if role != NONE}


def _composition(model: Model, prepared: ModelInput) -> CompositionScores:
    """The composition of every pair of heads; empty where the weights do not tell."""
    with suppress(ModelError):
        feeds = measure_composition(model, prepared).feeds
        return {(feed.head, feed.fed, feed.way): (feed.score, feed.baseline) for feed in feeds}
    return {}


def _describe_edges(
    edges: Edges, parts: Array, scores: Array, nodes: Sequence[Head], composition: CompositionScores
) -> tuple[CircuitEdge, ...]:
    """The edges, largest first, split by query, key and value where these parts add up to the whole.

    [query | key | value, node, node], [node, node]
    """
    several = len({head.kind for head in nodes}) > 1
    names = [EMBEDDINGS, *(str(head) if several else head.name for head in nodes), PREDICTION]
    ends, described = [None, *nodes, None], []
    for source, target in sorted(edges, key=lambda edge: -abs(scores[edge])):
        score, split, way = float(scores[source, target]), parts[:, source, target].tolist(), None
        if names[target] != PREDICTION and abs(sum(split) - score) <= SPLIT_TOLERANCE * abs(score):
            way = max(zip(WAYS, split, strict=True), key=lambda one: abs(one[1]))[0]
        query, key, value = split if way else (None, None, None)
        by_weights = composition.get((ends[source], ends[target], way or ""), (None, None))
        described.append(
            CircuitEdge(names[source], names[target], score, query, key, value, way, *by_weights)
        )
    return tuple(described)


def _note_search(edges: Sequence[CircuitEdge], passes: int) -> Iterator[str]:
    yield "MLPs are not nodes: their effect is counted in the edges"
    yield (
        f"edge effects are estimated (integrated gradients, {STEPS} steps); faithfulness and completeness "
        "are measured"
    )
    if any(each.way is None and each.target != PREDICTION for each in edges):
        yield "no parts by q, k, v where a target's queries, keys and values cannot be told apart"
    if passes >= MAX_PASSES:
        yield f"the search stopped after {passes:,} passes: fewer edges may be enough"


def circuit_answer(result: PredictionCircuit, maps: Mapping[Head, Heatmap] | None = None) -> Answer:
    """The circuit in a line, its edges and its heads, and the graph by layers; ``maps`` are for a page."""
    means = f" (means of {result.pairs:,} pairs)" if result.pairs > 1 else ""
    lines = [
        f"{result.unit} {result.score:.3f}, {result.reference:.3f} in the other text{means}",
        f"{len(result.heads):,} of {result.all_heads:,} heads, {len(result.edges):,} of "
        f"{result.all_edges:,} edges",
        f"faithfulness {result.faithfulness:.2f}: how much of the score difference these edges alone restore",
        f"completeness {result.completeness:.2f}: how much of it is lost without these heads",
    ]
    title, subtitle = f"circuit · {result.title}", "; ".join([result.prediction, *lines[:2]])
    edges, heads, arrows = [], [], list[GraphEdge]()
    for each in result.edges:
        parts = ["" if part is None else f"{part:+.2f}" for part in (each.query, each.key, each.value)]
        known = each.way is not None and each.composition is not None
        by_weights = f"{each.way} {each.composition:.2f} (random {each.baseline:.2f})" if known else ""
        edges.append((f"{each.source} → {each.target}", f"{each.effect:+.2f}", *parts, by_weights))
        arrows.append(GraphEdge(each.source, each.target, each.effect, each.way or ""))
    layers = sorted({each.head.layer for each in result.heads})
    nodes = [
        GraphNode(EMBEDDINGS, 0, kind="embedding"),
        GraphNode(PREDICTION, len(layers) + 1, kind="logit", layer=result.layers),
    ]
    ends = {end for each in result.edges for end in (each.source, each.target)}
    for head in result.heads:  # with its kind if the model has several
        name = str(head.head) if str(head.head) in ends else head.head.name
        heads.append((name, f"{head.effect:+.2f}", head.role or "–"))
        column, map_ = 1 + layers.index(head.head.layer), (maps or {}).get(head.head)
        nodes.append(GraphNode(name, column, head.role or "", head.effect, map_, layer=head.head.layer))
    effect, notes = Column("effect", True), (*lines, *result.notes)
    graph = LayerGraph(tuple(nodes), tuple(arrows), title=title, subtitle=result.prediction, notes=notes)
    columns = "source", "target", "effect", "query", "key", "value", "way", "composition", "baseline"
    split = (
        "by q, k, v: the part of it that the target's queries, keys, values are made of",
        "by weights: their composition score for the largest part, whatever the texts",
    )
    tables = (
        Table(title=title, subtitle=subtitle, notes=tuple(lines[2:])),
        Table(
            (Column("edge"), effect, *(Column(f"by {part}", True) for part in "qkv"), Column("by weights")),
            tuple(edges),
            notes=split if any(each.way for each in result.edges) else (),
        ),
        Table((Column("head"), effect, Column("role")), tuple(heads), notes=result.notes),
    )
    return Answer(tables, {"circuit": graph}, lambda: result, lambda: csv_rows(result.edges, columns))
