"""A Ctrl-C at any line of a command that writes: whole files or none, and the same command completes them."""

from __future__ import annotations

import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

import attnscope
from attnscope.cli import main
from attnscope.storage.trace import read_trace
from tests.training.corpus import write_corpus
from tests.whole_files import broken

ROOMS = (
    "cli/__init__.py", "cli/commands/export.py", "cli/commands/train.py", "cli/source.py",
    "render/export.py", "storage", "models/kept.py",
    "questions/corpus", "training/train.py", "training/data.py",
)  # fmt: skip
"""Where files are written, and whoever asks for it; what only computes can be stopped anywhere."""

FEW = 193
"""One of so many moments is tried; each with ``--whole``, which takes a quarter of an hour."""


@dataclass(frozen=True)
class Work:
    """A command that writes below ``folder``, what tells files apart, and what completes it."""

    command: Sequence[str]
    folder: Path
    tell: Callable[[Path], object] = Path.read_bytes
    again: Sequence[str] = ()

    def written(self) -> dict[str, object]:
        """Every file with what tells it apart."""
        files = [path for path in sorted(self.folder.rglob("*")) if path.is_file()]
        return {str(path.relative_to(self.folder)): self.tell(path) for path in files}


def run(command: Sequence[str], monkeypatch) -> int:
    """A command's exit code; 130 where the Ctrl-C came out of it."""
    monkeypatch.setattr("sys.argv", ["attnscope", *command])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a process of its own
    torch.set_grad_enabled(True)
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    except KeyboardInterrupt:
        return 130
    return 0


@pytest.fixture(autouse=True)
def _own_ctrl_c():
    before, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    yield
    sys.unraisablehook = hook
    signal.signal(signal.SIGINT, before)
    torch.set_grad_enabled(True)


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "weights.npz"
    np.savez(path, **{"encoder.00": np.full((1, 3, 3), 1 / 3, np.float32)})
    return str(path)


def export(folder: Path, weights: str) -> Work:
    command = ["export", "--from", weights, "-o", str(folder / "out"), "--format=png,html,npz,json"]
    return Work(command, folder)


def keep(folder: Path, weights: str) -> Work:
    command = ["show", "The cat sat.", "--keep", str(folder / "a.trace"), "--head", "L0H0", "--no-cache"]
    return Work(command, folder, lambda path: read_trace(path).description.calls)


def stats(folder: Path, weights: str) -> Work:
    texts = folder.parent / "texts.txt"
    texts.write_text("The cat sat.\nA dog ran on.\n", "utf-8")
    return Work(["stats", "--texts", str(texts), "--checkpoint", str(folder / "sums.json")], folder)


def train(folder: Path, weights: str) -> Work:
    books = write_corpus(folder.parent / "books", files=2, count=12)
    tiny = ["--layers=1", "--heads=2", "--width=16", "--length=16", "--batch=4", "--vocabulary=80"]
    command = ["train", *map(str, books), "-o", str(folder / "m"), *tiny, "--steps=2", "--precision=float32"]
    timed = ("training.json",)  # it says how long the run took
    return Work(command, folder, lambda path: path.name in timed or path.read_bytes(), ["--resume"])


Line = tuple[str, int]
"""A file of the package, and the number of a line in it."""


@contextmanager
def watched(look: Callable[[Line], None]) -> Iterator[None]:
    """Call ``look`` for each line of ``ROOMS`` that is about to be run."""
    places = tuple(str(Path(attnscope.__file__).parent / room) for room in ROOMS)

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(places):
            return None
        if event == "line":
            look((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("write", [export, keep, stats, train], ids=lambda write: write.__name__)
def test_a_ctrl_c_at_any_line_leaves_whole_files_and_the_same_command_completes(
    write, request, tmp_path, weights, monkeypatch, capsys
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    work = write(tmp_path / "here", weights)
    ended = []

    def begin() -> None:
        shutil.rmtree(work.folder, ignore_errors=True)
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        work.folder.mkdir()
        capsys.readouterr()
        ended.append(run(work.command, monkeypatch))

    begin()  # the first run imports
    times: Counter[Line] = Counter()
    with watched(lambda line: times.update([line])):
        begin()
    assert ended == [0, 0], capsys.readouterr().err
    whole = work.written()
    assert whole
    moments = [(line, time) for line, count in sorted(times.items()) for time in sorted({1, count})]
    for line, time in moments[:: 1 if request.config.getoption("whole") else FEW]:
        seen: Counter[Line] = Counter()

        def press(here: Line, line=line, time=time, seen=seen) -> None:
            seen.update([here])
            if here == line and seen[line] == time:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)

        with watched(press):
            begin()
        said = capsys.readouterr().err
        here = f"{Path(line[0]).name}:{line[1]}, time {time}: {said}"
        assert ended[-1] in (0, 130), here
        assert "Traceback" not in said, here
        assert "unexpected" not in said, here
        assert broken(tmp_path) == [], here
        if work.written() == whole:
            continue
        done = run([*work.command, *work.again], monkeypatch)
        if work.again and done == 2:  # nothing had begun
            done = run(work.command, monkeypatch)
        assert done == 0, f"{here}; then {capsys.readouterr().err}"
        assert work.written() == whole, here
