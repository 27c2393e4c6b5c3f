"""The ranked attention of one token, and its attention to and from the patches of a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np

from attnscope.axes import Array, Place, Weights
from attnscope.errors import SelectionError
from attnscope.records import Meaning, Notes, derived, plain, record

Patches = Annotated[Array | None, Meaning("a weight a patch", shape=list[list[float]] | None)]


@record("on the patches of an image", eq=False)
class Overlay:
    """What a place looks at in a picture, and which patches look at it.

    ``looks_at`` and ``looked_at_by`` hold a weight per patch, ``[patch row, patch column]``; either is
    ``None`` if there is no such row or column. ``patch`` is the place itself, ``None`` for a special
    token; ``name`` tells several pictures apart, ``verbs`` say what the two maps are.
    """

    pixels: Array  # [row, column, 3], uint8
    looks_at: Patches  # [patch row, patch column]
    looked_at_by: Patches  # [patch row, patch column]
    patch: tuple[int, int] | None = None
    name: Annotated[str, Meaning("which", name="picture")] = ""
    verbs: tuple[str, str] = ("looks at", "is looked at by")

    @property
    def maps(self) -> tuple[tuple[str, Array], ...]:
        """Each existing map, with the words that introduce it."""
        both = zip(self.verbs, (self.looks_at, self.looked_at_by), strict=True)
        return tuple((verb, weights) for verb, weights in both if weights is not None)


class SceneRegion(NamedTuple):
    """The part of a picture behind a token, in shares of its size; ``fine`` unless finer parts overlap it."""

    left: float
    top: float
    right: float
    bottom: float
    fine: bool = True


@dataclass(frozen=True, eq=False)
class Scene:
    """What a model saw or heard. ``parts`` are by token id; empty if unknown.

    ``heard`` marks a spectrogram, low frequencies at the bottom.
    """

    pixels: Array  # [row, column, 3], uint8
    parts: Mapping[int, SceneRegion] = field(default_factory=dict)
    heard: bool = False

    def ids_of(self, place: Place) -> tuple[int, ...]:
        """The token ids of a place (one or several neighbours) that have a part."""
        if place.id is None:
            return ()
        ids = range(place.id, place.id + place.stop - place.start)
        return tuple(id_ for id_ in ids if id_ in self.parts)


Edges: TypeAlias = tuple[float, float, float, float]

FULL_BARS = (0.1, 0.25, 0.5, 1.0)  # possible weights of a full bar
NOTHING = 0.001  # tokens with less weight are not listed by name

NOWHERE: Mapping[int, Edges] = MappingProxyType({})


def describe_box(box: Edges) -> str:
    """A part of a picture in words: from where to where across, then down."""
    left, top, right, bottom = (round(edge) for edge in box)
    return f"{left}-{right} across, {top}-{bottom} down"


@record("a token and its weight", slots=True)
class Bar:
    """One ranked token: its label, its number in the text, and the weight between it and the pinned token.

    ``box`` is its part of a picture: left, top, right and bottom in pixels.
    """

    label: Annotated[str, Meaning("its label", name="text")]
    position: Annotated[int, Meaning("its number")]
    weight: Annotated[float, Meaning("its weight")]
    box: Annotated[
        Edges | None,
        Meaning(
            "left, top, right and bottom of a part of a picture, in its pixels",
            optional=True,
            shape=list[float],
            plain=lambda box: [round(edge, 1) for edge in box],
        ),
    ] = None

    @property
    def where(self) -> str:
        """The part of a picture in words; empty for a token without one."""
        return "" if self.box is None else describe_box(self.box)


@dataclass(frozen=True, slots=True)
class Bars:
    """Ranked tokens, heaviest first; ``more`` unmasked ones follow, each at most ``most``."""

    bars: tuple[Bar, ...]
    more: int = 0
    most: float = 0.0

    @property
    def rest(self) -> str:
        """The note on those that are not shown."""
        most = f"at most {self.most:.2g}" if self.most >= NOTHING else f"less than {NOTHING}"
        return f"and {self.more} more, each {most}" if self.more else ""


def _ranked(side: str) -> Meaning:
    return Meaning(
        f"the heaviest of its {side}; null where it has none",
        shape=tuple[Bar, ...] | None,
        plain=lambda ranked: None if ranked is None else plain(ranked.bars),
    )


@record("the token")
class TokenLabel:
    """A token's label, and its position."""

    text: Annotated[str, Meaning("its label")]
    position: Annotated[int, Meaning("its number")]


