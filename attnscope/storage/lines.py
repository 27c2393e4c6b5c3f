"""Lines of a file that somebody else wrote: one after the other, and none of any length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LONGEST = 1 << 23
"""Bytes of a line: more than any text that is read takes, with all that is said about it."""


class Line(NamedTuple):
    """A line: its number from 1, its text, and the bytes of the file up to its end.

    ``fault`` says what is wrong with it, and is empty for one that can be read.
    """

    number: int
    text: str
    done: int
    fault: str = ""


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a file in UTF-8, without their ends; of one that is too long nothing is kept."""
    done = number = 0
    with path.open("rb") as file:
        while line := file.readline(LONGEST + 1):
            number += 1
            done += len(line)
            if len(line) > LONGEST:
                while not line.endswith(b"\n") and (line := file.readline(LONGEST)):
                    done += len(line)
                yield Line(number, "", done, f"it has more than {LONGEST:,} bytes")
                continue
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                yield Line(number, text, done)
            except UnicodeDecodeError as error:
                yield Line(number, "", done, f"byte {error.start:,} is no UTF-8 text")
