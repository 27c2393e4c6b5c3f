"""``--weigh``: the same commands, on weights that say what they move."""

import json

import pytest

TEXT = "The cat sat on the mat because it was tired."


@pytest.mark.parametrize(
    "command",
    [
        ("show", TEXT),
        ("show", TEXT, "--head", "L0H1"),
        ("show", TEXT, "--token", "cat"),
        ("stats", TEXT),
        ("find", "it -> cat", TEXT),
        ("spans", TEXT),
        ("compare", TEXT),
    ],
    ids=lambda command: " ".join(command).replace(TEXT, "TEXT"),
)
def test_the_title_and_the_json_name_the_weighing_and_the_numbers_are_others(run, command):
    assert "weighed by norm" in " ".join(run(*command, "--weigh", "norm").out.split())
    raw, norm = (json.loads(run(*command, "--json", "--weigh", weigh).out) for weigh in ("raw", "norm"))
    assert "weigh" not in raw
    assert norm.pop("weigh") == "norm"
    assert norm | {"notes": []} != raw | {"notes": []}
    assert norm.keys() == raw.keys()


def test_a_gradient_is_of_the_prediction_that_is_named(run):
    words = ("show", "The cat sat on the", "-m", "own-causal", "--weigh", "gradient", "--target", "mat")
    seen = json.loads(run(*words, "--json").out)
    assert (seen["weigh"], seen["target"]) == ("gradient", "mat")
    assert any("the prediction: 'mat'" in note for note in seen["notes"])


def test_a_corpus_is_weighed_by_the_prediction_of_each_text(run, tmp_path):
    corpus = tmp_path / "texts.txt"
    corpus.write_text("The cat sat on the\nThe dog sat on the\n")
    words = ("stats", "-m", "own-causal", "--weigh", "gradient", "--csv")
    both = run(*words, "--texts", corpus).out
    corpus.write_text("The cat sat on the\nThe cat sat on the\n")
    twice, once = run(*words, "--texts", corpus).out, run(*words, "The cat sat on the").out
    assert both != twice
    last = [line.split(",")[4:6] for line in once.splitlines()]
    assert len(last) == len(twice.splitlines())


def test_the_overview_and_find_recommend_commands_that_weigh_alike(run):
    assert f"attnscope show --weigh norm '{TEXT}' --head" in run("show", TEXT, "--weigh", "norm").out
    assert "--weigh norm" in run("find", "it -> cat", TEXT, "--weigh", "norm").out.splitlines()[-1]


def test_an_export_says_it_in_its_manifest(run, tmp_path):
    run("export", TEXT, "--weigh", "norm", "--format", "npz", "-o", tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["weigh"] == "norm"
    assert "--weigh norm" in manifest["command"]


def test_sums_of_one_weighing_do_not_go_on_with_another(run, tmp_path):
    corpus, sums = tmp_path / "texts.txt", tmp_path / "sums.json"
    corpus.write_text(f"{TEXT}\nA dog.\n")
    first = run("stats", "--texts", corpus, "--checkpoint", sums, "--weigh", "norm")
    assert first.code == 0
    assert "weighed by norm" in " ".join(first.out.split())
    assert run("stats", "--texts", corpus, "--checkpoint", sums, "--weigh", "norm").out == first.out
    raw = run("stats", "--texts", corpus, "--checkpoint", sums)
    assert raw.code == 2
    assert "another weighing" in raw.err


def test_a_weighing_explains_itself(run):
    words = run("stats", "--explain", "norm").out
    assert "Kobayashi" in words
    assert "W_O" in words
    for method in ("rollout", "flow", "relevance", "alti"):
        assert f"{method} (flow --method {method}): " in run("stats", "--explain", method).out
    assert "weighings are norm" in run("stats", "--explain", "nonsense").err


def test_what_was_written_is_weighed_in_one_pass(run):
    words = ("show", "Once upon a time", "-m", "own-causal", "--generate", "3", "--head", "L1H2", "--json")
    seen = json.loads(run(*words, "--weigh", "norm").out)
    assert len(seen["keys"]) == 8
    assert all(abs(sum(cell or 0 for cell in row) - 1) < 1e-5 for row in seen["weights"])
