"""Every command and option, written from the code: ``python -m tests.tools.command_reference``.

It writes ``attnscope/cli/README.md``; tests/cli/test_reference.py fails where that is not up to date.
"""

import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from typer.models import ArgumentInfo

import attnscope.cli
from attnscope.cli.commands import NAMES, find_command

README = Path(attnscope.cli.__file__).parent / "README.md"
SHARED = 3
"""An option that so many commands have stands in a table of its own."""

WORDS = {int: "N", float: "X", Path: "PATH", str: "TEXT"}
"""What stands for a value of each type."""

INTRODUCTION = """# The command line

One file a command: it parses, makes one call, and delivers the answer. `attnscope COMMAND --help` says
the same as this page, which `python -m tests.tools.command_reference` writes from the code.

A command's function takes groups of options as objects. A group is a frozen dataclass whose fields `option`,
`flag` and `argument` of [command.py](command.py) make; its `@command` turns the fields into the words that a
user types. So an option is said once, and has one name wherever it stands.

**To add an option**, add a field to the group that it belongs to: each command that takes the group has it.
**To add a command**, write a function of groups with `@command` above it, its help and an example in its
docstring, and add its name to those of [commands/](commands/__init__.py). Then write this page anew;
tests/cli/test_reference.py says which options each command must have.

Exit codes: 0 done, and all claims of `check` hold; 1 a claim fails; 2 everything that could not be done, with
one sentence on standard error; 130 after Ctrl-C.
"""


@dataclass(frozen=True)
class Word:
    """An option or argument as the page prints it."""

    spelling: str
    help: str
    default: str
    panel: str


def commands() -> dict[str, Callable[..., None]]:
    """The functions of all commands by name."""
    return {name: find_command(name) for name in NAMES}


def words(command: Callable[..., None]) -> dict[str, Word]:
    """The options and arguments of a command, by what one types."""
    found = [_word(parameter) for parameter in inspect.signature(command).parameters.values()]
    return {word.spelling: word for word in found}


def _word(parameter: inspect.Parameter) -> Word:
    kind, declared = get_args(parameter.annotation)
    names = list(declared.param_decls or ())
    if isinstance(declared, ArgumentInfo):
        spelling = (declared.metavar or parameter.name.upper()).strip("[]")
    else:
        value = _value(kind)
        spelling = ", ".join(sorted(names or [f"--{parameter.name.replace('_', '-')}"], key=len))
        spelling += f" {value}" if value else ""
    default = parameter.default
    silent = default is None or default is False or default is inspect.Parameter.empty
    shown = "" if silent else f"{default:g}" if isinstance(default, (int, float)) else str(default)
    panel = declared.rich_help_panel or ("Arguments" if isinstance(declared, ArgumentInfo) else "Most used")
    return Word(spelling, declared.help, shown, panel)


def _value(kind: Any) -> str:
    """What stands for an option's value."""
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(part for part in get_args(kind) if part is not type(None))
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    return WORDS.get(get_args(kind)[0] if get_origin(kind) is list else kind, "")


def page() -> str:
    """The whole page."""
    by_command = {name: words(command) for name, command in commands().items()}
    owners: dict[Word, list[str]] = {}
    for name, each in by_command.items():
        for word in each.values():
            owners.setdefault(word, []).append(name)
    shared = {word: names for word, names in owners.items() if len(names) >= SHARED}
    lines = [INTRODUCTION, "## Commands\n", f"What {SHARED} or more of them have stands below.\n"]
    for name, command in commands().items():
        lines += _section(name, command, [word for word in by_command[name].values() if word not in shared])
    lines += ["## Options of several commands\n"]
    for panel in dict.fromkeys(word.panel for word in shared):
        rows = [[*_cells(word), ", ".join(names)] for word, names in shared.items() if word.panel == panel]
        lines += [f"### {panel}\n", *_table(["", "", "default", "commands"], rows)]
    return "\n".join(lines).rstrip() + "\n"


def _section(name: str, command: Callable[..., None], own: list[Word]) -> Iterator[str]:
    text, _, examples = inspect.cleandoc(command.__doc__ or "").partition("\nExample")
    yield f"### `attnscope {name}`\n"
    yield f"{text.strip()}\n"
    yield from ("```sh", *(line for line in examples.splitlines()[1:] if line.strip()), "```\n")
    yield from _table(["", "", "default"], [_cells(word) for word in own])


def _cells(word: Word) -> list[str]:
    return [f"`{word.spelling}`".replace("|", "\\|"), word.help.replace("|", "\\|"), word.default]


def _table(header: list[str], rows: list[list[str]]) -> Iterator[str]:
    if not any(row[2] for row in rows):
        header, rows = [header[0], header[1], *header[3:]], [[row[0], row[1], *row[3:]] for row in rows]
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


if __name__ == "__main__":
    README.write_text(page(), "utf-8")
    print(f"wrote {README}")
