"""The commands by name, a file each, which is imported when it is asked for: no look pays for another."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

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

VALUES: Mapping[Any, str] = {bool: "", str: "TEXT", int: "NUMBER", float: "NUMBER", Path: "PATH"}
"""What the help calls the value of an option."""

LONGEST_CHOICES = 22
"""Letters of all choices together beyond which the help's text lists them."""

HELP = {"help_option_names": ["-h", "--help"]}

WRONG_USAGE: Any = typer.BadParameter.__mro__[1]
"""What click, or Typer's copy of it, raises for wrong usage of any kind."""


OPTION = re.compile(r"--?[^\W\d_]")
"""How an option begins: -2, "-2 -> cat" and "- a line of a list" are none."""


class Commands(Mapping[str, Any]):
    """Every command by its name, as Typer has it."""

    def __getitem__(self, name: str) -> Any:
        if name not in NAMES:
            raise KeyError(name)
        return _build(name)

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


class Command(TyperCommand):
    """A command that checks what there is to check."""

    def get_params(self, ctx: Any) -> Any:
        """The options and arguments."""
        words = inspect.signature(self.callback or _take).parameters
        kinds = {name: next(iter(get_args(word.annotation)), None) for name, word in words.items()}
        return _spare(_name_values(super().get_params(ctx), kinds), kinds)

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
    """The command line, with the commands of ``Commands``."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes | {"commands": Commands()})

    def get_params(self, ctx: Any) -> Any:
        """The options before a command."""
        return _spare(_name_values(super().get_params(ctx), {}), {})

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


def _name_values(parameters: Any, kinds: Mapping[str, Any]) -> Any:
    """Parameters with a word for the value that is typed behind them; Typer would name a type of Python."""
    for parameter in parameters:
        if parameter.param_type_name == "option" and parameter.metavar is None:
            parameter.metavar = _name_value(kinds.get(parameter.name, bool))
    return parameters


def _name_value(kind: Any) -> str:
    """What the help calls a value of ``kind``: its choices where they are few, nothing behind a flag."""
    if get_origin(kind) is Literal:
        choices = "|".join(get_args(kind))
        return choices if len(choices) <= LONGEST_CHOICES else "WAY"
    return VALUES[kind] if kind in VALUES else _name_value(get_args(kind)[0])


def _spare(parameters: Any, kinds: Mapping[str, Any]) -> Any:
    """Parameters whose values are checked where they can be wrong.

    Typer asks pydantic about every value, and to import that takes a fifth of a look at a pass that is kept.
    """
    for parameter in parameters:
        if "process_value" not in vars(parameter) and not parameter.required:
            parameter.process_value = partial(
                _take, parameter, kinds.get(parameter.name), parameter.process_value
            )
    return parameters


def _take(parameter: Any, kind: Any, check: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    """A value as it is: one that was not given, a text, or a path, of which nothing is asked here."""
    if parameter.multiple:
        return check(context, value) if value else ()
    if value is None and parameter.callback is not None:
        return parameter.callback(context, parameter, value)
    if value is None or (
        parameter.callback is None and (kind in (str, str | None) or value == parameter.default)
    ):
        return value
    if kind in (Path, Path | None) and isinstance(value, str):
        return Path(value)
    return check(context, value)
