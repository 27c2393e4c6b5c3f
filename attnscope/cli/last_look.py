"""The last looks: the same text read by the same model is answered from the pass that was kept by itself."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Protocol

from attnscope.cli.options.model import WeighedModelOptions
from attnscope.storage.cache import cache_folder, find_pass, hash_key, store_pass

if TYPE_CHECKING:
    from attnscope.cli.options.model import ModelOptions
    from attnscope.cli.options.source import SourceOptions
    from attnscope.models.trace import TracedModel
    from attnscope.storage.trace import Trace

UNKEYED = ("text", "second_text", "file", "line", "saved", "keep", "fresh")
"""Options of a source that do not matter beside the texts that were read from them."""


class Asked(Protocol):
    """What is read, how, and by which model."""

    @property
    def asked(self) -> SourceOptions:
        """How it is read."""
        ...

    @property
    def model(self) -> ModelOptions:
        """Which model reads it."""
        ...

    @property
    def text(self) -> str:
        """The text."""
        ...

    @property
    def second(self) -> str | None:
        """The second one."""
        ...


def find_look(key: str | None, *, saving: bool) -> TracedModel | None:
    """The pass of a key, which says in its title when it ran, unless that would be saved with a picture."""
    trace = None if key is None else find_pass(key)
    if trace is None:
        return None
    from attnscope.models.trace import TracedModel

    model = TracedModel(trace, since=None if saving else _tell_when(trace.description.kept))
    return None if model.prepared.arrays is None else model


def store_look(source: Asked, key: str | None, trace: Trace) -> None:
    """Keep a pass, if every look at it can be answered, and nothing has changed while it ran."""
    from attnscope.models.trace import prepare_traced

    if key is not None and prepare_traced(trace).arrays is not None and key_of(source) == key:
        store_pass(key, trace)


def key_of(source: Asked) -> str | None:
    """Everything that a pass depends on, in one word; ``None`` for one that is not kept."""
    asked, model = source.asked, source.model
    if asked.saved is not None or asked.keep is not None or model.trust_remote_code:
        return None
    if asked.audio is not None:  # a trace holds no spectrogram
        return None
    if isinstance(model, WeighedModelOptions) and model.weigh != "raw":
        return None
    if cache_folder() is None:
        return None
    from attnscope.models.identity import identify_file, identify_model, identify_programs

    files = identify_model(model.name, model.revision)
    if files is None:
        return None
    key: dict[str, Any] = {
        "texts": [source.text, source.second],
        "source": {name: value for name, value in asdict(asked).items() if name not in UNKEYED},
        "model": [model.name, {name: value for name, value in asdict(model).items() if name != "offline"}],
        "files": files,
        "programs": identify_programs(),
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "day": date.today() if asked.chat else None,  # a chat format may say which day it is
    }
    try:
        key["read"] = [identify_file(path) for path in (asked.image, asked.inputs) if path is not None]
    except OSError:
        return None
    return hash_key(key)


def _tell_when(kept: str) -> str | None:
    """The hour of a pass, and the day where that is not today."""
    try:
        then = datetime.fromisoformat(kept).astimezone()
    except (ValueError, OverflowError, OSError):
        return None
    day = "" if then.date() == date.today() else f" on {then.day} {then:%b}"
    return f"from the pass of {then:%H:%M}{day}"
