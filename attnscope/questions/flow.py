"""Contributions of input tokens: attention followed through all layers, heads averaged.

Each layer has one matrix, whose row ``i`` holds the share of each token of the layer below in token
``i``. All of it is NumPy, float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from torch import Tensor

from attnscope.attention import Attention, Axis, Kind, Site
from attnscope.axes import Array, Coarsening, Weights, coarsen, weights
from attnscope.capture.observers import rows_at_a_time
from attnscope.capture.projections import Residuals
from attnscope.errors import ModelError, SelectionError
from attnscope.measures.weighting import METHODS, Amounts, Contributions, Values, by_gradient
from attnscope.models import Model, ModelInput
from attnscope.models.inputs import Picture
from attnscope.models.trace_model import TracedModel
from attnscope.models.weighting import gradients_of
from attnscope.questions.answer import Answer
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import kind_title, kinds_of, name_pass, provenance
from attnscope.questions.token import boxes_of, find_place, match_places, overlay_pictures
from attnscope.records import MATRIX, Meaning, derived, record
from attnscope.text import number_ranges
from attnscope.views import AxisNames, Scale, TokenView, grid, heatmap, rank_places

if TYPE_CHECKING:
    from attnscope.storage.arrays import Kinds

BLOCK = 1 << 23  # numbers computed at a time: 32 MB of float32


@dataclass(eq=False)
class Mixing:
    """An observer that keeps each call's mean over heads, or the part of it that raises a prediction."""

    slopes: Mapping[Site, Tensor] | None
    name: str
    residuals: Residuals | None = None
    forms: dict[str, None] = field(default_factory=dict)  # where norms were found around it
    matrices: dict[Site, Array] = field(default_factory=dict)  # [query, key], of ALTI across: and residual
    axes: dict[Site, tuple[Axis, Axis]] = field(default_factory=dict)
    in_parts: dict[str, str] = field(default_factory=dict)  # kinds that cannot be followed, and why

    def observe(self, attention: Attention) -> None:
        """Keep one call."""
        site = attention.site
        if attention.batch > 1:
            said = f"{site.name} of {self.name} attends in {attention.batch:,} parts"
            self.in_parts.setdefault(site.kind, f"{said}: attention cannot be followed through it")
        if attention.source == "probe":
            self.in_parts.setdefault(site.kind, f"{site.name}: signed weights are no shares to be followed")
        if site.kind in self.in_parts:
            return
        step = rows_at_a_time(attention, BLOCK)
        amounts = self._amounts(attention)
        blocks = []
        for start in range(0, len(attention.queries), step):
            stop = min(start + step, len(attention.queries))
            rows = attention.rows(start, stop).nan_to_num()
            rows = rows if amounts is None else amounts(rows, slice(start, stop), slice(None))
            blocks.append(rows.double().mean((0, 1)).cpu().numpy())
        self.matrices[site] = np.concatenate(blocks)
        self.axes[site] = attention.queries, attention.keys

    def leave_out(self, kind: str | None = None, last: int | None = None) -> tuple[str, ...]:
        """Drop what cannot be followed, with a note: parts, as of a tiled picture; layers of other tokens.

        Raises ``ModelError`` if ``kind``, or every kind, cannot be followed up to layer ``last``.
        """
        reasons = tuple(self.in_parts.values())
        kinds = {site.kind for site in self.matrices} - set(self.in_parts)
        if reasons and kind == "encoder" and kind in kinds:
            kinds = {kind}  # its layers need no others
        if reasons and (not kinds or "cross" in kinds):
            raise ModelError(reasons[0])
        self._drop(site for site in self.matrices if site.kind not in kinds)
        return reasons + tuple(self._leave_out_changes("cross" in kinds, kind, last))

    def _leave_out_changes(self, across: bool, followed: str | None, last: int | None) -> Iterator[str]:
        """Drop the layers of each kind behind ``last``, or all of them, if their tokens change on the way."""
        kinds = kinds_of(self.matrices)
        for kind in kinds:
            if (change := self._first_change(kind)) is None:
                continue
            layer, reason = change
            if last is not None and last < layer and not (across and kind == "encoder"):
                self._drop(site for site in self.matrices if site.kind == kind and site.layer >= layer)
                yield f"{reason}: layers from {layer} on are left out"
                continue
            if kind == followed or (across and followed != "encoder") or [*kinds] == [kind]:
                raise ModelError(reason)
            dropped = {"decoder", "cross"} if across else {kind}
            self._drop(site for site in self.matrices if site.kind in dropped)
            yield reason

    def _first_change(self, kind: Kind) -> tuple[int, str] | None:
        """The first layer of a kind whose tokens are others than before, and that in words."""
        shapes = {site: (len(queries), len(keys)) for site, (queries, keys) in self.axes.items()}
        first = {site.kind: shape for site, shape in reversed(shapes.items())}
        sizes = [(site.layer, shape) for site, shape in shapes.items() if site.kind == kind]
        expected = first.get(kind)
        if kind != "cross" and expected is not None:
            expected = (first["cross"][kind == "encoder"] if "cross" in first else expected[0],) * 2
        changed = next((layer for layer, size in sizes if size != expected), None)
        if changed is None:
            return None
        written = ", ".join(f"{rows} × {columns}" for rows, columns in sorted({size for _, size in sizes}))
        return changed, f"the tokens of {self.name} change on the way ({kind_title(kind)}: {written})"

    def _drop(self, sites: Iterable[Site]) -> None:
        for site in list(sites):
            del self.matrices[site], self.axes[site]

    def _amounts(self, attention: Attention) -> Amounts | None:
        """What is followed instead of the weights. Raises ``ModelError`` if a block cannot be followed."""
        site = attention.site
        if self.residuals is not None:
            projection, residual = self.residuals.by_site.get(site), self.residuals.residual_at(site)
            if projection is None or residual is None or attention.values is None:
                what = "its output projection" if projection is None else "what its output is added to"
                raise ModelError(
                    f"layer {site.layer} of the model cannot be followed by alti, as {what} was not found: "
                    "rollout and relevance follow it"
                )
            self.forms[residual.form] = None
            values = Values.from_projection(attention.values, attention.heads, None).values
            return Contributions(values, projection.weight, residual, crossed=site.kind == "cross")
        if self.slopes is None:
            return None
        slope = self.slopes.get(site)
        if attention.values is None or slope is None:
            return lambda rows, _, heads: rows * 0  # the prediction does not depend on it
        return by_gradient(Values.from_projection(attention.values, attention.heads, None), slope)


