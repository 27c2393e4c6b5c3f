"""A command written again, so that a reader can copy it and go on from there."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from enum import Enum
from typing import Any

import typer

LONGEST = 240
"""Characters of a command that is still worth copying."""

CHANGED = ("head", "layer", "token", "kind", "out", "as_json")
"""Options that the next command chooses anew."""


def repeated(context: typer.Context) -> str | None:
    """The command that is running, without what picks a head or an output; ``None`` if it is too long."""
    words = " ".join(shlex.quote(word) for word in ("attnscope", str(context.info_name), *_words(context)))
    return words if len(words) <= LONGEST and words.isprintable() else None


def _words(context: typer.Context) -> Iterator[str]:
    arguments = []
    for parameter in context.command.params:
        value: Any = context.params.get(str(parameter.name))
        if isinstance(value, Enum):
            value = value.value
        default = parameter.default.value if isinstance(parameter.default, Enum) else parameter.default
        if parameter.name in CHANGED or value is None or value == default or value is False:
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
