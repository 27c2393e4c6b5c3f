"""``attnscope find``, also with known answers, ``spans``, ``flow`` and ``compare``."""

import json
import re
import shlex
from itertools import takewhile

import jsonschema
import numpy as np
import pytest

from tests.questions.gold import treebank

TEXT = "The cat sat on the mat because it was tired."
OTHER = "The dog sat on the very old mat because it was tired."
TWO = "The cat sat on the mat. It was tired because it ran."
BEGUN = ("The cat sat on the", "-m", "own-causal")


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    "asked",
    [
        "show --head 'cross L0H1'",
        "show",
        "show --kind cross --token 2",
        "stats",
        "find 'sat -> cat' --kind cross",
        "compare --kind cross",
        "flow",
        "logits",
        "cut 'sat -> cat' --kind cross",
    ],
)
def test_cross_attention_views_note_which_token_a_row_predicts(run, pair_folder, asked):
    command, *more = shlex.split(asked)
    questions = [more.pop(0)] if command in ("find", "cut") else []
    pair = "The cat sat.", "--second-text", "A cat sat.", "-m", pair_folder
    notes = run.json(command, *questions, *pair, *more)["notes"]
    assert sum("each row has read its own token and predicts the next" in note for note in notes) == 1


def test_find_json_and_csv_have_every_head_per_question(run):
    asked = ("find", "it -> cat", "it <-> mat", TEXT)
    questions = run.json(*asked)["questions"]
    assert [each["question"] for each in questions] == ["it -> cat", "it -> mat", "mat -> it"]
    assert all(len(each["heads"]) == 32 for each in questions)
    rows = run.csv(*asked)
    assert len(rows) == 3 * 32
    first = questions[0]["heads"][0]
    assert (first["layer"], first["head"], first["kind"]) == (2, 5, "encoder")
    assert float(rows[0]["weight"]) == first["weight"]


def test_argument_may_start_with_a_minus(run):
    begun = (
        ["--json", "+1 -> cat", TEXT],
        ["-1 -> cat", TEXT, "--json"],
        ["--json", "--", "-1 -> cat", TEXT],
    )
    ahead, back, marked = (json.loads(run("find", *typed).out)["questions"] for typed in begun)
    assert [each["question"] for each in (*ahead, *back)] == ["+1 -> cat", "-1 -> cat"]
    assert back == marked
    assert back[0]["heads"] != ahead[0]["heads"]


def test_option_value_may_start_with_a_minus(run):
    assert len(run.json("stats", "--sort", "offset=-2", "- a list of cats", "--top", "1")["heads"]) == 1
    assert run("show", "--token", "-1", "-5 degrees").err.startswith("attnscope: no token '-1'")
    assert run("spans", TEXT, "--pair", "-1 -> 2").err.startswith("attnscope: no part '-1'")
    assert "No such option: --nosuch" in run("find", "it -> cat", TEXT, "--nosuch").err
    assert "No such option: -x" in run("find", "it -> cat", TEXT, "-x").err


def test_text_with_an_arrow_is_the_last_argument(run):
    (question,) = run.json("find", '"x -> y" -> cat', "The map x -> y of the cat")["questions"]
    assert question["question"] == '"x -> y" -> cat'


def test_rules_are_questions_about_a_text_and_a_corpus(run, tmp_path):
    (tmp_path / "texts.txt").write_text(f"{TEXT}\n{OTHER}\n{TWO}\n")
    asked = "find", "-1 or special", "it -> same", "after same"
    names = ["* -> -1 or special", "it -> same", "* -> after same"]
    questions = run.json(*asked, "--texts", tmp_path / "texts.txt")["questions"]
    assert [each["question"] for each in questions] == names
    assert all(len(each["heads"]) == 32 for each in questions)
    assert {head["rank"] for each in questions for head in each["heads"]} == {None}
    best = questions[1]["heads"][0]
    condition = "find(it -> same) > 0 and find(* -> -1 or special) > 0"
    measured = run.json("stats", "--texts", tmp_path / "texts.txt", "--where", condition)["heads"]
    place = [each for each in measured if (each["layer"], each["head"]) == (best["layer"], best["head"])]
    assert place[0]["scores"]["find(it -> same)"]["value"] == pytest.approx(best["weight"])
    alone = run.json(*asked, TWO)["questions"]
    assert [each["question"] for each in alone] == names
    assert run("find", "same", TEXT, "--texts", "texts.txt").err.startswith("attnscope: ")
    assert run("find", "same", "--limit", "2", TEXT).code == 2


