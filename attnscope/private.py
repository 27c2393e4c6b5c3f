"""The folder of what attnscope keeps between two runs: private to the user, or not used."""

from __future__ import annotations

import os
import stat
import sys
from functools import cache
from pathlib import Path

from attnscope.text import clean

CACHE_VARIABLE = "ATTNSCOPE_CACHE"  # the environment variable that sets another folder, or ``off``


def private_path(name: str) -> Path | None:
    """The folder of this name, whether or not it exists; ``None`` if nothing is to be kept."""
    named = os.environ.get(CACHE_VARIABLE, "")
    if named.strip().lower() == "off":
        return None
    if named:
        return Path(named) / name
    from platformdirs import user_cache_path

    return user_cache_path("attnscope", appauthor=False) / name


def private_folder(name: str, *, make: bool = False) -> Path | None:
    """The folder of this name, if it exists, is private, and none but this user or root can replace it."""
    try:
        folder = private_path(name)
        if folder is None:
            return None
        if make:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.parent.resolve() / folder.name
        status = folder.lstat()
        open_to_others = [each for each in folder.parents if not _is_guarded(each.stat())]
    except (OSError, RuntimeError):  # no home folder
        return None
    if not stat.S_ISDIR(status.st_mode) or not is_private(status):
        open_to_others.append(folder)
    for each in open_to_others[:1]:
        _say(f"nothing is cached: {each} is open to others; {CACHE_VARIABLE}=FOLDER names another place")
    return None if open_to_others else folder


@cache
def _say(sentence: str) -> None:
    """On standard error, once."""
    print(clean(f"attnscope: {sentence}"), file=sys.stderr)


def _is_guarded(status: os.stat_result) -> bool:
    """Whether none but this user or root renames what is in a folder: in a sticky one, each its own."""
    if not hasattr(os, "getuid"):
        return True
    return status.st_uid in (0, os.getuid()) and (
        not status.st_mode & 0o022 or bool(status.st_mode & stat.S_ISVTX)
    )


def is_private(status: os.stat_result) -> bool:
    """Whether a file or folder belongs to this user and is closed to others."""
    if not hasattr(os, "getuid"):
        return True
    return status.st_uid == os.getuid() and not status.st_mode & 0o077
