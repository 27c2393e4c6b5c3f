"""How an option or an argument of a command is declared as the field of a group, and the panels of the help.

    @dataclass(frozen=True, kw_only=True)
    class CutOptions:
        line: int | None = option("Take one line of the input.", panel=TEXT)
        truncate: bool = flag("Cut a text that is too long.", panel=TEXT)

``attnscope.cli.command`` makes parameters of the fields. A name that is not given is the field's.
"""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable
from copy import copy
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, get_type_hints

import typer
from typer.models import ArgumentInfo

from attnscope.cli.complete import Complete
from attnscope.text import LARGEST

TEXT, MANY, WHERE, PICTURE, MODEL = "Text", "Many texts", "Which attention", "Picture", "Model"
"""The panels; an option without one is among those that people use most."""

DECLARED, UP_TO = "declared", "up to"
"""Under which names a field's metadata hold what Typer is told, and the largest number that can be meant."""

REQUIRED: Any = MISSING
"""The default of what must be given."""


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
        *names,
        help=help,
        rich_help_panel=panel,
        min=min,
        max=max,
        show_default=shown,
        autocompletion=complete,
    )
    return field(default=default, metadata={DECLARED: declared, UP_TO: largest})


def flag(
    help: str, *names: str, panel: str | None = None, callback: Callable[[bool], bool] | None = None
) -> Any:
    """An option without a value, which is true where it is typed."""
    declared = typer.Option(*names, help=help, rich_help_panel=panel, callback=callback)
    return field(default=False, metadata={DECLARED: declared})


def argument(help: str, default: Any = None, metavar: str | None = None) -> Any:
    """An argument, which is typed without a name."""
    declared = typer.Argument(help=help, show_default=False, metavar=metavar)
    return field(default=default, metadata={DECLARED: declared})


def refuse(when: object, option: str, sentence: str) -> None:
    """Wrong usage, where that is so: what is wrong with an option, or does not go with it."""
    if when:
        raise typer.BadParameter(sentence, param_hint=option)


LONGEST = 240
"""Characters of a command that is still worth copying."""


def command(function: Callable[..., None]) -> Callable[..., None]:
    """A function that Typer understands: one parameter for each field of each group in the signature.

    A group is a frozen dataclass of fields that ``attnscope.cli.command`` makes.
    """
    groups = {
        name: parameter.annotation
        for name, parameter in inspect.signature(function, eval_str=True).parameters.items()
    }
    signature = inspect.Signature([word.parameter() for group in groups.values() for word in _words(group)])

    @functools.wraps(function)
    def run(**values: Any) -> None:
        for group in groups.values():
            for word in _words(group):
                word.check(values[word.field])
        function(
            **{
                name: group(**{word.field: values[word.field] for word in _words(group)})
                for name, group in groups.items()
            }
        )

    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
    return run


@dataclass(frozen=True)
class _Word:
    """One option or argument of a group: its field, type and default, and how it is declared."""

    field: str
    kind: Any
    default: Any
    declared: Any
    largest: int

    @property
    def names(self) -> tuple[str, ...]:
        """Its names on the command line; Typer makes one of the field's where none are declared."""
        return tuple(
            name for name in (self.declared.default, *(self.declared.param_decls or ())) if name is not ...
        ) or (f"--{self.field.replace('_', '-')}",)

    def parameter(self) -> inspect.Parameter:
        """The parameter that Typer reads; what is true or false is switched on by its name alone."""
        declared = copy(self.declared)
        if self.kind is bool:
            declared.default, declared.param_decls = ..., self.names
        default = inspect.Parameter.empty if self.default is MISSING else self.default
        return inspect.Parameter(
            self.field,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[self.kind, declared],
        )

    def check(self, value: Any) -> None:
        """Wrong usage for a number that counts nothing: Python reads ``1e999``, ``nan`` and any digits."""
        if isinstance(value, (int, float)) and not abs(value) < self.largest + 1:
            raise typer.BadParameter(f"write a number up to {self.largest:,}", param_hint=self.names[0])

    def typed(self, value: Any) -> list[str]:
        """What one types for a value; nothing for the default."""
        if value == self.default:
            return []
        words = [str(part) for part in (value if isinstance(value, list) else [value])]
        if isinstance(self.declared, ArgumentInfo):
            return words
        return [self.names[-1], *([] if value is True else words)]


@functools.cache
def _words(group: Any) -> list[_Word]:
    """The options and arguments of a group."""
    kinds = get_type_hints(group)
    return [
        _Word(
            field.name,
            kinds[field.name],
            field.default,
            field.metadata[DECLARED],
            field.metadata.get(UP_TO, LARGEST),
        )
        for field in fields(group)
    ]


def repeat(name: str, *groups: Any) -> str | None:
    """A command as one would type it, for a reader to copy and go on from; ``None`` if it is too long."""
    words = write(name, *groups)
    return words if len(words) <= LONGEST and words.isprintable() else None


def write(name: str, *groups: Any) -> str:
    """A command as one would type it with the options of these groups, without the defaults."""
    options, arguments = list[str](), list[str]()
    for group in groups:
        for word in _words(group.__class__):
            typed = word.typed(getattr(group, word.field))
            if isinstance(word.declared, ArgumentInfo):
                arguments += typed
            else:
                options += typed
    if any(word.startswith("-") and word != "-" for word in arguments):
        arguments = ["--", *arguments]
    return shlex.join(("attnscope", name, *options, *arguments))
