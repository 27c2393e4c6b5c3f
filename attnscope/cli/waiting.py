"""A sign of life on standard error while something takes longer than a blink."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import TypeAlias

STOPPED = 130
"""The exit code of a command that Ctrl-C stopped, as shells have it."""

Draw: TypeAlias = Callable[[float, str], None]
"""Draws a bar: how much is done, from 0 to 1, and words beside it."""


@contextmanager
def waiting(message: str) -> Iterator[None]:
    """Show ``message`` with a spinner while the body runs; nothing where nobody is looking.

    What a model's own code prints meanwhile goes to standard error: standard output holds the answer alone.
    """
    with ExitStack() as stack:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.text import Text

            stack.enter_context(Console(stderr=True).status(Text(message)))
        stack.enter_context(redirect_stdout(sys.stderr))
        yield


@contextmanager
def progress_bar(*, remaining: bool = True) -> Iterator[Draw | None]:
    """A bar, with its own estimate of the time that is left; ``None`` where nobody is looking.

    What is printed meanwhile goes to standard error.
    """
    with ExitStack() as stack:
        draw = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            words = TextColumn("{task.description}", markup=False)
            columns = (BarColumn(), words, TimeRemainingColumn()) if remaining else (BarColumn(None), words)
            bar = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
            task = bar.add_task("", total=1.0, visible=False)

            def draw(done: float, words: str) -> None:
                bar.update(task, completed=done, description=words, visible=True)

        stack.enter_context(redirect_stdout(sys.stderr))
        yield draw
