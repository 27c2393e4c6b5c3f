"""A file in place of a model: commands read its pass as if the model had run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from attnscope.attention import Axis, Head, Kind, Token
from attnscope.axes import Array, Place, Weights
from attnscope.errors import InputError, ModelError
from attnscope.fused.request import SHORTEST
from attnscope.measures import DEFAULT, MEASURES, HeadScores
from attnscope.models import inputs
from attnscope.models.model import Model
from attnscope.scores import Weighting
from attnscope.storage.arrays import read_weights
from attnscope.storage.tensors import suffix_of
from attnscope.storage.trace import Trace, layout
from attnscope.storage.trace.replay import replay
from attnscope.text import Untrusted, clean, visible

if TYPE_CHECKING:
    from torch import nn


class TracedModel(Model):
    """A trace in place of a model: ``prepared`` is its text; it reads no other, and predicts nothing."""

    what: ClassVar[str] = "a trace"

    def __init__(
        self, trace: Trace, path: Path | None = None, since: str | None = None, weighting: Weighting = "raw"
    ) -> None:
        self.trace, self.since, self.weighting, self.positions = trace, since, weighting, None
        description = trace.description
        self.name, self.notes = clean(description.model.name), tuple(map(clean, description.model_notes))
        self.path, self.revision = path, description.model.revision
        if path is not None:
            when = f"a trace of {description.kept}, attnscope {description.attnscope}"
            self.notes += (f"from {clean(path.name)}: {when}",)

    @cached_property
    def module(self) -> nn.Module:  # type: ignore[override]
        """A module without weights, made on first use: reading a file needs no torch."""
        from torch import nn

        return nn.Module()

    @property
    def title(self) -> str:
        """The model's name, and its weighting."""
        weighting = self.trace.description.weighed
        parts = (super().title, weighting and visible(weighting))
        return " · ".join(filter(None, parts))

    def note_seal(self, prepared: inputs.ModelInput, record: Any) -> Any:
        """The record as it is: a trace has the notes of its pass."""
        return record

    @contextmanager
    def threads(self, prepared: inputs.ModelInput) -> Iterator[None]:
        """All threads: there are no small passes in a row."""
        yield

    def weights(self, head: Head) -> Array:
        """All rows of one head, the mean over a batch.  -> [query, key]"""
        return self.trace.weights(head)

    @cached_property
    def prepared(self) -> inputs.ModelInput:
        """The text that was read, as far as the file has it."""
        return prepare_traced(self.trace)

    def prepare(
        self, text: str, second: str | None = None, limit: inputs.Limit = inputs.NO_LIMIT
    ) -> inputs.ModelInput:
        """Raises ``InputError``: a file reads no text; ask for ``prepared``."""
        raise InputError(f"{self.name} is {self.what} and reads no text")

    @property
    def objective(self) -> inputs.Objective:
        """Raises ``ModelError``: nothing is predicted without a model."""
        raise ModelError(f"{self.name} is {self.what} and predicts nothing: give the model itself")


def attach_trace(prepared: inputs.ModelInput, trace: Trace) -> inputs.ModelInput:
    """An input with its kept pass: nothing runs again."""
    recorded, names = prepare_traced(trace), ("replay", "scores", "words", "array_replay")
    return replace(prepared, **{name: getattr(recorded, name) for name in names})


def prepare_traced(trace: Trace) -> inputs.ModelInput:
    """The input with its kept pass: no model runs again."""
    description, sound_entry = trace.description, trace.description.heard

    def tokens(number: int) -> tuple[Token, ...]:
        axis = trace.axis(number)
        return () if isinstance(axis, range) else axis

    pictures = []
    for each in description.images:
        boxes = {box.id: box.edges for box in each.boxes}
        pixels = trace.arrays[each.array]
        pictures.append(inputs.Picture(pixels, each.grid, tokens(each.tokens), boxes, each.name))
    sound = None
    if sound_entry is not None:
        bands = None if sound_entry.array is None else trace.arrays[sound_entry.array]
        sound = inputs.SoundFrames(sound_entry.seconds, sound_entry.frames, bands, sound_entry.begin)
    scores, words = (
        _head_scores(description, description.scores),
        _head_scores(description, description.words),
    )
    complete = scores is not None and words is not None
    usual = complete and all({*head.scores, *head.absent} == set(DEFAULT) for head in scores or ())
    return inputs.ModelInput(
        {},
        {each.kind: (trace.axis(each.queries), trace.axis(each.keys)) for each in description.labels},
        tokens(description.tokens),
        description.text_notes,
        replay=replay(trace),
        pictures=tuple(pictures),
        sound=sound,
        scores=scores,
        words=words or (),
        array_replay=replay(trace, arrays=True) if usual and is_short(trace) else None,
        written=description.written,
        batch_texts=description.batch_texts,
        beams=description.beams,
        text=description.text,
        messages=tuple(replace(each, role=clean(each.role)) for each in description.messages),
    )


