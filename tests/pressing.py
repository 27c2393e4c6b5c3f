"""A Ctrl-C at any line of a command: the lines that it runs, and what it does if the key is pressed there."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import attnscope

PACKAGE = Path(attnscope.__file__).parent

Line = tuple[str, int]
"""A file of the package, and the number of a line in it."""


def lines_of(work: Callable[[], object], rooms: Sequence[str]) -> Counter[Line]:
    """How often each line of some rooms of the package is run by ``work``."""
    run: Counter[Line] = Counter()
    with _watched(rooms, lambda line: run.update([line])):
        work()
    return run


def pressed(work: Callable[[], object], rooms: Sequence[str], line: Line, time: int) -> bool:
    """Do ``work`` with a Ctrl-C when a line is about to be run for so many times; whether it came to that."""
    times = 0

    def press(here: Line) -> None:
        nonlocal times
        times += here == line
        if here == line and times == time:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)

    with _watched(rooms, press):
        work()
    return times >= time


@contextmanager
def _watched(rooms: Sequence[str], look: Callable[[Line], None]) -> Iterator[None]:
    places = tuple(str(PACKAGE / room) for room in rooms)

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


def moments(run: Counter[Line]) -> list[tuple[Line, int]]:
    """The first and the last time of each line."""
    return [(line, time) for line, times in sorted(run.items()) for time in sorted({1, times})]