@record("one token (--token)", "show", eq=False)
class TokenView:
    """One token's row (``looks_at``) and column (``looked_at_by``) of a head, ranked.

    Either is ``None`` if the token has no row or no column, as in cross-attention. ``overlays`` show the
    same on a picture, for tokens that are patches. ``verbs`` say what row and column are. ``full`` is the
    weight of a full bar, if it is not chosen from the lists.
    """

    label: str
    position: int
    looks_at: Annotated[Bars | None, _ranked("row")]
    looked_at_by: Annotated[Bars | None, _ranked("column")]
    title: Annotated[str, Meaning("the head, or those that it is the mean of", name="which")] = ""
    subtitle: str = ""
    notes: Notes = ()
    overlays: tuple[Overlay, ...] = ()
    verbs: tuple[str, str] = ("looks at", "is looked at by")
    full: float | None = None

    @property
    def lists(self) -> tuple[tuple[str, Bars], ...]:
        """Each existing list, with the words that introduce it."""
        both = zip(self.verbs, (self.looks_at, self.looked_at_by), strict=True)
        return tuple((verb, bars) for verb, bars in both if bars is not None)

    @derived("which it is")
    def token(self) -> TokenLabel:
        """The token in view."""
        return TokenLabel(self.label, self.position)

    @derived("with images: one each, of many those that have most", optional=True, shape=tuple[Overlay, ...])
    def patches(self) -> tuple[Overlay, ...] | None:
        """The overlays, if there are any."""
        return self.overlays or None

    @property
    def full_bar(self) -> float:
        """The weight of a full bar in both lists: the smallest round one above all of them."""
        if self.full is not None:
            return self.full
        heaviest = max((bar.weight for _, bars in self.lists for bar in bars.bars), default=0.0)
        return next((step for step in FULL_BARS if heaviest <= step), max(heaviest, 1.0))


def token_view(
    weights: Weights, *, query: int | None, key: int | None, top: int = 10, **words: Any
) -> TokenView:
    """Rank row ``query`` and column ``key`` of one head ``[query, key]``, or of a mean over heads.

    Both are numbers of tokens in the text (a word is found by any of its tokens). In self-attention they
    are one token; in cross-attention one of them is ``None``. Masked cells are left out. ``words`` are title
    and notes. Raises ``SelectionError`` for a token that is not on the axis.
    """
    if weights.values.ndim != 2:
        raise ValueError(f"a focus shows one map [query, key], not {weights.values.shape}")
    if query is None and key is None:
        raise ValueError("a focus needs a query or a key")
    looks_at = looked_at_by = None
    values, allowed = weights.values, weights.allowed
    if key is not None:
        at = place_of(weights.keys, key)
        place = weights.keys[at]
        looked_at_by = rank_places(values[:, at], allowed[:, at], weights.queries, top)
    if query is not None:
        at = place_of(weights.queries, query)
        place = weights.queries[at]
        looks_at = rank_places(values[at], allowed[at], weights.keys, top)
    return TokenView(place.label, place.start, looks_at, looked_at_by, **words)


def place_of(axis: Sequence[Place], position: int) -> int:
    """The place that a token belongs to. Raises ``SelectionError`` for a token that is not there."""
    for index, place in enumerate(axis):
        if place.start <= position < place.stop:
            return index
    numbers = f"tokens {axis[0].start}-{axis[-1].stop - 1}" if axis else "no tokens"
    raise SelectionError(f"no token {position} here: this picture shows {numbers}")


def rank_places(
    values: Array, allowed: Array, axis: Sequence[Place], top: int, boxes: Mapping[int, Edges] = NOWHERE
) -> Bars:
    """The ``top`` heaviest finite unmasked places, ties in text order; ``boxes`` by id."""
    order = [i for i in np.argsort(-values, kind="stable") if allowed[i] and np.isfinite(values[i])]
    bars = tuple(
        Bar(place.label, place.start, float(values[i]), None if place.id is None else boxes.get(place.id))
        for i, place in ((i, axis[i]) for i in order[:top])
    )
    rest = order[top:]
    return Bars(bars, len(rest), float(values[rest[0]]) if rest else 0.0)
