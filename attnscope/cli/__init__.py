"""The command line: one file per command, each of which parses, asks one question and delivers the answer.

Nothing heavy is imported before a command runs, so that ``--help`` answers at once.
"""

from __future__ import annotations

import gc
import io
import json
import os
import platform
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import NoReturn

import click

from attnscope import __version__
from attnscope.cli.command import CONTEXT, RETIRED, SETTINGS, eager, split_words
from attnscope.cli.commands import AllCommands
from attnscope.errors import AttnscopeError
from attnscope.limits import memory_limited
from attnscope.text import shorten

TWICE = 1.0  # seconds after a Ctrl-C during which another one counts as the same
AGAIN = 0.05  # seconds until a swallowed Ctrl-C is raised again
READ_ENOUGH = 141  # the exit code of a command whose output is closed early, as shells count SIGPIPE
COMPLETE = "_ATTNSCOPE_COMPLETE"  # the variable with which a shell asks for completions


def _print_completion(context: click.Context, shell: str) -> None:
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(context.command, {}, "attnscope", COMPLETE).source())
    context.exit()


def _print_version(context: click.Context, asked: bool) -> None:
    from importlib.metadata import version

    beside = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    click.echo(f"attnscope {__version__} ({beside}, Python {platform.python_version()})")
    context.exit()


commands = AllCommands(
    "attnscope",
    help="See what the attention heads of a transformer do.",
    context_settings=CONTEXT,
    params=[
        eager(
            ["--completion"],
            _print_completion,
            type=click.Choice(("bash", "zsh", "fish")),
            help="Print what makes Tab complete: attnscope --completion bash >> ~/.bashrc.",
        ),
        eager(
            ["--version"],
            _print_version,
            is_flag=True,
            help="Print the version, and those of torch and transformers.",
        ),
    ],
)


def app() -> None:
    """Run the command that was typed, or answer a request for completions."""
    if COMPLETE in os.environ:
        from click.shell_completion import shell_complete

        raise SystemExit(shell_complete(commands, {}, "attnscope", COMPLETE, os.environ[COMPLETE]))
    with commands.make_context("attnscope", sys.argv[1:] or ["--help"]) as context:
        commands.invoke(context)
    raise SystemExit(0)


class _StandardError(io.TextIOWrapper):
    """Standard error that may be full: failed writes are dropped to save the answer."""

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            super().flush()


def main() -> None:
    """Run the command line. An error that the user can fix ends in one sentence on stderr and exit code 2."""
    if sys.stderr is None:  # closed: otherwise the next opened file would take its number, and its messages
        while (number := os.open(os.devnull, os.O_RDWR)) < 2:
            pass
        sys.stderr = os.fdopen(number, "w")
    elif type(sys.stderr) is io.TextIOWrapper:
        sys.stderr = _StandardError(sys.stderr.buffer, sys.stderr.encoding, line_buffering=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters outside an encoding become question marks
            stream.reconfigure(errors="replace")
    if os.environ.get("COLUMNS") == "0":  # so some shells say that they do not know it
        del os.environ["COLUMNS"]
    os.environ.pop("MPLBACKEND", None)  # no window is opened, and an unknown name would stop all pictures
    gc.set_threshold(100_000)  # imports create many objects and no garbage; collecting takes long
    with _remembering_ctrl_c() as pressed:
        try:
            with memory_limited():
                app()
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):  # rich handled it, and would exit with 1
                raise SystemExit(READ_ENOUGH) from None
            raise
        except click.exceptions.Exit as end:
            raise SystemExit(end.exit_code) from None
        except click.ClickException as error:
            _fail(_explain_usage(error))
        except BrokenPipeError:  # the reader, such as head, has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise SystemExit(READ_ENOUGH) from None
        except Exception as error:
            foreseen = isinstance(error, AttnscopeError)
            if pressed() and not foreseen:
                raise KeyboardInterrupt from None
            if os.environ.get("ATTNSCOPE_TRACEBACK") and not (foreseen and error.__cause__ is None):
                raise
            _fail(_explain(error))


