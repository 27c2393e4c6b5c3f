"""Progress on standard error, if something takes longer than a moment."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from contextvars import ContextVar
from time import monotonic
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from attnscope.progress import Listener, listening
from attnscope.text import clean

if TYPE_CHECKING:
    from rich.progress import Progress

EXIT_INTERRUPTED = 130  # the exit code of a command that Ctrl-C stopped, as in shells
SPEED_SECONDS = 600.0  # seconds over which the speed is averaged: the layers of a long text are minutes apart

_verbosity = ContextVar("verbosity", default=0)


def set_verbosity(level: int) -> None:
    """-1 hides progress and notes, 0 is the default, 1 adds how long each step took."""
    _verbosity.set(level)


def is_quiet() -> bool:
    """Whether progress and notes are hidden."""
    return _verbosity.get() < 0


def is_verbose() -> bool:
    """Whether what ran is named, and how long each step took."""
    return _verbosity.get() > 0


def notify(sentence: str) -> None:
    """Print a note beside the answer, such as a saved file, on standard error."""
    if not is_quiet():
        from rich.console import Console
        from rich.text import Text

        Console(stderr=True).print(Text(clean(sentence), "dim"), soft_wrap=True)


def warn(sentence: str) -> None:
    """Print what went wrong although the command goes on, on standard error."""
    print(clean(f"attnscope: {sentence}"), file=sys.stderr)


def stop(words: str) -> NoReturn:
    """End the command that Ctrl-C stopped: what it leaves behind, and how to go on."""
    warn(f"stopped; {words}")
    raise SystemExit(EXIT_INTERRUPTED)


Draw: TypeAlias = Callable[[float, str], None]  # draws a bar: the share done, 0 to 1, and words beside it


@contextmanager
def spinner(message: str) -> Iterator[None]:
    """Show ``message`` with a spinner on a terminal, and a bar if the body reports its progress."""
    begun = monotonic()
    with _live_progress() as bar, listening(_listener(bar, message)) if bar else nullcontext():
        yield
    if is_verbose():
        print(f"{message}: {monotonic() - begun:.2f} s", file=sys.stderr)


@contextmanager
def progress_bar(*, remaining: bool = True) -> Iterator[Draw | None]:
    """A bar with its own estimate of the remaining time; ``None`` without a terminal."""
    with _live_progress() as bar:
        if bar is None:
            return (yield None)
        from rich.progress import BarColumn, TimeRemainingColumn

        words = bar.columns[-1]
        bar.columns = (BarColumn(), words, TimeRemainingColumn()) if remaining else (BarColumn(None), words)
        task = bar.add_task("", total=1.0, visible=False)
        yield lambda done, words: bar.update(task, completed=done, description=words, visible=True)


@contextmanager
def _live_progress() -> Iterator[Progress | None]:
    """A spinner and words on standard error that disappear afterwards; ``None`` without a terminal.

    What a model's own code prints meanwhile goes to standard error: standard output is only for the answer.
    """
    with ExitStack() as stack:
        bar = None
        if sys.stderr.isatty() and not is_quiet():
            from rich.console import Console
            from rich.progress import Progress, SpinnerColumn, TextColumn

            columns = SpinnerColumn(), TextColumn("{task.description}", markup=False)
            console = Console(stderr=True)
            bar = Progress(*columns, console=console, transient=True, speed_estimate_period=SPEED_SECONDS)
            stack.enter_context(bar)
        stack.enter_context(redirect_stdout(sys.stderr))
        yield bar


def _listener(bar: Progress, message: str) -> Listener:
    """Draws the progress in ``bar``; each run through the layers starts anew."""
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