CAPACITY = 1 << 24  # the capacity, as a whole number, of an edge with all of a row's weight


class Step(NamedTuple):
    """What some tokens are made of after a call, of all tokens: an encoder's, and then a decoder's.

    The last columns of ``shares`` are the tokens themselves, also in cross attention.
    """

    tokens: slice
    sources: slice
    shares: Array  # [token, source]


def as_shares(rows: Array) -> Array:
    """Rows divided by their sums; a row of zeros goes to its own token, one of the last columns."""
    shares = _over_sums(rows)
    empty = np.flatnonzero(~shares.any(-1))
    shares[empty, shares.shape[1] - len(shares) + empty] = 1
    return shares


def _over_sums(rows: Array) -> Array:
    """Rows divided by their sums, where these are positive.  [query, key]"""
    rows = np.asarray(rows, np.float64)
    total = rows.sum(-1, keepdims=True)
    shares: Array = np.divide(rows, total, out=np.zeros_like(rows), where=total > 0)
    return shares


def roll_out(steps: Sequence[Step], size: int) -> Iterator[Array]:
    """The input tokens' contributions after each step: the product of all matrices so far."""
    total = np.eye(size)
    for tokens, sources, shares in steps:
        total[tokens] = shares @ total[sources]
        yield total[tokens].copy()


def add_up_relevance(steps: Sequence[Step], size: int) -> Iterator[Array]:
    """Relevance (Chefer et al. 2021), rows normalized over both sides of a model together.

    ``R ← R + A R`` inside each side, and across sides ``R ← R + S A E``: E is the encoder's relevance and
    S the decoder's, each without the identity, rows normalized, and the identity added. Chefer et al.
    have Sᵀ, with which later tokens would contribute to earlier ones in a causal decoder.
    """
    total = np.eye(size)
    for tokens, sources, matrix in steps:
        if sources == tokens:
            total[tokens] += matrix @ total[sources]
        else:
            other = slice(tokens.start)
            side, encoded = (_evened(total[each, each]) for each in (tokens, other))
            total[tokens, other] += side @ matrix[:, other] @ encoded
        yield _over_sums(total[tokens])


