"""What stands at a path: nothing but regular files are read and written, never a pipe or a device."""

from __future__ import annotations

import stat
from pathlib import Path

from attnscope.errors import InputError

KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a link that leads nowhere",
}


def name_other(path: Path) -> str | None:
    """What stands at a path in a file's place, in words; ``None`` for a regular file, or nothing at all.

    Raises ``OSError`` where the system does not say.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = path.lstat().st_mode if path.is_symlink() else stat.S_IFREG
    return None if stat.S_ISREG(mode) else KINDS.get(stat.S_IFMT(mode), "no file")


def read_regular(path: Path, most: int) -> bytes:
    """The bytes of a regular file that has at most so many.

    Raises ``InputError`` for anything else, and ``OSError`` where there is no file or it cannot be read.
    """
    other = name_other(path)
    if other is not None:
        raise InputError(f"{path} is {other}, not a file")
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise InputError(
            f"{path} is too large: it has {path.stat().st_size:,} bytes, and at most {most:,} are read"
        )
    return content
