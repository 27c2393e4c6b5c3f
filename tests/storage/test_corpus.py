"""Texts of a corpus: lines, fields, rows and files, each with its place or its fault."""

import gzip
import io
import json
import sys
from types import SimpleNamespace

import pytest

from attnscope.errors import InputError
from attnscope.storage.corpus import ListedTexts, kind_of, read_corpus


def read(path, field="text"):
    return [(entry.where, entry.text, entry.fault) for entry in read_corpus(path, field).entries()]


def test_text_file_has_one_text_per_line_and_faults_by_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\n\n  \ntwo words\nab".encode() + b"\xff\nthree")
    assert read(path) == [
        ("line 1", "one", ""),
        ("line 4", "two words", ""),
        ("line 5", "", "byte 2 is not UTF-8 text"),
        ("line 6", "three", ""),
    ]
    done = [entry.done for entry in read_corpus(path).entries()]
    assert done == sorted(done)
    assert done[-1] == read_corpus(path).size == path.stat().st_size


JSON = {
    '{"text": "one"}': "",
    "{": "it is not JSON",
    "[" * 100_000: "it is not JSON",
    "[1]": "no field 'text'",
    '{"body": "x", "id": 1}': "no field 'text': it has body, id",
    '{"text": 5}': "it holds int, not text",
    '{"text": null}': "it holds NoneType, not text",
    '{"text": "  "}': "the text is empty",
    '{"text": "\\ud800"}': "it holds half a character (a lone surrogate)",
}


def test_json_lines_field_is_read_and_faults_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(JSON), "utf-8")
    assert read(path) == [
        (f"line {n}", "" if fault else "one", fault) for n, fault in enumerate(JSON.values(), 1)
    ]
    path.write_text(json.dumps({"body": "tea\nfor two"}), "utf-8")
    assert read(path, field="body") == [("line 1", "tea\nfor two", "")]


def test_folder_corpus_has_a_text_per_file_by_name(tmp_path):
    (tmp_path / "inside").mkdir()
    files = {"b.txt": b"two\r\nlines\n", "inside/c.txt": b"\xff", "a.txt": b"one", "d.md": b""}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    damaged = ("inside/c.txt", "", "byte 0 is not UTF-8 text")
    assert read(tmp_path) == [("a.txt", "one", ""), ("b.txt", "two\nlines", ""), damaged]


def test_parquet_corpus_has_a_text_per_row(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["one", None, "two"], "n": [1, 2, 3]}), path)
    none = ("row 2", "", "it holds NoneType, not text")
    assert read(path) == [("row 1", "one", ""), none, ("row 3", "two", "")]
    with pytest.raises(InputError, match="no column 'body': name one with --field, of text, n"):
        read_corpus(path, "body")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match="needs the package pyarrow: pip install pyarrow"):
        read_corpus(path)


def test_invalid_corpus_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "mixed").mkdir()
    for name in ("a.txt", "b.jsonl"):
        (tmp_path / "mixed" / name).write_text("x")
    refused = {
        "none.txt": "no such file or folder",
        "a.csv": "cannot tell what texts",
        "empty": "holds no .txt, .jsonl or .parquet file",
        "no*.txt": "no file matches",
        "*.csv": "cannot tell what texts",
        "mixed": "holds .jsonl and .txt files: name one kind, '",
    }
    for name, sentence in refused.items():
        with pytest.raises(InputError, match=sentence):
            read_corpus(tmp_path / name)


def test_corpus_fingerprint_depends_on_its_content(tmp_path):
    path = tmp_path / "a.txt"
    prints = {ListedTexts(["one", two]).fingerprint() for two in ("two", "two ")}
    for content in ("one\ntwo", "one\ntoo", "one\ntwo\n"):
        path.write_text(content)
        prints.add(read_corpus(path).fingerprint())
    assert len(prints) == 5


def packed(texts):
    return gzip.compress("".join(json.dumps({"text": text}) + "\n" for text in texts).encode())


