"""A trace in a model's place, and how one is made: a pass of a model, kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from datetime import datetime, timezone
from functools import cached_property, partial
from pathlib import Path

from torch import nn

from attnscope import __version__
from attnscope.attention import Axis, Head, Token
from attnscope.axes.weights import Array
from attnscope.capture import Observer, Record, SiteRecord
from attnscope.capture.observers.shared_rows import SharedRows
from attnscope.errors import ModelError
from attnscope.measures import MEASURES, HeadFigures, Measurement
from attnscope.models.file import FileModel
from attnscope.models.inputs import ModelInput, Picture
from attnscope.models.model import Model, find_device
from attnscope.models.weights_file import WeightsFile
from attnscope.storage.trace import SUFFIX, Trace, read_trace
from attnscope.storage.trace.keep import KeepRows
from attnscope.storage.trace.layout import (
    FORMAT,
    About,
    Call,
    Description,
    Fault,
    Image,
    Labels,
    Positions,
    Rows,
    Without,
)
from attnscope.storage.trace.replay import replay
from attnscope.text import clean


class TracedModel(FileModel):
    """A trace in a model's place: ``prepared`` is its text, and every observer sees what the model showed."""

    what = "a trace"

    def __init__(self, trace: Trace, file: str | None = None) -> None:
        self.trace = trace
        said = trace.description
        notes = tuple(map(clean, said.model_notes))
        if file is not None:
            notes += (f"from {file}: a trace of {clean(said.kept)}, attnscope {clean(said.attnscope)}",)
        super().__init__(clean(said.model.name), nn.Module(), None, notes)

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
    return (
        TracedModel(read_trace(path), clean(path.name))
        if path.suffix.lower() == SUFFIX
        else WeightsFile(path)
    )


def prepare_traced(trace: Trace) -> ModelInput:
    """What was read, with the pass that was kept: no model runs again for it."""
    said = trace.description
    axes = {each.kind: (trace.axis(each.queries), trace.axis(each.keys)) for each in said.labels}
    tokens, picture = _tokens(trace.axis(said.tokens)), None
    if said.image is not None:
        pixels = trace.arrays[said.image.array]
        picture = Picture(pixels, said.image.grid, _tokens(trace.axis(said.image.tokens)))
    return ModelInput(
        {},
        axes,
        tokens,
        tuple(map(clean, said.text_notes)),
        replay=replay(trace),
        picture=picture,
        figures=_figures(said),
    )


def keep_trace(model: Model, prepared: ModelInput, text: str | None = None) -> Trace:
    """Run the model once with its own kernels, and keep what its rows are computed from, and all figures.

    ``text`` is the plain text that was read, for those who cut it into parts.
    """
    return make_trace(partial(model.run, prepared), prepared, describe_model(model), model.notes, text)


def make_trace(
    run: Callable[[Sequence[Observer]], Record],
    prepared: ModelInput,
    about: About,
    notes: tuple[str, ...] = (),
    text: str | None = None,
) -> Trace:
    """Let a pass run before observers, and keep it; ``notes`` are those of the model."""
    kept, measured = KeepRows(), Measurement()
    record = run([kept, SharedRows([measured])])
    axes: dict[Axis, int] = {}

    def number(axis: Axis) -> int:
        return axes.setdefault(axis, len(axes))

    if len(kept.calls) != len(record.sites):
        raise ModelError(f"the pass of {about.name} cannot be kept: {'; '.join(record.notes)}")
    image = None
    if prepared.picture is not None:
        pixels = kept.hold("pixels", prepared.picture.pixels)
        image = Image(pixels, prepared.picture.grid, number(prepared.picture.tokens))
    description = Description(
        trace=FORMAT,
        attnscope=__version__,
        kept=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        model=about,
        model_notes=notes,
        text_notes=prepared.notes,
        text=text,
        tokens=number(prepared.tokens),
        labels=tuple(
            Labels(kind, number(one), number(other)) for kind, (one, other) in prepared.axes.items()
        ),
        image=image,
        calls=tuple(
            _call(seen, number(queries), number(keys), rows)
            for seen, (queries, keys, rows) in zip(record.sites, kept.calls, strict=True)
        ),
        axes=tuple(Positions(axis.start, axis.stop) if isinstance(axis, range) else axis for axis in axes),
        without_attention=tuple(
            Without(each.name, each.layer, each.reason) for each in record.without_attention
        ),
        failures=tuple(Fault(each.name, each.reason) for each in record.failures),
        changes=tuple(record.changes),
        figures=tuple(measured.figures()),
    )
    return Trace(description, kept.arrays)


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


def _call(seen: SiteRecord, queries: int, keys: int, rows: Rows) -> Call:
    site = seen.site
    return Call(
        name=site.name,
        call=site.call,
        kind=site.kind,
        layer=site.layer,
        step=seen.step,
        source=seen.source,
        kernel=seen.kernel,
        batch=seen.batch,
        heads=seen.heads,
        key_heads=seen.key_heads,
        offset=seen.offset,
        dtype=str(seen.dtype).removeprefix("torch."),
        window=seen.window,
        refusal=seen.refusal,
        difference=seen.difference,
        queries=queries,
        keys=keys,
        rows=rows,
    )


def _tokens(axis: Axis) -> tuple[Token, ...]:
    return () if isinstance(axis, range) else axis


def _figures(said: Description) -> tuple[HeadFigures, ...] | None:
    """The figures, every text made clean; ``None`` where they are not those of the calls' heads."""
    heads = [
        (call.name, call.call, call.kind, call.layer, head)
        for call in said.calls
        for head in range(call.heads)
    ]
    if [(*astuple(found.site), found.head) for found in said.figures] != heads:
        return None
    if not all(name in MEASURES for found in said.figures for name in (*found.figures, *found.absent)):
        return None
    return tuple(
        replace(
            found,
            site=replace(found.site, name=clean(found.site.name)),
            absent={name: clean(reason) for name, reason in found.absent.items()},
            role=found.role
            and replace(found.role, name=clean(found.role.name), sentence=clean(found.role.sentence)),
        )
        for found in said.figures
    )
