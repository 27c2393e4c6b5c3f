"""``attnscope find``: what it prints, saves and refuses."""

import csv
import io
import json

TEXT = "The cat sat on the mat because it was tired."


def test_a_question_is_answered_by_a_map_of_all_heads_and_a_table_of_the_best(run):
    ran = run("find", "* -> -1", TEXT, "--top", "2")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert "* -> -1 · encoder attention" in lines
    start = next(number for number, line in enumerate(lines) if line.startswith("head"))
    assert [line.split() for line in lines[start + 1 : start + 3]] == [
        ["L2H1", "0.97", "0.08", "1"],
        ["L1H3", "0.95", "0.08", "1"],
    ]
    assert "· 1 of 13 rows cannot look there and are left out" in lines
    assert lines[-1] == f"· attnscope show '{TEXT}' --head L2H1"


def test_json_and_csv_hold_every_head_of_every_question(run):
    asked = ("find", "it -> cat", "it <-> mat", TEXT)
    questions = json.loads(run(*asked, "--json").out)["questions"]
    assert [each["question"] for each in questions] == ["it -> cat", "it -> mat", "mat -> it"]
    assert all(len(each["heads"]) == 32 for each in questions)
    rows = list(csv.DictReader(io.StringIO(run(*asked, "--csv").out)))
    assert len(rows) == 3 * 32
    first = questions[0]["heads"][0]
    assert (first["layer"], first["head"], first["kind"]) == (2, 5, "encoder")
    assert float(rows[0]["weight"]) == first["weight"]


def test_a_map_is_saved_for_each_question(run, tmp_path):
    ran = run("find", "it <-> cat", TEXT, "-o", tmp_path / "map.png", "--dpi", "50")
    assert ran.code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["map-1.png", "map-2.png"]


def test_weights_from_a_file_are_asked_without_a_model(run, tmp_path):
    run("show", TEXT, "-o", tmp_path / "heads.npz")
    asked = ("find", "it -> cat", "--json")
    saved = json.loads(run(*asked, "--from", tmp_path / "heads.npz").out)["questions"][0]["heads"]
    direct = json.loads(run(*asked, TEXT).out)["questions"][0]["heads"]
    assert [each["head"] for each in saved[:5]] == [each["head"] for each in direct[:5]]
    assert abs(saved[0]["weight"] - direct[0]["weight"]) < 1e-6


def test_what_begins_with_a_minus_and_is_no_option_is_an_argument(run):
    shares = []
    for typed in (["+1 -> cat", TEXT], ["-1 -> cat", TEXT, "--top", "3"], ["--", "-1 -> cat", TEXT]):
        ran = run("find", "--json", *typed)
        assert ran.code == 0, ran.err
        (question,) = json.loads(ran.out)["questions"]
        assert question["question"] == typed[typed[0] == "--"]
        shares.append({(each["layer"], each["head"]): each["weight"] for each in question["heads"]})
    assert shares[1] == shares[2] != shares[0]


def test_options_keep_values_that_begin_with_a_minus(run):
    ran = run("stats", "--sort", "offset=-2", "- a list of cats", "--top", "1", "--json")
    assert ran.code == 0
    assert len(json.loads(ran.out)["heads"]) == 1
    assert run("show", "--token", "-1", "-5 degrees").err.startswith("attnscope: no token '-1'")
    assert run("spans", TEXT, "--pair", "-1 -> 2").err.startswith("attnscope: no part '-1'")
    assert "no option --nosuch: " in run("find", "it -> cat", TEXT, "--nosuch").err
    assert "no option -x: " in run("find", "it -> cat", TEXT, "-x").err


def test_a_text_with_an_arrow_in_it_is_the_last_argument(run):
    asked = ("find", '"x -> y" -> cat', "The map x -> y of the cat", "--json")
    ran = run(*asked)
    assert ran.code == 0
    assert [each["question"] for each in json.loads(ran.out)["questions"]] == ['"x -> y" -> cat']


def test_a_note_names_the_first_of_many_places(run):
    ran = run("find", "* -> a", "a b " * 30, "--top", "1")
    assert "· a stands at 30 places (1, 3, 5, 7, 9, 11, ...): summed" in ran.out.splitlines()


def test_a_head_of_the_kind_that_was_asked_for_is_opened_as_one(run, pair_folder):
    ran = run(
        "find", "sat -> cat", "The cat sat.", "--second", "A cat sat.", "-m", pair_folder, "--kind", "cross"
    )
    assert ran.code == 0
    assert " --kind cross" in ran.out.splitlines()[-1]
