"""``attnscope spans``: what it prints, saves and refuses."""

import csv
import io
import json

import pytest

TEXT = "The cat sat on the mat. It was tired because it ran."


def test_the_parts_are_drawn_as_a_map(run):
    ran = run("spans", TEXT, "-m", "own-causal")
    assert ran.code == 0
    assert ran.out.startswith("mean of 12 heads · decoder attention · 4 parts")
    assert "\n1 The cat sat" in ran.out
    assert "1-7" not in ran.out


def test_json_and_csv_hold_every_pair_of_parts_of_every_head(run):
    numbers = json.loads(run("spans", TEXT, "--json").out)
    assert numbers["parts"][0]["name"] == "[CLS]"
    assert len(numbers["heads"]) == 32
    rows = list(csv.DictReader(io.StringIO(run("spans", TEXT, "--csv").out)))
    assert len(rows) == 32 * 4 * 4
    assert float(rows[1]["weight"]) == numbers["heads"][0]["weights"][0][1]


def test_one_head_is_that_head_and_no_mean(run):
    every = json.loads(run("spans", TEXT, "--json").out)["heads"]
    ran = json.loads(run("spans", TEXT, "--json", "--head", "L1H3").out)
    assert ran["heads"] == [head for head in every if (head["layer"], head["head"]) == (1, 3)]
    assert run("spans", TEXT, "--head", "L1H3").out.startswith("L1H3 · encoder attention")


def test_at_a_star_the_parts_are_listed_by_what_is_looked_at_most(run):
    asked = ("spans", TEXT, "-m", "own-causal", "--pair", "2 -> *")
    numbers = json.loads(run(*asked, "--head", "L1H3", "--json").out)["questions"]
    shares = [each["heads"][0]["weight"] for each in numbers]
    assert shares == sorted(shares, reverse=True)
    lines = run(*asked, "--head", "L1H3").out.splitlines()
    assert lines[0] == "2 -> * · L1H3"
    head = [line.split() for line in lines].index(["part", "share", "baseline"])
    named = [line.split("  ")[0] for line in lines[head + 1 : head + 1 + len(numbers)]]
    assert named == [each["question"].partition(" -> ")[2] for each in numbers]
    assert "most in" in run(*asked).out


def test_one_pair_of_parts_ranks_the_heads(run, tmp_path):
    asked = ("spans", "[[fact: A cat sleeps.]] Rain. [[question: Who?]]", "--by", "marks", "--pair")
    ran = run(*asked, "question -> fact")
    assert "question -> fact · encoder attention" in ran.out
    assert run(*asked, "question -> fact", "-o", tmp_path / "map.png", "--dpi", "40").code == 0
    assert (tmp_path / "map.png").exists()


def test_what_the_model_writes_is_a_part(run):
    ran = run("spans", "The king said that he would", "-m", "own-causal", "--generate", "5", "--json")
    assert json.loads(ran.out)["parts"][-1]["name"] == "written"


@pytest.mark.parametrize(("by", "one"), [("paragraph", True), ("line", True), ("sentence", False)])
def test_a_text_of_one_part_is_said_to_be_one(run, by, one):
    out = run("spans", "One sentence. Another one.", "--by", by).out
    assert ("the whole text is one part" in out) == one
