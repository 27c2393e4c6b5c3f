"""A sign of life on standard error while something takes longer than a blink."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

STOPPED = 130
"""The exit code of a command that Ctrl-C stopped, as shells have it."""

Draw: TypeAlias = Callable[[float, str], None]
"""Draws a bar: how much is done, from 0 to 1, and words beside it."""


@contextmanager
def waiting(message: str) -> Iterator[None]:
    """Show ``message`` with a spinner while the body runs; nothing where nobody is looking."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(message)):
        yield


@contextmanager
def progress_bar(*, remaining: bool = True) -> Iterator[Draw | None]:
    """A bar, with its own estimate of the time that is left; ``None`` where nobody is looking."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    words = TextColumn("{task.description}", markup=False)
    columns = (BarColumn(), words, TimeRemainingColumn()) if remaining else (BarColumn(None), words)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0, visible=False)
        yield lambda done, words: bar.update(task, completed=done, description=words, visible=True)
