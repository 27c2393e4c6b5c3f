"""What a token attends to, and what attends to it; names of tokens, and their picture or sound."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from attnscope.attention import Attention, Head, Site, Token
from attnscope.axes import SOUND_ID, Array, Place, group_places
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
from attnscope.text import number_ranges, read_number
from attnscope.views import (
    Bars,
    Edges,
    Overlay,
    Scene,
    SceneRegion,
    TokenView,
    describe_box,
    name_weight,
    rank_places,
)


def find_place(places: Sequence[Place], wanted: str) -> int:
    """The first place that a name or a number matches. Raises ``SelectionError``."""
    (found,) = match_places(wanted, places)
    if not found:
        raise SelectionError(_nowhere(wanted, places))
    return found[0]


def match_places(wanted: str, *axes: Sequence[Place]) -> list[list[int]]:
    """The places of each axis with a number, or exactly that text or label.

    If no axis has one, those with that text in any case; special tokens also without their brackets.
    """
    wanted = wanted.strip()
    number, folded = read_number(wanted), wanted.casefold().removeprefix("patch ")

    def is_exact(place: Place) -> bool:
        if number is not None:
            return place.start <= number < place.stop
        return wanted in (place.text.strip(), place.label)

    def is_alike(place: Place) -> bool:
        return folded in place_names(place)

    found = [[at for at, place in enumerate(axis) if is_exact(place)] for axis in axes]
    return found if any(found) else [[at for at, each in enumerate(axis) if is_alike(each)] for axis in axes]


MAX_PICTURES = 4  # drawn side by side

Side: TypeAlias = "tuple[Array, Sequence[Place]] | None"
"""The weights of one token, [place], and the places."""


def overlay_pictures(
    pictures: Sequence[Picture], place: Place, row: Side, column: Side
) -> tuple[tuple[Overlay, ...], tuple[str, ...]]:
    """The pictures on an axis under the attention from and to a place; a note on omitted ones."""
    candidates = (_overlay(picture, place, row, column) for picture in pictures)
    overlays = [each for each in candidates if each is not None]
    if len(overlays) <= MAX_PICTURES:
        return tuple(overlays), ()
    order = np.argsort([-max(map_.sum() for _, map_ in each.maps) for each in overlays], kind="stable")
    note = f"of {len(overlays)} pictures, the {MAX_PICTURES} with most of its attention are drawn"
    return tuple(overlays[number] for number in sorted(order[:MAX_PICTURES])), (note,)


def _overlay(picture: Picture, place: Place, row: Side, column: Side) -> Overlay | None:
    """One picture, if the weights of the row or the column reach its patches."""
    if picture.grid is None:
        return None
    patches = [token.id for token in picture.tokens if not token.special]
    maps = [_patch_map(side, patches, picture.grid) for side in (row, column)]
    if all(each is None for each in maps):
        return None
    patch = divmod(patches.index(place.id), picture.grid[1]) if place.id in patches else None
    return Overlay(picture.pixels, maps[0], maps[1], patch, picture.name)


def _patch_map(side: Side, patches: Sequence[int], grid: tuple[int, int]) -> Array | None:
    """The weights of a picture's patches, if they are on the axis.  -> [patch row, patch column]"""
    numbers = {} if side is None else {each.id: number for number, each in enumerate(side[1])}
    if side is None or not numbers.keys() >= set(patches):
        return None
    weights = side[0][[numbers[id_] for id_ in patches]].reshape(grid)
    return weights if weights.any() else None  # a text after it has none


def boxes_of(pictures: Sequence[Picture]) -> Mapping[int, Edges]:
    """The part of its picture that each token stands for, by id; frames that share a token share its part."""
    return {id_: edges for picture in pictures for id_, edges in picture.boxes.items()}


BETWEEN = 0.03  # pixels between pictures, as a share of the largest


