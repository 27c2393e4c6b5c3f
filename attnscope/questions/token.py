"""Tokens by the names that people call them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from attnscope.attention import Attention
from attnscope.axes import Array, Coarsening, Place
from attnscope.capture import SiteRecord
from attnscope.capture.observers.coarsen import Axes, CoarseMap, Coarsen, SharedRows
from attnscope.errors import SelectionError
from attnscope.models import Model, ModelInput
from attnscope.models.inputs import Picture
from attnscope.questions.answer import Answer
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import (
    kind_title,
    kinds_of,
    layers_of,
    name_pass,
    note_maps,
    number_ranges,
    require_selected,
)
from attnscope.registry import nearest_name
from attnscope.text import read_number
from attnscope.views import Bars, Overlay, TokenView, rank_places
from attnscope.views.token import Edges, describe_box

NUMBERED = re.compile(r"(image|frame)s? [0-9-]+ · ")
"""Which picture a token stands for: its row and column alone mean the first."""


def find_place(places: Sequence[Place], wanted: str) -> int:
    """The first place that a name or a number fits. Raises ``SelectionError``."""
    found = fit_exactly(places, wanted.strip()) or fit_loosely(places, wanted.strip())
    if not found:
        known = ", ".join(dict.fromkeys(place.label for place in places[:12]))
        raise SelectionError(f"no token {wanted!r}: the text has {known}{', ...' * (len(places) > 12)}")
    return found[0]


def fit_exactly(places: Sequence[Place], wanted: str) -> list[int]:
    """The places with a number, or with just that text or label."""
    number = read_number(wanted)
    if number is not None:
        return [i for i, place in enumerate(places) if place.start <= number < place.stop]
    return [i for i, place in enumerate(places) if wanted in (place.text.strip(), place.label)]


def fit_loosely(places: Sequence[Place], wanted: str) -> list[int]:
    """The places with that text in other letters, special tokens also without their brackets."""
    folded = wanted.casefold().removeprefix("patch ")
    return [i for i, place in enumerate(places) if folded in _names(place)]


def _names(place: Place) -> tuple[str, ...]:
    """What a place may be called: its text, and a special token also without its brackets."""
    name = place.text.strip().casefold()
    if place.pictured:
        return name, NUMBERED.sub("", name)
    if place.heard:
        return name, place.moment, place.letters.casefold() or name
    return (name, name.strip("[]<>|")) if place.special else (name,)


MOST = 4
"""Pictures that are drawn beside each other, at most."""


def lay_over(
    pictures: Sequence[Picture],
    place: Place,
    row: tuple[Array, Sequence[Place]] | None,
    column: tuple[Array, Sequence[Place]] | None,
) -> tuple[tuple[Overlay, ...], tuple[str, ...]]:
    """The pictures whose patches stand on an axis, with the weights there, and a note on those left out.

    ``row`` is what the place looks at and ``column`` who looks at it, each a weight for each place.
    """
    made: list[Overlay] = []
    for picture in pictures:
        patches = [token.id for token in picture.tokens if not token.special]
        maps: list[Array | None] = []  # [patch row, patch column] each
        for side in (row, column):
            numbers = {} if side is None else {each.id: number for number, each in enumerate(side[1])}
            chosen = None
            if side is not None and picture.grid is not None and numbers.keys() >= set(patches):
                chosen = side[0][[numbers[id_] for id_ in patches]].reshape(picture.grid)
            maps.append(chosen if chosen is not None and chosen.any() else None)  # a text behind it: no patch
        if picture.grid is not None and any(each is not None for each in maps):
            patch = divmod(patches.index(place.id), picture.grid[1]) if place.id in patches else None
            made.append(Overlay(picture.pixels, maps[0], maps[1], patch, picture.name))
    if len(made) <= MOST:
        return tuple(made), ()
    heaviest = np.argsort([-max(map_.sum() for _, map_ in each.maps) for each in made], kind="stable")[:MOST]
    note = f"of {len(made)} pictures, the {MOST} are drawn that have most of its attention"
    return tuple(made[number] for number in sorted(heaviest)), (note,)


def boxes_of(pictures: Sequence[Picture]) -> Mapping[int, Edges]:
    """Which part of its picture each token stands for, by its id; of frames that share it, the same."""
    return {id_: edges for picture in pictures for id_, edges in picture.boxes.items()}


TOP, SPARE = 10, 3
"""Tokens that are listed on each side, and as many more where those are all."""

BESIDE = 5
"""As many beside a picture that shows them all."""

MOST_TRIED = 1000
"""Tokens among which the nearest to a name that is none of them is looked for."""


def one_token(model: Model, prepared: ModelInput, selection: Selection) -> TokenView:
    """Run the model once, and rank the row and the column of the token that is meant.

    With a layer and a head: of that head; otherwise the mean over the heads of that layer, or of all.
    In cross-attention a token of the decoder has a row, and one of the encoder a column; a number is one
    of the decoder's. Raises ``SelectionError`` if there is no such token, layer or head.
    """
    rows, columns = (Coarsen(_only(selection, column)) for column in (False, True))
    record = model.look(prepared, [SharedRows([rows, columns], selection.heads)])
    sites = [site for site in record.sites if selection.heads(site.site, site.heads)]
    require_selected(sites, record, selection)
    sized: dict[tuple[str, int, int], list[SiteRecord]] = {}  # towers and stages of other sizes: other tokens
    for kind in kinds_of((site.site for site in sites), prepared.lead):
        for site in sites:
            if site.site.kind == kind:
                sized.setdefault((kind, site.queries, site.keys), []).append(site)
    groups = list(sized.values())
    found = (group for group in groups if any(_meant(*_coarsenings(group, prepared, selection), selection)))
    sites = next(found, groups[0])
    lead, meant_sites = sites[0].site.kind, {site.site for site in sites}
    queries, keys = _coarsenings(sites, prepared, selection)
    meant = _meant(queries, keys, selection)
    if meant.row:
        place, again = queries.places[meant.row[0]], [queries.places[other].start for other in meant.row[1:]]
    elif meant.column:
        place, again = keys.places[meant.column[0]], [keys.places[other].start for other in meant.column[1:]]
    else:
        raise SelectionError(_nowhere(selection, prepared, queries, keys))
    looks_at = [made for made in rows.maps if made.site in meant_sites]
    looked_at_by = [made for made in columns.maps if made.site in meant_sites]
    notes = (*model.notes, *prepared.notes, *record.notes)
    notes += tuple(note_maps(looks_at or looked_at_by, prepared))
    if again:
        notes += (f"token {place.start} is shown; the same text stands at {number_ranges(again)} too",)
    boxes = boxes_of(prepared.pictures)
    if place.id is not None and place.id in boxes:
        notes += (f"{place.label} is {describe_box(boxes[place.id])}, in pixels of the picture",)
    overlays, left_out = lay_over(
        prepared.pictures,
        place,
        (_mean(looks_at), keys.places) if looks_at else None,
        (_mean(looked_at_by), queries.places) if looked_at_by else None,
    )
    top = BESIDE if overlays else TOP
    return TokenView(
        label=place.label,
        position=place.start,
        looks_at=_rank(looks_at, keys.places, top, boxes) if looks_at else None,
        looked_at_by=_rank(looked_at_by, queries.places, top, boxes) if looked_at_by else None,
        title=f"{_which(selection, sites)} · {name_pass(model, prepared)} · {kind_title(lead)}",
        notes=(*notes, *left_out),
        overlays=overlays,
    )


def of_token(result: TokenView) -> Answer:
    """What one token looks at, and who looks at it."""
    return Answer((result,), {"token": result}, lambda: result)


def _coarsenings(
    sites: Sequence[SiteRecord], prepared: ModelInput, selection: Selection
) -> tuple[Coarsening, Coarsening]:
    """The rows and columns of sites of one size: their tokens, or bare positions where these are unknown."""
    site = sites[0]
    queries, keys = prepared.axes.get(site.site.kind, ((), ()))
    if (len(queries), len(keys)) != (site.queries, site.keys):
        queries, keys = range(site.queries), range(site.keys)
    return selection.coarsening(queries), selection.coarsening(keys)


class _Meant(NamedTuple):
    """The places that a token's name fits, the first of them meant; in cross-attention on one axis only."""

    row: list[int]
    column: list[int]


