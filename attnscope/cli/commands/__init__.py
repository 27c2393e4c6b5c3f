"""The commands by name, one file each, imported on demand: no command pays for another."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import click

from attnscope.cli.command import Command, write_rows
from attnscope.registry import entry_points_of, package_of, plugins

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "Commands": ("show", "browse", "stats", "find", "compare", "flow", "spans", "export", "info", "check"),
    "Cause": ("logits", "ablate", "cut", "patch", "circuit", "cachecost"),
    "More": ("align", "loss", "train", "track", "schema", "skill", "mcp", "cache"),
}
"""Every command, in the order of the help: the name of its function and of its file."""

NAMES = tuple(name for names in COMMANDS.values() for name in names)


def find_command(name: str) -> Command:
    """A command by its name."""
    found: Command = getattr(import_module(f"attnscope.cli.commands.{name}"), name)
    return found


def added_commands() -> dict[str, str]:
    """The commands of plugins, each with its package."""
    return {each.name: package_of(each) for each in entry_points_of("commands") if each.name not in NAMES}


class AllCommands(click.Group):
    """The command line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return [*NAMES, *added_commands()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> Command | None:
        """A command by its name; ``None`` if it does not exist."""
        return find_command(cmd_name) if cmd_name in NAMES else plugins("commands").get(cmd_name)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, without importing any."""
        formatter.write_usage(ctx.command_path, "COMMAND [TEXT] [OPTIONS]")
        formatter.write(f"\n{self.help}\n")
        for panel, names in COMMANDS.items():
            write_rows(formatter, panel, [(name, _summary(name)) for name in names])
        if added := added_commands():
            write_rows(formatter, "Plugins", [(name, f"From {package}.") for name, package in added.items()])
        write_rows(
            formatter, "Options", [each.get_help_record(ctx) or ("", "") for each in self.get_params(ctx)]
        )
        example = 'attnscope show "The cat sat on the mat because it was tired."'
        formatter.write(f"\nStart with: {example}\n")


def _summary(name: str) -> str:
    """The first sentence of a command's docstring, read from its file."""
    source = (Path(__file__).parent / f"{name}.py").read_text("utf-8")
    found = re.search(rf'^def {name}\(.*?"""(.*?)(?:\n\n|""")', source, re.M | re.S)
    return " ".join(found[1].split()) if found else ""
