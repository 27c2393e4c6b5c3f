"""One command with hostile input, inside this process, and what must hold of every such command."""

from __future__ import annotations

import contextlib
import io
import resource
import signal
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

LONGEST = 10
"""Seconds that any command may take on hostile input."""


MEMORY = 1 << 30
"""Bytes by which the most that the process ever had may grow in one command, its first imports included."""


class Hang(BaseException):
    """A command took longer than ``LONGEST``."""


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise ``Hang`` in the body after so many seconds of processor time, or six times as many in all.

    Processor time, because other programs may keep the machine busy.
    """

    def ring(signum: int, frame: Any) -> None:
        raise Hang(f"still running after {seconds} s")

    before = {number: signal.signal(number, ring) for number in (signal.SIGALRM, signal.SIGPROF)}
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 6 * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def attempt(arguments: Sequence[str], folder: Path | None = None, may_write: Sequence[str] = ()) -> int:
    """Run ``attnscope`` with ``arguments``; returns its exit code.

    Asserts that it ends in time and within ``MEMORY`` with 0, 1 or 2, that a failure is one sentence and no
    traceback, that nothing that a terminal obeys is printed, and that ``folder`` holds afterwards what it
    held before, but for new files whose names ``may_write`` lists.
    """
    from attnscope.cli import main

    before, most = contents(folder), _most()
    out, err = _Stream("strict"), _Stream("backslashreplace")
    argv, code = sys.argv, 0
    sys.argv = ["attnscope", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), time_limit(LONGEST):
            main()
    except Hang as hang:
        raise AssertionError(str(hang)) from hang
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    finally:
        sys.argv = argv
    printed, told = out.text(), err.text()
    taken = _most() - most
    assert taken < MEMORY, f"took {taken / 1e9:.1f} GB"
    assert code in (0, 1, 2), f"exit code {code}: {told}"
    assert "Traceback" not in told, told
    assert "attnscope: unexpected" not in told, told
    for line in (printed + told).splitlines():
        bad = [char for char in line if unicodedata.category(char) in ("Cc", "Cs") and char != "\t"]
        assert not bad, f"{bad!r} would reach the terminal in {line!r}"
    if code == 2:
        sentences = [line for line in told.splitlines() if line.startswith(("attnscope: ", '{"error"'))]
        assert sentences, f"failed without a word: {told!r}"
        assert len(sentences[-1]) < 600, f"too long to read: {sentences[-1]}"
    after = contents(folder)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed <= set(may_write), f"wrote or removed {sorted(changed - set(may_write))}"
    return code


def _most() -> int:
    """The most bytes that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def contents(folder: Path | None) -> dict[str, int]:
    """Every file below a folder with a hash of its bytes."""
    if folder is None:
        return {}
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hash(path.read_bytes()) for path in files}


class _Stream(io.TextIOWrapper):
    """Standard output or error of a pipe: UTF-8, and as strict about it as Python's own."""

    def __init__(self, errors: str) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors=errors, write_through=True)

    def text(self) -> str:
        """All that was written."""
        self.flush()
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode("utf-8")
