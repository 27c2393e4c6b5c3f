"""A trace in a model's place."""

from __future__ import annotations

from dataclasses import astuple, replace
from functools import cached_property
from pathlib import Path

from attnscope.attention import Axis, Head, Token
from attnscope.axes.weights import Array
from attnscope.figures import Weigh
from attnscope.fused.request import SHORTEST
from attnscope.measures import DEFAULT, MEASURES, HeadFigures
from attnscope.models.inputs import Heard, Message, ModelInput, Picture
from attnscope.models.kept.file import FileModel
from attnscope.storage.trace import SUFFIX, Trace, read_trace
from attnscope.storage.trace.layout import Description
from attnscope.storage.trace.replay import replay
from attnscope.text import clean, visible


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
    from attnscope.models.kept.weights_file import WeightsFile

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