def _evened(relevance: Array) -> Array:
    """The relevance of other tokens, rows normalized, plus the identity.  [query, key]"""
    own = np.eye(len(relevance))
    return _over_sums(relevance - own) + own


def find_largest_flows(steps: Sequence[Step], size: int, rows: Sequence[int]) -> Iterator[Array]:
    """The maximum flows from some tokens to each input token (Abnar & Zuidema 2020), as shares, by step.

    Edges go from each token to those that contribute to it, with the shares as capacities. Rows that are
    not in ``rows`` are not computed.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_flow

    starts, ends, capacities = [], [], []
    at, nodes = np.arange(size), size  # the node of each token so far, and how many there are
    for tokens, sources, shares in steps:
        queries, keys = np.nonzero(shares)
        capacities.append(np.rint(shares[queries, keys] * CAPACITY).astype(np.int32))
        starts.append(nodes + queries)
        ends.append(at[sources][keys])
        at[tokens] = nodes + np.arange(len(shares))
        nodes += len(shares)
        places = tuple(np.concatenate(each).astype(np.int32) for each in (starts, ends))  # as scipy 1.14 asks
        graph = coo_array((np.concatenate(capacities), places), shape=(nodes, nodes)).tocsr()
        contributions = np.eye(size)
        for row in range(size)[tokens]:
            if row in rows:
                flows = np.array([maximum_flow(graph, at[row], key).flow_value for key in range(size)])
                contributions[row] = flows / flows.sum()
        yield contributions[tokens]


Method: TypeAlias = Literal["rollout", "flow", "relevance", "alti"]

MOST_FLOWS = 64  # most tokens with maximum flows between all of them; a single token's have no such limit


@record("the map of a layer", eq=False)
class FlowMap:
    """The input tokens' contributions to the tokens of one layer."""

    kind: Annotated[str, Meaning("its kind of attention", shape=Kind)]
    layer: Annotated[int, Meaning("its number")]
    queries: Annotated[
        tuple[str, ...], Meaning("the tokens of the layer; of the largest flow of --token, that one")
    ]
    positions: Annotated[tuple[int, ...], Meaning("their numbers, or where each begins")]
    keys: Annotated[tuple[str, ...], Meaning("the tokens of the text")]
    weights: Annotated[Array, Meaning("[query, key]", shape=MATRIX)]


@record("how much each input token contributes to each position, layer by layer", "flow", eq=False)
class Flow:
    """A map ``[query, key]`` for each layer of each kind; of the largest flow of one token, its row alone."""

    method: Annotated[Method, Meaning("how attention was followed")]
    maps: Mapping[str, Sequence[tuple[int, Weights]]]
    title: str
    subtitle: str
    notes: Annotated[tuple[str, ...], Meaning("what to know")]
    lead: str | None = None

    @derived("every layer, from the first")
    def layers(self) -> tuple[FlowMap, ...]:
        return tuple(
            FlowMap(
                kind,
                layer,
                tuple(place.text for place in weights.queries),
                tuple(place.start for place in weights.queries),
                tuple(place.text for place in weights.keys),
                weights.values,
            )
            for kind, layers in self.maps.items()
            for layer, weights in layers
        )

    def titled(self, kind: str, layer: int) -> str:
        """A map's title: the method, the layer, and the model."""
        return f"{self.method} through layers 0-{layer} · {self.title} · {kind_title(kind)}"

    def map(self, kind: str | None, layer: int | None, token: str | None = None) -> tuple[str, int, Weights]:
        """One map, with its kind and layer; the last one if none is named. Raises ``SelectionError``.

        A ``token`` that only rows of another kind have chooses that kind.
        """
        known = " and ".join(map(kind_title, self.maps))
        if kind is not None and kind not in self.maps:
            raise SelectionError(f"no {kind_title(kind)} to follow: there is {known}")
        first = "decoder" if "cross" in self.maps else self.lead or ""
        kinds = sorted(self.maps, key=lambda kind: kind != first)
        rows = {each: self.maps[each][-1][1].queries for each in kinds}
        having = (each for each in kinds if token is not None and match_places(token, rows[each])[0])
        kind = kind or next(having, kinds[0])
        layers = dict(self.maps[kind])
        layer = max(layers) if layer is None else layer
        if layer not in layers:
            has = f"the {kind_title(kind)} has layers {number_ranges(layers)}"
            raise SelectionError(f"no layer {layer}: {has}")
        return kind, layer, layers[layer]


