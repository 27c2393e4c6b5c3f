"""Which tokens of a text stand for which parts of its pictures, by what a model and its processor do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from attnscope.attention import Kind
from attnscope.axes.weights import Array
from attnscope.models.regions import Region, find_coordinates, find_moved, find_owners, find_regions
from attnscope.models.regions.coordinates import Coordinates

Prepare = Callable[[Sequence[Array]], Mapping[str, Any]]
"""What a processor makes of pictures, each [row, column, 3] in uint8, field by field."""


class Parts(NamedTuple):
    """On which axis of how many tokens a picture stands, and the region of each token, picture by picture.

    ``padding`` are tokens of what a processor put around the pictures, ``mixed`` those that depend on them
    and have no place.
    """

    kind: Kind
    length: int
    regions: Sequence[Mapping[int, Region]]
    padding: Collection[int] = ()
    mixed: Collection[int] = ()


class _Traced(NamedTuple):
    """The token in which each number of some fields ends, and where in each picture it comes from."""

    tokens: Array  # [number]
    where: Sequence[Coordinates]

    def regions(self, shapes: Sequence[tuple[int, int]]) -> list[dict[int, Region]]:
        """The regions of each picture's tokens; of none where they are not apart."""
        return [
            find_regions(self.tokens, each, *shape) or {}
            for each, shape in zip(self.where, shapes, strict=True)
        ]

    @property
    def owned(self) -> set[int]:
        """The tokens in which any number ends."""
        return {int(number) for number in np.unique(self.tokens) if number >= 0}


def find_parts(
    module: nn.Module,
    inputs: Mapping[str, Any],
    fields: Sequence[str],
    prepare: Prepare,
    shapes: Sequence[tuple[int, int]],
) -> Parts:
    """The parts for which tokens stand, of the pixels in ``fields``, the larger first.

    Tiles and a small picture of the whole may be fields of their own: each that places tokens adds its own.
    Of two towers for the same tokens one may mix them; the other says where they are.
    """
    axis: tuple[Kind, int] | None = None
    read, traced = [], list[_Traced]()
    for field in fields:
        owners = find_owners(module, inputs, field)
        axis = axis or (owners and (owners.kind, owners.length))
        if owners is None or (owners.kind, owners.length) != axis:  # as the times of frames, on no axis
            continue
        read.append(field)
        one = _trace(owners.tokens, field, prepare, shapes)
        taken = {token for other in traced for token in other.owned}
        if one is not None and any(one.regions(shapes)) and not taken & one.owned:
            traced.append(one)
    kind, length = axis or ("decoder", 0)
    if not traced:
        return Parts(kind, length, [{} for _ in shapes])
    whole = _join(traced)
    regions = whole.regions(shapes)
    padding = whole.owned.difference(*regions)
    mixed = find_moved(module, inputs, read) - padding if kind == "decoder" else set()
    return Parts(kind, length, regions, padding, mixed.difference(*regions))


def _trace(tokens: Tensor, field: str, prepare: Prepare, shapes: Sequence[tuple[int, int]]) -> _Traced | None:
    """The numbers of one field; ``None`` where nobody can tell where they come from."""

    def prepare_field(arrays: Sequence[Array]) -> Tensor:
        made: Tensor = prepare(arrays)[field]
        return made

    where = find_coordinates(prepare_field, shapes)
    if where is None or where[0].x.shape != tuple(tokens.shape):
        return None
    flat = [Coordinates(each.x.ravel(), each.y.ravel()) for each in where]
    return _Traced(tokens.cpu().numpy().ravel(), flat)


def _join(traced: Sequence[_Traced]) -> _Traced:
    """The numbers of some fields as one."""
    return _Traced(
        np.concatenate([one.tokens for one in traced]),
        [
            Coordinates(*(np.concatenate(sides) for sides in zip(*each, strict=True)))
            for each in zip(*(one.where for one in traced), strict=True)
        ],
    )
