"""``attnscope find --gold``: what it prints and refuses."""

import csv
import io
import json
import re

import jsonschema
import pytest

from tests.questions.gold import treebank

ANSWERS = '{"text": "The cat sat on the mat.", "pairs": [[1, 0, "article"], [5, 4, "article"], [2, 1]]}\n'


@pytest.fixture
def bank(tmp_path):
    (tmp_path / "small.conllu").write_text(treebank.conllu(), "utf-8")
    return tmp_path / "small.conllu"


def test_a_table_has_the_best_head_of_each_label_and_says_what_stands_in_it(run, bank):
    ran = run("find", "--gold", bank)
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0].startswith("own · 4 layers × 8 heads · 5 texts, ")
    assert lines[1].split() == ["label", "direction", "head", "right", "fixed", "weight", "asked"]
    assert all(len(line) <= 80 for line in lines)
    labels = [line.split()[0] for line in lines[2:] if "→" in line]
    plain = {relation for _, _, relations in treebank.SENTENCES for relation in relations}
    assert set(labels) == plain - {"root"}
    assert len(labels) == 12
    assert any(line.startswith("· for ") and "of 12 labels the head is right" in line for line in lines)
    assert "--held-out" in ran.out
    assert "--held-out" not in run("find", "--gold", bank, "--held-out").out


def test_json_is_what_its_schema_says_and_csv_has_the_same(run, bank, tmp_path):
    (tmp_path / "small.jsonl").write_text(ANSWERS)
    schema = json.loads(run("schema", "find").out)
    for file in (bank, tmp_path / "small.jsonl"):
        seen = json.loads(run("find", "--gold", file, "--json").out)
        jsonschema.Draft202012Validator(schema).validate(seen)
        rows = list(csv.DictReader(io.StringIO(run("find", "--gold", file, "--csv").out)))
        flat = [(each["label"], each["direction"], head) for each in seen["labels"] for head in each["heads"]]
        assert len(rows) == len(flat)
        for row, (label, direction, head) in zip(rows, flat, strict=True):
            assert (row["label"], row["direction"]) == (label, direction)
            assert float(row["accuracy"]) == head["accuracy"]
        table = sorted(re.findall(r"L\d+H\d+", run("find", "--gold", file).out))
        assert sorted(f"L{row['layer']}H{row['head']}" for row in rows if row["printed"] == "True") == table
        assert sum(row["printed"] == "True" for row in rows) == len({row["label"] for row in rows})
    assert {each["label"] for each in seen["labels"]} == {"article", "all"}


def test_alignments_have_an_error_rate_in_the_table(run, tmp_path, pair_folder):
    (tmp_path / "texts").write_text("The cat sat ||| A cat looks\nwords look ||| heads look back\n")
    (tmp_path / "links").write_text("0-0 1-1 2?2\n0-0 1-1\n")
    ran = run("find", "--gold", tmp_path / "texts", "--alignments", tmp_path / "links", "-m", pair_folder)
    assert ran.code == 0
    assert "AER" in ran.out.splitlines()[1]
    assert all(len(line) <= 80 for line in ran.out.splitlines())
    assert "target → source" in ran.out


def test_what_cannot_be_read_is_said_and_counted(run, bank):
    bank.write_text("1\tcat\tno treebank\n\n" + bank.read_text("utf-8"), "utf-8")
    ran = run("find", "--gold", bank)
    assert "attnscope: skipped line 1: line 1: it has 3 columns, not 10" in ran.err
    assert "1 text could not be read: line 1" in ran.out
    run("find", "--gold", bank, "--strict").refuses("line 1")


def test_a_direction_that_can_hardly_be_asked_is_not_listed_beside_the_other(run, tmp_path):
    """A causal head looks back alone, and one lucky word ahead says nothing."""
    pairs = [[n, n - 1, "before"] for n in range(1, 12)] + [[0, 5, "before"]]
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a cat " * 6, "pairs": pairs}) + "\n")
    ran = run("find", "--gold", tmp_path / "a.jsonl", "-m", "own-causal", "--top", "20")
    assert "from → to" in ran.out
    assert "to → from" not in ran.out
    assert "1 directions can be asked too rarely" not in ran.out
    assert "1 direction can be asked too rarely to be compared: --json has it" in ran.out
