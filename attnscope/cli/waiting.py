"""A sign of life on standard error while something takes longer than a blink, and how far it has come."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import TYPE_CHECKING, TypeAlias

from attnscope.progress import Listener, listening

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

STOPPED = 130
"""The exit code of a command that Ctrl-C stopped, as shells have it."""

LONG = 600.0
"""Seconds over which the pace is taken: the layers of a long text are minutes apart."""

Draw: TypeAlias = Callable[[float, str], None]
"""Draws a bar: how much is done, from 0 to 1, and words beside it."""


@contextmanager
def waiting(message: str) -> Iterator[None]:
    """Show ``message`` with a spinner while the body runs; nothing where nobody is looking.

    When what runs tells how far it has come, a bar and the time that is left stand beside it. What a model's
    own code prints meanwhile goes to standard error: standard output holds the answer alone.
    """
    with ExitStack() as stack:
        if sys.stderr.isatty():
            from rich.progress import SpinnerColumn, TextColumn

            words = TextColumn("{task.description}", markup=False)
            bar = stack.enter_context(_progress(SpinnerColumn(), words))
            stack.enter_context(listening(_listener(bar, message)))
        stack.enter_context(redirect_stdout(sys.stderr))
        yield


def _listener(bar: Progress, message: str) -> Listener:
    """What draws how far the work has come, in ``bar``; each run through the layers starts anew."""
    from rich.progress import BarColumn, TimeRemainingColumn

    task = bar.add_task(message, total=None)
    latest = ("", 0, 0)

    def draw(what: str, done: int, of: int) -> None:
        nonlocal latest
        if (what, of) != latest[::2] or done < latest[1]:
            count = f"{what} {{task.completed:,.0f}} of {of:,}"
            bar.columns = (*bar.columns[:2], BarColumn(20), count, TimeRemainingColumn())
            bar.reset(task, total=of)
        latest = what, done, of
        bar.update(task, completed=done)

    return draw


@contextmanager
def progress_bar(*, remaining: bool = True) -> Iterator[Draw | None]:
    """A bar, with its own estimate of the time that is left; ``None`` where nobody is looking.

    What is printed meanwhile goes to standard error.
    """
    with ExitStack() as stack:
        draw = None
        if sys.stderr.isatty():
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

            words = TextColumn("{task.description}", markup=False)
            columns = (BarColumn(), words, TimeRemainingColumn()) if remaining else (BarColumn(None), words)
            bar = stack.enter_context(_progress(*columns))
            task = bar.add_task("", total=1.0, visible=False)

            def draw(done: float, words: str) -> None:
                bar.update(task, completed=done, description=words, visible=True)

        stack.enter_context(redirect_stdout(sys.stderr))
        yield draw


def _progress(*columns: ProgressColumn) -> Progress:
    """A progress display on standard error that leaves nothing behind."""
    from rich.console import Console
    from rich.progress import Progress

    return Progress(*columns, console=Console(stderr=True), transient=True, speed_estimate_period=LONG)
