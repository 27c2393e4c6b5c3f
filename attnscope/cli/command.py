"""A command's function takes groups of options as objects; here they become the words that a user types."""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Callable
from copy import copy
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, get_type_hints

import typer
from typer.models import ArgumentInfo

from attnscope.cli.options.declare import DECLARED, UP_TO
from attnscope.text import LARGEST

LONGEST = 240
"""Characters of a command that is still worth copying."""


def command(function: Callable[..., None]) -> Callable[..., None]:
    """A function that Typer understands: one parameter for each field of each group in the signature.

    A group is a frozen dataclass of fields that ``attnscope.cli.options.declare`` makes.
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
