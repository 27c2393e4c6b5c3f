"""What a model folder is not trusted with: strange files, endless JSON, names of other repositories."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attnscope.errors import ModelError, first_line
from attnscope.memory import readable

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

MOST_CONFIG = 8 << 20
"""Bytes that such a file, or a chat template, may have; the largest have one or two million."""

MOST_VOCABULARY = 128 << 20
"""Bytes that any other file but one of weights may have; the largest vocabularies have a quarter of it."""

VOCABULARIES = (".json", ".txt", ".model", ".spm", ".tiktoken", ".bpe")
WEIGHTS = (".safetensors", ".bin")

ACTING = re.compile(
    r"implementation|backbone|repo|kernel|custom_generate|base_model|checkpoint|tower|index_path|text_model"
    r"|vision_model|model_id|model_name|[a-z]_name_or_path|auto_map"
)
"""Fields whose text the library would fetch or run, if it names a repository."""

REPOSITORY = re.compile(r"(?:\w+\|)?\s*[\w.-]+/[\w.-]+(?:[@:].*)?\s*|[\w.-]+--[\w.]+")
"""What names a repository on the hub: ``owner/name``, also with a revision, a kernel or a class behind it."""


def require_plain_files(folder: Path) -> None:
    """Raise ``ModelError`` for a pipe or a device in a folder, and for a file larger than any honest one."""
    try:
        files = [*folder.iterdir(), *(folder / "additional_chat_templates").glob("*")]
    except OSError as error:
        raise ModelError(f"the folder {folder} cannot be read: {first_line(error)}") from error
    for file in sorted(files):
        if file.is_dir() or file.suffix not in (*VOCABULARIES, *WEIGHTS, ".jinja"):
            continue
        if file.exists() and not file.is_file():
            raise ModelError(f"{folder} holds {file.name}, which is no regular file: take it away")
        most = MOST_CONFIG if file.name in CONFIGS or file.suffix == ".jinja" else MOST_VOCABULARY
        if file.suffix not in WEIGHTS and file.stat().st_size > most:
            size = readable(file.stat().st_size)
            raise ModelError(f"{folder} holds {file.name} of {size}: at most {readable(most)} are read")


def require_own_weights(folder: Path) -> None:
    """Raise ``ModelError`` for an index of weights that is none, or that leads out of the folder."""
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
    for field, text in _texts(settings):
        if ACTING.search(field) and REPOSITORY.fullmatch(text):
            raise ModelError(
                f"the {file} of {name} names {text.strip()!r} ({field}), that would be fetched from the hub "
                "or run: pass --trust-remote-code if you trust whoever made it"
            )


def _texts(settings: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """Every text among settings, with its field: ``text_config.attn_implementation``."""
    pending = [(field, settings)]
    while pending:  # no recursion: settings may be nested deeper than Python calls
        field, value = pending.pop()
        if isinstance(value, str):
            yield field, value
        elif isinstance(value, Mapping):
            pending += [(f"{field}.{key}" if field else str(key), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            pending += [(field, inner) for inner in value]
