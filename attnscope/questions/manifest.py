"""Where an export comes from: its model, its texts, and every file of it."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

from attnscope import __version__
from attnscope.attention import Axis, Kind, Token
from attnscope.capture import Record
from attnscope.models import Model, ModelInput
from attnscope.models.keeping import describe_model
from attnscope.questions.layers import WholeLayers
from attnscope.records import Meaning, Notes, Parts, record
from attnscope.storage.trace.layout import About

LIBRARIES = ("torch", "transformers", "tokenizers", "numpy", "matplotlib")
"""Packages on which the bytes of an export may depend; the manifest has their versions."""

INTEGERS = {"type": "array", "items": {"type": "integer"}}
AxisText = Annotated[int | None, Meaning("its place in texts; null where the axis is no text")]


@record("a text")
class ExportedText:
    """The tokens of a text."""

    tokens: Annotated[tuple[str, ...], Meaning("its tokens")]
    ids: Annotated[tuple[int, ...], Meaning("their numbers", shape=INTEGERS)]


@record("the axes of a kind")
class ExportedAxes:
    """Which texts the rows and columns of a kind of attention are."""

    queries: AxisText
    keys: AxisText


@record("a file")
class ExportedFile:
    """A file, and the head or the layer that it shows, if only one."""

    name: Annotated[str, Meaning("its name")]
    bytes: Annotated[int, Meaning("its size")]
    sha256: Annotated[str, Meaning("its checksum")]
    kind: Annotated[str | None, Meaning("where a model has several", optional=True, shape=Kind)] = None
    layer: Annotated[int | None, Meaning("the layer that it shows", optional=True, shape=int)] = None
    head: Annotated[int | None, Meaning("the head that it shows", optional=True, shape=int)] = None


@record("the manifest of an export", "export")
class Manifest:
    """Everything in an export, and where it comes from, without anything that differs from run to run."""

    attnscope: Annotated[str, Meaning("the release that wrote it")]
    command: Annotated[str | None, Meaning("what was typed")]
    weigh: Annotated[str | None, Meaning("what the weights are weighed by", optional=True)]
    model: Annotated[About, Meaning("the model")]
    versions: Annotated[Mapping[str, str], Meaning("of what the bytes may depend on")]
    texts: Annotated[tuple[ExportedText, ...], Meaning("the texts on the axes")]
    kinds: Annotated[Mapping[Kind, ExportedAxes], Meaning("by kind of attention")]
    record: Annotated[Record, Parts(sites="every attention call")]
    notes: Notes
    warnings: Annotated[tuple[str, ...], Meaning("what to know about the pictures")]
    files: Annotated[tuple[ExportedFile, ...], Meaning("every file")]


def write_down(
    model: Model,
    prepared: ModelInput,
    layers: WholeLayers,
    command: str | None,
    warnings: tuple[str, ...],
    files: tuple[ExportedFile, ...],
) -> Manifest:
    """The manifest of whole layers that were written to files."""
    texts: dict[ExportedText, int] = {}

    def number(axis: Axis) -> int | None:
        tokens = [token for token in axis if isinstance(token, Token)]
        text = ExportedText(tuple(token.text for token in tokens), tuple(token.id for token in tokens))
        return texts.setdefault(text, len(texts)) if tokens else None

    kinds = {
        kind: ExportedAxes(*map(number, axes)) for kind, axes in prepared.axes.items() if kind in layers.kinds
    }
    versions = {"python": platform.python_version()}
    for library in LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[library] = version(library)
    return Manifest(
        attnscope=__version__,
        command=command,
        weigh=None if model.weigh == "raw" else model.weigh,
        model=describe_model(model),
        versions=versions,
        texts=tuple(texts),
        kinds=kinds,
        record=layers.record,
        notes=layers.notes,
        warnings=warnings,
        files=files,
    )
