"""The folder of what attnscope keeps between two runs: private to the user, or not used."""

from __future__ import annotations

import os
import stat
from pathlib import Path

VARIABLE = "ATTNSCOPE_CACHE"  # the environment variable that sets another folder, or ``off``


def private_path(name: str) -> Path | None:
    """The folder of this name, whether or not it exists; ``None`` if nothing is to be kept."""
    named = os.environ.get(VARIABLE, "")
    if named.strip().lower() == "off":
        return None
    if named:
        return Path(named) / name
    from platformdirs import user_cache_path

    return user_cache_path("attnscope", appauthor=False) / name


def private_folder(name: str, *, make: bool = False) -> Path | None:
    """The folder of this name, if it exists, belongs to this user and is closed to others."""
    try:
        folder = private_path(name)
        if folder is None:
            return None
        if make:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except (OSError, RuntimeError):  # no home folder
        return None
    return folder if stat.S_ISDIR(found.st_mode) and is_private(found) else None


def is_private(found: os.stat_result) -> bool:
    """Whether a file or folder belongs to this user and is closed to others."""
    if not hasattr(os, "getuid"):
        return True
    return found.st_uid == os.getuid() and not found.st_mode & 0o077
