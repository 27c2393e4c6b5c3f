"""The command that follows heads through training."""

import json
import sys
import time

import pytest

from attnscope.cli.commands.track import find_checkpoints
from attnscope.models import load
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


def test_a_watch_waits_for_checkpoints_and_reads_those_that_were_being_written(
    run, checkpoints, tmp_path, monkeypatch
):
    pauses = []
    begun = [
        lambda: (tmp_path / "checkpoint-1").mkdir(),
        lambda: gpt2(tmp_path / "checkpoint-1"),
        lambda: None,
        lambda: gpt2(tmp_path / "checkpoint-2"),
    ]

    def pause(seconds):
        if len(pauses) == len(begun):
            raise KeyboardInterrupt
        begun[len(pauses)]()
        pauses.append(seconds)

    monkeypatch.setattr(time, "sleep", pause)
    log = tmp_path / "log.jsonl"
    shown = run("track", tmp_path, "--texts", checkpoints / "probe.txt", "--jsonl", log, "--watch", "--json")
    answers = [json.loads(line) for line in shown.out.splitlines()]
    assert [answer["steps"] for answer in answers] == [[1], [1, 2]]
    assert shown.err.count("checkpoint-1 is left out") == 1


@pytest.mark.parametrize("revisions", ["step10,step20", "step20, step10"])
def test_revisions_of_a_model_on_the_hub_are_its_steps(run, checkpoints, monkeypatch, revisions):
    loaded = []

    def from_the_hub(model):
        loaded.append((model.model, model.revision))
        return load(str(checkpoints / model.revision.replace("step", "checkpoint-")))

    monkeypatch.setattr(sys.modules[find_checkpoints.__module__], "load_model", from_the_hub)
    asked = ["track", "-m", "someone/tiny", "--texts", checkpoints / "probe.txt", "--measure", "entropy"]
    shown = run(*asked, "--revisions", revisions, "--json")
    assert shown.code == 0, shown.err
    assert json.loads(shown.out)["steps"] == [10, 20]
    assert json.loads(shown.out)["checkpoints"] == ["step10", "step20"]
    assert loaded == [("someone/tiny", "step10"), ("someone/tiny", "step20")]


def test_folders_are_found_by_pattern_and_inside_of_a_run(checkpoints):
    both = [str(checkpoints / f"checkpoint-{step}") for step in (10, 20)]
    assert find_checkpoints([str(checkpoints)]) == both
    assert find_checkpoints([str(checkpoints / "check*-2?")]) == both[1:]
    assert find_checkpoints(both[:1]) == both[:1]
    assert find_checkpoints(["step1", "step2"]) == ["step1", "step2"]
