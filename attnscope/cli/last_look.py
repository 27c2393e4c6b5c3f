"""The last looks: the same text read by the same model is answered from the pass that was kept by itself."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from attnscope.cli.options import WeighedModelOptions
from attnscope.storage.cache import cache_folder, find_pass, hash_key, store_pass

if TYPE_CHECKING:
    from attnscope.cli.options import ModelOptions, SourceOptions
    from attnscope.models import Model, ModelInput
    from attnscope.models.kept import TracedModel

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


Way: TypeAlias = Literal["kernel", "fused", "other"]
"""How a long text is measured: beside the kernels, by the fused pass in their place, which measures what it
always does, or as nothing is kept. A short text has one pass, whichever it is."""


def find_look(source: Asked, key: str | None, way: Way, *, saving: bool) -> TracedModel | None:
    """The pass of a key, which says in its title when it ran, unless that would be saved with a picture."""
    weigh = source.model.weigh if isinstance(source.model, WeighedModelOptions) else "raw"
    for each in ("fused", "kernel") if way == "fused" else ("kernel",):
        trace = None if key is None else find_pass(_name(key, each))
        if trace is None:
            continue
        from attnscope.models.kept import TracedModel, has_short_text

        when = None if saving else _tell_when(trace.description.kept)
        model = TracedModel(trace, since=when, weigh=weigh)
        if each == way or has_short_text(model.prepared):
            return model
    return None


def hold_look(
    source: Asked, key: str | None, way: Way, model: Model, prepared: ModelInput
) -> tuple[Model, ModelInput]:
    """The input with its pass, if that is small, and who looks at it; it is kept, if nothing has changed."""
    from attnscope.models.kept import TracedModel, has_short_text, hold_long, hold_short, look_at
    from attnscope.models.weighed import WeighedModel

    weighed = isinstance(model, WeighedModel)
    if model.weigh == "gradient":
        return model, prepared
    short = has_short_text(prepared)
    if short:
        trace = hold_short(model, prepared)
    elif key is None or way == "other" or weighed:
        return model, prepared
    else:
        trace = hold_long(model, prepared, fused=way == "fused")
    if trace is None:
        return model, prepared
    if key is not None and key_of(source) == key:
        store_pass(_name(key, "kernel" if short else way), trace)
    held = look_at(prepared, trace)
    return (TracedModel(trace, weigh=model.weigh) if weighed else model), held


def _name(key: str, way: str) -> str:
    """The key of a pass that was measured in this way."""
    return hash_key({"key": key, "way": way}) if way == "fused" else key


def key_of(source: Asked) -> str | None:
    """Everything that a pass depends on, in one word; ``None`` for one that is not kept."""
    asked, model = source.asked, source.model
    if asked.saved is not None or asked.keep is not None or model.trust_remote_code:
        return None
    if asked.video is not None and asked.video.is_dir():
        return None
    if isinstance(model, WeighedModelOptions) and model.weigh == "gradient":
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
        key["read"] = [identify_file(path) for path in (*asked.pictures, asked.audio, asked.inputs) if path]
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
