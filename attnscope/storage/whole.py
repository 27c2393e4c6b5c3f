"""Files that appear whole or not at all: every file that attnscope writes is written here."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from attnscope.errors import OutputError
from attnscope.storage.regular import name_other


@contextmanager
def open_whole(path: str | Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """Open a file to be written beside its place; it takes its name when all of it is on the disk.

    A file that exists is replaced and keeps its permissions; a symbolic link stays, and the file that it
    leads to is written. Raises ``OutputError`` where the folder does not exist or cannot be written to, or
    something else than a file stands there; nothing stays behind then. A ``private`` file is for its owner
    alone.
    """
    path = Path(path)
    try:
        place = Path(os.path.realpath(path))
        other = name_other(place)
        if other is not None:
            raise OutputError(f"cannot write {path}: it is {other}; give the name of a file")
        if not place.parent.is_dir():
            raise OutputError(f"cannot write {path}: there is no folder {place.parent}; create it first")
        # named before it exists, and removed only if it does: a Ctrl-C may fall between any two lines
        beside = place.parent / f".attnscope-{secrets.token_hex(8)}{place.suffix}"
        try:
            with open(beside, "x+b", opener=_open_private) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if not private:
                os.chmod(beside, place.stat().st_mode & 0o777 if place.exists() else 0o666 & ~_umask())
            os.replace(beside, place)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def write_whole(path: str | Path, content: bytes, *, private: bool = False) -> None:
    """Write a file whole or not at all; see ``open_whole``."""
    with open_whole(path, private=private) as file:
        file.write(content)


def _open_private(path: str, flags: int) -> int:
    """Open a file that its owner alone may read while it is written."""
    return os.open(path, flags, 0o600)


def _umask() -> int:
    """The permissions that new files are denied; reading them means setting them for a moment."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