def pictures_of(prepared: ModelInput) -> tuple[Picture, ...]:
    """The pictures that were read, or the spectrogram of a sound, whose patches are its moments."""
    heard = prepared.sound
    if heard is None or heard.bands is None:
        return prepared.pictures
    shown = heard.bands[::-1, : heard.frames]  # [band, frame], low frequencies at the bottom, loud ones white
    grey = np.rint(255 * loudness(shown)).astype(np.uint8)
    tokens = tuple(Token("", SOUND_ID + frame) for frame in range(heard.frames))
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
        corner, size, full = (np.array(2 * two) for two in ((left, top), (columns, rows), whole.shape[1::-1]))
        for id_, (*edges, fine) in _parts(picture):
            parts[id_] = SceneRegion._make((*((corner + np.array(edges) * size) / full).tolist(), fine))
    return Scene(whole, parts, heard=prepared.sound is not None)


def _parts(picture: Picture) -> Iterator[tuple[int, SceneRegion]]:
    """The part of each token, by the boxes of the tokens or by the grid."""
    finest, boxes = [token.id for token in picture.tokens if not token.special], picture.boxes
    if not boxes and picture.grid is not None:
        patches = zip(finest, np.ndindex(picture.grid), strict=True)
        boxes = {id_: (column, row, column + 1, row + 1) for id_, (row, column) in patches}
    first, last = np.zeros(2), np.array(picture.pixels.shape[1::-1])  # of what the boxes are in
    if finest:  # which tile it
        edges = np.array([boxes[id_] for id_ in finest])
        first, last = edges[:, :2].min(0), edges[:, 2:].max(0)
    for id_, box in boxes.items():
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
    bar: str

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
        row, column = _Side.of(rows, self.keys), _Side.of(columns, self.queries)
        across = row and (row.weights, self.keys)
        if place.id is not None and place.id in boxes:
            notes += (f"{place.label} is {describe_box(boxes[place.id])}, in pixels of the picture",)
        if mass is not None and row is not None:
            pictured = bool(self.pictures) and any(key.pictured for key in self.keys)
            among = row.opened & np.array([not pictured or key.pictured for key in self.keys])
            row, column = row._replace(opened=hold_mass(row.weights, among, mass)), None
            across, what = (row.opened, self.keys), "patches" if pictured else "keys"
            share = f"{mass:.0%} of the weight on {what}"
            notes += (f"{row.opened.sum()} of {among.sum()} {what} are shown: the fewest that hold {share}",)
        down = column and (column.weights, self.queries)
        overlays, left_out = overlay_pictures(self.pictures, place, across, down)
        top = BESIDE if overlays else TOP

        def rank(side: _Side | None) -> Bars | None:
            if side is None:
                return None
            most = top if side.opened.sum() > top + SPARE else len(side.places)
            return rank_places(side.weights, side.opened, side.places, most, boxes)

        return TokenView(
            label=place.label,
            position=place.start,
            looks_at=rank(row),
            looked_at_by=rank(column),
            title=f"{which} · {self.title}",
            notes=(*notes, *left_out),
            overlays=overlays,
            bar=self.bar,
        )


class _Side(NamedTuple):
    """A row or a column as the mean over heads, and the places that any of them can attend to."""

    weights: Array
    opened: Array
    places: Sequence[Place]

    @classmethod
    def of(cls, maps: Sequence[CoarseMap], places: Sequence[Place]) -> _Side | None:
        """Of maps with one row or one column each; without what is left aside, which comes last."""
        if not maps:
            return None
        weights, opened = (
            np.concatenate([part.reshape(len(part), -1) for part in parts])[:, : len(places)]  # [head, place]
            for parts in ([each.mean for each in maps], [each.opened for each in maps])
        )
        return cls(np.asarray(weights.mean(0)), np.asarray(opened.any(0)), places)