ANSWERS = '{"text": "The cat sat on the mat.", "pairs": [[1, 0, "article"], [5, 4, "article"], [2, 1]]}\n'


@pytest.fixture
def bank(tmp_path):
    (tmp_path / "small.conllu").write_text(treebank.conllu(), "utf-8")
    return tmp_path / "small.conllu"


def test_gold_json_fits_schema_and_csv_agrees(run, bank, tmp_path):
    (tmp_path / "small.jsonl").write_text(ANSWERS)
    schema = json.loads(run("schema", "find").out)
    for file in (bank, tmp_path / "small.jsonl"):
        seen = run.json("find", "--gold", file)
        jsonschema.Draft202012Validator(schema).validate(seen)
        rows = run.csv("find", "--gold", file)
        flat = [(each["label"], each["direction"], head) for each in seen["labels"] for head in each["heads"]]
        assert len(rows) == len(flat)
        for row, (label, direction, head) in zip(rows, flat, strict=True):
            assert (row["label"], row["direction"]) == (label, direction)
            assert float(row["accuracy"]) == head["accuracy"]
        table = sorted(re.findall(r"L\d+H\d+", run("find", "--gold", file).out))
        assert sorted(f"L{row['layer']}H{row['head']}" for row in rows if row["printed"] == "True") == table
        assert sum(row["printed"] == "True" for row in rows) == len({row["label"] for row in rows})
    assert {each["label"] for each in seen["labels"]} == {"article", "all"}
    assert "--held-out" in run("find", "--gold", bank).out
    assert "--held-out" not in run("find", "--gold", bank, "--held-out").out


def test_rarely_possible_direction_is_only_in_json(run, tmp_path):
    """A causal head looks back alone, and one lucky word ahead says nothing."""
    pairs = [[n, n - 1, "before"] for n in range(1, 12)] + [[0, 5, "before"]]
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a cat " * 6, "pairs": pairs}) + "\n")
    ran = run("find", "--gold", tmp_path / "a.jsonl", "-m", "own-causal", "--top", "20")
    assert "from → to" in ran.out
    assert "to → from" not in ran.out
    assert "1 directions occur too rarely" not in ran.out
    assert "1 direction occurs too rarely to be compared: --json has it" in ran.out


def test_spans_json_and_csv_have_every_pair_of_parts(run):
    numbers = run.json("spans", TWO)
    assert numbers["parts"][0]["name"] == "[CLS]"
    assert len(numbers["heads"]) == 32
    rows = run.csv("spans", TWO)
    assert len(rows) == 32 * 4 * 4
    assert float(rows[1]["weight"]) == numbers["heads"][0]["weights"][0][1]


def test_flow_json_and_arrays_hold_every_layer(run, tmp_path):
    layers = run.json("flow", TEXT)["layers"]
    assert [each["layer"] for each in layers] == [0, 1, 2, 3]
    run("flow", TEXT, "-o", tmp_path / "flow.npz")
    with np.load(tmp_path / "flow.npz") as maps:
        np.testing.assert_allclose(maps["encoder.03"][0], layers[3]["weights"], atol=1e-6)
    for command in (["show"], ["stats"], ["find", "it -> cat"]):
        title = run(*command, "--from", tmp_path / "flow.npz").out.splitlines()[0]
        assert title.count("“The cat sat") == 1


def test_flow_skips_multi_part_image_tower_and_follows_text(run, llava, picture):
    told = "attends in 2 parts: attention cannot be followed through it"
    asked = ("flow", "what is on the mat ?", "-m", llava, "--image", picture)
    assert told not in " ".join(run(*asked).out.split())
    both = run(*asked, "--image", picture, "--token", "mat").out
    assert "decoder attention" in both
    assert told in " ".join(both.split())


def test_flow_of_a_huge_map_is_refused_in_one_sentence(run, tmp_path):
    np.save(tmp_path / "a.npy", np.full((1, 1, 120_000), 1 / 120_000, np.float32))
    told = "out of memory: NumPy asked for 114.9 GB; the command may take"
    run("flow", "--from", tmp_path / "a.npy").refuses(told)


