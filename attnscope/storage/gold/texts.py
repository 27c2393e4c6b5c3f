"""What a file of questions holds: texts in words, and pairs of these words."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, TypeAlias

from attnscope.text import MOST_CHARACTERS

Span: TypeAlias = tuple[int, int]
"""Characters of a text: the first, and the one behind the last."""

LONGEST_LABEL = 60

MOST_PAIRS = 10_000
"""Pairs that a text may have."""

PIECE = 1 << 20
"""Bytes of a file that are hashed together."""


class Pair(NamedTuple):
    """Words that should look at words, by their numbers; any of ``right`` is a right answer.

    ``sure`` is false for a link between translations that annotators call possible.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    label: str
    sure: bool = True


@dataclass(frozen=True)
class GoldText:
    """One text with its words and its pairs, or what is wrong with it.

    ``where`` names its place ("line 17"), ``fault`` is empty for one that can be read, ``done`` says how many
    bytes of the file lie behind it. With a ``target``, its translation, the left words of the pairs are the
    target's and the right words the text's; else both are the text's.
    """

    where: str
    text: str
    words: tuple[Span, ...] = ()
    pairs: tuple[Pair, ...] = ()
    done: int = 0
    target: str | None = None
    target_words: tuple[Span, ...] = ()
    fault: str = ""


@dataclass(frozen=True)
class GoldFile(ABC):
    """A file of texts with pairs. ``ways`` names the directions that are asked: left to right, and back.

    ``links`` says that the pairs are a whole alignment of two texts, which has an error rate.
    """

    path: Path
    ways: tuple[str, ...] = ("from → to", "to → from")
    links: bool = False

    @property
    def name(self) -> str:
        """What people call it."""
        return str(self.path)

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.path.stat().st_size

    def fingerprint(self) -> str:
        """What tells these questions from others: how they are asked, and a hash of the files."""
        digest = sha256(repr((type(self).__name__, self.ways, self.links)).encode())
        for path in self.files:
            with path.open("rb") as file:
                for piece in iter(lambda: file.read(PIECE), b""):
                    digest.update(piece)
            digest.update(b"\0")
        return digest.hexdigest()

    @property
    def files(self) -> tuple[Path, ...]:
        """What is read."""
        return (self.path,)

    @abstractmethod
    def texts(self) -> Iterator[GoldText]:
        """The texts one after the other, the same at every call."""


def require_short(text: str) -> None:
    """Raise ``ValueError`` for a text of more characters than are read of any."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"a text has {len(text):,} characters, and may have {MOST_CHARACTERS:,}")


def words_of(text: str) -> tuple[Span, ...]:
    """What stands between spaces."""
    return tuple(match.span() for match in re.finditer(r"\S+", text))


def clean_label(label: str) -> str:
    """A label that a table can print. Raises ``ValueError``."""
    if not label or len(label) > LONGEST_LABEL or not label.isprintable():
        raise ValueError(f"a label is 1 to {LONGEST_LABEL} characters that can be printed")
    return label
