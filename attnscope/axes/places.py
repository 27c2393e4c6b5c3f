"""Places on an axis, and token text made visible: what a label says, before anybody draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from attnscope.text import visible

if TYPE_CHECKING:
    from attnscope.attention import Axis, Token

Array = NDArray[Any]

PICTURED = 1 << 20
"""The first id of tokens that stand for a part of a picture; no vocabulary has so many."""

SEPARATOR = PICTURED // 2
"""The first id of tokens that stand between those of a picture."""

HEARD = PICTURED << 1
"""The first id of tokens that stand for a moment of a sound."""

READ = " s · "
"""What stands between the time of a moment and what the model reads in it, as in ``0.42 s · h``."""


@dataclass(frozen=True, slots=True)
class Place:
    """One row or column: its text and the tokens ``start`` to ``stop - 1`` that it stands for.

    ``word`` is the (segment, word) that the token is a piece of, ``None`` where it is no piece of any.
    ``pooled`` tells a range of tokens from a token or a word. ``id`` is a single token's number in the
    vocabulary, or that of the first of some neighbours in a picture or a sound, whose numbers follow each
    other; ``count`` is how many tokens or words a row is the mean of.
    """

    text: str
    start: int
    stop: int
    special: bool = False
    word: tuple[int, int] | None = None
    pooled: bool = False
    id: int | None = None
    count: int = 1

    @property
    def pictured(self) -> bool:
        """Whether it stands for a part of a picture."""
        return self.id is not None and PICTURED <= self.id < HEARD

    @property
    def heard(self) -> bool:
        """Whether it stands for a moment of a sound, or for some that follow each other."""
        return self.id is not None and self.id >= HEARD

    @property
    def moment(self) -> str:
        """When it begins, of one that is heard."""
        return self.text.partition(READ)[0].partition("–")[0].removesuffix(" s") + " s"

    @property
    def letters(self) -> str:
        """What the model reads in it, of one that is heard."""
        return self.text.partition(READ)[2] if self.heard else ""

    @property
    def label(self) -> str:
        """The text with nothing invisible in it; a range is led by its tokens' numbers."""
        if not self.pooled or self.heard:
            return visible(self.text)
        numbers = f"{self.start}-{self.stop - 1}" if self.stop > self.start + 1 else f"{self.start}"
        return f"{numbers} {visible(self.text)}" if self.text else numbers


def places(axis: Axis) -> tuple[Place, ...]:
    """The places of an axis of tokens, or of bare positions, one for each."""
    if isinstance(axis, range):
        return tuple(Place(str(position), i, i + 1) for i, position in enumerate(axis))
    return tuple(_place(token, i) for i, token in enumerate(axis))


def _place(token: Token, position: int) -> Place:
    if token.span is not None:
        start, stop = token.span
        return Place(token.text, start, stop, special=token.special, pooled=True, count=stop - start)
    word = None if token.special or token.word is None else (token.segment, token.word)
    return Place(token.text, position, position + 1, special=token.special, word=word, id=token.id)


def join_places(group: Sequence[Place], *, pooled: bool, count: int = 1) -> Place:
    """One place for neighbours; pieces of one word are written together, everything else apart."""
    text = ""
    for before, place in zip((None, *group), group, strict=False):
        glued = before is None or (place.word is not None and place.word == before.word)
        text += place.text if glued else " " + place.text.removeprefix(" ")
    first = group[0]
    heard, pictured = all(place.heard for place in group), all(place.pictured for place in group)
    if heard and len(group) > 1:  # from one moment to another
        last, reads, _ = group[-1].text.partition(READ)
        end = last.rpartition("–")[-1].removesuffix(" s")
        read = "".join(letters for letters, _ in groupby(place.letters for place in group))
        seconds = " s" * bool(reads or last.endswith(" s"))
        text = f"{first.moment.removesuffix(' s')}–{end}{READ + read if read else seconds}"
    return Place(
        text,
        first.start,
        group[-1].stop,
        special=all(place.special for place in group),
        word=first.word if not pooled else None,
        pooled=pooled,
        id=first.id if heard or pictured else None,
        count=count,
    )
