"""Checks on a foreign model folder.

It may name only its own files, no repository; its settings and vocabularies must have plausible sizes.
Everything it makes the library do before the first layer runs shares one deadline. Tokenizer code in Rust
or C cannot be stopped in this process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnscope.errors import InputError, ModelError, first_line, out_of_memory, readable
from attnscope.limits import LARGEST_CONFIG, LARGEST_VOCABULARY, OutOfTime, deadline, most_memory

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
"""The files of a model folder that say what to build, load or call."""

VOCABULARIES = (".json", ".txt", ".model", ".spm", ".tiktoken", ".bpe")
WEIGHTS = (".safetensors", ".bin")

ACTING = re.compile(
    r"backbone|repo|kernel|custom_generate|base_model|checkpoint|tower|index_path|text_model"
    r"|vision_model|model_id|model_name|[a-z]_name_or_path|auto_map"
)
"""Fields whose text the library would download or run if it names a repository."""

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+(?:[@:].*)?|[\w.-]+--[\w.]+")
"""The name of a hub repository: ``owner/name``, optionally with a revision, a kernel or a class."""

IMPLEMENTATION = re.compile(r"(?:paged\|)?\w*")
"""The names of the library's own implementations; for any other name it downloads a kernel."""

LEAST = {
    re.compile(r"layers?$|(^|[._])(depths?|block_sizes)$"): 16 << 10,
    re.compile(r"num_labels$"): 256,
    re.compile(r"vocab_size$|positions?(_embeddings)?$"): 64,
}
"""Fields that count objects to build, and the least bytes of each: a layer is many objects."""


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Raise ``ModelError`` for foreign code that runs out of memory or time, or breaks its library."""
    try:
        with deadline():
            yield
    except BaseException as error:
        if isinstance(error, OutOfTime):
            sentence = f"{what} {error}"
        elif asked := out_of_memory(error):
            sentence = f"{what} runs {asked}"
        elif type(error).__name__ == "PanicException":  # a panic in Rust
            sentence = f"{what} breaks the library that runs it"
        else:
            raise
        raise ModelError(sentence) from error


@contextmanager
def refusable(work: str, refusal: str) -> Iterator[None]:
    """``explained`` work on the user's input: any other exception becomes an ``InputError``, a refusal."""
    try:
        with explained(work):
            yield
    except ModelError:
        raise
    except Exception as error:  # foreign code may raise anything
        raise InputError(f"{refusal}: {first_line(error)}") from error


def require_plain_files(folder: Path) -> None:
    """Raise ``ModelError`` for a pipe or a device in a folder, or an implausibly large file.

    Also for an index of weights that is malformed or leads out of the folder.
    """
    try:
        files = [*folder.iterdir(), *(folder / "additional_chat_templates").glob("*")]
    except OSError as error:
        raise ModelError(f"the folder {folder} cannot be read: {first_line(error)}") from error
    for file in sorted(files):
        if file.is_dir() or file.suffix not in (*VOCABULARIES, *WEIGHTS, ".jinja"):
            continue
        if file.exists() and not file.is_file():
            raise ModelError(f"{folder} holds {file.name}, which is not a regular file: take it away")
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
            f"{name} cannot be loaded: its {file.name} is not JSON ({first_line(error)})"
        ) from error
    if not isinstance(settings, dict):
        raise ModelError(
            f"{name} cannot be loaded: its {file.name} is {type(settings).__name__}, not an object"
        )
    return settings


def require_honest(name: str, file: str, settings: Mapping[str, Any]) -> None:
    """Raise ``ModelError`` for a field that names a repository of code or weights to download.

    Also for a number that asks for more than the memory, even at the smallest size per object.
    """
    most = most_memory()
    pending: list[tuple[str, Any]] = [("", settings)]
    while pending:  # not recursive: settings may be nested deeper than Python's stack
        field, value = pending.pop()  # e.g. text_config.attn_implementation
        if isinstance(value, Mapping):
            pending += [(f"{field}.{key}" if field else str(key), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            pending += [(field, inner) for inner in value]
        least = next((size for counts, size in LEAST.items() if counts.search(field)), 0)
        if most is not None and isinstance(value, int) and value * least > most:
            raise ModelError(
                f"the {file} of {name} asks for more than the memory, {readable(most)}: {field} is {value:,}"
            )
        if not isinstance(value, str):
            continue
        if "implementation" in field:
            acts = not IMPLEMENTATION.fullmatch(value)
        else:
            acts = bool(ACTING.search(field) and REPOSITORY.fullmatch("".join(value.split())))
        if acts:
            raise ModelError(
                f"the {file} of {name} names {value.strip()!r} ({field}), that would be fetched from the hub "
                "or run: pass --trust-remote-code if you trust its author"
            )
