"""Places on an axis, and token text made visible: the labels of every view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from attnscope.errors import SelectionError
from attnscope.text import visible

if TYPE_CHECKING:
    from attnscope.attention import Axis, Token


Array = NDArray[Any]

PICTURE_ID = 1 << 20  # the first id of tokens that stand for a part of a picture; above any vocabulary's size
SEPARATOR_ID = PICTURE_ID // 2  # the first id of separator tokens of a picture
SOUND_ID = PICTURE_ID << 1  # the first id of tokens that stand for a moment of a sound
GROUP_MARK = " · "  # separates the group of a position, a camera or a column from its own label
TIME_MARK = " s · "  # separates the time of a moment from its text, as in ``0.42 s · h``


@dataclass(frozen=True, slots=True)
class Place:
    """One row or column: its text and the tokens ``start`` to ``stop - 1`` that it stands for.

    ``word`` is the (segment, word) that the token belongs to, or ``None``. ``pooled`` tells a range of
    tokens from a token or a word. ``id`` is the token's number in the vocabulary; for neighbouring parts
    of a picture or a sound, whose ids are consecutive, it is the first one's. ``count`` is how many
    tokens or words the row averages; ``adds`` as in ``Token``.
    """

    text: str
    start: int
    stop: int
    special: bool = False
    word: tuple[int, int] | None = None
    pooled: bool = False
    id: int | None = None
    count: int = 1
    adds: str | None = None

    @property
    def pictured(self) -> bool:
        """Whether it stands for a part of a picture."""
        return self.id is not None and PICTURE_ID <= self.id < SOUND_ID

    @property
    def heard(self) -> bool:
        """Whether it stands for one moment of a sound, or several in a row."""
        return self.id is not None and self.id >= SOUND_ID

    @property
    def moment(self) -> str:
        """When its moment of a sound begins."""
        return self.text.partition(TIME_MARK)[0].partition("–")[0].removesuffix(" s") + " s"

    @property
    def letters(self) -> str:
        """The text read at its moment of a sound."""
        return self.text.partition(TIME_MARK)[2] if self.heard else ""

    @property
    def label(self) -> str:
        """The text with everything visible; a range begins with its token numbers."""
        if not self.pooled or self.heard:
            return visible(self.text)
        numbers = f"{self.start}-{self.stop - 1}" if self.stop > self.start + 1 else f"{self.start}"
        return f"{numbers} {visible(self.text)}" if self.text else numbers


def places(axis: Axis) -> tuple[Place, ...]:
    """One place for each token or bare position of an axis."""
    if isinstance(axis, range):
        return tuple(Place(str(position), i, i + 1) for i, position in enumerate(axis))
    return tuple(_place(token, i) for i, token in enumerate(axis))


def _place(token: Token, position: int) -> Place:
    if token.span is not None:
        start, stop = token.span
        return Place(token.text, start, stop, token.special, pooled=True, count=stop - start, adds=token.adds)
    word = None if token.special or token.word is None else (token.segment, token.word)
    return Place(token.text, position, position + 1, token.special, word, id=token.id, adds=token.adds)


def join_places(group: Sequence[Place], *, pooled: bool, count: int = 1) -> Place:
    """One place for neighbours, spelled as the text is; else words with spaces between them."""
    first = group[0]
    rest = "".join(continue_text(*pair) for pair in pairwise(group))
    text, adds = first.text + rest, None if first.adds is None else first.adds + rest
    heard, pictured = all(place.heard for place in group), all(place.pictured for place in group)
    if heard and len(group) > 1:  # from one moment to another
        last, reads, _ = group[-1].text.partition(TIME_MARK)
        end = last.rpartition("–")[-1].removesuffix(" s")
        read = "".join(letters for letters, _ in groupby(place.letters for place in group))
        seconds = " s" * bool(reads or last.endswith(" s"))
        text = f"{first.moment.removesuffix(' s')}–{end}{TIME_MARK + read if read else seconds}"
    special, word = all(place.special for place in group), None if pooled else first.word
    id = first.id if heard or pictured else None
    return Place(text, first.start, group[-1].stop, special, word, pooled, id, count, adds)


def continue_text(before: Place, place: Place) -> str:
    """How the text of a place goes on behind another: as its source does, or pieces of a word together."""
    if place.adds is not None:
        return place.adds
    glued = place.word is not None and place.word == before.word
    return place.text if glued else " " + place.text.removeprefix(" ")


@dataclass(frozen=True, eq=False)
class Coarsening:
    """How an axis is pooled: the remaining places, and the places that each of them stands for.

    ``parts`` holds, for each remaining place, its words, each as positions on the axis. ``aside`` are the
    positions left out; ``counts`` is how many rows each position averages, 1 unless it was pooled before.
    """

    places: tuple[Place, ...]
    parts: tuple[tuple[tuple[int, ...], ...], ...]
    aside: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def size(self) -> int:
        """How long the axis is."""
        return len(self.counts)

    def averaging(self, dtype: DTypeLike = np.float32) -> Array | None:
        """The matrix that averages queries; ``None`` if there is nothing to do.  -> [place, query]"""
        if len(self.places) == self.size:
            return None
        matrix = np.zeros((len(self.places), self.size), dtype)
        for row, words in enumerate(self.parts):
            total = sum(self.counts[word[0]] for word in words)
            for word in words:
                matrix[row, list(word)] = self.counts[word[0]] / (total * len(word))
        return matrix

    def summing(self, dtype: DTypeLike = np.float32) -> Array | None:
        """The matrix that sums keys, left-out keys as one more place; ``None`` if there is nothing to do.

        -> [place, key], or [place + 1, key] if anything was left out
        """
        if len(self.places) == self.size:
            return None
        matrix = np.zeros((len(self.places) + bool(self.aside), self.size), dtype)
        for row in range(len(self.places)):
            matrix[row, self.tokens(row)] = 1
        if self.aside:
            matrix[-1, list(self.aside)] = 1
        return matrix

    @cached_property
    def partial(self) -> bool:
        """Whether some positions belong to no place."""
        return sum(len(word) for words in self.parts for word in words) < self.size

    @cached_property
    def edges(self) -> tuple[int, ...]:
        """Where each place begins and ends on the axis; empty where words were joined or some left out."""
        if self.partial or any(len(word) > 1 for words in self.parts for word in words):
            return ()
        return (0, *np.cumsum([len(words) for words in self.parts]).tolist())

    def tokens(self, *rows: int) -> list[int]:
        """The positions that some places stand for."""
        return [token for row in rows for word in self.parts[row] for token in word]

    def only(self, row: int) -> Coarsening:
        """One place alone, without the others."""
        return Coarsening((self.places[row],), (self.parts[row],), (), self.counts)


def group_places(
    every: Sequence[Place],
    *,
    words: bool = False,
    hide_special: bool = False,
    zoom: range | None = None,
    most: int | None = None,
    even: bool = False,
) -> Coarsening:
    """How to coarsen an axis: set special tokens aside, join pieces of words, keep at most ``most`` places.

    Of the tokens, those in ``zoom`` are kept, counted from 0; the others are set aside, too.

    Neighbours are pooled in blocks of one size (the last may be smaller), so that labels are easy to
    read; ``even`` makes as many cells as allowed, whose sizes differ by at most one. Neighbouring tokens
    of one segment with one word number are one word. Raises ``SelectionError`` if no token is left.
    """
    if zoom is not None and not (zoom and zoom[-1] < len(every)):
        raise SelectionError(f"tokens are numbered 0-{len(every) - 1}: --zoom names some of them, like 0-9")
    numbers = range(len(every)) if zoom is None else zoom
    shown = [at for at in numbers if not (hide_special and every[at].special)]
    if not shown:
        raise SelectionError("special tokens cannot be hidden: this text has no other tokens")
    runs = groupby(shown, key=lambda at: every[at].word or (-1, at))
    groups = [tuple(run) for _, run in runs] if words else [(at,) for at in shown]
    most = min(most or len(groups), len(groups))
    size = -(-len(groups) // most)
    cut = edges(len(groups), most) if even else (*range(0, len(groups), size), len(groups))
    blocks = [groups[start:stop] for start, stop in pairwise(cut)]
    return Coarsening(
        places=tuple(_join_block(every, block, pooled=size > 1) for block in blocks),
        parts=tuple(map(tuple, blocks)),
        aside=tuple(sorted({*range(len(every))} - {*shown})),
        counts=tuple(place.count for place in every),
    )


@lru_cache(8)  # layers of a model share their axes
def coarsen_axis(axis: Axis, **how: Any) -> Coarsening:
    """How to coarsen an axis of tokens or bare positions; ``how`` as for ``group_places``."""
    return group_places(places(axis), **how)


def edges(length: int, cells: int) -> tuple[int, ...]:
    """Where up to ``cells`` cells of nearly equal size begin and end along an axis of ``length``."""
    count = min(cells, length)
    return tuple(cell * length // count for cell in range(count + 1)) if count else (0,)


def _join_block(every: Sequence[Place], block: Sequence[tuple[int, ...]], *, pooled: bool) -> Place:
    if not pooled and len(block[0]) == 1:
        return every[block[0][0]]
    count = sum(every[word[0]].count for word in block)
    return join_places([every[at] for word in block for at in word], pooled=pooled, count=count)


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights of one head or several, between queries and keys that have labels.

    ``values`` is ``[..., query, key]``, ``allowed`` (bool, the keys left open by mask and causality) has
    the same last two axes and broadcasts over the others.
    """

    values: Array  # [..., query, key]
    allowed: Array  # [..., query, key]
    queries: tuple[Place, ...]
    keys: tuple[Place, ...]

    def __post_init__(self) -> None:
        shape, mask, size = self.values.shape, self.allowed.shape, (len(self.queries), len(self.keys))
        spreads = len(mask) <= len(shape) and all(
            mine in (1, other) for mine, other in zip(mask[::-1], shape[::-1], strict=False)
        )
        if not (shape[-2:] == mask[-2:] == size and spreads):
            raise ValueError(f"weights {shape} and mask {mask} do not fit {size[0]} queries × {size[1]} keys")

    @property
    def square(self) -> bool:
        """Whether rows and columns are the same places, so that there is a diagonal."""
        return self.queries == self.keys