def see_token(model: Model, prepared: ModelInput, selection: Selection) -> SeenToken:
    """Run the model once, and keep a token's row and column in each head; in cross-attention one of them."""
    wanted, found = str(selection.token), dict[Site, tuple[Axes, list[int], list[int]]]()

    def side(column: bool) -> Callable[[Attention], Axes | None]:
        """The row of the token, averaged over its pieces, or its column, summed over them."""

        def axes(attention: Attention) -> Axes | None:
            queries, keys = selection.coarsening(attention.queries), selection.coarsening(attention.keys)
            if queries.places == keys.places:
                (rows,) = (columns,) = match_places(wanted, queries.places)
            else:
                rows, columns = match_places(wanted, queries.places, keys.places)
                columns = [] if rows else columns
            found[attention.site] = (queries, keys), rows, columns
            if not (columns if column else rows):
                return None
            return (queries, keys.only(columns[0])) if column else (queries.only(rows[0]), keys)

        return axes

    both = Coarsen(side(False)), Coarsen(side(True))
    record = model.observe(prepared, [SharedRows(both, selection.heads)])
    sites = sentences.selected_sites(record, selection)
    kinds = sentences.kinds_of((site.site for site in sites), prepared.first_kind)
    sites.sort(key=lambda site: kinds.index(site.site.kind))
    # towers and stages of other sizes have other tokens
    groups = [*sentences.group_by(sites, lambda site: (site.site.kind, site.queries, site.keys)).values()]
    sites = next((each for each in groups if any(found[each[0].site][1:])), groups[0])
    (queries, keys), rows, columns = found[sites[0].site]
    if not (rows or columns):
        raise SelectionError(_nowhere(wanted, queries.places, keys.places, picture=prepared.picture))
    place, *again = ((queries if rows else keys).places[at] for at in rows or columns)
    looks_at, looked_at_by = (
        [made for made in coarse.maps if made.site in {site.site for site in sites}] for coarse in both
    )
    notes = (*model.notes, *prepared.notes, *record.notes)
    notes += (*sentences.note_maps(looks_at or looked_at_by, prepared), *sentences.note_differences(sites))
    if again:
        others = number_ranges(other.start for other in again)
        notes += (f"token {place.start} is shown; the same text is also at {others}",)
    kind, head = sites[0].site.kind, selection.head
    mixing = sentences.kind_title(kind) if head is None else sentences.site_title(sites[0], head.head)
    title = f"{sentences.name_pass(model, prepared)} · {mixing}"
    axes = queries.places, keys.places
    bar = "share of |A|" if kind == "mixer" else name_weight(model.weighting)
    return SeenToken(
        place, sites, looks_at, looked_at_by, *axes, prepared.pictures, title, notes, record, bar
    )


def one_token(model: Model, prepared: ModelInput, selection: Selection) -> TokenView:
    """Run the model once, and rank one token's row and column, in one head or on average over several."""
    seen = see_token(model, prepared, selection)
    if selection.head is not None:
        return seen.mean(selection.head.name)
    where = f"{len(seen.sites)} layer{'s' * (len(seen.sites) > 1)}"
    if selection.layers is not None:
        where = sentences.layers_of(seen.sites)
    return seen.mean(f"average over {sum(site.heads for site in seen.sites)} heads of {where}")


def hold_mass(weights: Array, among: Array, mass: float) -> Array:
    """The smallest set of places, ``among`` these, with the share ``mass`` of their weight.  -> [place]"""
    weights = np.where(among, weights, 0).astype(np.float64)
    order = np.argsort(-weights, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]  # the mass of heavier ones
    kept = np.zeros(len(weights), bool)
    kept[order] = before < mass * weights.sum() - 1e-9
    return kept


def _nowhere(wanted: str, *axes: Sequence[Place], picture: Picture | None = None) -> str:
    if picture is not None and picture.grid is not None and len(axes[0]) == len(picture.tokens):
        rows, columns = picture.grid
        special = ", ".join(place.label for place in axes[0] if place.special)
        there = " and ".join(filter(None, (f"patches from 0,0 to {rows - 1},{columns - 1}", special)))
        return f"no patch {wanted!r}: the picture has {there}"
    places = [place for axis in axes for place in axis]
    for word in (word for axis in axes for word in group_places(axis, words=True).places):
        if any(match_places(wanted, [word])):
            return (
                f"{wanted!r} is {word.stop - word.start} tokens: name one of them, or join them with --words"
            )
    known = list(dict.fromkeys(place.label for place in places))
    near, last = nearest_name(wanted, known[:MOST_TRIED]), max(place.stop for place in places) - 1
    listed = sentences.list_some(known)
    return f"no token {wanted!r}: {near}the text has the tokens 0-{last}, which read {listed}"