def _meant(queries: Coarsening, keys: Coarsening, selection: Selection) -> _Meant:
    for fits in (fit_exactly, fit_loosely):
        row = fits(queries.places, (selection.token or "").strip())
        if queries.places == keys.places:
            column = row
        else:
            column = [] if row else fits(keys.places, (selection.token or "").strip())
        if row or column:
            return _Meant(row, column)
    return _Meant([], [])


def _only(selection: Selection, column: bool) -> Callable[[Attention], Axes | None]:
    """The row of the token, averaged over its pieces, or its column, summed over them."""

    def axes(attention: Attention) -> Axes | None:
        queries, keys = selection.coarsening(attention.queries), selection.coarsening(attention.keys)
        meant = _meant(queries, keys, selection)
        if not (meant.column if column else meant.row):
            return None
        return (queries, keys.only(meant.column[0])) if column else (queries.only(meant.row[0]), keys)

    return axes


def _nowhere(selection: Selection, prepared: ModelInput, *axes: Coarsening) -> str:
    picture = prepared.picture
    if picture is not None and picture.grid is not None and axes[0].size == len(picture.tokens):
        rows, columns = picture.grid
        special = [place.label for place in axes[0].places if place.special]
        return (
            f"no patch {selection.token!r}: the picture has patches from 0,0 to {rows - 1},{columns - 1}"
            f"{' and ' * bool(special)}{', '.join(special)}"
        )
    places = [place for axis in axes for place in axis.places]
    known = list(dict.fromkeys(place.label for place in places))
    listed = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    last = max(place.stop for place in places) - 1
    near = nearest_name(str(selection.token), known[:MOST_TRIED])
    return f"no token {selection.token!r}: {near}the text has the tokens 0-{last}, which read {listed}"


def _which(selection: Selection, sites: Sequence[SiteRecord]) -> str:
    if selection.head is not None:
        return selection.head.name
    heads = sum(site.heads for site in sites)
    count = f"{len(sites)} layer{'s' * (len(sites) > 1)}"
    where = count if selection.layers is None else layers_of(site.site for site in sites)
    return f"mean of {heads} heads of {where}"


def _rank(maps: Sequence[CoarseMap], places: Sequence[Place], top: int, boxes: Mapping[int, Edges]) -> Bars:
    """The heads' mean, ranked, of the places that any head may look at; what was left aside is not listed."""
    opened: Array = np.concatenate(
        [made.opened.reshape(len(made.opened), -1) for made in maps]
    )  # [head, place]
    size = len(places)
    allowed = np.asarray(opened[:, :size].any(0))
    top = top if allowed.sum() > top + SPARE else size
    return rank_places(_mean(maps)[:size], allowed, places, top, boxes)


def _mean(maps: Sequence[CoarseMap]) -> Array:
    """The mean over all heads of one row or column.  -> [place]"""
    mean: Array = np.concatenate([made.mean.reshape(len(made.mean), -1) for made in maps]).mean(0)
    return mean