def weights(values: Array, queries: Axis, keys: Axis, allowed: Array | None = None) -> Weights:
    """Label ``values`` ``[..., query, key]`` with tokens or bare positions.

    Without ``allowed`` every key counts as open. Raises ``ValueError`` where sizes disagree.
    """
    values, open_keys = np.asarray(values), np.asarray(True if allowed is None else allowed, bool)
    open_keys = np.broadcast_to(open_keys, (*open_keys.shape[:-2], *values.shape[-2:]))
    return Weights(values, open_keys, places(queries), places(keys))


def coarsen(field: Weights, queries: Coarsening, keys: Coarsening) -> tuple[Weights, float]:
    """The same attention between fewer places, and the share of weight on left-out keys.

    [..., query, key] -> [..., query place, key place]. A cell is open where any part of it was.
    """
    values, opened = field.values, field.allowed.astype(np.float32)
    across, down = keys.summing(values.dtype), queries.averaging(values.dtype)
    if across is not None:
        values, opened = values @ across.T, opened @ across.T
    if down is not None:
        values, opened = down @ values, down @ opened
    return label_map(values, opened > 0, queries, keys)


def fit(field: Weights, rows: int, columns: int, *, even: bool = False) -> Weights:
    """The same attention on at most ``rows`` × ``columns`` cells, in blocks or in ``even`` cells.

    Where rows and columns are the same places, both axes get the same blocks, so that the diagonal stays.
    """
    if field.square:
        rows = columns = min(rows, columns)
    if len(field.queries) <= rows and len(field.keys) <= columns:
        return field
    queries = group_places(field.queries, most=max(rows, 1), even=even)
    keys = group_places(field.keys, most=max(columns, 1), even=even)
    return coarsen(field, queries, keys)[0]


