"""Texts of a corpus: lines, fields, rows and files, each with its place or its fault."""

import json
import sys

import pytest

from attnscope.errors import InputError
from attnscope.storage.corpus import ListedTexts, read_corpus


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
    with pytest.raises(InputError, match="needs the package pyarrow to be read: pip install pyarrow"):
        read_corpus(path)


def test_invalid_corpus_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("x")
    (tmp_path / "empty").mkdir()
    refused = {
        "none.txt": "no such file or folder",
        "a.csv": "cannot tell what texts",
        "empty": "holds no .txt file",
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