def follow_flow(
    model: Model,
    prepared: ModelInput,
    method: Method,
    selection: Selection,
    *,
    target: str | None = None,
    token: str | None = None,
    last: int | None = None,
) -> Flow:
    """Run the model once, and follow attention through its layers.

    ``relevance`` needs one backward pass, from the prediction ``target``. ``token`` limits maximum flows
    to its rows. The tokens need to be the same up to layer ``last`` of the selection's kind; behind it, what
    cannot be followed is left out. Raises ``ModelError``.
    """
    if method in ("relevance", "alti"):  # these need more of a pass than its weights
        if isinstance(model, TracedModel):
            raise ModelError(f"{model.name} is {model.what} and keeps no values: give the model for {method}")
        prepared = replace(prepared, replay=None)
    slopes, note = gradients_of(model, prepared, target) if method == "relevance" else (None, "")
    mixing = Mixing(slopes, model.name)
    if method == "alti":
        mixing.residuals = Residuals()
        with mixing.residuals.watching(model.module):
            model.run(prepared, [mixing.residuals])
    record = model.run(prepared, [mixing])
    left_out = mixing.leave_out(selection.kind, last)
    note += f"the sum of residual and attention: {', '.join(mixing.forms)}" if mixing.forms else ""
    passed = (*model.notes, *prepared.notes, *record.notes)
    notes = (METHODS[method].share, *passed, *left_out, *([note] if note else []))
    maps: dict[str, list[tuple[int, Weights]]] = {}
    kinds = kinds_of(mixing.matrices)
    sides = [[site for site in mixing.matrices if site.kind == kind] for kind in kinds]
    if "cross" in kinds:  # joins both sides; otherwise each kind alone, like an encoder's
        sides = [[*mixing.matrices]]
    contributions = (each for sites in sides for each in _follow(sites, mixing, method, selection, token))
    for kind, layer, values, axes in contributions:
        queries, keys = (selection.coarsening(axis) for axis in axes)
        if method == "flow" and token is not None:
            if (alone := _only(queries, token)) is None:
                continue  # none of its rows was computed
            queries = alone
        causal = np.triu(np.ones(values.shape, bool), 1) & (kind == "decoder")
        whole = weights(values.astype(np.float32), *axes, (values > 0) | ~causal)
        maps.setdefault(kind, []).append((layer, coarsen(whole, queries, keys)[0]))
    return Flow(
        method, maps, name_pass(model, prepared), provenance(record.sites), notes, prepared.first_kind
    )


def _only(coarsening: Coarsening, token: str) -> Coarsening | None:
    """The place of a token alone, if the axis has it."""
    try:
        return coarsening.only(find_place(coarsening.places, token))
    except SelectionError:
        return None


def _follow(
    sites: Sequence[Site], mixing: Mixing, method: Method, selection: Selection, token: str | None
) -> list[tuple[str, int, Array, tuple[Axis, Axis]]]:
    """The contributions after each of these calls: for a decoder, to tokens of both sides."""
    crossed = next((mixing.axes[site] for site in sites if site.kind == "cross"), None)
    own, other = crossed or (range(0), mixing.axes[sites[0]][0])
    size = len(other) + len(own)
    steps = [_step(site, mixing.matrices[site], method, len(other), len(own)) for site in sites]
    if method == "flow":
        contributions = find_largest_flows(steps, size, _rows_of_flow(own, other, selection, token))
    else:
        contributions = (add_up_relevance if method == "relevance" else roll_out)(steps, size)
    maps: dict[tuple[str, int], tuple[Array, tuple[Axis, Axis]]] = {}
    for site, step, shares in zip(sites, steps, contributions, strict=True):
        axes, begin = mixing.axes[site], step.tokens.start
        own_side = shares[:, begin : begin + len(shares)], (axes[0], axes[0])
        maps["decoder" if begin else site.kind, site.layer] = own_side
        if site.kind == "cross":
            maps["cross", site.layer] = shares[:, :begin], axes
    return [(kind, layer, shares, axes) for (kind, layer), (shares, axes) in maps.items()]


