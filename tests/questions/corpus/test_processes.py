"""Processes that share a corpus have the figures of one, bit for bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnscope.models import load
from attnscope.questions.corpus_stats import corpus_stats
from attnscope.storage.corpus import ListedTexts
from tests.questions.corpus.shared_run import TEXTS, figures

pytestmark = [pytest.mark.slow, pytest.mark.subprocess]

ROOT = Path(__file__).parents[3]


def launch(*arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "80"}
    return subprocess.run(
        [*command, *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture(scope="module")
def alone():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnscope.questions.corpus.WINDOW_TEXTS", 7)
        return corpus_stats(load("own"), ListedTexts(TEXTS))


def test_two_processes_find_what_one_finds_and_go_on_when_one_of_them_died(tmp_path, alone):
    out, kept = tmp_path / "out.json", tmp_path / "sums.json"
    died = launch("tests.questions.corpus.shared_run", out, kept, 20)
    assert died.returncode != 0
    assert "the power went out" in died.stderr
    assert not out.exists()
    assert json.loads(kept.read_text())["state"]["progress"]["texts"] == 14
    went_on = launch("tests.questions.corpus.shared_run", out, kept)
    assert went_on.returncode == 0, went_on.stderr
    found = json.loads(out.read_text())
    assert (found["title"], found["ran"]) == (alone.title, alone.ran)
    assert found["heads"] == json.loads(json.dumps(figures(alone)))


def test_the_command_prints_one_table_whatever_the_number_of_processes(tmp_path, run):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join([*TEXTS, "too long " * 600]), "utf-8")
    shared = launch("attnscope", "stats", "--texts", path, "--sort", "previous", "--top", "5")
    assert shared.returncode == 0, shared.stderr
    alone = run("stats", "--texts", path, "--sort", "previous", "--top", "5")
    assert shared.stdout == alone.out
    assert alone.out.count("L2H1") == 1
    assert shared.stderr.count("skipped line 31") == 1
