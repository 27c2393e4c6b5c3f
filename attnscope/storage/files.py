"""Files: written atomically, regular files only, lines of bounded length."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import secrets
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NamedTuple, cast

from attnscope.errors import AttnscopeError, InputError, OutputError, first_line, out_of_memory
from attnscope.limits import STATE_BYTES
from attnscope.text import clean

MOST_LINE_BYTES = 1 << 23  # most bytes of a line: more than any text with all its annotations
REST = "the file cannot be read from here on"
HASH_BYTES = 1 << 20  # bytes of a file that are hashed at once


class Line(NamedTuple):
    """A line of a file, or why it cannot be read."""

    number: int  # from 1
    text: str
    done: int  # bytes of the file up to its end
    fault: str = ""


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a UTF-8 file, packed or not; see ``lines_of``. Raises ``InputError`` without pyarrow."""
    with path.open("rb") as file:
        yield from lines_of(unpack(file, path), file.tell)


def unpack(file: IO[bytes], path: Path) -> IO[bytes]:
    """The content of an open file: unpacked if its name ends in .gz or .zst, else as it is.

    Raises ``InputError`` if .zst cannot be read because pyarrow is not installed.
    """
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return cast(IO[bytes], gzip.GzipFile(fileobj=file))
    if suffix == ".zst":
        pyarrow: Any = require_pyarrow(path)
        return io.BufferedReader(pyarrow.CompressedInputStream(file, "zstd"))
    return file


def require_pyarrow(path: Path) -> ModuleType:
    """The library pyarrow. Raises ``InputError`` where it is not installed."""
    try:
        return import_module("pyarrow")
    except ImportError:
        raise InputError(f"{path} needs the package pyarrow: pip install pyarrow") from None


def lines_of(file: IO[bytes], tell: Callable[[], int]) -> Iterator[Line]:
    """The lines of a stream, without line ends; overlong lines are not stored.

    A stream that breaks, as a truncated .gz does, ends in a line that says why.
    """
    number = 0
    try:
        while line := file.readline(MOST_LINE_BYTES + 1):
            number, text, fault = number + 1, "", ""
            if len(line) > MOST_LINE_BYTES:
                fault = f"it has more than {MOST_LINE_BYTES:,} bytes"
                while not line.endswith(b"\n") and (line := file.readline(MOST_LINE_BYTES)):
                    pass
            else:
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                except UnicodeDecodeError as error:
                    fault = f"byte {error.start:,} is not UTF-8 text"
            yield Line(number, text, tell(), fault)
    except (OSError, EOFError, zlib.error) as error:
        yield Line(number + 1, "", tell(), f"{REST}: {first_line(error)}")


FILE_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a link that leads nowhere",
}


def name_other(path: Path) -> str | None:
    """What a path leads to instead of a file, in words; ``None`` for a regular file, or nothing at all."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = path.lstat().st_mode if path.is_symlink() else stat.S_IFREG
    return None if stat.S_ISREG(mode) else FILE_KINDS.get(stat.S_IFMT(mode), "no file")


def require_regular(path: Path) -> None:
    """Raise ``InputError`` for a folder, a pipe or a device in place of a file."""
    other = name_other(path)
    if other is not None:
        raise InputError(f"{path} is {other}, not a file")


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Read an untrusted file: what its reader raises becomes an ``InputError``, but for lack of memory."""
    try:
        require_regular(path)
        yield
    except AttnscopeError:
        raise
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except Exception as error:  # every format has its own exceptions for damage
        if out_of_memory(error):
            raise
        why = f"it says nothing about {error}" if isinstance(error, KeyError) else first_line(error)
        why = "it is nested too deep" if isinstance(error, RecursionError) else why
        raise InputError(f"cannot read {what} {path}: {why}") from error


def read_regular(path: Path, most: int) -> bytes:
    """The bytes of a regular file of at most ``most`` bytes. Raises ``InputError``, or ``OSError``."""
    require_regular(path)
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        size = path.stat().st_size
        raise InputError(f"{path} is too large: it has {size:,} bytes, and at most {most:,} are read")
    return content


def read_json(path: Path, most: int = STATE_BYTES) -> Any:
    """The data of a JSON file. Raises ``ValueError`` for other content, and what ``read_regular`` raises."""
    return parse_json(read_regular(path, most))


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Raises ``ValueError`` for anything else, however deeply nested."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its lists are nested too deep") from None


def clean_texts(data: Any) -> Any:
    """Data from JSON with every text in it cleaned: a file may come from anybody."""
    if isinstance(data, str):
        return clean(data)
    if isinstance(data, dict):
        return {clean(name): clean_texts(value) for name, value in data.items()}
    return [clean_texts(value) for value in data] if isinstance(data, list) else data


def hash_file(path: Path) -> str:
    """The SHA-256 of a file. Raises ``OSError``."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(HASH_BYTES):
            digest.update(part)
    return digest.hexdigest()


@contextmanager
def open_whole(path: str | Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """Open a temporary file for writing; it takes its name once all of it is on disk.

    A file that exists keeps its permissions; a symbolic link stays, and its target is written. Raises
    ``OutputError`` and leaves nothing behind. A ``private`` file is for its owner, and for readers that check
    its content: it is not waited for.
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
        before = place.stat().st_mode & 0o777 if place.exists() else None
        mode = 0o666 if before is None and not private else 0o600
        try:
            with open(beside, "x+b", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                yield file
                file.flush()
                if not private:
                    os.fsync(file.fileno())
            if before is not None and not private:
                os.chmod(beside, before)
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