def _step(site: Site, matrix: Array, method: Method, count: int, own: int) -> Step:
    """One call on a decoder's ``own`` tokens behind ``count`` of the encoder, or on these alone."""
    tokens = slice(count, count + own) if own and site.kind != "encoder" else slice(0, count)
    across = site.kind == "cross"
    if across:  # with its own tokens as columns, whose share ALTI measures
        matrix = np.hstack([matrix[:, :count], np.diag(matrix[:, count:].sum(-1))])
    if method != "relevance":
        matrix = as_shares(matrix)
    if method in ("rollout", "flow"):  # half of each row is its own token's (Abnar & Zuidema 2020)
        matrix = 0.5 * matrix
        matrix[:, -len(matrix) :] += 0.5 * np.eye(len(matrix))
    return Step(tokens, slice(0, count + own) if across else tokens, matrix)


def _rows_of_flow(own: Axis, other: Axis, selection: Selection, token: str | None) -> Sequence[int]:
    """The rows whose largest flows are sought: those of a token, or all of a short text."""
    count, longest = len(other), max(len(other), len(own))
    if token is None:
        if longest > MOST_FLOWS:
            raise SelectionError(
                f"the largest flows between {longest:,} tokens take long: name one with --token, or cut the "
                f"text to {MOST_FLOWS} tokens"
            )
        return range(count + len(own))
    both = ((begin, axis) for begin, axis in ((0, other), (count, own)) if len(axis))
    alone = ((begin, _only(selection.coarsening(axis), token)) for begin, axis in both)
    rows = [begin + place for begin, one in alone if one is not None for place in one.tokens(0)]
    if not rows:
        find_place(selection.coarsening(other).places, token)
    return rows


TOP = 10  # tokens that are listed

VERBS = "draws on", "contributes to"
AXES = AxisNames("token of the layer (draws on)", "input token (contributes)", "rows draw on columns")
SHARE = "contribution, share"


def focus_token(
    result: Flow, kind: str | None, layer: int | None, token: str, pictures: Sequence[Picture] = ()
) -> TokenView:
    """The contributions to one token of a layer, and of the same input token to all of the layer."""
    kind, layer, weights = result.map(kind, layer, token)
    row = find_place(weights.queries, token)
    place = weights.queries[row]
    boxes = boxes_of(pictures)
    sources = rank_places(weights.values[row], weights.allowed[row], weights.keys, TOP, boxes)
    targets = None
    if weights.square and result.method != "flow":  # which goes from one token to each
        targets = rank_places(weights.values[:, row], weights.allowed[:, row], weights.queries, TOP, boxes)
    overlays, notes = overlay_pictures(pictures, place, (weights.values[row], weights.keys), None)
    overlays = tuple(replace(each, verbs=VERBS) for each in overlays)
    title = result.titled(kind, layer)
    return TokenView(
        place.label,
        place.start,
        sources,
        targets,
        overlays=overlays,
        verbs=VERBS,
        title=title,
        bar=SHARE,
        notes=(*result.notes, *notes),
    )


def flow_answer(
    result: Flow,
    *,
    kind: str | None = None,
    layers: Sequence[int] | None = None,
    token: str | None = None,
    scale: Scale = "auto",
    pictures: Sequence[Picture] = (),
) -> Answer:
    """The map of one layer, small maps of several, or the contributions to and from one token."""
    view: Any
    layer = layers[0] if layers else None
    if layers is not None and len(layers) > 1:  # as thumbnails, one line per layer
        shown, _, _ = result.map(kind, None)
        maps = ((each, result.map(shown, each)[2]) for each in layers)
        view = grid(
            ((each, replace(weights, values=weights.values[None])) for each, weights in maps),
            title=f"{result.method} layer by layer · {result.title} · {kind_title(shown)}",
            subtitle=result.subtitle,
            scale=scale,
            notes=result.notes,
            axes=AXES,
            bar=SHARE,
        )
        view = replace(view, whole=False, each="layer")
    elif token is not None:
        view = focus_token(result, kind, layer, token, pictures)
    else:
        shown, last, weights = result.map(kind, layer)
        title = result.titled(shown, last)
        view = heatmap(
            weights,
            title=title,
            subtitle=result.subtitle,
            scale=scale,
            notes=result.notes,
            axes=AXES,
            bar=SHARE,
        )

    def all_layers() -> tuple[Kinds, dict[str, Any]]:
        """The maps of all layers for a data file, each as a layer of one head."""
        kinds = {
            kind: [(layer, replace(weights, values=weights.values[None])) for layer, weights in layers]
            for kind, layers in result.maps.items()
        }
        return kinds, {"title": f"{result.method} · {result.title}", "notes": result.notes}

    return Answer((view,), {result.method: view}, lambda: result, layers=all_layers)
