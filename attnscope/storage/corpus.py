"""Corpora: many texts in a file or a folder, read one at a time."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from attnscope.errors import InputError
from attnscope.storage.files import MOST_LINE_BYTES, Line, parse_json, read_lines
from attnscope.text import decode_file

HASHED_BYTES = 1 << 20  # bytes at the beginning of a file that, with its size, are its fingerprint
MOST_NAMED_FIELDS = 20  # most fields of a line that a message names
PARQUET_ROWS = 1024  # rows of a Parquet file that are read together

Span: TypeAlias = tuple[int, int]  # the first character of a text, and the one after the last


class GoldPair(NamedTuple):
    """Words that should attend to words, by number; any of ``right`` is a right answer.

    ``sure`` is False for a link between translations that annotators marked as possible.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    label: str
    sure: bool = True


class CorpusText(NamedTuple):
    """One text, or the reason why it cannot be read; in a file of questions, with its words and pairs.

    With a ``target``, its translation, the left words of the pairs are the target's and the right words the
    text's; otherwise both are the text's.
    """

    where: str  # its place ("line 17")
    text: str
    fault: str = ""  # empty for a readable text
    done: int = 0  # how much of the corpus's ``size`` has been read
    words: tuple[Span, ...] = ()
    pairs: tuple[GoldPair, ...] = ()
    target: str | None = None
    target_words: tuple[Span, ...] = ()


class Corpus(ABC):
    """Texts in a fixed order. ``name`` is for people, ``size`` counts bytes, rows, files or texts."""

    name: str
    size: int

    def entries(self) -> Iterator[CorpusText]:
        """The texts one by one, the same on every call; blank lines are skipped."""
        for where, done, content in self.contents():
            try:
                yield self.read(content)._replace(where=where, done=done)
            except ValueError as error:
                yield CorpusText(where, "", str(error), done)

    @abstractmethod
    def contents(self) -> Iterator[tuple[str, int, Any]]:
        """The place of each text, how much has been read after it, and what ``read`` makes a text of."""

    def read(self, content: Any) -> CorpusText:
        """One text. Raises ``ValueError`` that says what is wrong with it."""
        return CorpusText("", require_text(content).strip("\n"))

    @abstractmethod
    def fingerprint(self) -> str:
        """Identifies these texts and how they are read."""


def require_text(value: object) -> str:
    """Any value that a file holds as a text. Raises ``ValueError`` if it is none."""
    if not isinstance(value, str):
        raise ValueError(f"it holds {type(value).__name__}, not text")
    if not value.strip():
        raise ValueError("the text is empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half a character (a lone surrogate)") from None
    return value


def full_lines(path: Path) -> Iterator[tuple[str, int, Line]]:
    """The lines of a file that are not blank, each with its place."""
    for line in read_lines(path):
        if line.fault or line.text.strip():
            yield f"line {line.number:,}", line.done, line


def read_object(line: Line) -> Any:
    """The JSON of a line. Raises ``ValueError``."""
    if line.fault:
        raise ValueError(line.fault)
    try:
        return parse_json(line.text)
    except ValueError:
        raise ValueError("it is not JSON") from None


class _File(Corpus):
    def __init__(self, path: Path, field: str | None) -> None:
        self.path, self.field = path, field
        self.name, self.size = str(path), path.stat().st_size

    def fingerprint(self) -> str:
        with self.path.open("rb") as file:
            return f"{self.path.stat().st_size} {_hash(file.read(HASHED_BYTES))} {self.field or ''}"


class _Lines(_File):
    """One text per line: the line itself, or a field of its JSON object."""

    def contents(self) -> Iterator[tuple[str, int, Line]]:
        return full_lines(self.path)

    def read(self, content: Line) -> CorpusText:
        if self.field is None:
            if content.fault:
                raise ValueError(content.fault)
            return CorpusText("", content.text.strip())
        fields = read_object(content)
        fields = fields if isinstance(fields, dict) else {}
        if self.field not in fields:
            has = f": it has {', '.join(islice(fields, MOST_NAMED_FIELDS))}" if fields else ""
            raise ValueError(f"no field {self.field!r}{has}")
        return super().read(fields[self.field])