def label_map(values: Array, allowed: Array, queries: Coarsening, keys: Coarsening) -> tuple[Weights, float]:
    """A coarse map with its labels, and the share of weight on left-out keys.

    ``values`` and ``allowed`` are ``[..., query place, key place]`` as ``averaging`` and ``summing`` made
    them; rows are weighted by the number of their tokens.
    """
    rows, shown = range(len(queries.places)), len(keys.places)
    counts = np.array([sum(queries.counts[at] for at in queries.tokens(row)) for row in rows])
    total = float((values * counts[:, None]).sum(dtype=np.float64))
    hidden = float((values[..., shown:] * counts[:, None]).sum(dtype=np.float64))
    field = Weights(values[..., :shown], allowed[..., :shown], queries.places, keys.places)
    return field, hidden / total if total else 0.0


def shrink(
    values: Array,
    allowed: Array,
    rows: int,
    columns: int,
    sizes: tuple[Sequence[int], Sequence[int]] | None = None,
) -> tuple[Array, Array]:
    """Values and mask on at most ``rows`` × ``columns`` equal cells, without labels, for thumbnails.

    [..., query, key] -> [..., row, column]. A cell cut by a border is split in proportion; keys are
    summed, queries averaged; a cell is open where any part of it was. ``sizes`` are the token counts of
    rows and columns, 1 by default.
    """
    queries, keys = sizes or ([1] * values.shape[-2], [1] * values.shape[-1])
    down = _overlap(tuple(queries), rows) * np.asarray(queries, np.float32)  # [row, query]
    down /= down.sum(1, keepdims=True)
    across = _overlap(tuple(keys), columns)  # [column, key]
    small = down @ values.astype(np.float32, copy=False) @ across.T
    return small, down @ allowed.astype(np.float32) @ across.T > 1e-6


