"""``train``, ``loss`` and ``track``; tests/training and tests/questions check their numbers."""

import json
import re
import sys
import time
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch
import transformers

from attnscope.cli.commands.track import find_checkpoints
from attnscope.models import load
from tests.models.folders import LINES, gpt2
from tests.training.corpus import write_corpus

TINY = ["--num-layers=1", "--num-heads=2", "--width=16", "--length=16", "--batch=4", "--vocabulary=80"]


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("books"), files=3, count=40)


def test_train_summary_and_loss_agree_for_a_64_bit_seed(run, books, tmp_path):
    seed = ("--seed", 2**64 - 1)
    ran = run("train", *books, "-o", tmp_path / "m", *TINY, "--steps", 4, "--evaluate-every", 2, *seed)
    assert re.search(r"1 layers × 2 heads, width 16, [\d,]+ parameters", ran.out)
    assert re.search(r"4 steps, [\d,]+ tokens", ran.out)
    assert "learning the vocabulary" in ran.err
    assert len(re.findall(r"step \d  .* tokens/s  loss \d", ran.err)) == 2
    (name,) = re.findall(r"held out +(book\d\.txt)\n", ran.out)
    (said,) = re.findall(r"([\d.]+) nats a predicted token", ran.out)
    (book,) = (path for path in books if path.name == name)
    measured = run("loss", book, "-m", tmp_path / "m", "--length", 16, *seed)
    assert float(measured.out.split()[0]) == pytest.approx(float(said), abs=0.02)  # bfloat16 where it is fast
    assert "15 % of" in measured.out


def test_stopped_training_says_how_to_resume(run, books, tmp_path, monkeypatch):
    asked = ("train", *books, "-o", tmp_path / "m", *TINY, "--steps", 2)
    with monkeypatch.context() as patched:  # as if Ctrl-C was pressed; test_ctrl_c.py does so at each line
        patched.setattr("attnscope.training.train.stop_between_steps", lambda: nullcontext(lambda: True))
        ran = run(*asked)
    assert (ran.code, ran.out) == (130, "")
    assert ran.err.endswith("\nstopped at step 0; the same command with --resume continues\n")
    assert run(*asked, "--resume").code == 0
    assert not (tmp_path / "m" / "training").exists()


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    for step in (10, 20):
        gpt2(folder / f"checkpoint-{step}")
    (folder / "probe.txt").write_text("The cat sat on the mat.\nWords look back.\n")
    return folder


def test_track_writes_curves_tables_json_csv_and_pictures(run, checkpoints, tmp_path):
    asked = ["track", checkpoints, "--texts", checkpoints / "probe.txt", "--measure", "entropy,first"]
    shown = run(*asked).out
    assert "entropy by step" in shown
    assert "step 10" in shown
    answer = run.json(*asked)
    assert answer["schema"] == "urn:attnscope:track:1"
    assert answer["steps"] == [10, 20]
    assert len(answer["courses"]) == 2 * 8
    rows = run.csv(*asked)
    assert list(rows[0]) == ["measure", "head", "step", "value", "baseline", "appears"]
    assert len(rows) == 2 * 8 * 2
    assert run(*asked, "-o", tmp_path / "curves.png").code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"curves.png"}


def test_track_watch_waits_for_unfinished_checkpoints(run, checkpoints, tmp_path, monkeypatch):
    steps = iter(
        [
            lambda: (tmp_path / "checkpoint-1").mkdir(),
            lambda: gpt2(tmp_path / "checkpoint-1"),
            lambda: None,
            lambda: gpt2(tmp_path / "checkpoint-2"),
            Mock(side_effect=KeyboardInterrupt),
        ]
    )
    monkeypatch.setattr(time, "sleep", lambda seconds: next(steps)())
    log = tmp_path / "log.jsonl"
    shown = run("track", tmp_path, "--texts", checkpoints / "probe.txt", "--log", log, "--watch", "--json")
    answers = [json.loads(line) for line in shown.out.splitlines()]
    assert [answer["steps"] for answer in answers] == [[1], [1, 2]]
    assert shown.err.count("checkpoint-1 is left out") == 1


@pytest.mark.parametrize("revisions", ["step10,step20", "step20, step10"])
def test_hub_revisions_are_tracked_as_steps(run, checkpoints, monkeypatch, revisions):
    loaded = []

    def from_the_hub(model):
        loaded.append((model.model, model.revision))
        return load(str(checkpoints / model.revision.replace("step", "checkpoint-")))

    monkeypatch.setattr(sys.modules[find_checkpoints.__module__], "load_model", from_the_hub)
    asked = ["track", "-m", "someone/tiny", "--texts", checkpoints / "probe.txt", "--measure", "entropy"]
    answer = run.json(*asked, "--revisions", revisions)
    assert (answer["steps"], answer["checkpoints"]) == ([10, 20], ["step10", "step20"])
    assert loaded == [("someone/tiny", "step10"), ("someone/tiny", "step20")]


def test_checkpoints_are_listed_by_pattern_or_run_folder(checkpoints):
    both = [str(checkpoints / f"checkpoint-{step}") for step in (10, 20)]
    assert find_checkpoints([str(checkpoints)]) == both
    assert find_checkpoints([str(checkpoints / "check*-2?")]) == both[1:]
    assert find_checkpoints(both[:1]) == both[:1]
    assert find_checkpoints(["step1", "step2"]) == ["step1", "step2"]


def test_causal_loss_equals_model_loss_in_any_line_order(run, causal_folder, tmp_path):
    lines, turned = tmp_path / "lines.txt", tmp_path / "turned.txt"
    lines.write_text("\n\n".join([*LINES, "A"]))
    turned.write_text("\n".join(reversed(LINES)))
    tokenizer = transformers.AutoTokenizer.from_pretrained(causal_folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(causal_folder).eval()
    total, count = 0.0, 0
    for line in LINES:  # the line of one token has nothing to predict
        ids = tokenizer(line, return_tensors="pt").input_ids[:, :16]
        with torch.no_grad():
            total += model(ids, labels=ids).loss.item() * (ids.shape[1] - 1)
        count += ids.shape[1] - 1
    ran = run("loss", lines, "-m", causal_folder, "--length", 16)
    assert float(ran.out.split()[0]) == pytest.approx(total / count, abs=2e-3)
    assert f"({count:,} tokens, each after those before it)" in " ".join(ran.out.split())
    assert run("loss", turned, "-m", causal_folder, "--length", 16).out == ran.out


@pytest.mark.parametrize("model", ["own", "own-causal"])
def test_loss_of_short_text_uses_all_tokens(run, model, tmp_path):
    file = tmp_path / "short.txt"
    file.write_text("The cat sat on the mat because it was tired. " * 18)
    tokens = load(model).prepare(file.read_text()).tokens
    ran = run("loss", file, "-m", model)
    assert f"of {sum(not token.special for token in tokens) // 2 * 2:,}" in ran.out, ran.err
    file.write_text("The cat sat.")
    assert "give at least 14" in run("loss", file, "-m", model).err
