"""A command is a function of groups of options; a group is a dataclass whose fields Typer declares.

    class CutOptions(Group):
        panel = TEXT
        line: Annotated[int | None, Option(help="Take one line of the input.")] = None
        truncate: Annotated[bool, Option(help="Cut a text that is too long.")] = False

    @command
    def cut(options: CutOptions, model: ModelOptions) -> None: ...

Typer reads a function's parameters and has no groups of them: ``command`` gives it a function with a
parameter for each field. ``--help`` lists the panel ``MOST_USED``, ``--help-all`` every panel.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import shlex
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from copy import copy
from dataclasses import MISSING, dataclass, fields
from glob import glob
from itertools import product
from pathlib import Path
from typing import Annotated, Any, TypeAlias, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import OptionInfo

from attnscope.cli.messages import notify, set_verbosity
from attnscope.cli.settings import SETTINGS, defaults_of, read_settings
from attnscope.errors import AttnscopeError
from attnscope.registry import dataclass_transform
from attnscope.text import LARGEST_COUNT

MOST_USED = "Options"  # the panel that --help lists
EVERYWHERE = "Every command"
Often: Any = functools.partial(typer.Option, rich_help_panel=MOST_USED)
"""An option of the panel that ``--help`` lists, in a group of another panel."""
MAX_COMMAND_CHARACTERS = 240  # most characters of a command worth copying
MAX_HINT_CHARACTERS = 70  # most characters of what Tab says about an option
SOUGHT = ("--latex", "--size", "--title", "--annotate", "--weighting", "--strict", "--seed", "--device")
"""Options of the long help that people look for, the most sought first: the short help names three."""
OPTION = re.compile(r"--?[^\W\d_]")  # so begins an option; -2, "-2 -> cat" and "- a line of a list" are none

Complete: TypeAlias = Callable[[], Iterable[str]]  # all possible values

_running: ContextVar[typer.Context | None] = ContextVar("the command that runs", default=None)


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Group:
    """Options of a command; each subclass is a frozen dataclass, and its ``panel`` that of its own fields.

    A project's file may set its ``settable`` fields: they run, write and trust nothing.
    """

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


def offering(words: Complete) -> Callable[[str], list[str]]:
    """What Tab offers: the words that begin as typed."""
    return lambda incomplete: [word for word in dict.fromkeys(words()) if word.startswith(incomplete)]


def up_to(largest: int) -> Callable[..., Any]:
    """Reads a number, where ``nan``, ``1e999`` and numbers of many digits are wrong usage.

    A bound against slips of the pen, and no limit worth a line in the help.
    """

    def read(parameter: typer.CallbackParam, value: Any) -> Any:
        wrong = isinstance(value, (int, float)) and not abs(value) < largest + 1
        refuse(wrong, parameter.opts[0], f"write a number up to {largest:,}")
        return value

    return read


def immediate(act: Callable[[], object], *names: str, help: str) -> Any:
    """A flag of every command that is obeyed before its other options are read."""

    def obey(value: bool) -> None:
        if value:
            act()

    declared = typer.Option(
        *names, help=help, callback=obey, is_eager=True, expose_value=False, rich_help_panel=EVERYWHERE
    )
    return Annotated[bool, declared]


ALWAYS = {
    "quiet": immediate(lambda: set_verbosity(-1), "--quiet", "-q", help="Print neither notes nor progress."),
    "verbose": immediate(
        lambda: set_verbosity(1),
        "--verbose",
        "-v",
        help="Name the kernels that ran, and how long each step took.",
    ),
}
"""Options of every command."""


@functools.cache
def parameters_of(group: Any) -> tuple[inspect.Parameter, ...]:
    """The fields of a group as parameters that Typer reads; one without a declaration is none."""
    hints, parameters = get_type_hints(group, include_extras=True), []
    for each in fields(group):
        if get_origin(hints[each.name]) is not Annotated:
            continue
        kind, declared = get_args(hints[each.name])
        declared = copy(declared)
        if isinstance(declared, OptionInfo):
            owner = next(cls for cls in group.__mro__ if each.name in inspect.get_annotations(cls))
            declared.rich_help_panel = declared.rich_help_panel or vars(owner).get("panel", MOST_USED)
            if declared.help is not None and "{suffixes}" in declared.help:
                declared.help = declared.help.replace("{suffixes}", ", ".join(group.suffixes))
            if kind is bool:
                declared.metavar = ""  # Typer 0.29 shows a flag as "--words <bool>"
            if {int, float} & {kind, *get_args(kind)}:
                declared.callback = declared.callback or up_to(LARGEST_COUNT)
        default = inspect.Parameter.empty if each.default is MISSING else each.default
        shown: Any = Annotated[kind, declared]
        parameters.append(
            inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=shown)
        )
    return tuple(parameters)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """A function of groups, as one of the fields of all groups."""
    signature = inspect.signature(function, eval_str=True)
    groups = {name: each.annotation for name, each in signature.parameters.items()}

    @functools.wraps(function)
    def run(**values: Any) -> None:
        refuse_to_overwrite(values)
        function(
            **{
                name: group(**{each.name: values[each.name] for each in parameters_of(group)})
                for name, group in groups.items()
            }
        )

    always = (
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=shown)
        for name, shown in ALWAYS.items()
    )
    parameters = [each for group in groups.values() for each in parameters_of(group)]
    run.__signature__ = inspect.Signature([*parameters, *always])  # type: ignore[attr-defined]
    run.__annotations__ = {}
    parts = {part for group in groups.values() for part in group.__mro__}
    settable = " ".join([*ALWAYS, *(vars(part).get("settable", "") for part in parts)]).split()
    run.settable = settable  # type: ignore[attr-defined]
    return run


def read_when_typed(parameter: Any, ctx: Any, value: Any) -> Any:
    """The value of a parameter, which Typer reads only where there is something to read.

    For each parameter, also for texts and for what was not typed, Typer would load pydantic and make an
    adapter: a quarter of the time of a second look at a text.
    """
    kind = parameter.type_descriptor.annotation
    text = isinstance(value, str) and str in (kind, *get_args(kind))
    if not (text or value is None or value is parameter.default) or (parameter.required and not text):
        return type(parameter).process_value(parameter, ctx, value)
    return value if parameter.callback is None else parameter.callback(ctx, parameter, value)


def read_lazily(parameters: Any) -> Any:
    """The same parameters, each read by ``read_when_typed``."""
    for each in parameters:
        vars(each)["process_value"] = functools.partial(read_when_typed, each)
    return parameters


class Command(TyperCommand):
    """A command with a short and a long help, with the user's defaults, and arguments with a minus first."""

    def get_params(self, ctx: Any) -> Any:
        """The parameters, which are read when they are typed."""
        return read_lazily(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read what was typed: an argument may begin with a minus, ``"-2 -> cat"``; no option comes twice."""
        set_verbosity(0)
        _running.set(ctx)
        refused = list[str]()
        with suppress(*[AttnscopeError] * ctx.resilient_parsing):  # Tab never complains
            settable = getattr(self.callback, "settable", ())
            defaults = defaults_of(self.params, read_settings(), has_option, settable)
            ctx.default_map, ctx.meta[SETTINGS], refused = defaults
        options, arguments = split_words(args, self.valued)
        if ["--help-all"] in options:
            with self.showing(None):
                super().format_help(ctx, ctx.make_formatter())
            raise typer.Exit
        self.refuse_twice(word[0].partition("=")[0] for word in options)
        if any(word.startswith("-") and word != "-" for word in arguments):
            args = [*(word for each in options for word in each), "--", *arguments]
        rest = super().parse_args(ctx, args)
        if refused and not ctx.resilient_parsing:
            notify(f"left out {', '.join(refused)}: what runs code, loads or writes is typed")
        return rest

    def refuse_twice(self, typed: Iterable[str]) -> None:
        """Wrong usage for an option that is typed twice and has one value: the first would do nothing."""
        owners = {name: each for each in self.params for name in (*each.opts, *each.secondary_opts)}
        earlier = set()
        for name in typed:
            owner = owners.get(name)
            twice = owner in earlier and owner is not None and not getattr(owner, "multiple", False)
            several = f"; several: {name} L0H1,L2H3" if name == "--head" else ""
            refuse(twice, name, f"give it once{several}")
            earlier.add(owner)

    @property
    def valued(self) -> set[str]:
        """The options that take a value."""
        return {name for each in self.params if not getattr(each, "is_flag", True) for name in each.opts}

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """What Tab offers, each with one line about it: Typer would break a longer one in two."""
        items = super().shell_complete(ctx, incomplete)
        for each in items:
            each.help = textwrap.shorten(each.help or "", MAX_HINT_CHARACTERS, placeholder=" ...")
        return items

    def get_help_option(self, ctx: Any) -> Any:
        """``--help``, which names the long help and what people seek in it."""
        option = super().get_help_option(ctx)
        every = {name: getattr(each, "rich_help_panel", None) for each in self.params for name in each.opts}
        found = [name for name in SOUGHT if every.get(name, MOST_USED) not in (None, MOST_USED)][:3]
        if option is not None and found:
            vars(option)["help"] = f"--help-all: {', '.join(found)} ..."
        return option

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """What people use most."""
        with self.showing(MOST_USED):
            super().format_help(ctx, formatter)

    @contextmanager
    def showing(self, panel: str | None) -> Iterator[None]:
        """One panel of the help, or all of them, without the opposite of each flag."""
        from rich.markup import escape

        parts: tuple[Any, ...] = (self, *self.params)
        before = [(each, dict(vars(each))) for each in parts]
        self.help, self.epilog = escape(self.help or ""), escape(self.epilog or "")
        for each in self.params:
            vars(each)["help"] = escape(getattr(each, "help", None) or "")
            each.secondary_opts = []
            each.opts = [name for name in each.opts if name[:-1] not in each.opts]  # no plural beside --layer
            if panel is not None and getattr(each, "rich_help_panel", None) not in (None, panel):
                vars(each)["hidden"] = True
        try:
            yield
        finally:
            for each, values in before:
                vars(each).update(values)


def has_option(name: str) -> bool:
    """Whether some command has an option."""
    from attnscope.cli import all_commands

    return any(name in each.opts for one in all_commands() for each in one.params)


def refuse(when: object, option: str, sentence: str) -> None:
    """Raise wrong usage under a condition: what is wrong with an option, or which options conflict."""
    if when:
        raise typer.BadParameter(sentence, param_hint=option)


def refuse_first(*rules: tuple[object, str, str]) -> None:
    """Raise wrong usage for the first rule that applies: its condition, the option, and what is wrong."""
    for rule in rules:
        refuse(*rule)


WRITTEN = ("out", "pooled", "save_snapshot", "save_trace", "checkpoint", "log")
"""Fields that name a file or folder to write; any other that names one reads it."""


def refuse_to_overwrite(values: Mapping[str, Any]) -> None:
    """Before any work, refuse to write a file over one that the same command reads or writes.

    One of these options may read its own file, as a run that goes on does.
    """
    written = {name: Path(values[name]) for name in WRITTEN if values.get(name)}
    lists = {name: each if isinstance(each, (list, tuple)) else [each] for name, each in values.items()}
    for number, (option, path) in enumerate(written.items()):
        for name in lists.keys() - written.keys() if path.exists() else ():
            read = [
                each for each in lists[name] if isinstance(each, (str, Path)) and _reads(name, each, path)
            ]
            refuse(read, option_of(option), f"{path} is read by this command: write to another place")
        twice = path.resolve() in [each.resolve() for each in [*written.values()][:number]]
        refuse(twice, option_of(option), f"{path} would be written twice: name another file")


def _reads(name: str, named: str | Path, path: Path) -> bool:
    """Whether what a field names is a file or folder, or a model or texts in one that holds it."""
    from attnscope.storage.corpus import kind_of

    text = str(named)
    many = name in ("checkpoints", "merge") or (name == "texts" and not os.path.exists(text))
    for each in glob(text) if many else (text, text.rpartition(":")[0]):  # FILE.py:NAME
        if os.path.exists(each):
            inside = any(os.path.samefile(each, folder) for folder in path.resolve().parents)
            kind = kind_of(path.name) if name == "texts" else name == "video"
            if os.path.samefile(each, path) or (inside and (kind or (path.parent / "config.json").exists())):
                return True
    return False


def refuse_combined(*rows: tuple[str, str, str]) -> None:
    """Raise wrong usage for the first typed option that another one excludes.

    A row has the fields of such options, those that exclude each of them, and why, if that is not plain;
    ``by=layer`` is a field with one of its values.
    """
    for options, others, why in rows:
        for option, other in product(options.split(), others.split()):
            sentence = f"cannot be combined with {option_of(other)}{why and f': {why}'}"
            typed = is_typed(option.partition("=")[0]) and is_given(option)
            refuse(typed and is_given(other), option_of(option), sentence)


def refuse_typed(options: str, sentence: str) -> None:
    """Raise wrong usage for the first of these fields that is typed."""
    for option in options.split():
        refuse(is_typed(option), option_of(option), sentence)


def refuse_without(*rows: tuple[str, str]) -> None:
    """Raise wrong usage for the first typed option that lacks another: their fields, one of the latter."""
    for options, others in rows:
        missing = not any(map(is_given, others.split()))
        *several, last = map(option_of, others.split())
        needed = f"{', '.join(several)} or {last}" if several else last
        for option in options.split():
            typed = is_typed(option.partition("=")[0]) and is_given(option)
            refuse(missing and typed, option_of(option), f"requires {needed}")


def fields_of(*groups: Any, but: Collection[str] = ()) -> str:
    """The names of the fields of some groups, for ``refuse_combined``."""
    return " ".join(each.name for group in groups for each in fields(group) if each.name not in but)


def option_of(spelled: str) -> str:
    """What is typed for a field of the running command, ``--by layer`` for ``by=layer``."""
    name, _, value = spelled.partition("=")
    parameter = _parameter(name)
    if parameter is None:
        return name
    typed = parameter.metavar
    if parameter.param_type_name == "option":
        typed = next((each for each in parameter.opts if each.startswith("--")), parameter.opts[0])
    typed = typed or name.upper()
    return f"{typed} {value}".strip()


def _parameter(name: str) -> Any:
    context = _running.get()
    parameters = [] if context is None else context.command.params
    return next((each for each in parameters if each.name == name), None)


def is_given(spelled: str) -> bool:
    """Whether an option, or its value in ``by=layer``, is typed or in the settings, and not turned off."""
    name, _, wanted = spelled.partition("=")
    parameter, value = _parameter(name), value_of(name)
    if wanted or parameter is None:
        return parameter is not None and value == wanted
    off = value is None or value is False or value == ()
    return not off and (is_typed(name) or value != parameter.default)


def is_typed(name: str) -> bool:
    """Whether an option was typed: not its default, and not from the user's settings."""
    context = _running.get()
    source = None if context is None else context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def value_of(name: str) -> Any:
    """The value of an option of the running command; ``None`` if it has none."""
    context = _running.get()
    return context and context.params.get(name)


def given_options(without: Collection[str]) -> dict[str, Any]:
    """The options of the running command that were typed or set, but some fields; by what one types."""
    context = _running.get()
    every = [] if context is None else context.command.params
    named = [each.name or "" for each in every if each.param_type_name == "option"]
    values = {option_of(name): value_of(name) for name in named if name not in without and is_given(name)}
    return {
        name: [*map(str, value)]
        if isinstance(value, (list, tuple))
        else str(value)
        if isinstance(value, Path)
        else value
        for name, value in values.items()
    }


def without_typed_options(group: Any) -> Any:
    """A group with nothing typed: its defaults and the user's settings."""
    context = _running.get()
    values = {} if context is None else context.params
    names = [each.name for each in fields(group) if each.name in values and not is_typed(each.name)]
    # Typer has an empty tuple for a list that was not typed
    return group(**{name: None if values[name] == () else values[name] for name in names})


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
    return words if len(words) <= MAX_COMMAND_CHARACTERS and words.isprintable() else None


def write(name: str, *groups: Any) -> str:
    """A command as one would type it with these groups' options, defaults left out."""
    options, arguments = list[str](), list[str]()
    for group in groups:
        kind: Any = type(group)
        for each in parameters_of(kind):
            value, declared = getattr(group, each.name), get_args(each.annotation)[-1]
            if value == each.default:
                continue
            words = [str(part) for part in (value if isinstance(value, list) else [value])]
            if isinstance(declared, OptionInfo):
                options += [name_of(each.name, declared), *([] if value is True else words)]
            else:
                arguments += words
    if any(OPTION.match(word) for word in arguments):
        arguments = ["--", *arguments]
    return shlex.join(("attnscope", name, *options, *arguments))


def name_of(field: str, declared: OptionInfo) -> str:
    """The shortest name of an option: of those declared, or what Typer makes of its field."""
    names = [each for each in (declared.default, *(declared.param_decls or ())) if isinstance(each, str)]
    return min(names, key=len).partition("/")[0] if names else f"--{field.replace('_', '-')}"
