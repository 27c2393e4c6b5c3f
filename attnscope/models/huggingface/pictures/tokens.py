"""The tokens of pictures in a text, named by what they stand for, and the pictures with their tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from attnscope.attention import Token
from attnscope.axes.places import PICTURED, SEPARATOR
from attnscope.models.inputs import Picture
from attnscope.models.regions import Region

if TYPE_CHECKING:
    from PIL.Image import Image

LARGEST = 512
"""Pixels along the longer side of a picture that is drawn under attention, at most."""

Regions = Sequence[Mapping[int, Region]]
"""For each picture, the regions of tokens by their numbers; frames of a video may share tokens."""


@dataclass(frozen=True)
class PictureTokens:
    """Which tokens stand for which parts of pictures; ``word`` is image or frame.

    Of the others, ``padding`` stands for none, and ``mixed`` ones depend on the picture.
    """

    word: str
    regions: Regions
    padding: Collection[int] = ()
    mixed: Collection[int] = ()

    @property
    def placed(self) -> bool:
        """Whether any token stands for a part of a picture alone."""
        return any(self.regions)

    @property
    def shared(self) -> int:
        """How many pictures one token stands for, at most."""
        numbers = [number for regions in self.regions for number in regions]
        return max(map(numbers.count, numbers[:1] + numbers[-1:]), default=1)

    def name(self, number: int) -> str | None:
        """What a token of a part of a picture is called; ``None`` for one of no part."""
        at = [place for place, regions in enumerate(self.regions, 1) if number in regions]
        if not at:
            return None
        region = self.regions[at[0] - 1][number]
        word = "thumbnail" if region.level else self.word
        which = f"{word} {at[0]}" if len(at) == 1 else f"{word}s {at[0]}-{at[-1]}"
        return f"{which} · {region.row},{region.column}"

    def name_in_text(self, tokens: Sequence[Token], stand: Collection[int]) -> tuple[Token, ...]:
        """The tokens of a text, of which those at ``stand`` and of regions have names of their own."""
        named, order = [], sorted(stand)
        for position, token in enumerate(tokens):
            name = self.name(position)
            if name is not None:
                token = Token(name, PICTURED + position, segment=token.segment)
            elif position in self.padding or (position in stand and self.placed):
                name = f"{self._nearest(position)} · {self._describe(position)}"
                token = Token(name, SEPARATOR + position, special=True, segment=token.segment)
            elif position in stand:
                name = self._number(order.index(position), len(order))
                token = Token(name, PICTURED + position, segment=token.segment)
            named.append(token)
        return tuple(named)

    def name_across(self, count: int) -> tuple[Token, ...]:
        """The tokens of pictures that are looked at across a model."""
        names = [self.name(number) for number in range(count)]
        return tuple(
            Token(name, PICTURED + number)
            if name is not None
            else Token(f"{self.word} 1 · {number} of no place", SEPARATOR + number, special=self.placed)
            for number, name in enumerate(names)
        )

    def _describe(self, position: int) -> str:
        """What a token of a picture is that stands for no part of it."""
        if position in self.mixed:
            return f"{sorted(self.mixed).index(position)} of no place"
        return "padding" if position in self.padding else "row end"

    def _nearest(self, position: int) -> str:
        """The picture to which a token belongs that stands between those of regions."""
        before = [
            (max((number for number in regions if number < position), default=-1), place)
            for place, regions in enumerate(self.regions, 1)
        ]
        return f"{self.word} {max(before, key=lambda one: one[0])[1]}"

    def _number(self, number: int, count: int) -> str:
        """The name of a token of which nobody knows the part; pictures have as many tokens each."""
        pictures = len(self.regions)
        if count % pictures:
            return f"{self.word}s 1-{pictures} · {number}"
        each = count // pictures
        return f"{self.word} {number // each + 1} · {number % each}"

    def lay_out(self, images: Sequence[Image], tokens: Sequence[Token]) -> tuple[Picture, ...]:
        """The pictures with their tokens."""
        return tuple(
            _lay_out(image, tokens, regions, f"{self.word} {place}")
            for place, (image, regions) in enumerate(zip(images, self.regions, strict=True), 1)
        )


def _lay_out(image: Image, tokens: Sequence[Token], regions: Mapping[int, Region], name: str) -> Picture:
    """A picture as far as its finest tokens reach, with those tokens row by row."""
    finest = {number: region for number, region in regions.items() if region.level == 0}
    boxes = {tokens[number].id: region.box for number, region in regions.items()}
    rows, columns = (
        1 + max((getattr(region, side) for region in finest.values()), default=-1)
        for side in ("row", "column")
    )
    whole = Picture(np.asarray(image), None, (), boxes, name)
    if not finest or len(finest) != rows * columns:
        return whole
    order = sorted(finest, key=lambda number: (finest[number].row, finest[number].column))
    first, last = finest[order[0]].box, finest[order[-1]].box
    left, top = int(first[0]), int(first[1])
    part = image.crop((left, top, max(round(last[2]), left + 1), max(round(last[3]), top + 1)))
    part.thumbnail((LARGEST, LARGEST))
    return replace(
        whole, pixels=np.asarray(part), grid=(rows, columns), tokens=tuple(tokens[n] for n in order)
    )
