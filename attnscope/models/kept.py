"""A file in a model's place: the commands that look at a model's pass look at it alike."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from attnscope import __version__
from attnscope.attention import Attention, Axis, Head, HeldRows, Kind, Site, Token
from attnscope.axes import Array, Place, Weights, coarsen_axis
from attnscope.capture import Coarsen, Observer, Record, SiteRecord, Steps
from attnscope.capture.placing.without_attention import why_empty
from attnscope.errors import InputError, ModelError, SelectionError, SizeError
from attnscope.figures import Weigh
from attnscope.fused.fused_pass import FusedPass
from attnscope.fused.request import SHORTEST
from attnscope.measures import DEFAULT, MEASURES, HeadFigures, Measurement, fused_request
from attnscope.measures.words import measure_words
from attnscope.models.inputs import Heard, Message, ModelInput, Objective, Picture
from attnscope.models.model import Model, find_device
from attnscope.storage.arrays import read
from attnscope.storage.cache import LARGEST
from attnscope.storage.trace import SUFFIX, Trace, read_trace
from attnscope.storage.trace.layout import (
    FORMAT,
    About,
    Box,
    Call,
    Description,
    Fault,
    Image,
    Labels,
    Positions,
    Rows,
    Sound,
    TraceMessage,
    Without,
)
from attnscope.storage.trace.replay import KeepRows, replay
from attnscope.text import Untrusted, clean, visible


class FileModel(Model):
    """One pass that a file holds. ``prepared`` is its text; it reads no other, and predicts nothing."""

    what: ClassVar[str]

    def __init__(self, name: str, notes: Sequence[str] = ()) -> None:
        self.name, self.positions, self.notes = name, None, tuple(notes)

    def __getattr__(self, name: str) -> Any:
        """A module without weights, made for those who ask for one: a look at a file needs no torch."""
        if name != "module":
            raise AttributeError(f"{self.what} has no {name}")
        from torch import nn

        self.module: nn.Module = nn.Module()
        return self.module

    @contextmanager
    def threads(self, prepared: ModelInput) -> Iterator[None]:
        """As many threads as there are: no small passes follow each other."""
        yield

    @abstractmethod
    def weights(self, head: Head) -> Array:
        """All rows of one head, the mean over a batch.  -> [query, key]"""

    @property
    @abstractmethod
    def prepared(self) -> ModelInput:
        """The text that was read, as far as the file tells."""

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
    """A trace in a model's place: ``prepared`` is its text, and every observer sees what the model showed."""

    what = "a trace"

    def __init__(
        self, trace: Trace, file: str | None = None, since: str | None = None, weigh: Weigh = "raw"
    ) -> None:
        self.trace, self.since, self.weigh = trace, since, weigh
        said = trace.description
        notes = tuple(map(clean, said.model_notes))
        if file is not None:
            notes += (f"from {file}: a trace of {clean(said.kept)}, attnscope {clean(said.attnscope)}",)
        super().__init__(clean(said.model.name), notes)

    @property
    def title(self) -> str:
        """The model's name, how it is weighed, and when the pass ran where that is to be said."""
        weighed = self.trace.description.weighed
        said = (super().title, weighed and visible(weighed), self.since)
        return " · ".join(each for each in said if each)

    def weights(self, head: Head) -> Array:
        """All rows of one head, computed in NumPy.  -> [query, key]"""
        return self.trace.weights(head)

    @cached_property
    def prepared(self) -> ModelInput:
        """The text that was read."""
        return prepare_traced(self.trace)


def open_file(path: str | Path) -> FileModel:
    """A trace, by its suffix, or a file of weights. Raises ``InputError``."""
    path = Path(path)
    if path.suffix.lower() == SUFFIX:
        return TracedModel(read_trace(path), clean(path.name))

    return WeightsFile(path)


def look_at(prepared: ModelInput, trace: Trace) -> ModelInput:
    """An input with its pass, that was kept: nothing runs again for it."""
    kept = prepare_traced(trace)
    return replace(prepared, replay=kept.replay, figures=kept.figures, words=kept.words, arrays=kept.arrays)


