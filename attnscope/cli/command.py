"""Declares commands and options: a command is a function of groups, an option a field of a group.

    class CutOptions(Group):
        panel = TEXT
        line: int | None = option("Take one line of the input.")
        truncate: bool = flag("Cut a text that is too long.")

``command`` turns the function into a click command with a parameter for each field. ``--help`` lists the
options of the panel ``MOST_USED``, ``--help-all`` those of every panel.

Users set the default of any option in ATTNSCOPE_MODEL, the project's pyproject.toml, or their config.toml:

    [tool.attnscope]               # in config.toml the same keys without a table
    model = "openai-community/gpt2"
    hide-special = true

The first source that sets an option wins. A project may come from anywhere, so options that run code or
write files can only be set in the user's own file.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from attnscope.cli.waiting import set_verbosity
from attnscope.errors import AttnscopeError, InputError
from attnscope.registry import dataclass_transform, docstring
from attnscope.text import LARGEST, raw_csv

if TYPE_CHECKING:
    from attnscope.views import Table

MOST_USED = "Options"  # the panel of the options that --help lists

Complete: TypeAlias = Callable[[], Iterable[str]]  # all possible values; Tab offers those that begin as typed
REQUIRED: Any = MISSING  # the default of a required parameter

KINDS: Mapping[Any, tuple[str, Any]] = {
    bool: ("", click.BOOL),
    str: ("TEXT", click.STRING),
    int: ("NUMBER", click.INT),
    float: ("NUMBER", click.FLOAT),
    Path: ("PATH", Path),
}
"""The help's word for a value, and its reader."""

WIDEST = 24  # columns of the names in the help
LONGEST_CHOICES = 22  # if all choices together have more letters, the help's text lists them
LONGEST = 240  # most characters of a command worth copying

OPTION = re.compile(r"--?[^\W\d_]")  # so begins an option; -2, "-2 -> cat" and "- a line of a list" are none
SHORT = {"file": ("-f",), "model": ("-m",), "out": ("-o",)}  # short names of options, wherever they are

ALWAYS = (
    ("-q, --quiet", "Print neither notes nor progress."),
    ("-v, --verbose", "Print how long each step took."),
)
"""Options of every command."""

RETIRED: Mapping[str, str] = {
    "--relative": "--relative was retired: compare what --token looks at under two texts, each with --json",
    "--writes": "show --writes is now a command: attnscope logits TEXT (--target, --against, --head)",
    "--against": "--against belongs to check (a snapshot) and to logits (another word)",
    "--ablate": "show --ablate is now a command: attnscope ablate TEXT --head L2H1",
    "--ablation": "stats --ablation is now a command: attnscope ablate (with --texts, also --mean)",
    "--importance": "stats --importance is now a command: attnscope ablate --importance",
    "--neutral": "--neutral was retired with --relative: run show --token on the neutral text, too",
    "patch --from": "the heads of a path are now named by --head, and a trace holds no model to patch",
    "sounds in --gold": "--gold of timed words was retired: align --rank finds the heads that follow a sound",
    "--fresh": "--fresh is now --no-cache",
    "--feeds": "--feeds is now --composition",
    "--install-completion": "--install-completion is now --completion bash, zsh or fish",
    "--at": "ablate --at was retired: cut 'it -> *' TEXT --how zero takes out what heads give at it",
    **dict.fromkeys(
        ("ablate --target", "ablate --against", "ablate --prompts"),
        "cut '* -> *' TEXT --how zero has what one prediction loses without each head, with the same options",
    ),
    "--rows": "--rows belongs to stats: ablate leaves the predictions of the whole text",
    "--map": "compare --map was retired: track FOLDER OTHER --texts FILE --measure NAME has each change",
    "--all": "compare --all was retired: -o saves every head on a plane, --json has the singletons",
    "--guide": "--guide was retired: no head is trained towards a role; stats names the roles",
    "--guidance": "--guidance was retired with --guide",
    ".gif": "animated pictures were retired: export --format png writes one a layer",
    ".apng": "animated pictures were retired: export --format png writes one a layer",
}
"""One row per retired option, file suffix, or value."""

