"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from attnscope.errors import OutputError


@contextmanager
def whole(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file to be written under another name beside its place, and moved there when all is written.

    A file that exists is replaced. Raises ``OutputError`` where the folder does not exist or cannot be
    written to, or the path is a folder; nothing stays behind then.
    """
    path = Path(path)
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise OutputError(f"cannot write {path}: there is no folder {path.parent}; create it first")
    try:
        handle, beside = tempfile.mkstemp(prefix=".attnscope-", suffix=path.suffix, dir=path.parent)
        try:
            with os.fdopen(handle, "w+b") as file:
                yield file
            os.chmod(beside, 0o666 & ~_umask())
            os.replace(beside, path)
        except BaseException:
            os.unlink(beside)
            raise
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def write_whole(path: str | Path, content: bytes) -> None:
    """Write a file whole or not at all; see ``whole``."""
    with whole(path) as file:
        file.write(content)


def _umask() -> int:
    """The permissions that new files are denied; reading them means setting them for a moment."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
