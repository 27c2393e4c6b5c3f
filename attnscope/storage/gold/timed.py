"""Sounds with timed words: ``{"audio": "a.wav", "words": [["The", 0.12, 0.31], ["cat", 0.31, 0.72]]}``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from attnscope.storage.lines import Line, read_lines

EXAMPLE = '{"audio": "a.wav", "words": [["The", 0.12, 0.31], ["cat", 0.31, 0.72]]}'

MOST_WORDS = 10_000
"""Words that a sound may have."""

LONGEST = 400
"""Characters of a word."""


class TimedWord(NamedTuple):
    """A word, and when it begins and ends, in seconds."""

    text: str
    begin: float
    end: float


@dataclass(frozen=True)
class TimedText:
    """One sound and the words that are said in it, in order, or what is wrong with it (``fault``).

    ``where`` names its place ("line 17"), ``done`` says how many bytes of the file lie behind it.
    """

    where: str
    sound: Path = Path()
    words: tuple[TimedWord, ...] = ()
    done: int = 0
    fault: str = ""

    @property
    def text(self) -> str:
        """What is said."""
        return " ".join(word.text for word in self.words)


@dataclass(frozen=True)
class TimedLines:
    """An object a line: ``audio``, a path from the file's folder, and ``words`` with their times."""

    path: Path

    @property
    def name(self) -> str:
        """What people call it."""
        return str(self.path)

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.path.stat().st_size

    def texts(self) -> Iterator[TimedText]:
        """The sounds one after the other, the same at every call."""
        for line in read_lines(self.path):
            where = f"line {line.number:,}"
            if line.fault or line.text.strip():
                try:
                    yield self._read(line, where)
                except ValueError as error:
                    yield TimedText(where, done=line.done, fault=str(error))

    def _read(self, line: Line, where: str) -> TimedText:
        """The sound of one line. Raises ``ValueError`` with what is wrong."""
        if line.fault:
            raise ValueError(line.fault)
        fields = _fields(line.text)
        if fields is None or not isinstance(fields.get("words"), list):
            raise ValueError(f"write {EXAMPLE}")
        named = fields.get("audio")
        if not isinstance(named, str) or not named or "\0" in named:
            raise ValueError("the path of its sound is missing")
        if not 0 < len(fields["words"]) <= MOST_WORDS:
            raise ValueError(f"it has {len(fields['words']):,} words: a sound has 1 to {MOST_WORDS:,}")
        words = tuple(map(_word, fields["words"]))
        late = next((after for word, after in pairwise(words) if after.begin < word.begin), None)
        if late is not None:
            raise ValueError(f"{late.text!r} begins before the word in front of it")
        return TimedText(where, self.path.parent / named, words, line.done)


def has_times(path: Path) -> bool:
    """Whether the first line that is one of JSON lines names a sound."""
    lines = (line for line in read_lines(path) if line.fault or line.text.strip())
    fields = next((_fields(line.text) for line in lines), None)
    return fields is not None and "audio" in fields


def _fields(line: str) -> dict[str, Any] | None:
    """The object that a line holds; ``None`` if it holds none."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def _word(given: Any) -> TimedWord:
    """Raises ``ValueError`` for what is no word with its times."""
    if not isinstance(given, list) or len(given) != 3 or not isinstance(given[0], str):
        raise ValueError('a word is ["text", begin, end], in seconds')
    text, times = given[0].strip(), given[1:]
    if not text or len(text) > LONGEST or not text.isprintable():
        raise ValueError(f"a word is 1 to {LONGEST} characters that can be printed")
    if not all(type(time) in (int, float) and math.isfinite(time) for time in times):
        raise ValueError(f"the times of {text!r} are no numbers")
    begin, end = map(float, times)
    if not 0 <= begin < end:
        raise ValueError(f"{text!r} ends before it begins, or begins before the sound")
    return TimedWord(text, begin, end)
