"""What other packages can add through entry points: measures, commands, hooks of capture, readers of files.

    [project.entry-points."attnscope.measures"]
    far = "my_package.measures"

A plugin that cannot be loaded is named on standard error and left out; everything else keeps working.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from attnscope.text import clean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUPS: Mapping[str, str] = {
    "measures": "a module that declares measures under @measure",
    "commands": "a function of its name under @command",
    "hooks": "a Tracker, told of each pass behind our own",
    "readers": "a function of a path that returns arrays by name; its own name is the suffix, as in .h5",
}
"""What a package may add, and what each entry point must name."""


@dataclass(frozen=True)
class Plugin:
    """One entry point: the package and version it comes from, and why it was left out, if it was."""

    group: str
    name: str
    package: str
    value: Any = None
    fault: str = ""


@cache
def _entry_points() -> Any:
    """The entry points of all packages, read once: some 3 ms for 200 packages."""
    from importlib.metadata import entry_points

    return entry_points()


def entry_points_of(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, not yet loaded."""
    return tuple(_entry_points().select(group=f"attnscope.{group}"))


def package_of(entry: EntryPoint) -> str:
    """The package that an entry point comes from, with its version."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown package"


@cache
def load_plugins(group: str) -> tuple[Plugin, ...]:
    """The plugins of a group, loaded; each that fails is named on standard error."""
    found = []
    for entry in entry_points_of(group):
        value, fault = None, ""
        try:
            value = entry.load()
        except Exception as error:  # another package's code may raise anything
            fault = " ".join(f"{type(error).__name__}: {error}".split())
            what = clean(f"the plugin {entry.name} of {package_of(entry)} is left out: {fault}")
            print(f"attnscope: {what}", file=sys.stderr)
        found.append(Plugin(group, entry.name, package_of(entry), value, fault))
    return tuple(found)


def plugins(group: str) -> dict[str, Any]:
    """The plugins of a group by name, without those that cannot be loaded."""
    return {each.name: each.value for each in load_plugins(group) if not each.fault}
