"""Corpora: many texts in files, a folder, a stream or a data set, read one at a time."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from glob import glob
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from attnscope.errors import InputError, first_line
from attnscope.storage.files import (
    MOST_LINE_BYTES,
    REST,
    Line,
    lines_of,
    parse_json,
    read_lines,
    require_pyarrow,
)
from attnscope.text import decode_file

HASHED_BYTES = 1 << 20  # bytes at the beginning of a file that, with its size, are its fingerprint
MOST_NAMED_FIELDS = 20  # most fields of a line that a message names
PARQUET_ROWS = 1024  # rows of a Parquet file that are read together

DATASET = re.compile(r"hf://(?:datasets/)?([\w.-]+/[\w.-]+)(?:/([\w.-]+))?(?::([\w.-]+))?")
"""The name of a data set: its repository, its config and its split."""

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
    field: str | None = None  # that holds each text
    repeatable = True  # whether the texts can be read again

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
        if isinstance(content, ValueError):
            raise content
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
            yield _place(line), line.done, line


def _place(line: Line) -> str:
    return _from("line", line.number) if line.fault.startswith(REST) else f"line {line.number:,}"


def _from(unit: str, number: int) -> str:
    """The place of what cannot be read because a file or a stream breaks."""
    return f"from {unit} {number:,} on"


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
        if self.field is None or content.fault:
            if content.fault:
                raise ValueError(content.fault)
            return CorpusText("", content.text.strip())
        return super().read(_field_of(read_object(content), self.field))


def _field_of(content: object, field: str) -> object:
    """A field of an object. Raises ``ValueError`` where it has none of that name."""
    fields = content if isinstance(content, dict) else {}
    if field not in fields:
        has = f": it has {', '.join(islice(fields, MOST_NAMED_FIELDS))}" if fields else ""
        raise ValueError(f"no field {field!r}{has}")
    return fields[field]


class _StandardInput(_Lines):
    """The lines of standard input, which can be read once."""

    repeatable = False

    def __init__(self, field: str | None) -> None:
        self.path, self.field, self.name, self.size = Path("-"), field, "standard input", 0
        self.lines: Iterator[Line] | None = lines_of(sys.stdin.buffer, lambda: 0)

    def contents(self) -> Iterator[tuple[str, int, Line]]:
        lines, self.lines = self.lines, None
        if lines is None:
            raise InputError("standard input can be read only once: save it to a file")
        return ((_place(line), 0, line) for line in lines if line.fault or line.text.strip())

    def fingerprint(self) -> str:
        return "standard input"


class _Parquet(_File):
    """A Parquet file with one text per row."""

    def __init__(self, path: Path, field: str) -> None:
        require_pyarrow(path)
        parquet: Any = import_module("pyarrow.parquet")
        super().__init__(path, field)
        try:
            self.file: Any = parquet.ParquetFile(path)
        except Exception as error:  # the library has a different exception for every kind of damage
            raise InputError(f"cannot read {path} as Parquet: {first_line(error)}") from None
        names = self.file.schema_arrow.names
        if field not in names:
            raise InputError(f"{path} has no column {field!r}: name one with --field, of {', '.join(names)}")
        self.size = self.file.metadata.num_rows

    def contents(self) -> Iterator[tuple[str, int, object]]:
        number, rows = 0, self.file.iter_batches(batch_size=PARQUET_ROWS, columns=[self.field])
        try:
            for number, text in enumerate((text for each in rows for text in each.column(0).to_pylist()), 1):
                yield f"row {number:,}", number, text
        except Exception as error:  # as above
            yield _from("row", number + 1), self.size, ValueError(f"{REST}: {first_line(error)}")


class _Folder(Corpus):
    """A folder with one text in every .txt file, also in folders inside it."""

    def __init__(self, path: Path, files: Sequence[Path]) -> None:
        self.path, self.name, self.files, self.size = path, str(path), files, len(files)

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
        return _list_sizes(self.files, self.path)


class _Files(Corpus):
    """The texts of several files, in the order of their names; each is opened once, when its turn comes."""

    def __init__(
        self, path: Path, files: Sequence[Path], field: str | None, base: Path | None = None
    ) -> None:
        self.path, self.name, self.files, self.base, self.field = path, str(path), files, base, field
        self.size = sum(file.stat().st_size for file in files)

    def contents(self) -> Iterator[tuple[str, int, CorpusText]]:
        before = 0
        for file in self.files:
            where, size = _name_in(self.base, file), file.stat().st_size
            try:
                texts = read_corpus(file, self.field)
                for text in texts.entries():
                    of_size = size * text.done // max(texts.size, 1)
                    yield f"{where}, {text.where}", before + of_size, text
            except (InputError, OSError) as error:
                yield where, before + size, CorpusText("", "", f"the file is left out: {first_line(error)}")
            before += size

    def read(self, content: CorpusText) -> CorpusText:
        if content.fault:
            raise ValueError(content.fault)
        return content

    def fingerprint(self) -> str:
        return f"{_list_sizes(self.files, self.base)} {self.field or ''}"


class _Dataset(Corpus):
    """The rows of a split of a data set that the library datasets streams from the hub."""

    def __init__(self, name: str, field: str | None) -> None:
        match = DATASET.fullmatch(name)
        if match is None:
            raise InputError(f"{name} is no data set: write hf://OWNER/NAME, /CONFIG and :SPLIT if needed")
        try:
            datasets: Any = import_module("datasets")
        except ImportError:
            raise InputError(f"{name} needs the package datasets: pip install datasets") from None
        repository, config, split = match.groups()
        self.name, self.path = name, Path(name.removeprefix("hf://"))
        self.column = self.field = field or "messages"
        try:
            self.rows: Any = datasets.load_dataset(repository, config, split=split or "train", streaming=True)
            known = (self.rows.info.splits or {}).get(split or "train")
        except Exception as error:  # the library has one for every way in which it fails
            raise InputError(f"cannot read {name}: {first_line(error)}") from None
        self.size = (known and known.num_examples) or 0  # 0 if nobody knows

    def contents(self) -> Iterator[tuple[str, int, object]]:
        number = 0
        try:
            for number, row in enumerate(self.rows, 1):
                yield f"row {number:,}", number if self.size else 0, row
        except Exception as error:
            yield _from("row", number + 1), self.size, ValueError(f"{REST}: {first_line(error)}")

    def read(self, content: object) -> CorpusText:
        content = content if isinstance(content, Exception) else _field_of(content, self.column)
        return super().read(content)

    def fingerprint(self) -> str:
        return f"{self.name} {self.size} {self.rows.info.version} {self.field}"


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
    """The texts of a file, of many files, of standard input or of a data set.

    ``.txt``: one text per line. ``.jsonl``: one JSON object per line and its ``field``, or the whole line
    without one. Both may be packed: ``.txt.gz``, ``.jsonl.zst`` (.zst needs pyarrow). ``.parquet``: the
    column ``field`` of each row (needs pyarrow). A folder: every ``.txt`` file in it is a text, or its files
    of another kind are read one after another, as are those that a pattern matches (``data/*.jsonl.gz``).
    ``-``: the lines of standard input, with a ``field`` as JSON. ``hf://OWNER/NAME/CONFIG:SPLIT``: a data
    set, by the library datasets. Raises ``InputError`` for anything else.
    """
    name, path = str(path), Path(path)
    if name == "-":
        return _StandardInput(field)
    if name.startswith("hf://"):
        return _Dataset(name, field)
    if path.is_dir():
        return _read_folder(path, field)
    if not path.exists() and any(letter in name for letter in "*?["):
        files = [file for each in sorted(glob(name, recursive=True)) if (file := Path(each)).is_file()]
        if not files:
            raise InputError(f"no file matches {name}")
        for file in files:
            _require_kind(file)
        return _Files(path, files, field)
    if not path.is_file():
        raise InputError(f"no such file or folder: {path}")
    kind = _require_kind(path)
    if kind == ".parquet":
        return _Parquet(path, field or "messages")
    return _Lines(path, None if kind == ".txt" else field)


def kind_of(name: str) -> str | None:
    """What a file is by its name, packed or not: .txt, .jsonl or .parquet; ``None`` if it is no corpus."""
    path = Path(name.lower())
    packed = path.suffix in (".gz", ".zst")
    suffix = Path(path.stem).suffix if packed else path.suffix
    objects = (".jsonl", ".ndjson", *((".json",) if packed else ()))  # a packed .json has lines: C4, Dolma
    kinds = {".txt": ".txt", ".parquet": None if packed else ".parquet", **dict.fromkeys(objects, ".jsonl")}
    return kinds.get(suffix)


def _require_kind(path: Path) -> str:
    kind = kind_of(path.name)
    if kind is None:
        raise InputError(
            f"cannot tell what texts {path} holds: a corpus is a .txt, .jsonl or .parquet file, .gz and .zst "
            "also, or a folder"
        )
    return kind


def _read_folder(path: Path, field: str | None) -> Corpus:
    """The .txt files of a folder, a text each, or its files of another kind, one after another."""
    files = [file for file in sorted(path.rglob("*")) if kind_of(file.name) and file.is_file()]
    kinds = sorted({str(kind_of(file.name)) for file in files})
    if not files:
        raise InputError(f"the folder {path} holds no .txt, .jsonl or .parquet file")
    if len(kinds) > 1:
        raise InputError(
            f"the folder {path} holds {' and '.join(kinds)} files: name one kind, '{path}/**/*{kinds[0]}'"
        )
    if kinds == [".txt"] and all(file.suffix.lower() == ".txt" for file in files):
        return _Folder(path, files)
    return _Files(path / f"*{kinds[0]}", files, field, path)


def _name_in(folder: Path | None, file: Path) -> str:
    return str(file if folder is None else file.relative_to(folder))


def _list_sizes(files: Sequence[Path], base: Path | None) -> str:
    listed = [(_name_in(base, file), file.stat().st_size) for file in files]
    return _hash(json.dumps(listed).encode())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