@pytest.fixture
def shards(tmp_path):
    """Files of a corpus: whole ones, a truncated one in the middle, and one of another kind."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    noise = [f"{number * 7919 % 10007} words" for number in range(3000)]
    (tmp_path / "a.jsonl.gz").write_bytes(packed(["one", "two"]) + packed(["three"]))  # two members
    (tmp_path / "b.jsonl.gz").write_bytes(packed(noise)[:5000])
    zstd = pyarrow.compress(b'{"text": "four"}\n', codec="zstd", asbytes=True)
    (tmp_path / "c.jsonl.zst").write_bytes(zstd + zstd)
    (tmp_path / "d.parquet").write_bytes(b"no parquet")
    parquet.write_table(pyarrow.table({"text": ["five"]}), tmp_path / "e.parquet")
    return tmp_path, noise


def test_packed_shards_are_read_and_broken_ones_named(shards):
    folder, noise = shards
    corpus = read_corpus(folder / "*")
    entries = list(corpus.entries())
    good = [entry.text for entry in entries if not entry.fault]
    faults = {entry.where.removeprefix(f"{folder}/"): entry.fault for entry in entries if entry.fault}
    before_break = good[3:-3]
    assert good == ["one", "two", "three", *noise[: len(before_break)], "four", "four", "five"]
    assert 100 < len(before_break) < len(noise)
    broken, other = faults
    assert broken == f"b.jsonl.gz, from line {len(before_break) + 1:,} on"
    assert faults[broken].startswith("the file cannot be read from here on: Compressed file ended")
    assert other == "d.parquet"
    assert faults[other].startswith("the file is left out: cannot read")
    done = [entry.done for entry in entries]
    assert done == sorted(done)
    assert done[-1] == corpus.size == sum(file.stat().st_size for file in folder.iterdir())


def test_each_shard_is_opened_once_when_its_turn_comes(shards, monkeypatch):
    folder, _ = shards
    opened, open_path = [], type(folder).open
    monkeypatch.setattr(
        type(folder), "open", lambda path, *how: opened.append(path.name) or open_path(path, *how)
    )
    entries = read_corpus(folder / "*.gz").entries()
    assert opened == []
    assert [next(entries).text for _ in range(3)] == ["one", "two", "three"]
    assert opened == ["a.jsonl.gz"]
    assert len(list(entries)) > 100
    assert opened == ["a.jsonl.gz", "b.jsonl.gz"]


def test_folder_of_shards_names_files_within_it(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b.jsonl").write_text('{"text": "two"}\n{')
    (tmp_path / "a.jsonl.gz").write_bytes(packed(["one"]))
    found = [("a.jsonl.gz, line 1", "one", ""), ("in/b.jsonl, line 1", "two", "")]
    assert read(tmp_path) == [*found, ("in/b.jsonl, line 2", "", "it is not JSON")]


def test_packed_line_that_never_ends_is_not_stored(tmp_path, monkeypatch):
    monkeypatch.setattr("attnscope.storage.files.MOST_LINE_BYTES", 1000)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"x" * 100_000 + b"\nshort"))
    fault = ("line 1", "", "it has more than 1,000 bytes")
    assert read(tmp_path / "a.txt.gz") == [fault, ("line 2", "short", "")]


def test_standard_input_is_lines_of_text_or_json(monkeypatch):
    for field, text in ((None, "one\n\ntwo"), ("body", '{"body": "one"}\n{"body": "two"}')):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
        corpus = read_corpus("-", field)
        assert [entry.text for entry in corpus.entries()] == ["one", "two"]
        with pytest.raises(InputError, match="standard input can be read only once: save it to a file"):
            list(corpus.entries())


def test_data_set_is_streamed_by_datasets(monkeypatch):
    """The library as its documentation describes it: ``load_dataset(..., streaming=True)`` gives rows."""
    asked = []

    class Rows(list):
        info = SimpleNamespace(splits={"test": SimpleNamespace(num_examples=3)}, version="1.0.0")

        def __iter__(self):
            yield from super().__iter__()
            raise ConnectionError("the hub is away")

    def load_dataset(*names, **how):
        asked.append((names, how))
        return Rows([{"text": "one"}, {"body": "x"}, {"text": "two"}])

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    expected = [("row 1", "one", ""), ("row 2", "", "no field 'text': it has body"), ("row 3", "two", "")]
    gone = ("from row 4 on", "", "the file cannot be read from here on: the hub is away")
    assert read("hf://datasets/some/books/small:test") == [*expected, gone]
    assert asked == [(("some/books", "small"), {"split": "test", "streaming": True})]
    with pytest.raises(InputError, match="write hf://OWNER/NAME, /CONFIG and :SPLIT"):
        read_corpus("hf://books")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="needs the package datasets: pip install datasets"):
        read_corpus("hf://some/books")


def test_kind_of_a_corpus_is_told_by_its_name():
    names = {"a.TXT": ".txt", "a.txt.gz": ".txt", "a.ndjson.zst": ".jsonl", "a.json.gz": ".jsonl"}
    names |= {"a.json": None, "a.parquet": ".parquet", "a.parquet.gz": None, "a.gz": None}
    assert {name: kind_of(name) for name in names} == names
