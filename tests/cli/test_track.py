"""The command that follows heads through training."""

import json
import time

import pytest

from attnscope.cli.commands.track import find_checkpoints
from tests.models.folders import gpt2


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    for step in (10, 20):
        gpt2(folder / f"checkpoint-{step}")
    (folder / "probe.txt").write_text("The cat sat on the mat.\nWords look back.\n")
    return folder


def test_curves_tables_json_csv_and_pictures(run, checkpoints, tmp_path):
    asked = ["track", checkpoints, "--texts", checkpoints / "probe.txt", "--measure", "entropy,first"]
    shown = run(*asked)
    assert shown.code == 0
    assert "entropy by step" in shown.out
    assert "step 10" in shown.out
    answer = json.loads(run(*asked, "--json").out)
    assert answer["schema"] == "urn:attnscope:track:1"
    assert answer["steps"] == [10, 20]
    assert len(answer["courses"]) == 2 * 8
    lines = run(*asked, "--csv").out.splitlines()
    assert lines[0] == "measure,head,step,value,baseline,appears"
    assert len(lines) == 1 + 2 * 8 * 2
    assert run(*asked, "-o", tmp_path / "curves.png").code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"curves-entropy.png", "curves-first.png"}


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ([], "give the texts"),
        (["--texts", "probe.txt"], "give folders, or -m and --revisions"),
        (["x", "--texts", "probe.txt", "--watch"], "give --jsonl FILE"),
        (["--texts", "probe.txt", "--revisions", "a,b"], "name the model with -m"),
        (["x", "--texts", "probe.txt", "--measure", "entropie"], "entropy"),
        (["nowhere-*", "--texts", "probe.txt"], "nowhere-* is left out"),
    ],
)
def test_wrong_usage_is_one_sentence(run, checkpoints, monkeypatch, more, sentence):
    monkeypatch.chdir(checkpoints)
    shown = run("track", *more)
    assert shown.code == 2
    assert sentence in " ".join(shown.err.split())
    assert "Traceback" not in shown.err


def test_a_watch_reads_new_checkpoints_until_it_is_stopped(run, checkpoints, tmp_path, monkeypatch):
    gpt2(tmp_path / "checkpoint-1")
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) > 1:
            raise KeyboardInterrupt
        gpt2(tmp_path / "checkpoint-2")

    monkeypatch.setattr(time, "sleep", pause)
    log = tmp_path / "log.jsonl"
    shown = run("track", tmp_path, "--texts", checkpoints / "probe.txt", "--jsonl", log, "--watch", "--json")
    answers = [json.loads(line) for line in shown.out.splitlines()]
    assert [answer["steps"] for answer in answers] == [[1], [1, 2]]


def test_folders_are_found_by_pattern_and_inside_of_a_run(checkpoints):
    both = [str(checkpoints / f"checkpoint-{step}") for step in (10, 20)]
    assert find_checkpoints([str(checkpoints)]) == both
    assert find_checkpoints([str(checkpoints / "check*-2?")]) == both[1:]
    assert find_checkpoints(both[:1]) == both[:1]
    assert find_checkpoints(["step1", "step2"]) == ["step1", "step2"]
