"""How attention lies in a file of arrays: which array is which layer, and what its rows and columns are.

Every layer is one array ``[head, query, key]`` named by its kind and number, ``encoder.05``. Where the
mask closed anything, ``encoder.05.allowed`` (bool, ``[head or 1, query, key]``) tells what it left open.
One description in JSON says the rest::

    {"format": 1, "title": ..., "notes": [...],
     "axes": [{"queries": [place, ...], "keys": [place, ...]}, ...],
     "layers": [{"kind": "encoder", "layer": 5, "array": "encoder.05", "axes": 0}, ...]}

A place is ``[text, first token, token after its last, special, word, id]``: ``word`` is ``[segment,
number]`` for a piece of a word, ``id`` a single token's number in the vocabulary, both else null.
Layers with the same labels share one entry of ``axes``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from attnscope.axes.places import Place
from attnscope.axes.weights import Weights

Layers = Iterable[tuple[int, Weights]]

FORMAT = 1
LONGEST = 1 << 20
"""Rows or columns that a file may have, and tokens."""

FARTHEST = 1 << 31
"""The largest number of a token, or in the vocabulary, that may stand in a description."""

DESCRIPTION = "attnscope"
"""The name of the description among the arrays, or in a file's metadata."""


@dataclass(eq=False)
class Description:
    """What a file says about its arrays; it grows while layers are written."""

    title: str = ""
    notes: tuple[str, ...] = ()
    axes: dict[tuple[tuple[Place, ...], tuple[Place, ...]], int] = field(default_factory=dict)
    layers: list[dict[str, Any]] = field(default_factory=list)

    def add(self, kind: str, layer: int, weights: Weights) -> str:
        """Describe one layer; return the name of its array."""
        name = f"{kind}.{layer:02}"
        axes = self.axes.setdefault((weights.queries, weights.keys), len(self.axes))
        self.layers.append({"kind": kind, "layer": layer, "array": name, "axes": axes})
        return name

    def content(self) -> dict[str, Any]:
        """The description as it stands in a file."""
        axes = [{"queries": _store_axis(queries), "keys": _store_axis(keys)} for queries, keys in self.axes]
        notes = list(self.notes)
        return {"format": FORMAT, "title": self.title, "notes": notes, "axes": axes, "layers": self.layers}

    def text(self) -> str:
        """The description as JSON."""
        return json.dumps(self.content(), ensure_ascii=False)

    def tokens(self) -> list[str] | None:
        """The texts of the keys, where all layers have the same."""
        keys = {keys for _, keys in self.axes}
        return [place.text for place in next(iter(keys))] if len(keys) == 1 else None


def each_layer(kinds: Mapping[str, Layers]) -> Iterator[tuple[str, int, Weights]]:
    """All layers of all kinds; asks for one at a time."""
    for kind, layers in kinds.items():
        for layer, weights in layers:
            if weights.values.ndim != 3:
                raise ValueError(f"a file holds heads [head, query, key], not {weights.values.shape}")
            yield kind, layer, weights


def _store_axis(axis: tuple[Place, ...]) -> list[list[Any]]:
    return [
        [place.text, place.start, place.stop, place.special, place.word and list(place.word), place.id]
        for place in axis
    ]


def restore_axis(stored: Any) -> tuple[Place, ...]:
    """The places of an axis from a description. Raises ``ValueError`` where it is none."""
    if not isinstance(stored, list) or len(stored) > LONGEST:
        raise ValueError(f"an axis is a list of at most {LONGEST:,} places")
    return tuple(_restore_place(place) for place in stored)


def _restore_place(stored: Any) -> Place:
    match stored:
        case [str(text), int(start), int(stop), bool(special), None | [int(), int()] as word, number]:
            if 0 <= start < stop <= FARTHEST and (number is None or is_number(number)):
                pooled = word is None and stop - start > 1  # pieces merged into a word still name it
                return Place(text, start, stop, special, word and (word[0], word[1]), pooled, number)
    raise ValueError(f"a row or column is described by {str(stored)[:60]!r}, not by its text and tokens")


def is_number(value: Any, most: int = FARTHEST) -> bool:
    """Whether a value of JSON is a whole number up to ``most``, with either sign."""
    return type(value) is int and -most <= value <= most
