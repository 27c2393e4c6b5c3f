"""The commands by name, a file each, which is imported when it is asked for: no command pays for another."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from attnscope.cli.retired import RETIRED
from attnscope.registry import docstring
from attnscope.text import shorten

NAMES = (
    "show", "find", "spans", "align", "flow", "stats", "compare", "browse", "export", "info", "check",
    "train", "loss", "schema", "cache",
)  # fmt: skip
"""Every command, in the order of the help: a function of this name in the file of this name."""

HELP = {"help_option_names": ["-h", "--help"]}

WRONG_USAGE: Any = typer.BadParameter.__mro__[1]
"""What click, or Typer's copy of it, raises for wrong usage of any kind."""

OPTION = re.compile(r"--?[^\W\d_]")
"""How an option begins: -2, "-2 -> cat" and "- a line of a list" are none."""


class Command(TyperCommand):
    """A command that takes arguments which begin with a minus, and reads its values without pydantic."""

    def get_params(self, ctx: Any) -> Any:
        """The options and arguments."""
        kinds = {name: get_args(note)[0] for name, note in self.callback.__annotations__.items()}
        return _without_pydantic(super().get_params(ctx), kinds)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take what is typed: an argument may begin with a minus, ``"-2 -> cat"``."""
        valued = {
            name
            for each in self.get_params(ctx)
            if each.param_type_name == "option" and not each.is_flag
            for name in each.opts
        }
        return super().parse_args(ctx, _behind_options(args, valued))


class Group(TyperGroup):
    """The command line."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes | {"commands": dict.fromkeys(NAMES)})

    listing = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by its name; ``None`` for one that does not exist."""
        if cmd_name not in NAMES:
            return None
        return TyperCommand(cmd_name, help=_summary(cmd_name)) if self.listing else _build(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The list of commands, none of which is imported for it."""
        self.listing = True
        super().format_help(ctx, formatter)
        self.listing = False

    def get_params(self, ctx: Any) -> Any:
        """The options before a command."""
        return _without_pydantic(super().get_params(ctx), {})

    def make_context(self, *given: Any, **more: Any) -> Any:
        """What was typed before a command, read."""
        with _readable_errors():
            return super().make_context(*given, **more)

    def invoke(self, ctx: Any) -> Any:
        """A command, run."""
        with _readable_errors():
            return super().invoke(ctx)


@contextmanager
def _readable_errors() -> Iterator[None]:
    """Wrong usage is said in a sentence that can be read, however long or old what was typed is."""
    try:
        yield
    except WRONG_USAGE as error:
        error.message = shorten(RETIRED.get(getattr(error, "option_name", ""), error.message))
        raise


def find_command(name: str) -> Callable[..., None]:
    """The function of a command."""
    function: Callable[..., None] = getattr(import_module(f"attnscope.cli.commands.{name}"), name)
    return function


def _summary(name: str) -> str:
    """The first sentence of a command's docstring, read from its file."""
    source = (Path(__file__).parent / f"{name}.py").read_text("utf-8")
    found = re.search(rf'^def {name}\(.*?"""(.*?)(?:\n\n|""")', source, re.M | re.S)
    return " ".join(found[1].split()) if found else ""


@cache
def _build(name: str) -> Any:
    """A command as Typer has it: its docstring is its help, each paragraph free to flow with the terminal."""
    function = find_command(name)
    text, title, examples = docstring(function).partition("\nExample")
    paragraphs = "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    alone = typer.Typer(add_completion=False, context_settings=HELP)
    alone.command(cls=Command, help=paragraphs, epilog=title.strip() + examples)(function)
    return get_command(alone)


def _behind_options(typed: list[str], valued: Collection[str]) -> list[str]:
    """The same with all arguments behind ``--``, where one begins with a minus and is no option.

    ``valued`` are the options that take what follows them.
    """
    options, arguments = list[str](), list[str]()
    words = iter(typed)
    for word in words:
        if word == "--":
            arguments += words
        elif OPTION.match(word):
            options += [word, *([next(words, "")] if word in valued else [])]
        else:
            arguments.append(word)
    if not any(word.startswith("-") and word != "-" for word in arguments):
        return typed
    return [*options, "--", *arguments]


def _without_pydantic(parameters: Any, kinds: Mapping[str, Any]) -> Any:
    """Parameters whose values are checked where they can be wrong; a flag names no value in the help.

    Typer asks pydantic about every value, and to import that takes a fifth of a command on a cached pass.
    """
    for each in parameters:
        if each.param_type_name == "option" and each.metavar is None:
            each.metavar = ""
        if "process_value" not in vars(each) and not each.required:
            each.process_value = partial(_take, each, kinds.get(each.name), each.process_value)
    return parameters


def _take(parameter: Any, kind: Any, check: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    """A value as it is: one that was not given, a text, or a path, of which nothing is asked here."""
    if parameter.multiple and not value:
        return ()
    if value is None or value == parameter.default or kind in (str, str | None):
        return value
    return Path(value) if kind in (Path, Path | None) else check(context, value)
