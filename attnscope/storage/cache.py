"""Cached passes, in a folder private to the user.

An entry is a trace, ``KEY-DIGEST.trace``. The key identifies the model and the question; the file repeats
it inside. The digest is of the file's bytes. An entry that cannot be read or written counts as missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from attnscope.errors import AttnscopeError
from attnscope.private import is_private, private_folder, private_path
from attnscope.records import read
from attnscope.storage.files import write_whole
from attnscope.storage.trace.file import SUFFIX, Trace, read_trace, trace_bytes

ENTRY_BYTES, CACHE_BYTES = 64 << 20, 300 << 20  # most of an entry, and of all; the oldest go first
MOST_ENTRIES = 1000  # most entries, so that listing them takes no noticeable time
PASSES_FOLDER = "looks"  # the folder of the entries, inside the configured one
SEALS_FOLDER, SEAL_BYTES = "seals", 1 << 20  # the folder of what is known of models, and most bytes of one
KEY_FIELD = "attnscope cache key"  # the metadata field with an entry's key

Paths: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]

_ENTRY_NAME = re.compile(
    rf"[0-9a-f]{{40}}-[0-9a-f]{{40}}{re.escape(SUFFIX)}|\.attnscope-\w+{re.escape(SUFFIX)}"
)
"""Names of entries, and of unfinished ones: no other file of the folder is touched."""


class CachedPass(NamedTuple):
    """One cached pass."""

    path: Path
    size: int
    used: float  # the time
    trace: Trace


def cache_folder() -> Path | None:
    """The folder of cached passes, whether or not it exists; ``None`` if caching is off."""
    return private_path(PASSES_FOLDER)


def hash_key(key: Mapping[str, Any]) -> str:
    """The name of an entry: a hash of the question and the model."""
    return hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:40]


def find_pass(key: str) -> Trace | None:
    """The pass of a key. Damaged entries, and those of another key, are removed."""
    for path, _, _ in list(_files(private_folder(PASSES_FOLDER), f"{key}-")):
        trace = _open(path)
        with suppress(OSError):
            path.unlink() if trace is None else os.utime(path)
        if trace is not None:
            return trace
    return None


def store_pass(key: str, trace: Trace) -> None:
    """Store a small pass; removes older ones of its key, and the oldest of all if space runs out."""
    content = trace_bytes(trace, {KEY_FIELD: key})
    folder = None if len(content) > ENTRY_BYTES else private_folder(PASSES_FOLDER, make=True)
    if folder is None:
        return
    path = folder / f"{key}-{_digest(content)}{SUFFIX}"
    with suppress(OSError, AttnscopeError):
        write_whole(path, content, private=True)
        for other, _, _ in list(_files(folder, f"{key}-")):
            if other != path:
                other.unlink()
        room = CACHE_BYTES
        for count, (each, size, used) in enumerate(sorted(_files(folder), key=lambda file: -file[2]), 1):
            room -= size
            abandoned = each.name.startswith(".") and time.time() - used > 3600  # seconds
            if room < 0 or count > MOST_ENTRIES or abandoned:
                each.unlink(missing_ok=True)


def find_seal(key: str) -> Paths | None:
    """The lists of modules that were stored for a key."""
    folder = private_folder(SEALS_FOLDER)
    with suppress(OSError, ValueError, RecursionError):
        status = None if folder is None else (folder / f"{key}.json").lstat()
        if folder and status and stat.S_ISREG(status.st_mode) and status.st_size <= SEAL_BYTES:
            stored: Paths = read(Paths, json.loads((folder / f"{key}.json").read_bytes()))
            return stored
    return None


def store_seal(key: str, *paths: Sequence[str]) -> None:
    """Store what is known of how a model mixes tokens: lists of its modules."""
    folder = private_folder(SEALS_FOLDER, make=True)
    with suppress(OSError, AttnscopeError):
        if folder is not None:
            write_whole(folder / f"{key}.json", json.dumps(paths).encode(), private=True)


def list_passes() -> list[CachedPass]:
    """All cached passes, the latest first."""
    files = sorted(_files(private_folder(PASSES_FOLDER)), key=lambda file: -file[2])
    return [CachedPass(*file, trace) for file in files if (trace := _open(file[0])) is not None]


def clear_passes() -> int:
    """Remove every entry; returns their number."""
    count = 0
    for path, _, _ in _files(private_folder(PASSES_FOLDER)):
        with suppress(OSError):
            path.unlink()
            count += 1
    if (folder := private_folder(SEALS_FOLDER)) is not None:
        for path in folder.glob("*.json"):
            path.unlink(missing_ok=True)
    return count


def _open(path: Path) -> Trace | None:
    """An entry whose bytes and key match its name."""
    key, _, digest = path.stem.partition("-")
    try:
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        with open(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or not is_private(status) or status.st_size > ENTRY_BYTES:
                return None
            content = file.read(ENTRY_BYTES)
        trace = read_trace(path, content) if _digest(content) == digest else None
    except (OSError, AttnscopeError):
        return None
    return trace if trace is not None and trace.metadata.get(KEY_FIELD) == key else None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:40]


def _files(folder: Path | None, prefix: str = "") -> Iterator[tuple[Path, int, float]]:
    """Path, size and last use of our files; names are filtered first, since there may be thousands."""
    if folder is None:
        return
    with suppress(OSError), os.scandir(folder) as entries:
        for each in entries:
            ours = each.name.startswith(prefix) and _ENTRY_NAME.fullmatch(each.name)
            with suppress(OSError):
                if ours and not each.is_dir(follow_symlinks=False):
                    facts = each.stat(follow_symlinks=False)
                    yield Path(each.path), facts.st_size, facts.st_mtime
