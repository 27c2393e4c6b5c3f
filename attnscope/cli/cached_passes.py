"""Cached passes: the same text read by the same model is answered from the pass that was kept of it."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from attnscope.storage.cache import cache_folder, find_pass, hash_key, store_pass

if TYPE_CHECKING:
    from attnscope.cli.options import ModelOptions, SourceOptions
    from attnscope.models import Model, ModelInput
    from attnscope.models.kept import TracedModel
    from attnscope.storage.trace import Trace

UNKEYED = ("text", "second_text", "file", "line", "saved", "keep", "fresh")
"""Options of a source that do not matter beside the texts that were read from them."""

PassKind: TypeAlias = Literal["kernel", "fused", "other"]
"""How a long text is measured: beside the kernels, by the fused pass in their place, which measures what it
always does, or in a way that no cached pass serves. A short text has one pass, whichever it is."""


def find_cached(key: str, kind: PassKind, model: ModelOptions, *, saving: bool) -> TracedModel | None:
    """The cached pass of a key, which says in its title when it ran, unless that would be saved."""
    for each in ("fused", "kernel") if kind == "fused" else ("kernel",):
        trace = find_pass(_with_kind(key, each))
        if trace is None:
            continue
        from attnscope.models.kept import TracedModel, has_short_text

        when = None if saving else _tell_when(trace.description.kept)
        found = TracedModel(trace, since=when, weigh=model.metadata.get("weigh", "raw"))
        if each == kind or has_short_text(found.prepared):
            return found
    return None


def run_small(model: Model, prepared: ModelInput, kind: PassKind, *, cached: bool) -> Trace | None:
    """The pass of an input, if that is small; of a long one only where it will be ``cached``."""
    from attnscope.models.keeping import hold_long, hold_short
    from attnscope.models.kept import has_short_text

    if model.weigh == "gradient":
        return None
    if has_short_text(prepared):
        return hold_short(model, prepared)
    if not cached or kind == "other" or model.weigh != "raw":
        return None
    return hold_long(model, prepared, fused=kind == "fused")


def cache_pass(key: str, kind: PassKind, prepared: ModelInput, trace: Trace) -> None:
    """Keep a pass for the next command."""
    from attnscope.models.kept import has_short_text

    store_pass(_with_kind(key, "kernel" if has_short_text(prepared) else kind), trace)


def _with_kind(key: str, kind: str) -> str:
    return hash_key({"key": key, "way": kind}) if kind == "fused" else key


def key_of_pass(asked: SourceOptions, model: ModelOptions, texts: tuple[str, str | None]) -> str | None:
    """Everything that a pass depends on, in one word; ``None`` for one that is not cached."""
    if (
        asked.saved is not None
        or asked.keep is not None
        or model.trust_remote_code
        or (asked.video is not None and asked.video.is_dir())
        or model.metadata.get("weigh") == "gradient"
        or cache_folder() is None
    ):
        return None
    from attnscope.models.identity import identify_file, identify_model, identify_programs

    files = identify_model(model.name, model.revision)
    if files is None:
        return None
    try:
        read = [identify_file(path) for path in (*asked.pictures, asked.audio, asked.inputs) if path]
    except OSError:
        return None
    key: dict[str, Any] = {
        "texts": texts,
        "source": {name: value for name, value in asdict(asked).items() if name not in UNKEYED},
        "model": [model.name, {name: value for name, value in asdict(model).items() if name != "offline"}],
        "files": files,
        "programs": identify_programs(),
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "day": date.today() if asked.chat else None,  # a chat format may say which day it is
        "read": read,
    }
    return hash_key(key)


def _tell_when(kept: str) -> str | None:
    """The hour of a pass, and the day where that is not today."""
    try:
        then = datetime.fromisoformat(kept).astimezone()
    except (ValueError, OverflowError, OSError):
        return None
    day = "" if then.date() == date.today() else f" on {then.day} {then:%b}"
    return f"from the pass of {then:%H:%M}{day}"