def test_flow_faithful_ranks_methods_with_random_orders(run):
    title, prediction, _, header, alone, *lines = run("flow", *BEGUN, "--faithful").out.splitlines()
    assert title.startswith("which tokens the prediction depends on · own-causal · “The cat sat on the”")
    assert prediction.startswith("the prediction: ")
    assert header.split() == ["order", "by", "deletion", "insertion", "first"]
    assert alone.startswith("one at a time")
    listed = takewhile(lambda line: not line.startswith("·"), lines)
    areas = {line[:27].strip(): float(line[27:].split()[0]) for line in listed}
    del areas["random order"]
    assert list(areas.values()) == sorted(areas.values())
    weightings = {f"--weighting {name}" for name in ("raw", "norm", "norm-residual", "zeroing", "gradient")}
    methods = {f"--method {name}" for name in ("rollout", "flow", "relevance", "alti")}
    assert areas.keys() == weightings | methods


def test_stats_faithful_ranks_heads_by_weighting(run):
    seen = run.json("stats", *BEGUN, "--faithful", "--weighting", "norm", "--layer", "1")
    assert {each["name"] for each in seen["ranked"]} == {"L1H0", "L1H1", "L1H2", "L1H3", "all heads"}
    assert seen["weigh"] == "norm"
    areas = [each["deletion_area"] for each in seen["ranked"]]
    assert areas == sorted(areas)


def test_layer_with_other_tokens_cannot_be_compared(run, tmp_path):
    even = {f"encoder.0{layer}": np.full((2, n, n), 1 / n, np.float32) for layer, n in enumerate((6, 3))}
    np.savez(tmp_path / "pooled.npz", **even)
    asked = ("compare", "--from", tmp_path / "pooled.npz", "--with-trace", tmp_path / "pooled.npz")
    run(*asked).refuses("layer 1 sees 3 × 3 tokens of 6 × 6, which cannot be aligned: choose others")
    assert run(*asked, "--layer", "0").code == 0


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], {"heads", "distances", "error", "groups", "points"}),
        (["L0H1", "L2H3"], {"heads", "rows", "by_row", "one", "other", "difference", "queries", "keys"}),
        (["--with-text", OTHER], {"heads", "change", "error"}),
        (["--with-text", OTHER, "--head", "1.3"],
         {"heads", "change", "error", "difference", "queries", "keys"}),
        (["--with-model", "own"], {"heads", "others", "distances", "error", "matches"}),
    ],
)  # fmt: skip
def test_compare_saves_arrays(run, tmp_path, arguments, names):
    path = tmp_path / "found.npz"
    assert run("compare", TEXT, *arguments, "-o", path).code == 0
    with np.load(path) as found:
        assert set(found.files) == names | {"attnscope"}  # beside the numbers, what they are about
        assert found["heads"].shape[1] == 2
        if "difference" in names and "one" in names:
            assert np.array_equal(found["difference"], found["one"] - found["other"])


def test_suggested_command_keeps_the_attention_kind(run, pair_folder):
    asked = ("compare", TEXT, "--second-text", "A small tokenizer", "-m", pair_folder, "--kind", "cross")
    (line, *_) = (line for line in run(*asked).out.splitlines() if "attnscope compare" in line)
    assert "--kind cross" in line
    heads = line.split()[-2:]
    found = run.json(*asked, *heads)
    assert (found["kind"], found["heads"]) == ("cross", heads)


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (("it -> cat", TEXT), ["show", "why"]),
        (("it -> nowhere", "it -> mat", TEXT), ["show", "why"]),
        (("* -> -1", "-m", "own-causal", "--", "-m is how I begin"), ["show", "why"]),
        (("it -> cat", TEXT, "--weighting", "norm"), ["show"]),
    ],
)
def test_find_ends_with_commands_about_its_first_head(run, asked, names):
    questions = json.loads(run("find", "--json", *asked).out)["questions"]
    answered = next(each for each in questions if each["heads"])
    first = "L{layer}H{head}".format(**answered["heads"][0])
    listed = re.findall(r"^· attnscope (.+)$", run("find", *asked).out, re.M)
    assert [each.split()[0] for each in listed] == names
    for each in map(shlex.split, listed):
        assert first in each
        opened = run(*each)
        assert (opened.code, first in opened.out.splitlines()[0]) == (0, True)
    if "why" in names:
        causal = ("-m", "own-causal") * ("own-causal" in asked)
        cells = (*causal, "--json", "--", answered["question"], asked[-1])
        without, named = (json.loads(run("why", *more, *cells).out) for more in ((), ("--head", first)))
        assert without["notes"][0] == f"{first} attends there most; --head names another"
        assert (without["path"], without["notes"][1:]) == (named["path"], named["notes"])
