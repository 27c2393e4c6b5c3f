"""A file in place of a model: commands read its pass as if the model had run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from attnscope.attention import Attention, Axis, Head, HeldRows, Kind, Site, Token, tensor_of
from attnscope.axes import Array, Place, Weights
from attnscope.capture.record import Record, SiteRecord
from attnscope.errors import InputError, ModelError, SelectionError
from attnscope.figures import Weigh
from attnscope.fused.request import SHORTEST
from attnscope.measures import DEFAULT, MEASURES, HeadFigures
from attnscope.models.inputs import Heard, ModelInput, Objective, Picture
from attnscope.models.labels import read_labels, relabel, tokens_of
from attnscope.models.model import Model
from attnscope.storage.arrays import read_weights
from attnscope.storage.trace import Trace
from attnscope.storage.trace.layout import TraceDescription
from attnscope.storage.trace.replay import replay
from attnscope.text import Untrusted, clean, visible

if TYPE_CHECKING:
    from torch import nn

    from attnscope.capture import Observer
    from attnscope.fused.fused_pass import FusedPass


class FileModel(Model):
    """One pass held by a file. ``prepared`` is its text; it reads no other text and predicts nothing."""

    what: ClassVar[str]

    def __init__(self, name: str, notes: Sequence[str] = ()) -> None:
        self.name, self.positions, self.notes = name, None, tuple(notes)

    def __getattr__(self, name: str) -> Any:
        """A module without weights, made on first use: reading a file needs no torch."""
        if name != "module":
            raise AttributeError(f"{self.what} has no {name}")
        from torch import nn

        self.module: nn.Module = nn.Module()
        return self.module

    @contextmanager
    def threads(self, prepared: ModelInput) -> Iterator[None]:
        """All threads: there are no small passes in a row."""
        yield

    @abstractmethod
    def weights(self, head: Head) -> Array:
        """All rows of one head, the mean over a batch.  -> [query, key]"""

    @property
    @abstractmethod
    def prepared(self) -> ModelInput:
        """The text that was read, as far as the file has it."""

    def prepare(
        self, text: str, second: str | None = None, *, max_tokens: int | None = None, truncate: bool = False
    ) -> ModelInput:
        """Raises ``InputError``: a file reads no text; ask for ``prepared``."""
        raise InputError(f"{self.name} is {self.what} and reads no text")

    @property
    def objective(self) -> Objective:
        """Raises ``ModelError``: nothing is predicted without a model."""
        raise ModelError(f"{self.name} is {self.what} and predicts nothing: give the model itself")


class TracedModel(FileModel):
    """A trace in place of a model: ``prepared`` is its text; observers see the model's attention."""

    what = "a trace"

    def __init__(
        self, trace: Trace, file: str | None = None, since: str | None = None, weigh: Weigh = "raw"
    ) -> None:
        self.trace, self.since, self.weigh = trace, since, weigh
        description = trace.description
        notes = tuple(map(clean, description.model_notes))
        if file is not None:
            kept, version = clean(description.kept), clean(description.attnscope)
            notes += (f"from {file}: a trace of {kept}, attnscope {version}",)
        super().__init__(clean(description.model.name), notes)

    @property
    def title(self) -> str:
        """The model's name, its weighing, and when the pass ran if that should be shown."""
        weighed = self.trace.description.weighed
        parts = (super().title, weighed and visible(weighed), self.since)
        return " · ".join(filter(None, parts))

    def weights(self, head: Head) -> Array:
        """All rows of one head, computed in NumPy.  -> [query, key]"""
        return self.trace.weights(head)

    @cached_property
    def prepared(self) -> ModelInput:
        """The text that was read."""
        return prepare_traced(self.trace)


def look_at(prepared: ModelInput, trace: Trace) -> ModelInput:
    """An input with its kept pass: nothing runs again."""
    kept = prepare_traced(trace)
    return replace(prepared, replay=kept.replay, figures=kept.figures, words=kept.words, arrays=kept.arrays)


