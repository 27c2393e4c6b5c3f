"""No option overwrites an input of the same command: it is refused before any work."""

import os
import shlex
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import WORDS

CASES = {
    "show -f a.html -o a.html": "--out: a.html is read",
    "show -f a.html -o ./b/../a.html": "--out: b/../a.html is read",
    "show -f a.html -o hard.html": "--out: hard.html is read",
    "show -f a.html -o soft.html": "--out: soft.html is read",
    "show TEXT -m model -o model/model.safetensors": "--out: model/model.safetensors is read",
    "show TEXT -m ./model --save-trace model/config.json": "--save-trace: model/config.json is read",
    "stats TEXT -m model --pooled model/model.safetensors": "--pooled: model/model.safetensors is read",
    "stats --texts texts --pooled texts/one.txt": "--pooled: texts/one.txt is read",
    "stats --texts corpus.jsonl --checkpoint corpus.jsonl": "--checkpoint: corpus.jsonl is read",
    "stats TEXT -m code.py:Model --save-trace code.py": "--save-trace: code.py is read",
    "check --texts corpus.jsonl --save-snapshot corpus.jsonl": "--save-snapshot: corpus.jsonl is read",
    "check TEXT --with-snapshot s.json --save-snapshot s.json": "--save-snapshot: s.json is read",
    "compare TEXT --with-model model -o model/model.safetensors": "--out: model/model.safetensors is read",
    "show --image a.png --image b.png TEXT -m vit -o b.png": "--out: b.png is read",
    "show --inputs x.npz --labels a.html -o a.html": "--out: a.html is read",
    "show --video frames TEXT -o frames/0.png": "--out: frames/0.png is read",
    "track 'model*' --texts corpus.jsonl -o model/a.png": "--out: model/a.png is read",
    "track model --texts corpus.jsonl --log corpus.jsonl": "--log: corpus.jsonl is read",
    "train a.html -o model --start-from model": "--out: model is read",
    "stats TEXT -o a.npz --pooled a.npz": "--pooled: a.npz would be written twice",
    "check --texts corpus.jsonl --checkpoint c --save-snapshot c": "c would be written twice",
}


@pytest.fixture
def here(tmp_path, monkeypatch, causal_folder):
    """Files and folders of every kind; nothing is read of them."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(causal_folder, "model")
    for folder in ("b", "texts", "frames"):
        Path(folder).mkdir()
    names = "a.html a.png b.png s.json x.npz corpus.jsonl code.py texts/one.txt frames/0.png model/a.png"
    for name in names.split():
        Path(name).write_text(f"what {name} holds")
    os.link("a.html", "hard.html")
    Path("soft.html").symlink_to("a.html")
    return tmp_path


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", CASES)
def test_input_files_are_never_overwritten(run, here, command):
    before = contents(here)
    run(*(WORDS.get(word, word) for word in shlex.split(command))).refuses(CASES[command])
    assert contents(here) == before


def test_other_files_beside_inputs_are_written(run, here):
    Path("texts/one.txt").write_text("The cat sat on the mat.\nIt was tired.\n")
    model = ("-m", "model", "--texts", "texts", "--map", "entropy")
    assert run("stats", *model, "-o", "model/new.png").code == 0
    for _ in range(2):  # a checkpoint and what was written before beside the texts
        ran = run("stats", *model, "--checkpoint", "sums", "-o", "texts/map.png")
        assert ran.code == 0, ran.err
