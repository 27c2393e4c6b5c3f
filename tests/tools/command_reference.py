"""Every command and option, written from the code: ``python -m tests.tools.command_reference``.

It writes ``attnscope/cli/README.md`` and the manual page ``attnscope/cli/attnscope.1``;
tests/cli/test_reference.py fails where these are not up to date.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attnscope.cli
from attnscope.cli import build
from attnscope.cli.commands import NAMES, find_command
from attnscope.registry import docstring

README = Path(attnscope.cli.__file__).parent / "README.md"
MANUAL = README.with_name("attnscope.1")
SHARED = 3  # options of at least this many commands get a table of their own

SUMMARY = "see what the attention heads of a transformer do"
ENDS = """0 done, and all claims of `check` hold; 1 a claim fails; 2 everything that could not be done, with
one sentence on standard error; 130 after Ctrl-C."""

INTRODUCTION = f"""# The command line

One file per command: it parses, makes one call, and delivers the answer. `attnscope COMMAND --help-all`
prints the same as this page, which `python -m tests.tools.command_reference` generates from the code.

A command's function takes groups of options. A group is a subclass of `Group`, and so a frozen dataclass;
its fields are declared with Typer's `Option` and `Argument`; `@command` of [command.py](command.py) gives
Typer a function with a parameter for each. So each option is declared once, and has the same name in
every command.

**To add an option**, add a field to a group: every command that takes the group has it. It must act, or be
refused: tests/cli/test_option_pairs.py tries every pair.
**To add a command**, write a function of groups with `@command` above it, its help and at most six
examples in its docstring, and add its name to those of [commands/](commands/__init__.py). Then regenerate
this page;
tests/cli/test_reference.py says which options each command must have.

Every command has `-q` (no notes or progress) and `-v` (how long each step took).
Exit codes: {ENDS}
"""


@dataclass(frozen=True)
class Row:
    """An option or argument as the page prints it."""

    spelling: str
    help: str
    default: str
    panel: str


def rows(name: str) -> dict[str, Row]:
    """The options and arguments of a command, by what one types."""
    command = build(name)
    context = command.make_context(name, [], resilient_parsing=True)
    return {
        row.spelling: row for each in command.params if each.expose_value and (row := _row(each, context))
    }


def _row(parameter: Any, context: Any) -> Row:
    value = (
        "" if getattr(parameter, "is_flag", False) else parameter.display_type_rich(ctx=context).strip("<>")
    )
    argument = parameter.param_type_name == "argument"
    names = [parameter.metavar or parameter.name.upper()] if argument else sorted(parameter.opts, key=len)
    default = parameter.default
    shown = "" if (default in (None, False) and default != 0.0) or callable(default) else str(default)
    if isinstance(default, (int, float)) and not isinstance(default, bool):
        shown = f"{default:g}"
    spelling = f"{', '.join(names)} {'' if argument else value}".strip()
    return Row(spelling, parameter.help, shown, "Arguments" if argument else parameter.rich_help_panel)


def shared_rows() -> dict[Row, list[str]]:
    """The options that several commands have, with these commands."""
    owners: dict[Row, list[str]] = {}
    for name in NAMES:
        for word in rows(name).values():
            owners.setdefault(word, []).append(name)
    return {word: names for word, names in owners.items() if len(names) >= SHARED}


def page() -> str:
    shared = shared_rows()
    lines = [INTRODUCTION, "## Commands\n", f"Options of {SHARED} or more commands are listed at the end.\n"]
    for name in NAMES:
        lines += _section(name, [word for word in rows(name).values() if word not in shared])
    lines += ["## Options of several commands\n"]
    for panel in dict.fromkeys(word.panel for word in shared):
        cells = [[*_cells(row), ", ".join(names)] for row, names in shared.items() if row.panel == panel]
        lines += [f"### {panel}\n", *_table(["", "", "default", "commands"], cells)]
    return "\n".join(lines).rstrip() + "\n"


def _section(name: str, own: list[Row]) -> Iterator[str]:
    text, examples = _help(name)
    yield from (f"### `attnscope {name}`\n", f"{text.strip()}\n", "```sh", *examples, "```\n")
    yield from _table(["", "", "default"], [_cells(word) for word in own])


def _help(name: str) -> tuple[str, list[str]]:
    """What a command's docstring says, and its examples."""
    text, _, examples = docstring(find_command(name)).partition("\nExample")
    return text, [line for line in examples.splitlines()[1:] if line.strip()]


def examples_of(name: str) -> list[str]:
    """The examples of a command's help."""
    return [line.strip() for line in _help(name)[1]]


def _cells(word: Row) -> list[str]:
    return [f"`{word.spelling}`".replace("|", "\\|"), word.help.replace("|", "\\|"), word.default]


def _table(header: list[str], rows: list[list[str]]) -> Iterator[str]:
    if not any(row[2] for row in rows):
        header, rows = [header[0], header[1], *header[3:]], [[row[0], row[1], *row[3:]] for row in rows]
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def manual() -> str:
    """The manual page, in the language of ``man``."""
    lines = ['.TH ATTNSCOPE 1 "" "attnscope" "User Commands"', ".SH NAME", "attnscope \\- " + _roff(SUMMARY)]
    lines += [".SH SYNOPSIS", ".B attnscope", "COMMAND [TEXT] [OPTIONS]", ".SH COMMANDS"]
    shared = shared_rows()
    for name in NAMES:
        text, examples = _help(name)
        lines.append(f".SS attnscope {name}")
        for paragraph in text.strip().split("\n\n"):
            lines += [".PP", _roff(" ".join(paragraph.split()))]
        lines += [".PP", ".nf", *map(_roff, examples), ".fi"]
        for row in rows(name).values():
            lines += () if row in shared else _entry(row, "")
    lines += [".SH OPTIONS OF SEVERAL COMMANDS"]
    for row, names in shared.items():
        lines += _entry(row, f" ({', '.join(names)})")
    return "\n".join([*lines, ".SH EXIT STATUS", ENDS.replace("\n", " ")]) + "\n"


def _entry(row: Row, more: str) -> list[str]:
    default = f" Default: {row.default}." if row.default not in ("", "False") else ""
    return [".TP", f"\\fB{_roff(row.spelling)}\\fR", _roff(row.help + default + more)]


def _roff(text: str) -> str:
    """A line of text in which ``man`` finds nothing to obey."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped


if __name__ == "__main__":
    for file, text in ((README, page()), (MANUAL, manual())):
        file.write_text(text, "utf-8")
        print(f"wrote {file}")
