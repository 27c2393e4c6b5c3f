"""What a foreign model folder may ask for.

It names its own files and no repository, its settings and vocabularies have an honest size, and it builds no
more than its weights fill. A config or a chat template takes a few seconds at most; the memory of the whole
process is limited. What a tokenizer does in Rust and C cannot be stopped in this process.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from attnscope.errors import InputError, ModelError, first_line
from attnscope.limits import (
    DEADLINE,
    LARGEST_CONFIG,
    LARGEST_VOCABULARY,
    MEMORY,
    SPARE_MODULES,
    SPARE_NUMBERS,
    OutOfTime,
    foreign_seconds,
    out_of_memory,
    readable,
    time_limited,
)

CONFIGS = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
    "adapter_config.json",
)
"""The files of a model folder that say what is to be built, loaded or called."""

VOCABULARIES = (".json", ".txt", ".model", ".spm", ".tiktoken", ".bpe")
WEIGHTS = (".safetensors", ".bin")

ACTING = re.compile(
    r"backbone|repo|kernel|custom_generate|base_model|checkpoint|tower|index_path|text_model"
    r"|vision_model|model_id|model_name|[a-z]_name_or_path|auto_map"
)
"""Fields whose text the library would fetch or run, if it names a repository."""

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+(?:[@:].*)?|[\w.-]+--[\w.]+")
"""What names a repository on the hub: ``owner/name``, also with a revision, a kernel or a class behind it."""

IMPLEMENTATION = re.compile(r"(?:paged\|)?\w*")
"""What names one of the library's own implementations; the library loads a kernel of any other text."""


@contextmanager
def explained(what: str, *, timed: bool = False) -> Iterator[None]:
    """Raise ``ModelError`` for foreign code that runs out of memory or, where ``timed``, out of time.

    So for what breaks its library. The time is limited on the main thread of any Unix.
    """
    seconds = foreign_seconds() if timed else None
    slow = f"takes longer than {seconds or 0:g} seconds, and was stopped: {DEADLINE} allows more"
    try:
        with time_limited(seconds):
            yield
    except BaseException as error:
        rows = (
            (isinstance(error, OutOfTime), slow),
            (_is_out_of_memory(error), f"asks for more memory than is free ({MEMORY} sets the limit)"),
            (type(error).__name__ == "PanicException", "breaks the library that runs it"),  # one in Rust
        )
        sentence = next((sentence for met, sentence in rows if met), None)
        if sentence is None:
            raise
        raise ModelError(f"{what} {sentence}") from error


@contextmanager
def refusable(work: str, refusal: str, *, timed: bool = False) -> Iterator[None]:
    """``explained`` work on what the user gave: whatever else it raises is an ``InputError``, a refusal."""
    try:
        with explained(work, timed=timed):
            yield
    except ModelError:
        raise
    except Exception as error:  # foreign code raises whatever it likes
        raise InputError(f"{refusal}: {first_line(error)}") from error


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an exception, or one that it was raised from, says that there was no memory."""
    while error is not None:
        if out_of_memory(error) or "std::bad_alloc" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def weights_size(name: str, revision: str | None, dtype: torch.dtype | None) -> int:
    """Bytes of the safetensors weights in a folder, or in the cache of the hub, once they are ``dtype``.

    ``None`` keeps the type they are stored in. 0 where there are none, as before a download.
    """
    files = sorted(_folder(name, revision).glob("*.safetensors"))
    if dtype is None:
        return sum(file.stat().st_size for file in files)
    return sum(math.prod(shape) for file in files for shape in _shapes(file)) * dtype.itemsize


def _folder(name: str, revision: str | None) -> Path:
    if Path(name).is_dir():
        return Path(name)
    import huggingface_hub as hub

    found = hub.try_to_load_from_cache(name, "config.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else Path(name)


def _shapes(file: Path) -> list[list[int]]:
    """The shapes in a file, of which only the header is read; none if it is damaged, as loading will say."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as tensors:
            names = tensors.keys()
            return [tensors.get_slice(name).get_shape() for name in names]
    except (SafetensorError, OSError):
        return []