@lru_cache(maxsize=8)
def _overlap(sizes: tuple[int, ...], count: int) -> Array:
    """The share of each cell that lies in each of ``wanted`` equal parts.  -> [part, cell]

    Cached, because all layers of a model need the same one: never write into it.
    """
    ends = np.cumsum(sizes)
    cut = np.linspace(0, ends[-1], max(min(len(sizes), count), 1) + 1)
    shared = np.minimum(cut[1:, None], ends) - np.maximum(cut[:-1, None], ends - sizes)
    share: Array = np.clip(shared / sizes, 0, 1).astype(np.float32)
    share.flags.writeable = False
    return share


def find_senses(tokens: Sequence[Token]) -> list[str | None]:
    """ "image 1", "frame 2" or "sound" for each token of one, ``None`` for words.

    Special tokens inside one picture belong to it: they separate its tiles and rows. A single picture has
    no number.
    """
    names = [_name(token) for token in tokens]
    at = [position for position, name in enumerate(names) if name is not None]
    for one, two in pairwise(at):
        if names[one] == names[two] and all(token.special for token in tokens[one + 1 : two]):
            names[one:two] = [names[one]] * (two - one)
    alone = len({name for name in names if name is not None and name.startswith("image")}) == 1
    return ["image" if alone and name and name.startswith("image") else name for name in names]


def _name(token: Token) -> str | None:
    """The name of a token's picture ("image 1" for "thumbnail 1 · 0,0") or sound."""
    if token.id < SEPARATOR_ID:
        return None
    if token.id >= SOUND_ID:
        return "sound"
    word, _, number = token.text.partition(" · ")[0].rpartition(" ")
    return f"image {number}" if word in ("image", "thumbnail") else f"{word} {number}" if word else "image"
