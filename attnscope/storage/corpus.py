"""Corpora: many texts in a file or a folder, read one at a time."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from attnscope.errors import InputError
from attnscope.storage.files import LONGEST, parse_json, read_lines

HASHED = 1 << 20  # bytes at the beginning of a file that, with its size, are its fingerprint
FEW = 20  # most fields of a line that a message names
ROWS = 1024  # rows of a Parquet file that are read together


Text_co = TypeVar("Text_co", covariant=True)


class CorpusText(NamedTuple):
    """One text, or the reason why it cannot be read."""

    where: str  # its place ("line 17")
    text: str
    fault: str  # empty for a readable text
    done: int  # how much of the corpus's ``size`` has been read


class TextSource(ABC, Generic[Text_co]):
    """Texts in a fixed order. ``name`` is for people, ``size`` counts bytes, rows, files or texts."""

    name: str
    size: int

    @abstractmethod
    def entries(self) -> Iterator[Text_co]:
        """The texts one by one, the same on every call; blank lines are skipped."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Identifies these texts and how they are read."""


Corpus: TypeAlias = TextSource[CorpusText]


class _File(TextSource[CorpusText]):
    def __init__(self, path: Path, field: str | None) -> None:
        self.path, self.field = path, field
        self.name, self.size = str(path), path.stat().st_size

    def fingerprint(self) -> str:
        with self.path.open("rb") as file:
            return f"{self.path.stat().st_size} {_hash(file.read(HASHED))} {self.field or ''}"


class _Lines(_File):
    """One text per line: the line itself, or a field of its JSON object."""

    def entries(self) -> Iterator[CorpusText]:
        for line in read_lines(self.path):
            where, text = f"line {line.number:,}", line.text.strip()
            if line.fault or (text and self.field is None):
                yield CorpusText(where, text, line.fault, line.done)
            elif text:
                try:
                    fields = parse_json(text)
                except ValueError:
                    yield CorpusText(where, "", "it is not JSON", line.done)
                    continue
                fields = fields if isinstance(fields, dict) else {}
                has = f": it has {', '.join(islice(fields, FEW))}" if fields else ""
                if self.field in fields:
                    yield _entry(where, fields[self.field], line.done)
                else:
                    yield CorpusText(where, "", f"no field {self.field!r}{has}", line.done)


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
            raise InputError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
        names = self.file.schema_arrow.names
        if field not in names:
            raise InputError(f"{path} has no column {field!r}: name one with --field, of {', '.join(names)}")
        self.size = self.file.metadata.num_rows

    def entries(self) -> Iterator[CorpusText]:
        batches = self.file.iter_batches(batch_size=ROWS, columns=[self.field])
        texts = (text for rows in batches for text in rows.column(0).to_pylist())
        for number, text in enumerate(texts, 1):
            yield _entry(f"row {number:,}", text, number)


class _Folder(TextSource[CorpusText]):
    """A folder with one text in every .txt file, also in folders inside it."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)
        self.files = sorted(file for file in path.rglob("*.txt") if file.is_file())
        self.size = len(self.files)
        if not self.files:
            raise InputError(f"the folder {path} holds no .txt file")

    def entries(self) -> Iterator[CorpusText]:
        for number, file in enumerate(self.files, 1):
            where = str(file.relative_to(self.path))
            try:
                with file.open("rb") as opened:
                    content = opened.read(LONGEST + 1)
                if len(content) > LONGEST:
                    yield CorpusText(where, "", f"it has more than {LONGEST:,} bytes", number)
                    continue
                yield _entry(where, content.decode("utf-8-sig"), number)
            except UnicodeDecodeError as error:
                yield CorpusText(where, "", f"byte {error.start:,} is not UTF-8 text", number)
            except OSError as error:
                yield CorpusText(where, "", f"it cannot be read: {error.strerror}", number)

    def fingerprint(self) -> str:
        listed = [(str(file.relative_to(self.path)), file.stat().st_size) for file in self.files]
        return _hash(json.dumps(listed).encode())


class ListedTexts(TextSource[CorpusText]):
    """Texts that are already in memory."""

    def __init__(self, texts: Sequence[str], name: str = "the list") -> None:
        self.name, self.texts, self.size = name, texts, len(texts)

    def entries(self) -> Iterator[CorpusText]:
        """One entry per text."""
        for number, text in enumerate(self.texts, 1):
            yield _entry(f"text {number:,}", text, number)

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


def _entry(where: str, text: object, done: int) -> CorpusText:
    """An entry from whatever value a file holds as a text."""
    if not isinstance(text, str):
        return CorpusText(where, "", f"it holds {type(text).__name__}, not text", done)
    if not text.strip():
        return CorpusText(where, "", "the text is empty", done)
    try:
        text.encode()
    except UnicodeEncodeError:
        return CorpusText(where, "", "it holds half a character (a lone surrogate)", done)
    return CorpusText(where, text.strip("\n"), "", done)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
