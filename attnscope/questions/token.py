"""What a token looks at, and what looks at it; names of tokens, and the picture or sound behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attnscope.attention import Attention, Head, Site, Token
from attnscope.axes import HEARD, Array, Coarsening, Place
from attnscope.capture import Record, SiteRecord
from attnscope.capture.observers import Axes, CoarseMap, Coarsen, SharedRows
from attnscope.errors import SelectionError
from attnscope.models import Model, ModelInput
from attnscope.models.inputs import Picture
from attnscope.questions import sentences
from attnscope.questions.head import loudness
from attnscope.questions.parts import place_names
from attnscope.questions.selection import Selection
from attnscope.registry import nearest_name
from attnscope.text import read_number
from attnscope.views import Bars, Edges, Overlay, Scene, SceneRegion, TokenView, describe_box, rank_places


def find_place(places: Sequence[Place], wanted: str) -> int:
    """The first place that a name or a number matches. Raises ``SelectionError``."""
    found = fit_exactly(places, wanted.strip()) or fit_loosely(places, wanted.strip())
    if not found:
        known = ", ".join(dict.fromkeys(place.label for place in places[:12]))
        raise SelectionError(f"no token {wanted!r}: the text has {known}{', ...' * (len(places) > 12)}")
    return found[0]


def fit_exactly(places: Sequence[Place], wanted: str) -> list[int]:
    """The places with a number, or with exactly that text or label."""
    number = read_number(wanted)
    if number is not None:
        return [i for i, place in enumerate(places) if place.start <= number < place.stop]
    return [i for i, place in enumerate(places) if wanted in (place.text.strip(), place.label)]


def fit_loosely(places: Sequence[Place], wanted: str) -> list[int]:
    """The places with that text in any case; special tokens also without their brackets."""
    folded = wanted.casefold().removeprefix("patch ")
    return [i for i, place in enumerate(places) if folded in place_names(place)]


MOST = 4  # most pictures drawn side by side


def lay_over(
    pictures: Sequence[Picture],
    place: Place,
    row: tuple[Array, Sequence[Place]] | None,
    column: tuple[Array, Sequence[Place]] | None,
) -> tuple[tuple[Overlay, ...], tuple[str, ...]]:
    """The pictures on an axis, with what a place looks at and what looks at it; a note on omitted ones."""
    made: list[Overlay] = []
    for picture in pictures:
        patches = [token.id for token in picture.tokens if not token.special]
        maps: list[Array | None] = []  # [patch row, patch column] each
        for side in (row, column):
            numbers = {} if side is None else {each.id: number for number, each in enumerate(side[1])}
            chosen = None
            if side is not None and picture.grid is not None and numbers.keys() >= set(patches):
                chosen = side[0][[numbers[id_] for id_ in patches]].reshape(picture.grid)
            maps.append(chosen if chosen is not None and chosen.any() else None)  # text after it: not a patch
        if picture.grid is not None and any(each is not None for each in maps):
            patch = divmod(patches.index(place.id), picture.grid[1]) if place.id in patches else None
            made.append(Overlay(picture.pixels, maps[0], maps[1], patch, picture.name))
    if len(made) <= MOST:
        return tuple(made), ()
    heaviest = np.argsort([-max(map_.sum() for _, map_ in each.maps) for each in made], kind="stable")[:MOST]
    note = f"of {len(made)} pictures, the {MOST} are drawn that have most of its attention"
    return tuple(made[number] for number in sorted(heaviest)), (note,)


def boxes_of(pictures: Sequence[Picture]) -> Mapping[int, Edges]:
    """The part of its picture that each token stands for, by id; frames that share a token share its part."""
    return {id_: edges for picture in pictures for id_, edges in picture.boxes.items()}


BETWEEN = 0.03  # pixels between pictures, as a share of the largest


def pictures_of(prepared: ModelInput) -> tuple[Picture, ...]:
    """The pictures that were read, or the spectrogram of a sound, whose patches are its moments."""
    heard = prepared.heard
    if heard is None or heard.bands is None:
        return prepared.pictures
    shown = heard.bands[::-1, : heard.frames]  # [band, frame], low frequencies at the bottom, loud ones white
    grey = np.rint(255 * loudness(shown)).astype(np.uint8)
    tokens = tuple(Token("", HEARD + frame) for frame in range(heard.frames))
    return (Picture(np.repeat(grey[..., None], 3, -1), (1, heard.frames), tokens),)


def find_scene(prepared: ModelInput) -> Scene | None:
    """All pictures side by side, or the spectrogram; ``None`` for a text, and a sound without bands."""
    pictures = pictures_of(prepared)
    if not pictures:
        return None
    across = int(np.ceil(np.sqrt(len(pictures))))
    tall, wide = (max(picture.pixels.shape[axis] for picture in pictures) for axis in (0, 1))
    gap = max(1, round(BETWEEN * max(tall, wide))) if len(pictures) > 1 else 0
    down = -(-len(pictures) // across)
    whole = np.zeros((down * (tall + gap) - gap, across * (wide + gap) - gap, 3), np.uint8)
    parts: dict[int, SceneRegion] = {}
    for number, picture in enumerate(pictures):
        row, column = divmod(number, across)
        top, left = row * (tall + gap), column * (wide + gap)
        rows, columns = picture.pixels.shape[:2]
        whole[top : top + rows, left : left + columns] = picture.pixels
        for id_, part in _parts(picture):
            parts[id_] = SceneRegion(
                (left + part.left * columns) / whole.shape[1],
                (top + part.top * rows) / whole.shape[0],
                (left + part.right * columns) / whole.shape[1],
                (top + part.bottom * rows) / whole.shape[0],
                part.fine,
            )
    return Scene(whole, parts, heard=prepared.heard is not None)


def _parts(picture: Picture) -> Iterator[tuple[int, SceneRegion]]:
    """The part of each token, by the boxes of the tokens or by the grid."""
    finest = [token.id for token in picture.tokens if not token.special]
    if not picture.boxes and picture.grid is not None:
        rows, columns = picture.grid
        for number, id_ in enumerate(finest):
            row, column = divmod(number, columns)
            yield id_, SceneRegion(column / columns, row / rows, (column + 1) / columns, (row + 1) / rows)
        return
    first, last = np.zeros(2), np.array(picture.pixels.shape[1::-1])  # of what the boxes are in
    if finest:  # which tile it
        boxes = np.array([picture.boxes[id_] for id_ in finest])
        first, last = boxes[:, :2].min(0), boxes[:, 2:].max(0)
    for id_, box in picture.boxes.items():
        shares = (np.array(box).reshape(2, 2) - first) / (last - first)
        left, top, right, bottom = np.clip(shares, 0, 1).ravel().tolist()
        if left < right and top < bottom:
            yield id_, SceneRegion(left, top, right, bottom, not finest or id_ in finest)


TOP, SPARE = 10, 3  # tokens listed on each side, and as many more if those are all
BESIDE = 5  # tokens listed beside a picture that shows them all
MOST_TRIED = 1000  # tokens among which the nearest to an unknown name is searched for


@dataclass(frozen=True, eq=False)
class SeenToken:
    """One token in the sites that have it: its rows and columns in all heads, and the places on both axes."""

    place: Place
    sites: Sequence[SiteRecord]
    looks_at: Sequence[CoarseMap]
    looked_at_by: Sequence[CoarseMap]
    queries: Sequence[Place]
    keys: Sequence[Place]
    pictures: Sequence[Picture]
    title: str
    notes: tuple[str, ...]
    record: Record

    def mean(self, which: str) -> TokenView:
        """Its row and its column, averaged over all heads; ``which`` names them."""
        return self._view(which, self.looks_at, self.looked_at_by)

    def head(self, site: Site, head: int, mass: float | None = None) -> TokenView:
        """The same in one head. With a ``mass``: the smallest set of keys with that share of the row."""
        rows, columns = (
            [made.only(head) for made in maps if made.site == site]
            for maps in (self.looks_at, self.looked_at_by)
        )
        return self._view(Head(site.layer, head).name, rows, columns, mass)

    def _view(
        self, which: str, rows: Sequence[CoarseMap], columns: Sequence[CoarseMap], mass: float | None = None
    ) -> TokenView:
        place, notes, boxes = self.place, self.notes, boxes_of(self.pictures)
        row, column = (_mean(maps) if maps else None for maps in (rows, columns))
        open_row = _opened(rows)[: len(self.keys)] if rows else None
        open_column = _opened(columns)[: len(self.queries)] if columns else None
        if place.id is not None and place.id in boxes:
            notes += (f"{place.label} is {describe_box(boxes[place.id])}, in pixels of the picture",)
        drawn = row
        if mass is not None and row is not None and open_row is not None:
            pictured = bool(self.pictures) and any(key.pictured for key in self.keys)
            among = open_row & np.array([not pictured or key.pictured for key in self.keys])
            open_row, column = hold_mass(row[: len(among)], among, mass), None
            drawn, what = open_row, "patches" if pictured else "keys"
            share = f"{mass:.0%} of the weight on {what}"
            notes += (f"{open_row.sum()} of {among.sum()} {what} are shown: the fewest that hold {share}",)
        across = None if drawn is None else (drawn, self.keys)
        down = None if column is None else (column, self.queries)
        overlays, left_out = lay_over(self.pictures, place, across, down)
        top = BESIDE if overlays else TOP

        def rank(values: Array | None, opened: Array | None, axis: Sequence[Place]) -> Bars | None:
            if values is None or opened is None:
                return None
            most = top if opened.sum() > top + SPARE else len(axis)
            return rank_places(values[: len(axis)], opened, axis, most, boxes)

        return TokenView(
            label=place.label,
            position=place.start,
            looks_at=rank(row, open_row, self.keys),
            looked_at_by=rank(column, open_column, self.queries),
            title=f"{which} · {self.title}",
            notes=(*notes, *left_out),
            overlays=overlays,
        )


def see_token(model: Model, prepared: ModelInput, selection: Selection) -> SeenToken:
    """Run the model once, and keep one token's row and column in every head.

    In cross-attention a token of the decoder has a row, and one of the encoder a column.
    """
    found: dict[Site, _Meant] = {}

    def side(column: bool) -> Callable[[Attention], Axes | None]:
        """The row of the token, averaged over its pieces, or its column, summed over them."""

        def axes(attention: Attention) -> Axes | None:
            queries, keys = selection.coarsening(attention.queries), selection.coarsening(attention.keys)
            meant = found[attention.site] = _meant(queries, keys, selection)
            if not (meant.column if column else meant.row):
                return None
            return (queries, keys.only(meant.column[0])) if column else (queries.only(meant.row[0]), keys)

        return axes

    rows, columns = Coarsen(side(False)), Coarsen(side(True))
    record = model.look(prepared, [SharedRows([rows, columns], selection.heads)])
    sites = sentences.selected_sites(record, selection)
    sized: dict[tuple[str, int, int], list[SiteRecord]] = {}  # towers and stages of other sizes: other tokens
    for kind in sentences.kinds_of((site.site for site in sites), prepared.lead):
        for site in sites:
            if site.site.kind == kind:
                sized.setdefault((kind, site.queries, site.keys), []).append(site)
    groups = [(group, found[group[0].site]) for group in sized.values()]
    sites, meant = next((each for each in groups if each[1].row or each[1].column), groups[0])
    meant_sites = {site.site for site in sites}
    queries, keys = meant.axes
    numbers, axis = (meant.row, queries) if meant.row else (meant.column, keys)
    if not numbers:
        raise SelectionError(_nowhere(selection, prepared, queries, keys))
    place, again = axis.places[numbers[0]], [axis.places[other].start for other in numbers[1:]]
    looks_at, looked_at_by = (
        [made for made in side.maps if made.site in meant_sites] for side in (rows, columns)
    )
    notes = (*model.notes, *prepared.notes, *record.notes)
    notes += (*sentences.note_maps(looks_at or looked_at_by, prepared), *sentences.note_differences(sites))
    if again:
        others = sentences.number_ranges(again)
        notes += (f"token {place.start} is shown; the same text stands at {others} too",)
    title = f"{sentences.name_pass(model, prepared)} · {sentences.kind_title(sites[0].site.kind)}"
    axes = queries.places, keys.places
    return SeenToken(place, sites, looks_at, looked_at_by, *axes, prepared.pictures, title, notes, record)


def one_token(model: Model, prepared: ModelInput, selection: Selection) -> TokenView:
    """Run the model once, and rank one token's row and column, in one head or on average over several."""
    seen = see_token(model, prepared, selection)
    if selection.head is not None:
        return seen.mean(selection.head.name)
    where = f"{len(seen.sites)} layer{'s' * (len(seen.sites) > 1)}"
    if selection.layers is not None:
        where = sentences.layers_of(site.site for site in seen.sites)
    return seen.mean(f"mean of {sum(site.heads for site in seen.sites)} heads of {where}")


