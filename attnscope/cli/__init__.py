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
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from time import monotonic
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from attnscope.cli.command import Command, read_lazily, split_words
from attnscope.cli.commands import PANELS, find_command, summary
from attnscope.cli.messages import notify
from attnscope.cli.settings import SETTINGS
from attnscope.errors import AttnscopeError
from attnscope.limits import memory_limited
from attnscope.registry import docstring
from attnscope.text import shorten
from attnscope.version import __version__

REPEAT_SECONDS = 1.0  # seconds after a Ctrl-C during which another one counts as the same
RERAISE_SECONDS = 0.05  # seconds until a swallowed Ctrl-C is raised again
MOST_OWNERS = 4  # commands that are named beside an option of theirs
EXIT_CLOSED_OUTPUT = 141  # the exit code of a command whose output is closed early, as shells count SIGPIPE
VERBS = ("requires ", "cannot be ", "must be ")  # with these, an option and what is wrong are a sentence
LIMIT = re.compile(r"Input should be (less|greater) than or equal to (\S+)")
HELP = {"help_option_names": ["-h", "--help"]}
EXAMPLE = """\b
Start with: attnscope show "The cat sat on the mat because it was tired."
attnscope COMMAND --help has the usual options, --help-all every one."""


class Commands(TyperGroup):
    """Every command, imported and built when it runs: all of them take longer than their help may."""

    listing = False  # whether summaries suffice

    def __init__(self, **more: Any) -> None:
        super().__init__(**more | {"commands": dict.fromkeys(PANELS)})  # by which Typer suggests a near name

    def get_params(self, ctx: Any) -> Any:
        """The options before a command."""
        return read_lazily(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order of the help."""
        return [*PANELS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by its name; ``None`` if it does not exist."""
        if self.listing:
            return TyperCommand(cmd_name, help=summary(cmd_name), rich_help_panel=PANELS[cmd_name])
        return build(cmd_name) if cmd_name in PANELS else None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The list of commands, without importing any."""
        with _listing(self):
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """What Tab offers in place of a command, without importing any."""
        with _listing(self):
            return super().shell_complete(ctx, incomplete)


@contextmanager
def _listing(group: Commands) -> Iterator[None]:
    group.listing = True
    try:
        yield
    finally:
        group.listing = False


@cache
def build(name: str) -> Any:
    """A command: its docstring is the help, the examples stand below."""
    function = find_command(name)
    text, _, examples = docstring(function).partition("\nExample")
    lines = "\n".join(line for line in examples.splitlines()[1:] if line.strip())
    paragraphs = "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    alone = typer.Typer(add_completion=False)
    alone.command(cls=Command, help=paragraphs, epilog=f"\b\nExamples:\n{lines}", context_settings={**HELP})(
        function
    )
    return typer.main.get_command(alone)


app = typer.Typer(
    name="attnscope",
    cls=Commands,
    help="See what the attention heads of a transformer do.",
    epilog=EXAMPLE,
    context_settings=HELP,
    pretty_exceptions_enable=False,
)


def _print_version(typed: bool) -> None:
    from importlib.metadata import version

    if typed:
        beside = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
        typer.echo(f"attnscope {__version__} ({beside}, Python {platform.python_version()})")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version, and those of torch and transformers.",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """What stands before a command."""


@cache
def commands() -> Any:
    """The whole command line as Typer builds it."""
    return typer.main.get_command(app)


def all_commands() -> Iterable[Any]:
    """Every command."""
    return map(build, PANELS)


def read_command_line(words: list[str]) -> list[str]:
    """What was typed, as a command: ``help show``, nothing, and a text alone mean one."""
    if words[:1] in (["help"], ["--help-all"]):
        return [*words[1:2], "--help"]
    if words and words[0] not in PANELS and len(words[0].split()) > 1 and not words[0].startswith("-"):
        words = ["show", *words]
        notify(f"attnscope {shlex.join(words)}")
    return words or ["--help"]


def run() -> None:
    """Run the command that was typed."""
    sys.argv[1:] = read_command_line(sys.argv[1:])
    try:
        raise SystemExit(commands().main(sys.argv[1:], "attnscope", standalone_mode=False))
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()  # a closed pipe or a full disk is told here, not at the end


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
    warnings.simplefilter("ignore", append=True)  # libraries warn programmers; python -W shows it
    gc.set_threshold(100_000)  # imports create many objects and no garbage; collecting takes long
    with _remembering_ctrl_c() as pressed:
        try:
            with memory_limited():
                run()
        except SystemExit as end:
            if isinstance(
                end.__context__, BrokenPipeError
            ):  # rich or Typer handled it, and would exit with 1
                _end_silently()
            raise
        except typer.TyperException as error:
            _fail(sentence := _explain_usage(error), error, AttnscopeError(sentence).suggestion)
        except BrokenPipeError:
            _end_silently()
        except Exception as error:
            foreseen = isinstance(error, AttnscopeError)
            if pressed() and not foreseen:
                raise KeyboardInterrupt from None
            if os.environ.get("ATTNSCOPE_TRACEBACK") and not (foreseen and error.__cause__ is None):
                raise
            _fail(_explain(error), suggestion=getattr(error, "suggestion", None))


def _end_silently() -> NoReturn:
    """The reader, such as head, has read enough: what is still to be written goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    raise SystemExit(EXIT_CLOSED_OUTPUT) from None


@contextmanager
def _remembering_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed: a library written in C may turn the interrupt into an error of its own.

    An interrupt that Python swallows during garbage collection is raised again a moment later. During the
    import of torch it ends the process at once: an exception inside C++ could abort it, and nothing is
    half done yet.
    """
    pressed = False
    latest = -REPEAT_SECONDS

    def press(signum: int, frame: object) -> None:
        nonlocal pressed, latest
        before, latest = latest, monotonic()
        if signum == signal.SIGINT and latest - before < REPEAT_SECONDS:
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
            signal.setitimer(signal.ITIMER_REAL, RERAISE_SECONDS)

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


def _explain_usage(error: Any) -> str:
    """What is wrong with the command line, and the option that it is about."""
    context: Any = getattr(error, "ctx", None)
    parameter = getattr(error, "param", None)
    sentence: str = error.format_message()
    hint = getattr(error, "param_hint", None) or (parameter.opts[0] if parameter is not None else None)
    if hint is not None and error.message:
        message = LIMIT.sub(_write_limit, error.message.removeprefix("Value error, "))
        sentence = f"{hint} {message}" if message.startswith(VERBS) else f"{hint}: {message}"
        if setting := context and context.meta.get(SETTINGS, {}).get(str(hint)):
            sentence = f"{sentence.rstrip('.')} (set in {setting})"
    if extra := re.fullmatch(r"Got unexpected extra argument\(s\) \((.*)\)", sentence, re.DOTALL):
        sentence = f"{extra[1]!r} is one argument too many: quote a text of several words, "
        sentence += "name a head by --head, a second text by --second-text"
    if hasattr(error, "possibilities") and (owners := commands_with(name := error.option_name)):
        some = ", ".join(owners[:MOST_OWNERS]) + (" and others" if len(owners) > MOST_OWNERS else "")
        sentence = f"{name} belongs to {some}, not to {context.info_name}"
    return sentence


def _write_limit(limit: re.Match[str]) -> str:
    return f"must be {limit[2]} or {'less' if limit[1] == 'less' else 'more'}"


def commands_with(option: str) -> list[str]:
    """The commands that have an option."""
    return [each.name for each in all_commands() for one in each.params if option in one.opts]


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


def _fail(sentence: str, usage: Any = None, suggestion: str | None = None) -> NoReturn:
    """One readable line on stderr, under torchrun with the process's number, and with ``--json`` as JSON.

    In a terminal, wrong usage looks as Typer prints it.
    """
    number, count = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    which = f" (process {number} of 0-{int(count) - 1})" if count.isdigit() and count > "1" else ""
    line = " ".join(sentence.split()).removesuffix(".")
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in shorten(line))
    typed = sys.argv[1:]
    command = build(typed[0]) if typed and typed[0] in PANELS else None
    options, _ = split_words(typed, command.valued if command else ())
    if ["--json"] in options:  # typed as an option, not as a text or an option's value
        given = suggestion is not None and suggestion not in typed  # no name that was typed
        answer = {"error": shown, "suggestion": suggestion if given else None, "exit_code": 2}
        print(json.dumps(answer, ensure_ascii=False), file=sys.stderr)
    elif not sys.stderr.isatty():
        print(f"attnscope{which}: {shown}", file=sys.stderr)
    elif usage is not None:
        from typer.rich_utils import rich_format_error

        usage.format_message = lambda: shown
        rich_format_error(usage)
    else:
        from rich.console import Console
        from rich.text import Text

        words = Text.assemble((f"attnscope{which}:", "bold red"), f" {shown}")
        Console(stderr=True, highlight=False).print(words, soft_wrap=True)
    raise SystemExit(2)