def prepare_traced(trace: Trace) -> ModelInput:
    """What was read, with the pass that was kept: no model runs again for it."""
    said = trace.description
    axes = {each.kind: (trace.axis(each.queries), trace.axis(each.keys)) for each in said.labels}
    tokens = _tokens(trace.axis(said.tokens))
    pictures = tuple(
        Picture(
            trace.arrays[each.array],
            each.grid,
            _tokens(trace.axis(each.tokens)),
            {box.id: box.edges for box in each.boxes},
            clean(each.name),
        )
        for each in said.images
    )
    figures, words = _figures(said, said.figures), _figures(said, said.words)
    complete = figures is not None and words is not None
    usual = complete and all({*head.figures, *head.absent} == set(DEFAULT) for head in figures or ())
    return ModelInput(
        {},
        axes,
        tokens,
        tuple(map(clean, said.text_notes)),
        replay=replay(trace),
        pictures=pictures,
        heard=_heard(trace),
        figures=figures,
        words=words or (),
        arrays=replay(trace, arrays=True) if usual and is_short(trace) else None,
        written=said.written,
        text=said.text,
        messages=tuple(Message(clean(each.role), each.content) for each in said.messages),
    )


def has_short_text(prepared: ModelInput) -> bool:
    """Whether a text is never measured by the fused pass: whichever way its heads are, the pass is one."""
    return len(prepared.tokens) < SHORTEST


def is_short(trace: Trace) -> bool:
    """Whether arrays are as quick as tensors: what is longer wants many threads."""
    return all(max(trace.size(call)) < SHORTEST for call in trace.description.calls)


def _heard(trace: Trace) -> Heard | None:
    sound = trace.description.heard
    if sound is None:
        return None
    bands = None if sound.array is None else trace.arrays[sound.array]
    return Heard(sound.seconds, sound.frames, bands, sound.begin)


def _tokens(axis: Axis) -> tuple[Token, ...]:
    return () if isinstance(axis, range) else axis


