"""``attnscope schema``: what a command prints with --json."""

import sys
from typing import Annotated

from typer import Argument

from attnscope.cli.command import Group, command, refuse
from attnscope.cli.deliver import print_plain


class SchemaOptions(Group):
    """Which command's answer."""

    of: Annotated[str, Argument(help="A command that has --json.", metavar="COMMAND")]


@command
def schema(options: SchemaOptions) -> None:
    """Print the JSON Schema of what a command prints with --json.

    The number at the end of $id is the version; it rises when a field is removed or changes its meaning.
    The first field of every answer names its schema.

    Examples:

    attnscope schema show
    attnscope schema stats
    """
    from attnscope.questions.answer import printed_records, schema_of

    records = printed_records()
    refuse(
        options.of not in records, "COMMAND", f"{options.of!r} has no schema: there are {', '.join(records)}"
    )
    print_plain(schema_of(options.of), indent=2 if sys.stdout.isatty() else None)
