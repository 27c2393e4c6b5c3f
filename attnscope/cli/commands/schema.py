"""``attnscope schema``: what a command prints with --json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnscope.cli.command import REQUIRED, argument, command
from attnscope.cli.deliver import print_plain


@dataclass(frozen=True, kw_only=True)
class SchemaOptions:
    """Which command's answer."""

    of: Literal[
        "show",
        "stats",
        "compare",
        "find",
        "spans",
        "align",
        "flow",
        "logits",
        "cut",
        "patch",
        "ablate",
        "info",
        "check",
        "export",
    ] = argument("The command.", REQUIRED, metavar="COMMAND")


@command
def schema(asked: SchemaOptions) -> None:
    """Print what a command answers with --json, as JSON Schema: every field, and what it holds.

    The number at the end of its $id is the version: it rises when a field goes, or means something else.
    Every answer says of which schema it is, as its first field.

    Examples:

    attnscope schema show

    attnscope schema stats
    """
    from attnscope.questions.schemas import schema_of

    print_plain(schema_of(asked.of))