def prepare_traced(trace: Trace) -> ModelInput:
    """The input with its kept pass: no model runs again."""
    description, sound = trace.description, trace.description.heard

    def tokens(number: int) -> tuple[Token, ...]:
        axis = trace.axis(number)
        return () if isinstance(axis, range) else axis

    pictures = tuple(
        Picture(
            trace.arrays[each.array],
            each.grid,
            tokens(each.tokens),
            {box.id: box.edges for box in each.boxes},
            clean(each.name),
        )
        for each in description.images
    )
    heard = None
    if sound is not None:
        bands = None if sound.array is None else trace.arrays[sound.array]
        heard = Heard(sound.seconds, sound.frames, bands, sound.begin)
    figures, words = _figures(description, description.figures), _figures(description, description.words)
    complete = figures is not None and words is not None
    usual = complete and all({*head.figures, *head.absent} == set(DEFAULT) for head in figures or ())
    return ModelInput(
        {},
        {each.kind: (trace.axis(each.queries), trace.axis(each.keys)) for each in description.labels},
        tokens(description.tokens),
        tuple(map(clean, description.text_notes)),
        replay=replay(trace),
        pictures=pictures,
        heard=heard,
        figures=figures,
        words=words or (),
        arrays=replay(trace, arrays=True) if usual and is_short(trace) else None,
        written=description.written,
        text=description.text,
        messages=tuple(replace(each, role=clean(each.role)) for each in description.messages),
    )


def has_short_text(prepared: ModelInput) -> bool:
    """Whether a text is never measured by the fused pass, whatever its heads are."""
    return len(prepared.tokens) < SHORTEST


def is_short(trace: Trace) -> bool:
    """Whether arrays are as fast as tensors: longer inputs need threads."""
    return all(max(trace.size(call)) < SHORTEST for call in trace.description.calls)


def _figures(description: TraceDescription, found: tuple[HeadFigures, ...]) -> tuple[HeadFigures, ...] | None:
    """Figures, with every text cleaned; ``None`` if they do not belong to the calls' heads."""
    heads = [
        (call.name, call.call, call.kind, call.layer, head)
        for call in description.calls
        for head in range(call.heads)
    ]
    if [(*astuple(each.site), each.head) for each in found] != heads:
        return None
    if not all(name in MEASURES for each in found for name in (*each.figures, *each.absent)):
        return None
    return tuple(
        replace(
            each,
            site=replace(each.site, name=clean(each.site.name)),
            absent={name: clean(reason) for name, reason in each.absent.items()},
            role=each.role
            and replace(each.role, name=clean(each.role.name), sentence=clean(each.role.sentence)),
        )
        for each in found
    )


class WeightsFile(FileModel):
    """A file of weights in place of a model: observers see its layers as if just computed.

    Raises what ``attnscope.storage.arrays`` raises. If a file holds no token ids, tokens with equal texts
    count as the same.
    """

    what = "a file of weights"

    def __init__(self, path: str | Path, labels: Path | None = None) -> None:
        found = read_weights(path)
        notes = [str(note) for note in found.notes]
        places = [place for layers in found.kinds.values() for _, field in layers for place in field.keys]
        if any(place.stop - place.start > 1 for place in places):
            notes.append("the figures count the rows and columns that the file has")
        super().__init__(str(path), notes)
        named = () if labels is None else tokens_of(read_labels(labels))
        self.layers = list(_layers(found.kinds, Path(path).suffix.lower().removeprefix("."), named))
        self._title = str(found.title or Untrusted(Path(path).stem))

    @property
    def title(self) -> str:
        """The source that the file names, or its own name."""
        return self._title

    @property
    def prepared(self) -> ModelInput:
        """The text of the weights, as far as the file has it."""
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


def _layers(
    kinds: Mapping[str, Sequence[tuple[int, Weights]]], form: str, named: tuple[Token, ...]
) -> Iterator[Attention]:

    axes: dict[tuple[Place, ...], Axis] = {}  # layers share these; measures check for it
    known: tuple[Kind, ...] = ("encoder", "decoder", "cross")
    for kind in known:
        for layer, weighed in sorted(kinds.get(kind, ()), key=lambda pair: pair[0]):
            weights = tensor_of(weighed.values)[None]  # [1, head, query, key]
            allowed = tensor_of(weighed.allowed)
            queries, keys = (
                axes.setdefault(places, relabel(_axis(places), named))
                for places in (weighed.queries, weighed.keys)
            )
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
    """The tokens of an axis; bare positions if the labels are only numbers.

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
