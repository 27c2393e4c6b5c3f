"""A command written again, so that a reader can copy it and go on from there."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from enum import Enum
from typing import Any

import typer

LONGEST = 240
"""Characters of a command that is still worth copying."""

CHANGED = ("head", "layer", "token", "kind", "out", "as_json")
"""Options that the next command chooses anew."""


def repeated(context: typer.Context) -> str | None:
    """The command that is running, without what picks a head or an output; ``None`` if it is too long."""
    words = written(context, CHANGED)
    return words if len(words) <= LONGEST and words.isprintable() else None


def written(context: typer.Context, without: Collection[str]) -> str:
    """The command that is running as one would type it, without some options and all defaults."""
    return shlex.join(("attnscope", str(context.info_name), *_words(context, without)))


def _words(context: typer.Context, without: Collection[str]) -> Iterator[str]:
    arguments = []
    for parameter in context.command.params:
        value: Any = context.params.get(str(parameter.name))
        if isinstance(value, Enum):
            value = value.value
        default = parameter.default.value if isinstance(parameter.default, Enum) else parameter.default
        if parameter.name in without or value is None or value == default or value is False:
            continue
        if parameter.param_type_name == "argument":
            arguments.append(str(value))
        elif value is True:
            yield parameter.opts[-1]
        else:
            yield from (parameter.opts[-1], str(value))
    yield from (
        ("--", *arguments) if any(word.startswith("-") and word != "-" for word in arguments) else arguments
    )
