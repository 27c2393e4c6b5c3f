"""Weights from a file, looked at as those of a model are: without any model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from attnscope.attention import Attention, Axis, Head, HeldRows, Kind, Site, Token
from attnscope.axes import Array, Place, Weights
from attnscope.capture import Observer, Record, SiteRecord
from attnscope.errors import SelectionError
from attnscope.fused.fused_pass import FusedPass
from attnscope.models import ModelInput
from attnscope.models.kept.file import FileModel
from attnscope.storage.arrays import read
from attnscope.text import Untrusted


class WeightsFile(FileModel):
    """A file of weights in a model's place: observers see its layers as if they had just been computed.

    Raises what ``attnscope.storage.arrays.read`` raises. Where a file holds no ids of its tokens, those of
    one text count as the same token.
    """

    what = "a file of weights"

    def __init__(self, path: str | Path) -> None:
        found = read(path)
        notes = [str(note) for note in found.notes]
        places = [place for layers in found.kinds.values() for _, field in layers for place in field.keys]
        if any(place.stop - place.start > 1 for place in places):
            notes.append("the figures count the rows and columns that the file has")
        super().__init__(str(path), notes)
        self.layers = list(_layers(found.kinds, Path(path).suffix.lower().removeprefix(".")))
        self._title = str(found.title or Untrusted(Path(path).stem))

    @property
    def title(self) -> str:
        """What the file says that it came from, or its name."""
        return self._title

    @property
    def prepared(self) -> ModelInput:
        """The text that the weights belong to, as far as the file tells."""
        axes = {layer.site.kind: (layer.queries, layer.keys) for layer in reversed(self.layers)}
        tokens = self.layers[0].keys
        return ModelInput({}, axes, tokens if isinstance(tokens, tuple) else ())

    def weights(self, head: Head) -> Array:
        """The rows of one head as the file has them.  -> [query, key]"""
        for layer in self.layers:
            if layer.site.layer == head.layer and head.kind in (None, layer.site.kind):
                found: Array = layer.weights([head.head])[0, 0].numpy()
                return found
        raise SelectionError(f"no head {head} in {self.name}")

    def run(
        self, prepared: ModelInput, observers: Sequence[Observer], fused: FusedPass | None = None
    ) -> Record:
        """Show every layer to every observer."""
        record = Record()
        for layer in self.layers:
            record.sites.append(SiteRecord.of(layer, 0, None))
            for observer in observers:
                observer.observe(layer)
        return record


def _layers(kinds: Mapping[str, Sequence[tuple[int, Weights]]], form: str) -> Iterator[Attention]:
    axes: dict[tuple[Place, ...], Axis] = {}  # layers share theirs, which measures look for
    known: tuple[Kind, ...] = ("encoder", "decoder", "cross")
    for kind in known:
        for layer, field in sorted(kinds.get(kind, ()), key=lambda pair: pair[0]):
            weights = torch.from_numpy(np.ascontiguousarray(field.values))[None]  # [1, head, query, key]
            allowed = torch.from_numpy(np.ascontiguousarray(field.allowed))
            queries, keys = (axes.setdefault(places, _axis(places)) for places in (field.queries, field.keys))
            heads = weights.shape[1]
            yield Attention(
                site=Site(f"{kind} layer {layer}", 0, kind, layer),
                source="file",
                kernel=form,
                batch=1,
                heads=heads,
                key_heads=heads,
                queries=queries,
                keys=keys,
                offset=None if kind == "cross" else 0,
                dtype=weights.dtype,
                read=HeldRows(weights, allowed.reshape(-1, *allowed.shape[-2:])[None]),
            )


def _axis(places: tuple[Place, ...]) -> Axis:
    """The tokens of an axis; bare positions where the labels are nothing but their numbers.

    A special token belongs to the segment of the token before it, as a separator does.
    """
    if [place.text for place in places] == [str(i) for i in range(len(places))]:
        return range(len(places))
    numbers: dict[str, int] = {}
    tokens, segment = [], 0
    pooled = any(place.pooled for place in places)  # then cells of a single token have their numbers, too
    for place in places:
        segment, word = place.word or (segment, None)
        number = numbers.setdefault(place.text, -1 - len(numbers)) if place.id is None else place.id
        span = (place.start, place.stop) if pooled else None
        tokens.append(Token(place.text, number, place.special, segment, word, span))
    return tuple(tokens)