class _Parquet(_File):
    """A Parquet file with one text per row."""

    def __init__(self, path: Path, field: str) -> None:
        try:
            parquet: Any = import_module("pyarrow.parquet")
        except ImportError:
            raise InputError(f"{path} needs the package pyarrow to be read: pip install pyarrow") from None
        super().__init__(path, field)
        try:
            self.file: Any = parquet.ParquetFile(path)
        except Exception as error:  # the library has a different exception for every kind of damage
            raise InputError(f"cannot read {path} as Parquet: {str(error).splitlines()[0]}") from None
        names = self.file.schema_arrow.names
        if field not in names:
            raise InputError(f"{path} has no column {field!r}: name one with --field, of {', '.join(names)}")
        self.size = self.file.metadata.num_rows

    def contents(self) -> Iterator[tuple[str, int, object]]:
        batches = self.file.iter_batches(batch_size=PARQUET_ROWS, columns=[self.field])
        texts = (text for rows in batches for text in rows.column(0).to_pylist())
        return ((f"row {number:,}", number, text) for number, text in enumerate(texts, 1))


class _Folder(Corpus):
    """A folder with one text in every .txt file, also in folders inside it."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)
        self.files = sorted(file for file in path.rglob("*.txt") if file.is_file())
        self.size = len(self.files)
        if not self.files:
            raise InputError(f"the folder {path} holds no .txt file")

    def contents(self) -> Iterator[tuple[str, int, Path]]:
        return ((str(file.relative_to(self.path)), done, file) for done, file in enumerate(self.files, 1))

    def read(self, content: Path) -> CorpusText:
        try:
            with content.open("rb") as opened:
                written = opened.read(MOST_LINE_BYTES + 1)
            if len(written) > MOST_LINE_BYTES:
                raise ValueError(f"it has more than {MOST_LINE_BYTES:,} bytes")
            return super().read(decode_file(written))
        except UnicodeDecodeError as error:
            raise ValueError(f"byte {error.start:,} is not UTF-8 text") from None
        except OSError as error:
            raise ValueError(f"it cannot be read: {error.strerror}") from None

    def fingerprint(self) -> str:
        listed = [(str(file.relative_to(self.path)), file.stat().st_size) for file in self.files]
        return _hash(json.dumps(listed).encode())


class ListedTexts(Corpus):
    """Texts that are already in memory."""

    def __init__(self, texts: Sequence[str], name: str = "the list") -> None:
        self.name, self.texts, self.size = name, texts, len(texts)

    def contents(self) -> Iterator[tuple[str, int, str]]:
        """The texts with their numbers."""
        return ((f"text {number:,}", number, text) for number, text in enumerate(self.texts, 1))

    def fingerprint(self) -> str:
        """A hash of all texts."""
        return _hash(json.dumps(list(self.texts)).encode())


def read_corpus(path: str | Path, field: str | None = "text") -> Corpus:
    """The texts of a file or a folder.

    ``.txt``: one text per line. ``.jsonl``: one JSON object per line and its ``field``, or the whole line
    without one. ``.parquet``: the column ``field`` of each row (needs pyarrow). A folder: every ``.txt``
    file in it is a text. Raises ``InputError`` for anything else.
    """
    path = Path(path)
    if path.is_dir():
        return _Folder(path)
    if not path.is_file():
        raise InputError(f"no such file or folder: {path}")
    kind = path.suffix.lower()
    if kind == ".txt":
        return _Lines(path, None)
    if kind in (".jsonl", ".ndjson"):
        return _Lines(path, field)
    if kind == ".parquet":
        return _Parquet(path, field or "messages")
    raise InputError(
        f"cannot tell what texts {path} holds: a corpus is a .txt, .jsonl or .parquet file, or a folder"
    )


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