def hold_mass(weights: Array, among: Array, mass: float) -> Array:
    """The smallest set of places, ``among`` these, with the share ``mass`` of their weight.  -> [place]"""
    weights = np.where(among, weights, 0).astype(np.float64)
    order = np.argsort(-weights, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]  # the mass of heavier ones
    kept = np.zeros(len(weights), bool)
    kept[order] = before < mass * weights.sum() - 1e-9
    return kept


class _Meant(NamedTuple):
    """The places that a token's name matches, the first one meant; in cross-attention on one axis."""

    axes: tuple[Coarsening, Coarsening]
    row: Sequence[int] = ()
    column: Sequence[int] = ()


def _meant(queries: Coarsening, keys: Coarsening, selection: Selection) -> _Meant:
    wanted = (selection.token or "").strip()
    for fits in (fit_exactly, fit_loosely):
        row = column = fits(queries.places, wanted)
        if queries.places != keys.places:
            column = [] if row else fits(keys.places, wanted)
        if row or column:
            return _Meant((queries, keys), row, column)
    return _Meant((queries, keys))


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


def _opened(maps: Sequence[CoarseMap]) -> Array:
    """The places that any head can attend to, except those left aside.  -> [place]"""
    return np.asarray(np.concatenate([each.opened.reshape(len(each.opened), -1) for each in maps]).any(0))


def _mean(maps: Sequence[CoarseMap]) -> Array:
    """The mean over all heads of one row or column.  -> [place]"""
    return np.asarray(np.concatenate([each.mean.reshape(len(each.mean), -1) for each in maps]).mean(0))
