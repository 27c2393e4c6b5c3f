"""Corpora are read text by text, and whatever is wrong with one is said with its place."""

import json

import pytest

from attnscope.errors import InputError
from attnscope.models import load
from attnscope.questions.corpus import batches, windows
from attnscope.storage.corpus import CorpusText, ListedTexts, read_corpus


def read(path, **asked):
    return [(entry.where, entry.text, entry.fault) for entry in read_corpus(path, **asked).entries()]


def test_a_text_file_has_a_text_a_line_blank_lines_are_none_and_a_damaged_one_has_a_fault(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\n\n  \ntwo words\nab".encode() + b"\xff\nthree")
    *two, damaged, last = read(path)
    assert two == [("line 1", "one", ""), ("line 4", "two words", "")]
    assert damaged == ("line 5", "", "byte 2 is not UTF-8 text")
    assert last == ("line 6", "three", "")


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[1]", "no field 'text'"),
        ('{"body": "x", "id": 1}', "no field 'text': it has body, id"),
        ('{"text": 5}', "it holds int, not text"),
        ('{"text": null}', "it holds NoneType, not text"),
        ('{"text": "  "}', "the text is empty"),
        ('{"text": "\\ud800"}', "it holds half a character (a lone surrogate)"),
    ],
)
def test_what_is_wrong_with_a_json_line_is_said(tmp_path, line, fault):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "one"}}\n{line}\n', "utf-8")
    assert read(path) == [("line 1", "one", ""), ("line 2", "", fault)]


def test_the_field_of_json_lines_can_be_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"body": "tea\nfor two"}), "utf-8")
    assert read(path, field="body") == [("line 1", "tea\nfor two", "")]


def test_a_folder_has_a_text_in_every_file_in_the_order_of_their_names(tmp_path):
    (tmp_path / "inside").mkdir()
    files = {"b.txt": b"two\nlines\n", "inside/c.txt": b"\xff", "a.txt": b"one", "d.md": b""}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert read(tmp_path) == [
        ("a.txt", "one", ""),
        ("b.txt", "two\nlines", ""),
        ("inside/c.txt", "", "byte 0 is not UTF-8 text"),
    ]


def test_how_far_the_reading_is_ends_at_the_size(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\n\ntwo\n" * 9, "utf-8")
    corpus = read_corpus(path)
    done = [entry.done for entry in corpus.entries()]
    assert done == sorted(done)
    assert done[-1] == corpus.size == path.stat().st_size


def test_parquet_without_its_package_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(InputError, match="needs the package pyarrow to be read: pip install pyarrow"):
        read_corpus(path)


def test_parquet_has_a_text_a_row(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["one", None, "two"], "n": [1, 2, 3]}), path)
    one, none, two = read(path)
    assert (one, two) == (("row 1", "one", ""), ("row 3", "two", ""))
    assert none == ("row 2", "", "it holds NoneType, not text")
    with pytest.raises(InputError, match="no column 'body': name one with --field, of text, n"):
        read_corpus(path, "body")


NO_CORPUS = {
    "none.txt": "no such file or folder",
    "a.csv": "cannot tell what texts",
    "empty": "holds no .txt file",
}


@pytest.mark.parametrize("name", NO_CORPUS)
def test_what_is_no_corpus_is_refused(tmp_path, name):
    (tmp_path / "a.csv").write_text("x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=NO_CORPUS[name]):
        read_corpus(tmp_path / name)


def test_corpora_that_differ_have_other_fingerprints(tmp_path):
    path = tmp_path / "a.txt"
    prints = {ListedTexts(["one", two]).fingerprint() for two in ("two", "two ")}
    for content in ("one\ntwo", "one\ntoo", "one\ntwo\n"):
        path.write_text(content)
        prints.add(read_corpus(path).fingerprint())
    assert len(prints) == 5


def test_windows_hold_so_many_texts_or_characters(monkeypatch):
    entries = [CorpusText("", "x" * size, "", 0) for size in (1, 1, 1, 50, 1, 1)]
    monkeypatch.setattr("attnscope.questions.corpus.WINDOW_TEXTS", 3)
    monkeypatch.setattr("attnscope.questions.corpus.WINDOW_CHARACTERS", 40)
    assert [len(window) for window in windows(entries)] == [3, 1, 2]


def test_only_texts_of_one_length_go_together_and_none_is_lost(monkeypatch):
    monkeypatch.setattr("attnscope.questions.corpus.BATCH_TOKENS", 12)
    texts = ["a cat", "it", "the dog", "a long story of a cat", "on it", "so what", "no", "off"]
    made = batches(load("own").prepare_all([(text,) for text in texts]))
    for batch in made:
        assert batch.prepared.inputs["ids"].shape == (batch.texts, batch.tokens // batch.texts)
        assert batch.texts == 1 or batch.tokens <= 12
        queries, _ = batch.labels["encoder"]
        assert [[token.id for token in text] for text in queries] == batch.prepared.inputs["ids"].tolist()
    assert sum(batch.texts for batch in made) == len(texts)
    assert max(batch.texts for batch in made) > 1
