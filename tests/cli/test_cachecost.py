"""``attnscope cachecost``: what it prints, saves and refuses."""

import csv
import io
import json

import pytest

from tests.models.folders import gpt2, t5

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


@pytest.mark.parametrize(
    ("model", "more", "sentence"),
    [
        ("own-causal", ("--recent", "500"), "a window of 504 tokens holds all of the longest text"),
        ("own", ASKED, "own predicts masked tokens and keeps no cache: choose a causal model"),
        ("gpt2", ASKED, "line 1: the text has"),
        ("t5", ASKED, "is not causal: choose a causal model of text"),
        ("own-causal", (*ASKED, "--keep", "half"), "write numbers from 0 to 1: 0.25,0.5"),
        ("own-causal", (*ASKED, "--needle", "1.5"), "write numbers from 0 to 1: 0.25,0.5"),
        ("own-causal", (*ASKED, "-o", "heads.txt"), "must end in .png, .svg, .pdf, .tsv"),
        ("own-causal", (*ASKED, "--texts", "no.txt"), "no.txt"),
    ],
)
def test_what_cannot_be_asked_is_a_sentence(run, texts, tmp_path, model, more, sentence):
    if model == "gpt2":
        model = gpt2(tmp_path / "gpt2", n_positions=12)
    if model == "t5":
        model = t5(tmp_path / "t5")
    run("cachecost", "-m", model, "--texts", texts, *more).refuses(sentence)


def test_texts_are_needed(run):
    assert "give the texts that the loss is measured on" in run("cachecost", "-m", "own-causal").err


def test_a_text_that_cannot_be_read_is_named_with_the_reason(run, tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text('{"text": "the cat"}\n{"words": "none"}\n')
    ran = run("cachecost", "-m", "own-causal", "--texts", file)
    assert "line 2: no field 'text': it has words" in " ".join(ran.err.split())