SETTINGS = "attnscope.settings"  # where a command's context keeps the user's settings
VARIABLE = "ATTNSCOPE_MODEL"

USERS_OWN = ("trust-remote-code", "allow-pickle", "out", "keep", "checkpoint", "pooled", "save")
"""Options that run code or write files."""

LARGEST_FILE = 1 << 20  # most bytes of a settings file

CONTEXT: Mapping[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def argument(help: str, default: Any = None, metavar: str | None = None) -> Any:
    """A positional argument."""
    return field(default=default, metadata={"help": help, "metavar": metavar})


def option(
    help: str,
    *names: str,
    panel: str | None = None,
    default: Any = None,
    min: float | None = None,
    max: float | None = None,
    largest: int = LARGEST,
    complete: Complete | None = None,
) -> Any:
    """An option with a value; ``largest`` is only a sanity bound, while ``max`` is a documented limit."""
    more = {"limits": (min, max), "largest": largest, "complete": complete}
    return field(default=default, metadata={"help": help, "names": names, "panel": panel, **more})


def flag(help: str, *names: str, panel: str | None = None) -> Any:
    """An option without a value, True if typed."""
    return field(default=False, metadata={"help": help, "names": names, "panel": panel})


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Group:
    """Options of a command: each subclass is a frozen dataclass, its fields made by the functions above."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


def refuse(when: object, option: str, sentence: str) -> None:
    """Raise wrong usage under a condition: what is wrong with an option, or which options conflict."""
    if when:
        raise click.BadParameter(sentence, param_hint=option)


def refuse_first(*rules: tuple[object, str, str]) -> None:
    """Raise wrong usage for the first rule that applies: its condition, the option, and what is wrong."""
    for rule in rules:
        refuse(*rule)


def is_typed(name: str) -> bool:
    """Whether an option was typed: not its default, and not from the user's settings."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def is_offered(option: str) -> bool:
    """Whether the running command has an option."""
    context = click.get_current_context(silent=True)
    return context is not None and any(option in each.opts for each in context.command.params)


def untyped(group: Any) -> Any:
    """A group with nothing typed: its defaults and the user's settings."""
    context = click.get_current_context(silent=True)
    names = [word.name for word in words_of(group) if context and not is_typed(word.name)]
    return group(**{name: context.params[name] for name in names if context and name in context.params})


@dataclass(frozen=True)
class Parameter:
    """One option or argument: a field of a group, of ``kind``, possibly repeatable."""

    field: Field[Any]
    kind: Any
    many: bool
    panel: str

    @property
    def name(self) -> str:
        """The name of the parameter."""
        return self.field.name

    @property
    def is_argument(self) -> bool:
        """Whether it is positional."""
        return "names" not in self.field.metadata

    @property
    def names(self) -> tuple[str, ...]:
        """An option's names on the command line; an argument's name in the help."""
        if self.is_argument:
            return (self.field.metadata["metavar"] or self.name.upper(),)
        long = self.name.removeprefix("as_").replace("_", "-")
        return self.field.metadata["names"] or (f"--{long}", *SHORT.get(self.name, ()))

    @property
    def value(self) -> str:
        """The help's word for its value: choices if they are few, nothing for a flag."""
        if get_origin(self.kind) is not Literal:
            return KINDS[self.kind][0]
        choices = "|".join(get_args(self.kind))
        return choices if len(choices) <= LONGEST_CHOICES else "WAY"

    @property
    def row(self) -> tuple[str, str]:
        """Its line of the help."""
        told, default = self.field.metadata, self.field.default
        if self.is_argument:
            return self.names[0], told["help"]
        low, high = told.get("limits", (None, None))
        more = [f"{low:g} to {high:g}"] if high is not None else []
        if not (default is None or default is False or default is MISSING):
            more += [f"default: {default:g}" if isinstance(default, (int, float)) else f"default: {default}"]
        names = ", ".join(sorted(self.names, key=len))
        return f"{names} {self.value}", told["help"] + (f" [{'; '.join(more)}]" if more else "")

    def parameter(self) -> click.Parameter:
        """The parameter for click."""
        told: Mapping[str, Any] = self.field.metadata
        kind = KINDS[self.kind][1] if self.kind in KINDS else click.Choice(get_args(self.kind))
        low, high = told.get("limits", (None, None))
        if low is not None or high is not None:
            kind = (click.IntRange if self.kind is int else click.FloatRange)(low, high)
        required = self.field.default is MISSING
        shared: dict[str, Any] = {"type": kind, "callback": self.read, "required": required}
        if not (required or self.many):
            shared["default"] = self.field.default
        if self.is_argument:
            shared |= {"nargs": -1 if self.many else 1, "metavar": self.names[0]}
            return click.Argument([self.name], **shared)
        if (words := told.get("complete")) is not None:
            shared["shell_complete"] = lambda context, _, begun: [
                word for word in dict.fromkeys(words()) if word.lower().startswith(begun.lower())
            ]
        shared |= {"is_flag": self.kind is bool, "multiple": self.many, "metavar": self.value}
        return click.Option([self.name, *self.names], **shared)

    def read(self, context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        """A value for the group; an unusable number is wrong usage: ``1e999``, ``nan``."""
        largest = self.field.metadata.get("largest", LARGEST)
        wrong = isinstance(value, (int, float)) and not abs(value) < largest + 1
        refuse(wrong, self.names[0], f"write a number up to {largest:,}")
        return list(value) or None if isinstance(value, tuple) else value

    def typed(self, value: Any) -> list[str]:
        """The words to type for a value; empty for the default."""
        if value == self.field.default:
            return []
        words = [str(part) for part in (value if isinstance(value, list) else [value])]
        return words if self.is_argument else [self.names[-1], *([] if value is True else words)]


@functools.cache
def words_of(group: Any) -> tuple[Parameter, ...]:
    """The options and arguments of a group."""
    hints, words = get_type_hints(group), []
    for each in fields(group):
        kind = hints[each.name]
        if get_origin(kind) in (Union, UnionType):
            kind = next(part for part in get_args(kind) if part is not NoneType)
        many = get_origin(kind) is list
        panel = each.metadata.get("panel")
        if panel is None:  # that of the declaring class
            owner = next(cls for cls in group.__mro__ if each.name in inspect.get_annotations(cls))
            panel = vars(owner).get("panel", MOST_USED)
        words.append(Parameter(each, get_args(kind)[0] if many else kind, many, panel))
    return tuple(words)


class Command(click.Command):
    """A command: a function whose docstring is the help, with groups of options as parameters."""

    def __init__(self, function: Callable[..., None]) -> None:
        signature = inspect.signature(function, eval_str=True)
        self.function = function
        self.groups = {name: each.annotation for name, each in signature.parameters.items()}
        self.words = [word for group in self.groups.values() for word in words_of(group)]
        parameters = [word.parameter() for word in self.words]
        super().__init__(function.__name__, params=parameters, context_settings=dict(CONTEXT))
        self.params += [
            eager(["--quiet", "-q"], lambda *_: set_verbosity(-1), is_flag=True),
            eager(["--verbose", "-v"], lambda *_: set_verbosity(1), is_flag=True),
            eager(["--raw-csv"], lambda *_: raw_csv.set(True), is_flag=True),
            eager(["--help-all"], self._print_help, is_flag=True),
        ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what was typed: an argument may begin with a minus, ``"-2 -> cat"``."""
        set_verbosity(0)
        raw_csv.set(False)
        with suppress(*[AttnscopeError] * ctx.resilient_parsing):  # Tab never complains
            ctx.meta[SETTINGS] = read_settings()
            ctx.default_map = defaults_of(ctx, ctx.meta[SETTINGS])
        options, arguments = split_words(args, self.valued)
        if any(word.startswith("-") and word != "-" for word in arguments):
            args = [*(word for each in options for word in each), "--", *arguments]
        return super().parse_args(ctx, args)

    @property
    def valued(self) -> set[str]:
        """The options that take a value."""
        options = [each for each in self.params if isinstance(each, click.Option) and not each.is_flag]
        return {name for each in options for name in each.opts}

    def invoke(self, ctx: click.Context) -> None:
        """Run the function on its groups."""
        made = {}
        for name, group in self.groups.items():
            made[name] = group(**{word.name: ctx.params[word.name] for word in words_of(group)})
        try:
            self.function(**made)
        except click.UsageError as error:
            error.ctx = ctx
            raise

    def _print_help(self, context: click.Context, asked: bool) -> None:
        formatter = context.make_formatter()
        self.format_help(context, formatter, everything=True)
        click.echo(formatter.getvalue().rstrip("\n"))
        context.exit()

    def format_help(
        self, ctx: click.Context, formatter: click.HelpFormatter, *, everything: bool = False
    ) -> None:
        """What it does, its options, and examples; ``everything``: the options of every panel."""
        text, _, examples = docstring(self.function).partition("\nExample")
        positional = [word for word in self.words if word.is_argument]
        named = [(f"{word.names[0]}{'...' * word.many}", word.field.default) for word in positional]
        arguments = " ".join(name if default is MISSING else f"[{name}]" for name, default in named)
        formatter.write_usage(ctx.command_path, f"{arguments} [OPTIONS]".strip())
        formatter.write_paragraph()
        formatter.write_text(text)
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], MOST_USED: []}
        for word in self.words:
            panel = "Arguments" if word.is_argument else word.panel
            if everything or panel in panels:
                panels.setdefault(panel, []).append(word.row)
        if everything:
            panels[MOST_USED] += ALWAYS
        panels[MOST_USED].append(("-h, --help", "Print this page; --help-all prints every option."))
        for panel, rows in panels.items():
            if rows:
                write_rows(formatter, panel, rows)
        with formatter.section("Examples"):
            formatter.write("".join(f"  {line}\n" for line in examples.splitlines()[1:] if line.strip()))


command = Command


def write_rows(formatter: click.HelpFormatter, panel: str, rows: list[tuple[str, str]]) -> None:
    """A panel of the help: names and descriptions; lines do not break at hyphens."""
    width = min(max(len(name) for name, _ in rows), WIDEST) + 4
    formatter.write(f"\n{panel}:\n")
    for name, text in rows:
        lines = textwrap.wrap(text, formatter.width - width, break_on_hyphens=False)
        beside = len(name) + 4 <= width
        formatter.write(f"  {name:{width - 2}}{lines.pop(0)}\n" if beside else f"  {name}\n")
        formatter.write("".join(f"{'':{width}}{line}\n" for line in lines))


def eager(names: list[str], obey: Callable[[click.Context, Any], object], **how: Any) -> click.Option:
    """An option that is obeyed before all others are read."""
    heed = lambda context, _, value: obey(context, value) if value else None  # noqa: E731
    return click.Option(names, is_eager=True, expose_value=False, callback=heed, **how)


def split_words(typed: list[str], valued: Collection[str]) -> tuple[list[list[str]], list[str]]:
    """Split into options, those that are ``valued`` with a value, and arguments, maybe with a minus first."""
    options, arguments = list[list[str]](), list[str]()
    words = iter(typed)
    for word in words:
        if word == "--":
            arguments += words
        elif OPTION.match(word):
            options.append([word, *([next(words, "")] if word in valued else [])])
        else:
            arguments.append(word)
    return options, arguments


def repeat(name: str, *groups: Any) -> str | None:
    """A command to copy; ``None`` if it is too long."""
    words = write(name, *groups)
    return words if len(words) <= LONGEST and words.isprintable() else None


def write(name: str, *groups: Any) -> str:
    """A command as one would type it with these groups' options, defaults left out."""
    options, arguments = list[str](), list[str]()
    for group in groups:
        for word in words_of(group.__class__):
            (arguments if word.is_argument else options).extend(word.typed(getattr(group, word.name)))
    if any(word.startswith("-") and word != "-" for word in arguments):
        arguments = ["--", *arguments]
    return shlex.join(("attnscope", name, *options, *arguments))


def tell_retired(sentence: str, *spellings: str) -> str:
    """What is wrong with these spellings, and what replaced those that once worked."""
    return "; ".join((sentence, *(RETIRED[each] for each in spellings if each in RETIRED)))


UserDefault: TypeAlias = tuple[Any, str]  # the default of an option, and where it is set


def users_file() -> Path:
    """The path of the user's own defaults."""
    from platformdirs import user_config_path

    return user_config_path("attnscope") / "config.toml"


def read_settings() -> dict[str, UserDefault]:
    """The settings, by option name without dashes. Raises ``InputError`` for an unreadable file."""
    files = (folder / "pyproject.toml" for folder in (Path.cwd(), *Path.cwd().parents))
    path = next((file for file in files if file.is_file()), Path("pyproject.toml"))
    found, project = _read(users_file(), ()), _read(path, ("tool", "attnscope"))
    for name, (value, _) in project.items():
        runs_code = name == "model" and ".py:" in str(value)
        if runs_code or name in USERS_OWN:
            raise InputError(
                f"{path} sets {name}: options that run code or write files belong in {users_file()}"
            )
    found |= project
    if model := os.environ.get(VARIABLE):
        found["model"] = model, VARIABLE
    return found


def _read(path: Path, table: tuple[str, ...]) -> dict[str, UserDefault]:
    """The settings in a table of a TOML file; none without a file."""
    from attnscope.storage.files import read_regular

    if not path.is_file():
        return {}
    try:
        content = read_regular(path, LARGEST_FILE).decode("utf-8")
        if not all(name in content for name in table):
            return {}
        toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
        settings: Any = toml.loads(content)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    for name in table:
        settings = settings.get(name, {}) if isinstance(settings, Mapping) else {}
    if not isinstance(settings, Mapping):
        raise InputError(f"{path}: {'.'.join(table)} is not a table")
    return {name.replace("_", "-"): (value, str(path)) for name, value in settings.items()}


def defaults_of(context: click.Context, settings: Mapping[str, UserDefault]) -> dict[str, Any]:
    """The defaults of a command's parameters, as typed; an unknown option or type is an ``InputError``."""
    command, every = context.command, context.parent.command if context.parent else None
    taken = {}
    for name, (value, origin) in settings.items():
        option = _find(command, name)
        if option is None:
            if isinstance(every, click.Group) and not any(
                _find(other, name)
                for each in every.list_commands(context)
                if (other := every.get_command(context, each)) is not None
            ):
                raise InputError(f"{origin} sets {name}: no command has an option --{name}")
            continue
        flag = getattr(option, "is_flag", False)
        several = option.multiple and isinstance(value, list)
        if flag is not isinstance(value, bool) or not (several or isinstance(value, (bool, str, int, float))):
            kind = "true or false" if flag else "a text or a number"
            raise InputError(f"{origin} sets {name} to {value!r}: write {kind}")
        taken[option.name or name] = value if flag else [*map(str, value)] if several else str(value)
    return taken


def settings_table() -> Table:
    """All settings, by option, and where they are set."""
    from attnscope.views import Column, Table

    rows = tuple((f"--{name}", str(value), origin) for name, (value, origin) in read_settings().items())
    places = f"{VARIABLE}, [tool.attnscope] of the project's pyproject.toml, {users_file()}"
    notes = ("the first of these that sets an option counts: " + places,)
    columns = Column("option", long="keep"), Column("default", long="keep"), Column("set in", long="rest")
    return Table(columns, rows or (("none", "", ""),), notes=notes)


def _find(command: click.Command, name: str) -> click.Parameter | None:
    return next((each for each in command.params if f"--{name}" in each.opts), None)