@contextmanager
def built_within(name: str, revision: str | None) -> Iterator[None]:
    """Raise ``ModelError`` as soon as more is built on this thread than the files of its weights can fill.

    Counted are modules, tensors and the numbers in them, before there is memory behind them; the library sets
    each weight twice, and files may join some. The files are looked at when the first module is built; of
    pickled ones the tensors are estimated.
    """
    here = threading.get_ident()
    counts: Counter[str] = Counter()
    most: dict[str, int] = {}

    def count(module: nn.Module, key: str, made: nn.Module | Tensor | None) -> None:
        if made is None or threading.get_ident() != here:
            return
        if not most:
            folder = _folder(name, revision)
            files = [file for suffix in WEIGHTS for file in folder.glob(f"*{suffix}")]
            size = sum(file.stat().st_size for file in files)
            stored = sum(len(_shapes(file)) for file in files if file.suffix == WEIGHTS[0])
            many = SPARE_MODULES + 8 * (stored or size // 1000)
            most.update(modules=many, tensors=many, numbers=SPARE_NUMBERS + 8 * size)
        if isinstance(made, Tensor):
            counts.update(tensors=1, numbers=made.numel())
        else:
            counts["modules"] += 1
        for what, allowed in most.items():
            if counts[what] > allowed:
                raise ModelError(
                    f"{name} cannot be loaded: its config.json asks for more than {allowed:,} {what}, and "
                    "the files of its weights do not fill them"
                )

    with ExitStack() as stack:
        for kind in ("module", "parameter", "buffer"):
            register = getattr(hooks, f"register_module_{kind}_registration_hook")
            stack.callback(register(count).remove)
        yield


def require_plain_files(folder: Path) -> None:
    """Raise ``ModelError`` for a pipe or a device in a folder, and for a file larger than any honest one.

    So for an index of weights that is none, or that leads out of the folder.
    """
    try:
        files = [*folder.iterdir(), *(folder / "additional_chat_templates").glob("*")]
    except OSError as error:
        raise ModelError(f"the folder {folder} cannot be read: {first_line(error)}") from error
    for file in sorted(files):
        if file.is_dir() or file.suffix not in (*VOCABULARIES, *WEIGHTS, ".jinja"):
            continue
        if file.exists() and not file.is_file():
            raise ModelError(f"{folder} holds {file.name}, which is no regular file: take it away")
        most = LARGEST_CONFIG if file.name in CONFIGS or file.suffix == ".jinja" else LARGEST_VOCABULARY
        if file.suffix not in WEIGHTS and file.stat().st_size > most:
            size = readable(file.stat().st_size)
            raise ModelError(f"{folder} holds {file.name} of {size}: at most {readable(most)} are read")
    for file in sorted(folder.glob("*.index.json")):
        index = read_config(str(folder), file)
        parts = index.get("weight_map")
        if not isinstance(parts, dict) or not isinstance(index.get("metadata"), dict):
            raise ModelError(f"{folder} holds {file.name} without the objects metadata and weight_map")
        for part in parts.values():
            if not isinstance(part, str) or Path(part).name != part:
                raise ModelError(f"{folder} holds {file.name}, which names {part!r:.80}: no file beside it")


def read_config(name: str, file: Path) -> dict[str, Any]:
    """A JSON file of settings. Raises ``ModelError``."""
    try:
        settings = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"{name} cannot be loaded: its {file.name} is no JSON ({first_line(error)})"
        ) from error
    if not isinstance(settings, dict):
        raise ModelError(
            f"{name} cannot be loaded: its {file.name} is {type(settings).__name__}, not an object"
        )
    return settings


def require_no_repository(name: str, file: str, settings: Mapping[str, Any]) -> None:
    """Raise ``ModelError`` for a field that names a repository, of which code or weights would be fetched."""
    pending: list[tuple[str, Any]] = [("", settings)]
    while pending:  # no recursion: settings may be nested deeper than Python calls
        field, value = pending.pop()  # text_config.attn_implementation
        if isinstance(value, Mapping):
            pending += [(f"{field}.{key}" if field else str(key), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            pending += [(field, inner) for inner in value]
        if not isinstance(value, str):
            continue
        if "implementation" in field:
            acts = not IMPLEMENTATION.fullmatch(value)
        else:
            acts = bool(ACTING.search(field) and REPOSITORY.fullmatch("".join(value.split())))
        if acts:
            raise ModelError(
                f"the {file} of {name} names {value.strip()!r} ({field}), that would be fetched from the hub "
                "or run: pass --trust-remote-code if you trust whoever made it"
            )
