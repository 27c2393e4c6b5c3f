"""Files are complete or absent; damaged ones are read, or refused in one sentence."""

from __future__ import annotations

import os
import random
import stat
from itertools import count
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from attnscope.axes import weights
from attnscope.errors import AttnscopeError, OutputError
from attnscope.models import load
from attnscope.models.trace_recording import record_trace
from attnscope.storage.arrays import read_weights, save_weights
from attnscope.storage.checkpoint import fingerprint
from attnscope.storage.files import write_whole
from attnscope.storage.gold import read_gold
from attnscope.storage.trace import read_trace, write_trace
from attnscope.storage.trace.layout import allowed_of, traced_rows
from tests.cli.test_ctrl_c import watched
from tests.storage.test_arrays import memory_below
from tests.tools.attack.hostile import damage


def test_file_write_is_atomic_and_keeps_permissions(tmp_path, monkeypatch) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"old")
    for mode, content in ((path.stat().st_mode & 0o777, b"new"), (0o600, b"newer")):
        path.chmod(mode)
        write_whole(path, content)
        assert (path.read_bytes(), path.stat().st_mode & 0o777) == (content, mode)
    monkeypatch.setattr(os, "replace", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OutputError, match=r"cannot write .*a.txt: No space left on device"):
        write_whole(path, b"newest")
    assert path.read_bytes() == b"newer"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_write_through_symbolic_link_keeps_the_link(tmp_path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "a.txt").symlink_to(tmp_path / "data" / "real.txt")
    for content in (b"first", b"second"):
        write_whole(tmp_path / "a.txt", content)
        assert (tmp_path / "a.txt").is_symlink()
        assert (tmp_path / "data" / "real.txt").read_bytes() == content
    assert os.listdir(tmp_path / "data") == ["real.txt"]


def test_write_refuses_pipes_devices_folders_and_link_cycles(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to_pipe").symlink_to(tmp_path / "pipe")
    (tmp_path / "null").symlink_to("/dev/null")
    (tmp_path / "folder").mkdir()
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    kinds = {"pipe": "a named pipe", "to_pipe": "a named pipe", "null": "a device", "folder": "a folder"}
    said = {name: f": it is {kind}; " for name, kind in kinds.items()} | {"circle": ""}
    for name, sentence in said.items():
        with pytest.raises(OutputError, match=f"cannot write .*{name}{sentence}"):
            write_whole(tmp_path / name, b"new")
    assert sorted(os.listdir(tmp_path)) == sorted(said)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_new_file_follows_umask_unless_private(tmp_path, umask) -> None:
    before = os.umask(umask)
    try:
        write_whole(tmp_path / "shared", b"new")
        write_whole(tmp_path / "private", b"new", private=True)
        (tmp_path / "old").write_bytes(b"old")
        (tmp_path / "old").chmod(0o644)
        write_whole(tmp_path / "old", b"new", private=True)
    finally:
        os.umask(before)
    modes = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()}
    assert modes == {"shared": 0o666 & ~umask, "private": 0o600, "old": 0o600}


def model_of(weights):
    module = torch.nn.Module()
    module.register_buffer("weights", weights)
    return module


def test_fingerprint_covers_names_shapes_dtypes_and_64_values() -> None:
    weights = torch.arange(130.0)
    known = fingerprint(model_of(weights))
    assert fingerprint(model_of(weights.clone())) == known
    for place in (0, 63, 64, 129):
        changed = weights.clone()
        changed[place] += 1
        assert (fingerprint(model_of(changed)) == known) == (place > 63)
    named = torch.nn.Module()
    named.register_buffer("others", weights)
    others = [named, *map(model_of, (weights.view(2, 65), weights.double(), weights[:129]))]
    assert len({known, *map(fingerprint, others)}) == 5


def interrupted(path: Path, number: int) -> bool:
    """Whether to write a file takes so many lines, of which a Ctrl-C falls on the last."""
    lines = count(1)

    def press(line):
        if next(lines) == number:
            raise KeyboardInterrupt

    try:
        with watched(press):
            write_whole(path, b"new")
    except KeyboardInterrupt:
        return True
    return False


@pytest.mark.parametrize("old", [True, False], ids=["over an old file", "anew"])
def test_ctrl_c_at_any_line_leaves_old_or_new_file(tmp_path, old) -> None:
    path = tmp_path / "a.txt"
    for number in count(1):
        path.unlink(missing_ok=True)
        if old:
            path.write_bytes(b"old")
        if not interrupted(path, number):
            break
        left = path.read_bytes() if path.exists() else None
        assert left in (b"new", b"old" if old else None), number
        assert os.listdir(tmp_path) == ["a.txt"] * (left is not None), number
    assert number > 15
    assert path.read_bytes() == b"new"


def read_all_weights(path):
    return [each.values.sum() for layers in read_weights(path).kinds.values() for _, each in layers]


def read_all_rows(path):
    trace = read_trace(path)
    for call in trace.description.calls:
        for read in (traced_rows, allowed_of):
            read(call.rows, trace.arrays, 0, trace.size(call)[0])


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """A sound file of each form."""
    folder = tmp_path_factory.mktemp("sound")
    rows = np.random.default_rng(0).random((2, 4, 4)).astype(np.float32)
    np.save(folder / "a.npy", rows)
    np.savez(folder / "a.npz", a=rows, tokens=np.array(list("abcd")))
    save_weights({"encoder": [(0, weights(rows, range(4), range(4)))]}, folder / "a.json")
    model = load("own")
    write_trace(record_trace(model, model.prepare("The cat sat.")), folder / "a.trace")
    save_file({"a": rows}, folder / "a.safetensors")
    (folder / "a.jsonl").write_text('{"text": "The cat sat.", "pairs": [[2, 1, "subject"]]}\n' * 3)
    word = "\t_\t_\t_\t_\t0\troot\t_\tEntity=(e1)\n"
    (folder / "a.conllu").write_text(f"# newdoc\n1\tcat{word}\n1\tdog{word}")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "read", "times"),
    [
        (("a.npy", "a.npz", "a.json", "a.safetensors"), read_all_weights, 200),
        (("a.trace",), read_all_rows, 200),
        (("a.jsonl", "a.conllu"), lambda path: list(read_gold(path).entries()), 300),
    ],
)
def test_damaged_file_is_read_or_refused_in_one_sentence(names, read, times, seeds, tmp_path):
    chance, sentences = random.Random(7), []
    with memory_below(512 << 20):
        for number in range(times):
            sound = seeds / names[number % len(names)]
            path = tmp_path / f"{number}{sound.suffix}"
            path.write_bytes(damage(sound.read_bytes(), chance))
            try:
                read(path)
            except AttnscopeError as error:
                sentences.append(str(error))
            path.unlink()
    assert "\n" not in "".join(sentences)
