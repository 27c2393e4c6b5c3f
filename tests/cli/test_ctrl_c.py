"""Ctrl-C at any line of a command that writes: complete files or none, and the same command resumes."""

import shlex
import shutil
import signal
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import attnscope
from attnscope.cli import main
from attnscope.storage.trace import read_trace
from tests.incomplete_files import broken
from tests.training.corpus import write_corpus

ROOMS = (
    "cli/__init__.py", "cli/commands/export.py", "cli/commands/train.py", "cli/source.py",
    "render/export.py", "storage", "models/trace_model.py",
    "questions/corpus", "training/train.py", "training/data.py",
)  # fmt: skip
"""Where files are written, and whoever asks for it; what only computes can be stopped anywhere."""

FEW = 193
"""One of so many moments is tried; each with ``--whole``, which takes a quarter of an hour."""

TINY = "--num-layers=1 --num-heads=2 --width=16 --length=16 --batch=4 --vocabulary=80"
COMMANDS = {
    "export": "export --from weights.npz -o here/out --format=png,html,npz,json",
    "keep": "show 'The cat sat.' --save-trace here/a.trace --head L0H0 --no-cache",
    "stats": "stats --texts texts.txt --checkpoint here/sums.json",
    "train": f"train books/book0.txt books/book1.txt -o here/m {TINY} --steps=2 --precision=float32",
}
"""Each writes into the folder ``here``."""


def written():
    """Every file in that folder with what tells it apart."""
    files = {path: path.read_bytes() for path in Path("here").rglob("*") if path.is_file()}
    timed = {path: read_trace(path).description.calls for path in files if path.suffix == ".trace"}
    return files | timed | {path: "" for path in files if path.name == "training.json"}


@pytest.fixture
def run(monkeypatch):
    """A function that gives the exit code of a command; 130 where the Ctrl-C came out of it."""

    def run(*command):
        monkeypatch.setattr("sys.argv", ["attnscope", *command])
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a process of its own
        torch.set_grad_enabled(True)
        try:
            main()
        except SystemExit as ended:
            return int(ended.code or 0)
        except KeyboardInterrupt:
            return 130

    before, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    yield run
    sys.unraisablehook = hook
    signal.signal(signal.SIGINT, before)
    torch.set_grad_enabled(True)


@contextmanager
def watched(look):
    """Call ``look`` with file and number of each line of ``ROOMS`` that is about to be run."""
    places = tuple(str(Path(attnscope.__file__).parent / room) for room in ROOMS)

    def trace(frame, event, argument):
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


@pytest.mark.sweep(3)
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_ctrl_c_at_any_line_leaves_complete_files_and_can_rerun(
    run, command, request, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    np.savez("weights.npz", **{"encoder.00": np.full((1, 3, 3), 1 / 3, np.float32)})
    Path("texts.txt").write_text("The cat sat.\nA dog ran on.\n")
    write_corpus(tmp_path / "books", files=2, count=12)
    command, ended = shlex.split(command), []

    def begin():
        for folder in ("here", "cache"):
            shutil.rmtree(folder, ignore_errors=True)
        Path("here").mkdir()
        capsys.readouterr()
        ended.append(run(*command))

    begin()  # the first run imports
    times = Counter()
    with watched(lambda line: times.update([line])):
        begin()
    assert ended == [0, 0], capsys.readouterr().err
    whole = written()
    assert whole
    moments = [(line, time) for line, count in sorted(times.items()) for time in sorted({1, count})]
    for line, time in moments[:: 1 if request.config.getoption("whole") else FEW]:
        seen = Counter()

        def press(here, line=line, time=time, seen=seen):
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
        if written() == whole:
            continue
        done = run(*command, "--resume") if command[0] == "train" else 2
        if done == 2:  # nothing had begun, or nothing resumes
            done = run(*command)
        assert done == 0, f"{here}; then {capsys.readouterr().err}"
        assert written() == whole, here
