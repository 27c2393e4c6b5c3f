"""What is looked at of a flow: one token's sources, or all layers beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attnscope.analysis.flow.flow import Flow
from attnscope.analysis.naming import find_place
from attnscope.analysis.places.overlays import boxes_of, lay_over
from attnscope.analysis.sentences import kind_title
from attnscope.models.inputs import Picture
from attnscope.views import Focus, Scale, grid, rank_places
from attnscope.views.strip import Series, Strip

TOP = 10
"""Tokens that are listed."""

VERBS = "is made of", "goes into"


def maps_of_layers(result: Flow, kind: str | None, layers: Sequence[int] | None, scale: Scale) -> Strip:
    """The maps of several layers, or of all, as thumbnails, with how much of each token is still itself."""
    kind, _, _ = result.map(kind, None)
    numbers = [layer for layer, _ in result.maps[kind]] if layers is None else list(layers)
    maps = [(layer, result.map(kind, layer)[2]) for layer in numbers]
    values = [weights.values for _, weights in maps]
    if maps[0][1].square:
        series = Series("self", "share", tuple(float(np.trace(each) / len(each)) for each in values))
    else:
        series = Series("largest", "share", tuple(float(each.max(-1).mean()) for each in values))
    stacked = [(layer, replace(weights, values=weights.values[None])) for layer, weights in maps]
    size = (len(maps[0][1].queries), len(maps[0][1].keys))
    return Strip(
        names=tuple(f"0-{layer}" if layer else "0" for layer in numbers),
        roles=("",) * len(maps),
        thumbnails=replace(grid(stacked, scale=scale), size=size, whole=False, each="a layer"),
        series=(series,),
        apart=np.zeros((len(maps), len(maps))),
        title=f"{result.method} layer by layer · {result.title} · {kind_title(kind)}",
        subtitle=result.subtitle,
        notes=result.notes,
    )


def focus_token(
    result: Flow, kind: str | None, layer: int | None, token: str, pictures: Sequence[Picture] = ()
) -> Focus:
    """What one token of a layer is made of, and which of the layer's tokens it goes into."""
    kind, layer, weights = result.map(kind, layer)
    row = find_place(weights.queries, token)
    place = weights.queries[row]
    boxes = boxes_of(pictures)
    made = rank_places(weights.values[row], weights.allowed[row], weights.keys, TOP, boxes)
    goes = None
    if weights.square and result.method != "flow":  # which goes from one token to each
        goes = rank_places(weights.values[:, row], weights.allowed[:, row], weights.queries, TOP, boxes)
    overlays, notes = lay_over(pictures, place, (weights.values[row], weights.keys), None)
    overlays = tuple(replace(each, verbs=VERBS) for each in overlays)
    title = result.titled(kind, layer)
    return Focus(place.label, place.start, made, goes, title, "", (*result.notes, *notes), overlays, VERBS)
