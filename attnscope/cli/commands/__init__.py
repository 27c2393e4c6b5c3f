"""The commands by name, one file each, imported on demand: no command pays for another."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

from attnscope.registry import entry_points_of, package_of, plugins

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "Commands": (
        *("show", "browse", "stats", "find", "compare", "flow"),
        *("spans", "examples", "atlas", "rule", "export", "info", "check", "explain"),
    ),
    "Cause": ("why", "logits", "ablate", "cut", "patch", "circuit", "cachecost"),
    "More": ("align", "loss", "train", "track", "schema", "skill", "mcp", "cache"),
}
"""Every command, in the order of the help: the name of its function and of its file."""

NAMES = tuple(name for names in COMMANDS.values() for name in names)
ADDED = {each.name: package_of(each) for each in entry_points_of("commands") if each.name not in NAMES}
PANELS = {name: panel for panel, names in COMMANDS.items() for name in names} | dict.fromkeys(
    ADDED, "Plugins"
)


def find_command(name: str) -> Callable[..., None]:
    """A command's function by its name."""
    if name in ADDED:
        return plugins("commands")[name]  # type: ignore[no-any-return]
    function: Callable[..., None] = getattr(import_module(f"attnscope.cli.commands.{name}"), name)
    return function


def summary(name: str) -> str:
    """The first sentence of a command's docstring, read from its file."""
    if name in ADDED:
        return f"From {ADDED[name]}."
    source = (Path(__file__).parent / f"{name}.py").read_text("utf-8")
    docstring = re.search(rf'^def {name}\(.*?"""(.*?)(?:\n\n|""")', source, re.M | re.S)
    return " ".join(docstring[1].split()) if docstring else ""
