"""A folder of pictures and data: its files are named by kind, layer and head, and a manifest lists them.

Names consist of numbers and three known words only, so that no name can leave the folder.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnscope.errors import InputError, OutputError
from attnscope.storage.arrays import FORMATS as DATA
from attnscope.storage.files import hash_file, read_json, write_whole
from attnscope.text import escape_json

PICTURES = ("png", "svg", "pdf", "jpg")  # the formats of pictures
FORMATS = (*PICTURES, *DATA, "html")  # what a folder can hold: a picture per head, or one file of all heads

MANIFEST, OVERVIEW, ALL = "manifest.json", "overview", "heads"
UNFINISHED = "unfinished export"
"""The manifest's key for an export in progress; its value identifies the export."""

_NAME = re.compile(
    rf"(?:(?:encoder|decoder|cross|mixer)-)?(?:{OVERVIEW}|L(?P<layer>\d+)(?:H(?P<head>\d+))?)\.(?P<form>\w+)"
)


@dataclass(frozen=True, slots=True)
class Name:
    """The name of a picture: of one head, of a layer (``head`` is ``None``), or of all layers."""

    form: str
    layer: int | None = None
    head: int | None = None
    kind: str | None = None  # ``None`` if a model has only one kind of attention

    def __str__(self) -> str:
        led = f"{self.kind}-" if self.kind else ""
        if self.layer is None:
            return f"{led}{OVERVIEW}.{self.form}"
        head = "" if self.head is None else f"H{self.head:02}"
        return f"{led}L{self.layer:02}{head}.{self.form}"


@dataclass
class ExportPlan:
    """What to write into a folder, ``None`` for all layers or heads. Raises ``OutputError`` for a format."""

    formats: tuple[str, ...]
    layers: Collection[int] | None = None
    heads: Collection[int] | None = None

    def __post_init__(self) -> None:
        for form in self.formats:
            if form not in FORMATS:
                raise OutputError(f"no format {form!r}: there are {', '.join(FORMATS)}")
        self.pictures = tuple(form for form in self.formats if form in PICTURES)  # with one file per head
        self.wholes = tuple(form for form in self.formats if form not in PICTURES)  # with one for all heads

    def covers(self, name: str) -> bool:
        """Whether a file of that name may be written, whatever the model turns out to have."""
        if name == MANIFEST or name in [f"{ALL}.{form}" for form in self.wholes]:
            return True
        match = _NAME.fullmatch(name)
        return (
            match is not None
            and match["form"] in self.pictures
            and (match["layer"] is None or self.layers is None or int(match["layer"]) in self.layers)
            and (match["head"] is None or self.heads is None or int(match["head"]) in self.heads)
        )


def refuse_existing(folder: Path, contents: ExportPlan, identity: str | None = None) -> None:
    """Raise ``OutputError`` if a file would be overwritten, but for what this export (``None``: any) left."""
    if not folder.is_dir():
        return
    killed = _read_unfinished(folder)
    if killed is not None and identity in (None, killed):
        return
    names = sorted(name for name in os.listdir(folder) if contents.covers(name))
    if names:
        more = f" and {len(names) - 1} more files" if len(names) > 1 else ""
        files = f"{names[0]}{more} that this would overwrite"
        raise OutputError(f"{folder} holds {files}: give another folder, or --force to overwrite")


@contextmanager
def claim_folder(folder: Path) -> Iterator[None]:
    """Make the folder if necessary, and lock it against other exports. Raises ``OutputError``."""
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write into {folder}: {error.strerror or error}") from error
    try:
        import fcntl
    except ImportError:  # Windows cannot lock a folder; each file is still atomic
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            problem = f"another export is writing into {folder}: wait for it, or give another folder"
            raise OutputError(problem) from None
        yield
    finally:
        os.close(handle)
        if is_new:
            with suppress(OSError):  # only an empty folder goes: what was asked for was refused
                folder.rmdir()


def describe_file(path: Path) -> dict[str, Any]:
    """A file's entry in the manifest: name, size and checksum."""
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": hash_file(path)}


def begin_manifest(folder: Path, contents: ExportPlan, identity: str) -> None:
    """Mark the manifest as unfinished until the export is done: an older one would be false.

    Links in place of files to be written are removed, so that nothing outside the folder is touched.
    """
    for name in os.listdir(folder):
        if contents.covers(name) and (folder / name).is_symlink():
            (folder / name).unlink()
    write_manifest(folder, {UNFINISHED: identity})


def count_unfinished(folder: Path, contents: ExportPlan) -> int | None:
    """How many files a stopped export has written; ``None`` if there was none."""
    if _read_unfinished(folder) is None:
        return None
    return sum(contents.covers(name) for name in os.listdir(folder)) - 1  # the manifest


def _read_unfinished(folder: Path) -> str | None:
    """The identity of the export that was killed while writing into a folder, if any."""
    try:
        return str(read_json(folder / MANIFEST)[UNFINISHED])
    except (OSError, ValueError, KeyError, TypeError, InputError):
        return None


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    """Write the manifest; the same content gives the same bytes."""
    text = escape_json(json.dumps(content, ensure_ascii=False, indent=1))
    write_whole(folder / MANIFEST, (text + "\n").encode())