def _figures(said: Description, found: tuple[HeadFigures, ...]) -> tuple[HeadFigures, ...] | None:
    """Figures, every text made clean; ``None`` where they are not those of the calls' heads."""
    heads = [
        (call.name, call.call, call.kind, call.layer, head)
        for call in said.calls
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
    """A file of weights in a model's place: observers see its layers as if they had just been computed.

    Raises what ``attnscope.storage.arrays`` raises. Where a file holds no ids of its tokens, those of
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
        for layer, weighed in sorted(kinds.get(kind, ()), key=lambda pair: pair[0]):
            weights = torch.from_numpy(np.ascontiguousarray(weighed.values))[None]  # [1, head, query, key]
            allowed = torch.from_numpy(np.ascontiguousarray(weighed.allowed))
            queries, keys = (
                axes.setdefault(places, _axis(places)) for places in (weighed.queries, weighed.keys)
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


MEASURED = 1 << 26
"""Weights of a short pass that are measured before anybody asks, at most: 256 heads of 512 tokens."""


class UnkeptPass(ModelError):
    """A pass that a trace cannot hold: the recording failed in some of it."""


@dataclass(eq=False)
class _Measuring:
    """Measures all heads, as long as those so far have at most so many weights."""

    most: float
    measured: Measurement = field(default_factory=Measurement)
    size: int = 0

    def observe(self, attention: Attention) -> None:
        """Measure one call."""
        self.size += attention.batch * attention.heads * len(attention.queries) * len(attention.keys)
        if self.size <= self.most:
            self.measured.observe(attention)

    def figures(self) -> tuple[HeadFigures, ...]:
        """The figures of every head; none where there were too many weights."""
        return tuple(self.measured.figures()) if self.size <= self.most else ()


def hold_short(model: Model, prepared: ModelInput) -> Trace | None:
    """The pass of a short input, looked at as one from a file; ``None`` for a long one, or one that fails."""
    if not prepared.tokens or not has_short_text(prepared):
        return None
    return _hold(partial(model.run, prepared), model, prepared, MEASURED)


def hold_long(model: Model, prepared: ModelInput, *, fused: bool = False) -> Trace | None:
    """The pass of a long input, if it is small beside ``LARGEST``; ``None`` for any other, or one that fails.

    ``fused``: the fused pass measures all heads in the kernels' place. Beside these nothing is measured.
    """
    size = _trace_size(model.module, len(prepared.tokens))
    if size is None or size > LARGEST:
        return None
    request = fused_request(Measurement().measures, [prepared.tokens]) if fused else None
    run = partial(model.run, prepared, fused=None if request is None else FusedPass(request))
    return _hold(run, model, prepared, math.inf if fused else 0)


def _hold(
    run: Callable[[Sequence[Observer]], Record],
    model: Model,
    prepared: ModelInput,
    most: float,
) -> Trace | None:
    """The pass, measured up to so many weights; ``None`` for one that cannot be kept."""
    if prepared.arrays is not None:
        return None
    try:
        trace = make_trace(run, prepared, describe_model(model), model.notes, most=most)
    except (UnkeptPass, SizeError):
        return None
    return replace(trace, description=replace(trace.description, weighed=model.weighed))


def keep_trace(model: Model, prepared: ModelInput) -> Trace:
    """Run the model once with its own kernels, and keep what its rows are computed from, and all figures."""
    return make_trace(partial(model.run, prepared), prepared, describe_model(model), model.notes)


def make_trace(
    run: Callable[[Sequence[Observer]], Record],
    prepared: ModelInput,
    about: About,
    notes: tuple[str, ...] = (),
    *,
    most: float = math.inf,
) -> Trace:
    """Let a pass run before observers, and keep it; ``notes`` are those of the model.

    Heads of more than ``most`` weights in all are not measured.
    """
    kept, measuring = KeepRows(), _Measuring(most)
    record = run([kept, measuring])
    axes: dict[Axis, int] = {}

    def number(axis: Axis) -> int:
        return axes.setdefault(axis, len(axes))

    if len(kept.calls) != len(record.sites):
        raise UnkeptPass(f"the pass of {about.name} cannot be kept: {'; '.join(record.notes)}")
    images = tuple(
        Image(
            each.name,
            kept.hold(f"pixels{place}", each.pixels),
            each.grid,
            number(each.tokens),
            tuple(Box(id_, edges) for id_, edges in each.boxes.items()),
        )
        for place, each in enumerate(prepared.pictures)
    )
    description = Description(
        trace=FORMAT,
        attnscope=__version__,
        kept=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        model=about,
        model_notes=notes,
        weighed="",
        text_notes=prepared.notes,
        text=prepared.text,
        messages=tuple(TraceMessage(*each) for each in prepared.messages),
        tokens=number(prepared.tokens),
        written=prepared.written,
        labels=tuple(
            Labels(kind, number(one), number(other)) for kind, (one, other) in prepared.axes.items()
        ),
        images=images,
        heard=_describe_sound(prepared.heard, kept),
        calls=tuple(
            _call(site, number(queries), number(keys), rows)
            for site, (queries, keys, rows) in zip(record.sites, kept.calls, strict=True)
        ),
        axes=tuple(Positions(axis.start, axis.stop) if isinstance(axis, range) else axis for axis in axes),
        without_attention=tuple(
            Without(each.name, each.layer, each.reason) for each in record.without_attention
        ),
        failures=tuple(Fault(each.name, each.reason) for each in record.failures),
        changes=tuple(record.changes),
        figures=measuring.figures(),
        words=(),
    )
    trace = Trace(description, kept.arrays)
    return replace(trace, description=replace(description, words=_measure_words(trace)))


def _describe_sound(heard: Heard | None, kept: KeepRows) -> Sound | None:
    if heard is None:
        return None
    bands = None if heard.bands is None else kept.hold("bands", heard.bands)
    return Sound(heard.seconds, heard.frames, heard.begin, bands)


def _measure_words(trace: Trace) -> tuple[HeadFigures, ...]:
    """The figures of every head whose pieces of words are merged; none where a text is long."""
    if not is_short(trace) or not trace.description.figures:
        return ()
    coarse = Coarsen(
        lambda attention: (
            coarsen_axis(attention.queries, words=True),
            coarsen_axis(attention.keys, words=True),
        )
    )
    replay(trace, arrays=True).shown_to([coarse])
    return tuple(head for made in coarse.maps for head in measure_words(made.label()[0], made.site) or ())


def describe_model(model: Model) -> About:
    """What a model is, in a few words that go into a file; of a trace, what its model was."""
    if isinstance(model, TracedModel):
        return model.trace.description.model
    return describe_module(model.name, model.module)


def describe_module(name: str, module: nn.Module) -> About:
    """What a module is, in a few words that go into a file."""
    return About(
        name=name,
        class_=type(module).__name__,
        revision=getattr(getattr(module, "config", None), "_commit_hash", None),
        parameters=sum(weights.numel() for weights in module.parameters()),
        device=str(find_device(module)),
    )


def _call(call: SiteRecord, queries: int, keys: int, rows: Rows) -> Call:
    site = call.site
    return Call(
        name=site.name,
        call=site.call,
        kind=site.kind,
        layer=site.layer,
        step=call.step,
        source=call.source,
        kernel=call.kernel,
        batch=call.batch,
        heads=call.heads,
        key_heads=call.key_heads,
        offset=call.offset,
        dtype=call.dtype,
        window=call.window,
        refusal=call.refusal,
        difference=call.difference,
        queries=queries,
        keys=keys,
        rows=rows,
    )


def _trace_size(module: nn.Module, tokens: int) -> int | None:
    """Bytes of the queries and keys of all layers, at most; ``None`` where no config tells it."""
    config = getattr(module, "config", None)
    text = getattr(config, "get_text_config", None)
    config = text() if callable(text) else config
    width = getattr(config, "hidden_size", getattr(config, "width", None))
    layers = getattr(config, "num_hidden_layers", getattr(config, "layers", None))
    if not isinstance(width, int) or not isinstance(layers, int):
        return None
    both = 3 if getattr(config, "is_encoder_decoder", False) else 1  # encoder, decoder, across
    bytes_ = next((weights.itemsize for weights in module.parameters() if weights.is_floating_point()), 4)
    return 2 * both * layers * width * tokens * bytes_


@dataclass(eq=False)
class LastPass:
    """An observer that holds one pass: a site that comes again with several queries begins another."""

    steps: Steps = field(default_factory=Steps)
    met: set[Site] = field(default_factory=set)
    passes: int = 1

    def observe(self, attention: Attention) -> None:
        """Hold one call."""
        if attention.site in self.met and len(attention.queries) > 1:
            self.steps, self.met, self.passes = Steps(), set(), self.passes + 1
        self.met.add(attention.site)
        self.steps.observe(attention)

    def kept(
        self, module: nn.Module, name: str, record: Record, axes: Mapping[Kind, tuple[Axis, Axis]]
    ) -> TracedModel:
        """The pass as a trace. Raises ``ModelError`` if there is none."""
        if not self.met:
            raise ModelError(f"{name} has no attention to show: {why_empty(module, record)}")
        notes = (f"the last of {self.passes:,} passes",) if self.passes > 1 else ()
        replay = self.steps.replay(record, axes)
        tokens = next((keys for _, keys in axes.values() if isinstance(keys, tuple)), ())
        prepared = ModelInput({}, axes, tokens, notes, replay=replay)
        return TracedModel(make_trace(replay.shown_to, prepared, describe_module(name, module)))


def label_axes(tokens: Sequence[str] | None) -> dict[Kind, tuple[Axis, Axis]]:
    """Texts as the axes of every attention of their number; equal texts are the same token."""
    if tokens is None:
        return {}
    numbers: dict[str, int] = {}
    axis = tuple(
        Token(str(text), numbers.setdefault(str(text), len(numbers)), word=place)
        for place, text in enumerate(tokens)
    )
    return {"encoder": (axis, axis), "decoder": (axis, axis)}
