"""A circuit: the few heads, and the edges between them, that a prediction needs.

Keeps the fewest edges with the largest scores (``edges.py``) that restore a share of the difference
between two texts while all other edges carry the other text's values. That share is run, not estimated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated

import numpy as np
import torch

from attnscope.attention import Head
from attnscope.errors import InputError, ModelError
from attnscope.figures import HeadFigures
from attnscope.models import Model, ModelInput
from attnscope.progress import tell
from attnscope.questions.answer import Answer, csv_rows
from attnscope.questions.cause import SAME, ScoreOutcome
from attnscope.questions.composition import Feed, find_feeds
from attnscope.questions.edges import PASSES, STEPS, Edge, TwoTexts, prune, sources_of
from attnscope.questions.logits import Address
from attnscope.questions.patching import TextPair
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import name_pass
from attnscope.questions.stats import measure_heads
from attnscope.records import Meaning, record
from attnscope.views import Heatmap
from attnscope.views.graph import GraphEdge, GraphNode, LayerGraph
from attnscope.views.table import Column, Table

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
    """The smallest circuit that restores ``keep`` of the difference between texts.

    Raises ``InputError`` for texts of different lengths or with the same score, ``ModelError`` for a model
    without an output head or whose heads cannot be changed.
    """
    contrasts = list[TwoTexts]()
    for number, pair in enumerate(pairs):
        tell("pair", number + 1, len(pairs))
        contrasts.append(TwoTexts.of(model, pair))
    first = contrasts[0]
    if any(each.heads != first.heads for each in contrasts):
        raise InputError("the passes of the texts have different attention calls")
    sites = [each.site for each in first.clean.record.sites]
    nodes = [Head(sites[call].layer, head, sites[call].kind) for call, head in first.places]
    whole, last, ran = sum(each.whole for each in contrasts), len(nodes) + 1, 0
    if abs(whole) < SAME * len(contrasts):
        raise InputError("over all pairs the texts give the same score: name the target of each")
    scores = np.zeros((last + 1, last + 1))
    for number, each in enumerate(contrasts):
        tell("gradient", number + 1, len(contrasts))
        with torch.enable_grad(), model.threads(each.scored.prepared):
            scores += each.attribute() / whole

    @cache
    def share(edges: frozenset[Edge]) -> float:
        nonlocal ran
        ran += len(contrasts) * len(set(sources_of(edges).values()))
        tell("pass", min(ran, PASSES), PASSES)
        return sum(each.restored(edges) - each.corrupt.score for each in contrasts) / whole

    order = [divmod(int(at), last + 1) for at in np.argsort(-np.abs(scores), axis=None, kind="stable")]
    edges = [edge for edge in order if scores[edge]]
    with torch.no_grad(), model.threads(first.scored.prepared):
        kept = prune(edges, last, share, keep, lambda: ran)
        chosen = sorted({node for edge in kept for node in edge} - {0, last})
        left = sum(each.without(chosen) - each.corrupt.score for each in contrasts) / whole
    clean = first.scored.prepared
    figures = {each.address: each for each in measure_heads(model, clean, Selection()).heads}
    several = len({head.kind for head in nodes}) > 1
    names = [EMBEDDINGS, *(str(head) if several else head.name for head in nodes), PREDICTION]
    ends, feeds = [None, *nodes, None], _best_feeds(model, clean)

    def edge_between(source: int, target: int) -> CircuitEdge:
        feed = feeds.get((ends[source], ends[target]))
        way = (None, None, None) if feed is None else (feed.way, feed.score, feed.baseline)
        return CircuitEdge(names[source], names[target], float(scores[source, target]), *way)

    notes = ["feed-forward parts belong to the edges", f"effects: {STEPS} gradients a pair; shares are run"]
    if ran >= PASSES:
        notes.append(f"the search stopped after {ran:,} passes: fewer edges may keep as much")
    return FoundCircuit(
        heads=tuple(
            CircuitHead(nodes[node - 1], float(scores[node].sum()), _role(figures.get(nodes[node - 1])))
            for node in chosen
        ),
        edges=tuple(edge_between(*edge) for edge in sorted(kept, key=lambda edge: -abs(scores[edge]))),
        faithfulness=share(kept),
        completeness=1 - left,
        score=sum(each.clean.score for each in contrasts) / len(contrasts),
        reference=sum(each.corrupt.score for each in contrasts) / len(contrasts),
        unit=first.scored.unit,
        prediction=first.scored.prediction.description,
        pairs=len(contrasts),
        all_heads=len(nodes),
        all_edges=len(edges),
        title=name_pass(model, clean),
        notes=(*notes, *model.notes, *clean.notes, *first.clean.record.notes),
    )


def _role(figures: HeadFigures | None) -> str | None:
    name = figures.role.name if figures is not None and figures.role is not None else "none"
    return None if name == "none" else name


def _best_feeds(model: Model, prepared: ModelInput) -> dict[tuple[Head | None, Head | None], Feed]:
    """The way in which a head feeds a later one farthest above random weights, where the weights tell."""
    try:
        feeds = find_feeds(model, prepared).feeds
    except ModelError:
        return {}
    return {(feed.head, feed.fed): feed for feed in sorted(feeds, key=lambda feed: feed.lift)}


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
    graph = _graph(result, lines, maps or {})
    return Answer(
        (lead, listed, heads), {"circuit": graph}, lambda: result, lambda: csv_rows(result.edges, COLUMNS)
    )


def _graph(result: FoundCircuit, lines: Sequence[str], maps: Mapping[Head, Heatmap]) -> LayerGraph:
    """The nodes by layers, from the embeddings to the prediction."""
    layers = sorted({each.head.layer for each in result.heads})
    columns = {layer: column for column, layer in enumerate(layers, 1)}
    nodes = [GraphNode(EMBEDDINGS, 0), GraphNode(PREDICTION, len(layers) + 1)]
    for each in result.heads:
        name, column = result.name(each.head), columns[each.head.layer]
        nodes.append(GraphNode(name, column, each.role or "", each.effect, maps.get(each.head)))
    return LayerGraph(
        tuple(nodes),
        tuple(GraphEdge(each.source, each.target, each.effect, each.way or "") for each in result.edges),
        title=f"circuit · {result.title}",
        subtitle=result.prediction,
        notes=(*lines[1:], *result.notes),
    )
