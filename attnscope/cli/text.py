"""Where a command's text comes from: its arguments, a file, or standard input."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO

import typer

from attnscope.cli.options.source import SourceOptions
from attnscope.errors import InputError
from attnscope.memory import readable

MOST = 1 << 26
"""Bytes of a file that are read to find the text in it, or one line of it."""


def read_text(asked: SourceOptions) -> tuple[str, str | None]:
    """The text, and the second one if there is one.

    ``-`` as the text reads standard input. ``line`` picks one line of the input, counted from 1, and a
    tab in that line parts a pair. Raises ``InputError`` for what cannot be read or is empty.
    """
    file, line, second = asked.file, asked.line, asked.second_text
    if file is not None:
        if asked.text is not None:
            raise typer.BadParameter("give a text or --file, not both", param_hint="TEXT")
        whole = read_file(file)
    elif asked.text == "-":
        if sys.stdin is None:
            raise InputError("standard input is closed: give a text, or --file FILE")
        whole = _decode(_read_some(sys.stdin.buffer, "standard input"), "standard input")
    elif asked.text is not None:
        whole = _argument(asked.text)
        if len(whole.split()) == 1 and os.path.isfile(whole):
            raise InputError(
                f"{whole} is a file: did you mean --file {whole}? to read its name as a text, use -"
            )
    else:
        raise typer.BadParameter("give a text, --file FILE, or - for standard input", param_hint="TEXT")
    if line is not None:
        whole, second = _line(whole, line, second)
    if not whole.strip():
        raise InputError(f"the text is empty{f': {file}' if file else ''}: give at least one word")
    if second is not None and not second.strip():
        raise InputError("the second text is empty: give at least one word, or leave it out")
    return whole.strip("\n"), None if second is None else _argument(second)


def read_file(file: Path) -> str:
    """What a file holds. Raises ``InputError`` for one that cannot be read."""
    return _decode(_bytes_of(file), str(file))


def _bytes_of(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return _read_some(opened, str(file))
    except FileNotFoundError:
        raise InputError(f"no such file: {file}") from None
    except IsADirectoryError:
        raise InputError(f"{file} is a folder: give a text file") from None
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from None


def _read_some(opened: IO[bytes], name: str) -> bytes:
    """All that is in a file, a pipe or a device. Raises ``InputError`` where there is no end in sight."""
    content = opened.read(MOST + 1)
    if len(content) > MOST:
        raise InputError(f"{name} holds more than {readable(MOST)}, and no more is read: cut it into parts")
    return content


def _decode(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not UTF-8 text: byte {error.start:,} is 0x{content[error.start]:02x}; "
            "save it as UTF-8"
        ) from None


def _argument(text: str) -> str:
    """A command-line argument; bytes in it that are not UTF-8 arrive as lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"the text is not UTF-8: character {error.start:,} cannot be read") from None
    return text


def _line(whole: str, line: int, second: str | None) -> tuple[str, str | None]:
    lines = whole.splitlines()
    if not 1 <= line <= len(lines):
        raise InputError(f"no line {line:,}: the input has lines 1 to {len(lines):,}")
    first, tab, rest = lines[line - 1].partition("\t")
    return (first, rest) if tab and second is None else (lines[line - 1], second)