@contextmanager
def _remembering_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed: a library written in C may turn the interrupt into an error of its own.

    An interrupt that Python swallows during garbage collection is raised again a moment later. During the
    import of torch it ends the process at once: an exception inside C++ could abort it, and nothing is
    half done yet.
    """
    pressed = False
    latest = -TWICE

    def press(signum: int, frame: object) -> None:
        nonlocal pressed, latest
        before, latest = latest, monotonic()
        if signum == signal.SIGINT and latest - before < TWICE:
            return  # the first one is being cleaned up
        spec = getattr(sys.modules.get("torch"), "__spec__", None)
        if getattr(spec, "_initializing", False):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        pressed = True
        raise KeyboardInterrupt

    def swallowed(ignored: sys.UnraisableHookArgs) -> None:
        if not isinstance(ignored.exc_value, KeyboardInterrupt):
            if not pressed:  # otherwise it interrupts the cleanup
                hook(ignored)
        elif hasattr(signal, "setitimer"):
            signal.signal(signal.SIGALRM, press)
            signal.setitimer(signal.ITIMER_REAL, AGAIN)

    before, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield lambda: pressed
        return
    signal.signal(signal.SIGINT, press)
    sys.unraisablehook = swallowed
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
        if not pressed:
            sys.unraisablehook = hook


def _explain_usage(error: click.ClickException) -> str:
    """What is wrong with the command line, and the option that it is about."""
    name, context = getattr(error, "option_name", ""), getattr(error, "ctx", None)
    retired = RETIRED.get(f"{context and context.info_name} {name}", RETIRED.get(name))
    sentence = retired or error.format_message()
    if isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter):
        hint = error.param_hint or (error.param and error.param.opts[0]) or ""
        sentence = f"{hint}: {error.message}"
        if setting := error.ctx and error.ctx.meta.get(SETTINGS, {}).get(str(hint).lstrip("-")):
            sentence = f"{sentence.rstrip('.')} (set in {setting[1]})"
    if isinstance(error, click.NoSuchOption) and not retired:
        near = " or ".join(sorted(error.possibilities or ()))
        more = f"did you mean {near}?" if near else "--help-all lists every one"
        sentence = f"no option {name}: {more}"
    if extra := re.fullmatch(r"Got unexpected extra arguments? \((.*)\)", sentence, re.DOTALL):
        sentence = f"{extra[1]!r} is one argument too many: quote a text of several words"
    return sentence


def _explain(error: Exception) -> str:
    """What went wrong, as a sentence; an unforeseen error says how to report it."""
    if isinstance(error, AttnscopeError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return (
        f"unexpected {type(error).__name__}: {error} "
        "(ATTNSCOPE_TRACEBACK=1 shows where; please report it with the command)"
    )


def _fail(sentence: str) -> NoReturn:
    """One readable line on stderr, under torchrun with the process's number, and with ``--json`` as JSON."""
    number, count = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    which = f" (process {number} of 0-{int(count) - 1})" if count.isdigit() and count > "1" else ""
    line = " ".join(sentence.split()).removesuffix(".")
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in shorten(line))
    told = f"attnscope{which}: {shown}"
    typed = sys.argv[1:]
    found = commands.get_command(click.Context(commands), typed[0]) if typed else None
    options, _ = split_words(typed, found.valued if found else ())
    if ["--json"] in options:  # typed as an option, not as a text or an option's value
        suggestion = shown.rpartition(": ")[2] if ": " in shown else None
        told = json.dumps({"error": shown, "suggestion": suggestion, "exit_code": 2}, ensure_ascii=False)
    encoding = sys.stderr.encoding or "ascii"
    print(told.encode(encoding, "replace").decode(encoding), file=sys.stderr)
    raise SystemExit(2)
