"""Files of lines of which one has no end, or which hold more than a text can."""

import json

import pytest

from attnscope.storage import files as lines
from attnscope.storage.corpus import read_corpus
from attnscope.storage.files import Line, read_lines
from attnscope.storage.gold import read_gold


@pytest.fixture
def short_lines(monkeypatch):
    monkeypatch.setattr(lines, "LONGEST", 100)


def test_a_line_that_is_too_long_is_passed_over_and_the_next_is_read(short_lines, tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n" + b"x" * 350 + b"\n\xff\nlast")
    one, long, broken, last = read_lines(path)
    assert one == Line(1, "one", 8)
    assert long == Line(2, "", 359, "it has more than 100 bytes")
    assert (broken.number, broken.fault) == (3, "byte 0 is not UTF-8 text")
    assert last == Line(4, "last", path.stat().st_size)


def test_a_line_of_just_the_length_is_read_and_one_without_an_end_is_not(short_lines, tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(b"x" * 99 + b"\n" + b"y" * 205)
    assert [line.fault for line in read_lines(path)] == ["", "it has more than 100 bytes"]


def test_corpora_and_questions_say_which_line_is_too_long(short_lines, tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "a b"}\n' + json.dumps({"text": "a" * 200, "pairs": []}) + "\n")
    assert [entry.fault for entry in read_corpus(path).entries()] == ["", "it has more than 100 bytes"]
    assert [text.fault for text in read_gold(path).entries()][1] == "it has more than 100 bytes"


def faults(path, **how):
    return [text.fault for text in read_gold(path, **how).entries()]


def test_texts_with_known_answers_are_no_longer_than_what_is_read(tmp_path):
    long = "a b " * 300_000
    (tmp_path / "gold.jsonl").write_text(json.dumps({"text": long, "pairs": [[0, 1]]}))
    (tmp_path / "texts").write_text(f"{long}|||a\na b ||| a b\n")
    (tmp_path / "links").write_text("0-0\n0-0\n")
    said = "a text has 1,200,000 characters, and may have 1,048,576"
    assert faults(tmp_path / "gold.jsonl") == [said]
    one, other = faults(tmp_path / "texts", alignments=tmp_path / "links")
    assert one.startswith("a text has 1,199,999")
    assert other == ""


def test_a_sentence_of_a_treebank_has_an_end(tmp_path):
    row = "{}\t{}\t_\t_\t_\t_\t0\troot\t_\t_\n"
    many = "".join(row.format(number, "a") for number in range(1, 5000))
    (tmp_path / "many.conllu").write_text(
        many + "\n" + row.format(1, "b" * 1_100_000) + "\n" + row.format(1, "c")
    )
    said = "a sentence may have 2,000 lines, and 1,048,576 characters in them"
    assert faults(tmp_path / "many.conllu") == [said, said, ""]
