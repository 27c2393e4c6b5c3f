"""What a page holds, as plain data: labels, thumbnails, what is said of each head; and the heads' weights."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attnscope.attention import Head
from attnscope.axes.places import Place
from attnscope.axes.weights import Weights, shrink
from attnscope.render.overlay import DIMMED, GLOW
from attnscope.render.page.encode import Code, pack
from attnscope.render.page.picture import data_uri
from attnscope.text import clean, round_short
from attnscope.views import Described
from attnscope.views.scene import Scene

THUMBNAIL = 32
"""Rows and columns of a thumbnail in the overview."""

Layers = Iterable[tuple[int, Weights]]
Words = Mapping[tuple[str, int], Sequence[Described]]
"""By kind and layer, what is said of each head."""


@dataclass
class Contents:
    """Gathers layer by layer what the page holds.

    ``scene`` is the picture or the sound that some tokens stand for.
    ``heads`` are the packed weights by the ids of their elements, ``columns`` how many keys each has,
    ``axes`` the labels of queries and keys that occur and the number of each pair.
    """

    code: Code
    described: Words
    proofs: Mapping[tuple[str, int], str]
    scene: Scene | None = None
    heads: dict[str, str] = field(default_factory=dict)
    columns: dict[str, int] = field(default_factory=dict)
    axes: dict[tuple[tuple[Place, ...], tuple[Place, ...]], int] = field(default_factory=dict)

    @property
    def meanings(self) -> dict[str, str]:
        """What each measure means that a head was measured with."""
        heads = (head for heads in self.described.values() for head in heads)
        return {each.name: clean(each.meaning) for head in heads for each in head.readings}

    def add(self, kinds: Mapping[str, Layers]) -> list[dict[str, Any]]:
        """Describe the layers of each kind; each is let go before the next one is asked for."""
        return [
            {"kind": kind, "layers": list(self._layers(kind, number, layers))}
            for number, (kind, layers) in enumerate(kinds.items())
        ]

    def labels(self) -> list[dict[str, Any]]:
        """The axes as plain data."""
        return [
            {
                "queries": self._labels(queries),
                "keys": self._labels(keys),
                "square": queries == keys,
                "words": self.scene is not None and any(map(self._spoken, keys)),
            }
            for queries, keys in self.axes
        ]

    def _labels(self, places: Sequence[Place]) -> list[list[Any]]:
        """Text, number, whether it is written together with what stands before; its parts of the scene."""
        numbers = {id_: number for number, id_ in enumerate(self.scene.parts)} if self.scene else {}

        def parts_of(place: Place) -> list[int] | None:
            ids = self.scene.ids_of(place) if self.scene else ()
            return [numbers[id_] for id_ in ids] if ids or not place.heard else None  # padding has none

        return [
            [
                place.label,
                place.start,
                int(before is not None and None is not place.word == before.word),
                *([parts_of(place)] if self.scene else []),
            ]
            for before, place in zip((None, *places), places, strict=False)
        ]

    def _spoken(self, place: Place) -> bool:
        """Whether a place is one of words that stand beside those of a picture."""
        return self.scene is not None and not place.special and not self.scene.ids_of(place)

    def picture(self) -> dict[str, Any] | None:
        """The scene as plain data: of each part left, top, right, bottom, and whether it is fine."""
        if self.scene is None:
            return None
        uri, across, down = data_uri(self.scene)
        parts = [
            [*(round(edge, 4) for edge in part[:4]), int(part.fine)] for part in self.scene.parts.values()
        ]
        light = {"dimmed": DIMMED, "glow": GLOW}
        return {"image": uri, "size": [across, down], "heard": self.scene.heard, "parts": parts, **light}

    def _layers(self, kind: str, place: int, layers: Layers) -> Iterator[dict[str, Any]]:
        for number, weights in layers:
            if weights.values.ndim != 3:
                raise ValueError(f"a page shows heads [head, query, key], not {weights.values.shape}")
            codes = self.code.bytes_of(weights.values, np.broadcast_to(weights.allowed, weights.values.shape))
            named = {f"w{place}-{number}-{head}": one for head, one in enumerate(codes)}
            self.heads |= {name: pack(one) for name, one in named.items()}
            columns: int = codes.shape[-1]
            self.columns |= dict.fromkeys(named, columns)
            yield {
                "layer": number,
                "heads": len(codes),
                "axes": self.axes.setdefault((weights.queries, weights.keys), len(self.axes)),
                "small": _thumbnails(weights, self.code),
                "about": [_describe(head) for head in self.described.get((kind, number), ())],
                "proof": clean(self.proofs.get((kind, number), "")),
            }


def list_worth(worth: Sequence[Head], contents: Contents, kinds: Sequence[str]) -> list[list[int]]:
    """Kind, layer and head of the heads to be looked at first, of those that the page has."""
    places = [(kinds.index(head.kind or kinds[0]), head.layer, head.head) for head in worth]
    return [[*place] for place in places if "w{}-{}-{}".format(*place) in contents.heads]


def _thumbnails(weights: Weights, code: Code) -> list[Any]:
    values = np.where(np.isfinite(weights.values), weights.values, 0)
    small, allowed = shrink(values, weights.allowed, THUMBNAIL, THUMBNAIL)
    small = np.clip(small, 0, code.top)  # groups of keys may sum to more than the largest weight
    thumbnails = code.bytes_of(small, np.broadcast_to(allowed, small.shape))
    return [*small.shape[1:], base64.b64encode(thumbnails.tobytes()).decode()]


def _describe(head: Described) -> list[Any]:
    readings = [
        [
            each.name,
            f"{each.value:.2f}",
            "" if each.baseline is None else round_short(each.baseline),
            "" if each.unit == "share" else each.unit,
        ]
        for each in head.readings
    ]
    return [clean(head.role), clean(head.sentence), readings]
