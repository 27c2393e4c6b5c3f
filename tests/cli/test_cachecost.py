"""``attnscope cachecost``: what it prints, saves and refuses."""

import csv
import io
import json

import pytest

WORDS = "the cat sat on the mat because the dog ran in the park and it was tired"
ASKED = ("--sink", "1", "--recent", "6")


@pytest.fixture
def texts(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text(f"{WORDS}\nthe cat\n{WORDS} of the cat\n", "utf-8")
    return file


def test_one_answer_as_table_json_csv_pattern_and_pictures(run, texts, tmp_path):
    asked = ("cachecost", "-m", "own-causal", "--texts", texts, *ASKED, "--keep", "0.5", "--needle", "0,1")
    printed = run(*asked)
    lines = printed.out.splitlines()
    assert max(map(len, lines)) <= 80
    answer = json.loads(run(*asked, "--json").out)
    heads = answer["heads"]
    assert [each["loss"] for each in heads] == sorted((each["loss"] for each in heads), reverse=True)
    named = [line.split()[0] for line in lines if line.startswith("L") and "KV" in line.split()[0]]
    assert named == [f"L{each['layer']}KV{each['head']}" for each in heads[: len(named)]]
    assert [each["share"] for each in answer["kept"]] == [0, 0.5, 1]
    assert "2 of 3 texts are longer than the window" in answer["notes"]
    rows = list(csv.DictReader(io.StringIO(run(*asked, "--csv").out)))
    assert [float(row["loss"]) for row in rows] == pytest.approx([each["loss"] for each in heads])
    assert run(*asked, "-o", tmp_path / "heads.tsv").code == 0
    lines = (tmp_path / "heads.tsv").read_text("utf-8").splitlines()
    pattern = [[float(value) for value in line.split("\t")] for line in lines]
    assert pattern == [pytest.approx(layer, abs=1e-6) for layer in answer["pattern"]]
    most = max(each["loss"] for each in heads)
    for each in heads:
        assert pattern[each["layer"]][each["head"]] == pytest.approx(max(0, each["loss"] / most), abs=1e-6)
    assert run(*asked, "-o", tmp_path / "cost.svg").code == 0
    assert {path.name for path in tmp_path.glob("*.svg")} == {"cost-heads.svg", "cost-memory.svg"}
