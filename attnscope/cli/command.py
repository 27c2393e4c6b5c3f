"""How a command and its options are declared: a function of groups, and a group's fields.

    @dataclass(frozen=True, kw_only=True)
    class CutOptions:
        panel = TEXT
        line: int | None = option("Take one line of the input.")
        truncate: bool = flag("Cut a text that is too long.")

``command`` makes parameters of the fields, which the help shows in the panel of their group. A name that is
not given is the field's.
"""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo

from attnscope.cli.complete import Complete
from attnscope.text import LARGEST

TEXT, MANY, WHERE, PICTURE, MODEL = "Text", "Many texts", "Which attention", "Picture", "Model"
"""The panels of the help."""

MOST_USED = ""
"""The panel of what people use most, where a group has another; a group without a panel has this one."""

REQUIRED: Any = MISSING
"""The default of what must be given."""

VALUES: Mapping[Any, str] = {bool: "", str: "TEXT", int: "NUMBER", float: "NUMBER", Path: "PATH"}
"""What the help calls the value of an option."""

LONGEST_CHOICES = 22
"""Letters of all choices together beyond which the help's text lists them."""

LONGEST = 240
"""Characters of a command that is still worth copying."""


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
    """An option with a value; the help prints its default, if it has one, and Tab completes it.

    ``largest`` is no limit of its own, as ``max`` is: nothing that the option counts has more.
    """
    shown = default is not None and default is not REQUIRED
    declared = typer.Option(
        ..., *names, help=help, rich_help_panel=panel, min=min, max=max, show_default=shown,
        autocompletion=complete,
    )  # fmt: skip
    return field(default=default, metadata={"declared": declared, "largest": largest})


def flag(help: str, *names: str, panel: str | None = None) -> Any:
    """An option without a value, which is true where it is typed."""
    declared = typer.Option(..., *names, help=help, rich_help_panel=panel)
    return field(default=False, metadata={"declared": declared})


def argument(help: str, default: Any = None, metavar: str | None = None) -> Any:
    """An argument, which is typed without a name."""
    declared = typer.Argument(help=help, show_default=False, metavar=metavar)
    return field(default=default, metadata={"declared": declared})


def command(function: Callable[..., None]) -> Callable[..., None]:
    """A function that Typer understands: one parameter for each field of each group in the signature."""
    groups = {
        name: _words(parameter.annotation)
        for name, parameter in inspect.signature(function, eval_str=True).parameters.items()
    }

    @functools.wraps(function)
    def run(**values: Any) -> None:
        for word in (word for words in groups.values() for word in words):
            word.check(values[word.name])
        function(
            **{
                name: words[0].group(**{word.name: values[word.name] for word in words})
                for name, words in groups.items()
            }
        )

    parameters = [word.parameter() for words in groups.values() for word in words]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def refuse(when: object, option: str, sentence: str) -> None:
    """Wrong usage, where that is so: what is wrong with an option, or does not go with it."""
    if when:
        raise typer.BadParameter(sentence, param_hint=option)


@dataclass(frozen=True)
class _Word:
    """One option or argument of a group: its field and its type."""

    group: Any
    field: Field[Any]
    kind: Any

    @property
    def name(self) -> str:
        """The name of the parameter."""
        return self.field.name

    @property
    def is_argument(self) -> bool:
        """Whether it is typed without a name."""
        return isinstance(self.field.metadata["declared"], ArgumentInfo)

    @property
    def names(self) -> tuple[str, ...]:
        """An option's names on the command line."""
        declared = self.field.metadata["declared"].param_decls
        return tuple(declared or (f"--{self.name.replace('_', '-')}",))

    def parameter(self) -> inspect.Parameter:
        """The parameter that Typer reads; what is true or false is switched on by its name alone."""
        declared = copy(self.field.metadata["declared"])
        if not self.is_argument:
            declared.param_decls, declared.metavar = self.names, _name_value(self.kind)
            declared.rich_help_panel = self._panel(declared.rich_help_panel)
        default = inspect.Parameter.empty if self.field.default is MISSING else self.field.default
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[self.kind, declared],
        )

    def _panel(self, own: str | None) -> str | None:
        """The option's own panel, or that of the class that declares the field."""
        if own is None:
            owner = next(cls for cls in self.group.__mro__ if self.name in inspect.get_annotations(cls))
            own = vars(owner).get("panel")
        return own or None

    def check(self, value: Any) -> None:
        """Wrong usage for a number that counts nothing: Python reads ``1e999``, ``nan`` and any digits."""
        largest = self.field.metadata.get("largest", LARGEST)
        wrong = isinstance(value, (int, float)) and not abs(value) < largest + 1
        refuse(wrong, self.names[0], f"write a number up to {largest:,}")

    def typed(self, value: Any) -> list[str]:
        """What one types for a value; nothing for the default."""
        if value == self.field.default:
            return []
        words = [str(part) for part in (value if isinstance(value, list) else [value])]
        return words if self.is_argument else [self.names[-1], *([] if value is True else words)]


@functools.cache
def _words(group: Any) -> list[_Word]:
    """The options and arguments of a group."""
    kinds = get_type_hints(group)
    return [_Word(group, each, kinds[each.name]) for each in fields(group)]


def _name_value(kind: Any) -> str:
    """What the help calls a value of ``kind``: its choices where they are few, nothing behind a flag."""
    if get_origin(kind) is Literal:
        choices = "|".join(get_args(kind))
        return choices if len(choices) <= LONGEST_CHOICES else "WAY"
    return VALUES[kind] if kind in VALUES else _name_value(get_args(kind)[0])


def repeat(name: str, *groups: Any) -> str | None:
    """A command as one would type it, for a reader to copy and go on from; ``None`` if it is too long."""
    words = write(name, *groups)
    return words if len(words) <= LONGEST and words.isprintable() else None


def write(name: str, *groups: Any) -> str:
    """A command as one would type it with the options of these groups, without the defaults."""
    options, arguments = list[str](), list[str]()
    for group in groups:
        for word in _words(group.__class__):
            (arguments if word.is_argument else options).extend(word.typed(getattr(group, word.name)))
    if any(word.startswith("-") and word != "-" for word in arguments):
        arguments = ["--", *arguments]
    return shlex.join(("attnscope", name, *options, *arguments))
