"""``attnscope check`` and ``attnscope stats --texts``: what they print and how they end."""

import csv
import io
import json

import pytest

TEXTS = ["The cat sat on the mat because it was tired.", "It slept.", "The dog barked at the cat on the mat."]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS), "utf-8")
    return path


def test_one_claim_that_fails_ends_with_code_1(run, corpus):
    ran = run("check", "L2H1.previous > 0.8", "L2H1.next > 0.8", "--texts", corpus)
    assert ran.code == 1
    assert [line.split()[0] for line in ran.out.splitlines()] == ["ok", "FAILED"]


def test_a_snapshot_is_saved_and_compared_with(run, corpus, tmp_path):
    kept = tmp_path / "kept.json"
    assert run("check", "--texts", corpus, "--save", kept).code == 0
    same = run("check", "--texts", corpus, "--against", kept, "--tolerance", "0")
    assert (same.code, same.out.split()) == (0, ["ok", "snapshot", "all", "within", "0"])
    other = run("check", "--text", TEXTS[1], "--against", kept)
    assert other.code == 1
    assert other.out.startswith("FAILED  snapshot")
    assert other.out.count(" before, ") == 10
    assert other.out.rstrip().endswith(" more")


def test_json_and_csv_have_the_standard_errors(run, corpus):
    (head,) = json.loads(run("stats", "--texts", corpus, "--sort", "previous", "--top", "1", "--json").out)[
        "heads"
    ]
    (row,) = csv.DictReader(
        io.StringIO(run("stats", "--texts", corpus, "--sort", "previous", "--top", "1", "--csv").out)
    )
    figure = head["figures"]["previous"]
    assert float(row["previous_error"]) == figure["error"] > 0
    assert figure["texts"] == 3


def test_a_line_that_cannot_be_read_is_reported_and_skipped_or_ends_the_run(run, corpus):
    corpus.write_bytes(corpus.read_bytes() + b"\n\xff\x1b[31m\n")
    ran = run("stats", "--texts", corpus, "--top", "1")
    assert ran.code == 0
    assert ran.err == "attnscope: skipped line 4: byte 0 is not UTF-8 text\n"
    assert "1 text could not be read: line 4" in ran.out
    strict = run("stats", "--texts", corpus, "--strict")
    assert (strict.code, strict.out) == (2, "")
    assert "texts.txt, line 4: byte 0 is not UTF-8 text" in strict.err


def test_a_flood_of_bad_lines_is_counted_not_listed(run, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "The cat."}\n' + "x\n" * 30)
    ran = run("stats", "--texts", path, "--top", "1")
    assert len(ran.err.splitlines()) == 21
    assert "30 texts could not be read: line 2, line 3, line 4, ..." in ran.out


def test_ctrl_c_says_how_to_go_on(run, corpus, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("attnscope.models.model.Model.run", stop)
    ran = run("stats", "--texts", corpus)
    assert (ran.code, ran.err) == (
        130,
        "attnscope: stopped; give --checkpoint FILE to resume\n",
    )
    ran = run("stats", "--texts", corpus, "--checkpoint", tmp_path / "sums.json")
    assert "the same command resumes from" in ran.err