def has_short_text(prepared: inputs.ModelInput) -> bool:
    """Whether a text is never measured by the fused pass, whatever its heads are."""
    return len(prepared.tokens) < SHORTEST


def is_short(trace: Trace) -> bool:
    """Whether arrays are as fast as tensors: longer inputs need threads."""
    return all(max(trace.size(call)) < SHORTEST for call in trace.description.calls)


def _head_scores(
    description: layout.TraceDescription, scores: tuple[HeadScores, ...]
) -> tuple[HeadScores, ...] | None:
    """Scores; ``None`` if they do not belong to the calls' heads."""
    calls = description.calls
    heads = [
        (each.name, each.call, each.kind, each.layer, head) for each in calls for head in range(each.heads)
    ]
    if [(*astuple(each.site), each.head) for each in scores] != heads:
        return None
    valid = all(name in MEASURES for each in scores for name in (*each.scores, *each.absent))
    return scores if valid else None


class WeightsFile(TracedModel):
    """A file of weights in place of a model: observers see its layers as if just computed.

    Raises what ``attnscope.storage.arrays`` raises. If a file holds no token ids, tokens with equal texts
    count as the same.
    """

    what = "a file of weights"

    def __init__(self, path: str | Path, labels: Path | None = None) -> None:
        file = read_weights(path)
        notes = [str(note) for note in file.notes]
        layers = [weights for layers in file.kinds.values() for _, weights in layers]
        if any(place.stop - place.start > 1 for weights in layers for place in weights.keys):
            notes.append("scores count only the rows and columns in the file")
        tokens = () if labels is None else inputs.tokens_of_labels(inputs.read_labels(labels))
        form = suffix_of(Path(path)).removeprefix(".")
        super().__init__(_trace_of(file.kinds, str(path), form, tokens, tuple(notes)))
        self.path = Path(path)
        self._title = str(file.title or Untrusted(Path(path).stem))

    @property
    def title(self) -> str:
        """The source that the file names, or its own name."""
        return self._title


def _trace_of(
    kinds: Mapping[str, Sequence[tuple[int, Weights]]],
    name: str,
    form: str,
    tokens: tuple[Token, ...],
    notes: tuple[str, ...],
) -> Trace:
    """Weights by kind and layer as a trace; the tokens ``named`` label the axes of their length."""
    arrays: dict[str, Array] = {}
    axes: dict[tuple[Place, ...], int] = {}  # layers share these; measures check for it
    calls, labels = list[layout.TracedCall](), dict[Kind, layout.Labels]()

    def hold(what: str, array: Array) -> str:
        arrays[name := f"{what}.{len(arrays)}"] = array
        return name

    for kind in get_args(Kind):
        for layer, weights in sorted(kinds.get(kind, ()), key=itemgetter(0)):
            heads, *size = weights.values.shape
            mask = layout.pack_mask(weights.allowed.reshape(1, -1, *size), hold)
            queries, keys = (axes.setdefault(axis, len(axes)) for axis in (weights.queries, weights.keys))
            labels.setdefault(kind, layout.Labels(kind, queries, keys))
            calls.append(
                layout.TracedCall(
                    name=f"{kind} layer {layer}",
                    call=0,
                    kind=kind,
                    layer=layer,
                    source="file",
                    kernel=form,
                    heads=heads,
                    key_heads=heads,
                    offset=None if kind == "cross" else 0,
                    dtype=str(weights.values.dtype),
                    queries=queries,
                    keys=keys,
                    rows=layout.TracedWeights("weights", hold("weights", weights.values[None]), mask),
                )
            )
    description = layout.TraceDescription(
        model=layout.About(name, "Module", None, 0, "cpu"),
        model_notes=notes,
        tokens=calls[0].keys,
        labels=tuple(labels.values()),
        axes=tuple(layout.traced_axis(inputs.relabel(_axis(places), tokens)) for places in axes),
        calls=tuple(calls),
    )
    return Trace(description, arrays)


def _axis(places: tuple[Place, ...]) -> Axis:
    """The tokens of an axis, special ones in the segment before them; positions if its labels are numbers."""
    if [place.text for place in places] == [str(i) for i in range(len(places))]:
        return range(len(places))
    numbers: dict[str, int] = {}
    tokens, segment = [], 0
    pooled = any(place.pooled for place in places)  # then cells of a single token have their numbers, too
    for place in places:
        segment, word = place.word or (segment, None)
        number = numbers.setdefault(place.text, -1 - len(numbers)) if place.id is None else place.id
        span = (place.start, place.stop) if pooled else None
        tokens.append(Token(place.text, number, place.special, segment, word, span, place.adds))
    return tuple(tokens)
