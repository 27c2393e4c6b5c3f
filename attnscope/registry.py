"""Named tables of functions or objects, and what other packages add to them through entry points.

    [project.entry-points."attnscope.measures"]
    far = "my_package.measures"

A plugin that cannot be loaded is named on standard error and left out; everything else keeps working.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from attnscope.errors import SelectionError
from attnscope.text import clean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from typing_extensions import dataclass_transform as dataclass_transform
else:

    def dataclass_transform(**options: Any) -> Any:
        """Does nothing at run time: tells type checkers what makes dataclasses."""
        return lambda function: function


BUNDLED = ("own", "own-causal")  # the encoders that come with attnscope

Entry = TypeVar("Entry")
Maker = TypeVar("Maker", bound="Callable[..., Any]")


class Registry(Mapping[str, Entry]):
    """Names to entries of one kind, in order of registration.

    ``noun`` names the kind in messages ("measure", "colour map"). ``more`` registers what other packages
    add; it is called when an unknown name is looked up.
    Registering a name twice raises ``ValueError``; looking up an unknown name raises ``SelectionError``.
    """

    def __init__(self, noun: str, more: Callable[[], object] = lambda: None) -> None:
        self.noun, self._more = noun, more
        self._entries: dict[str, Entry] = {}
        self.families: dict[str, tuple[re.Pattern[str], Callable[..., Entry]]] = {}

    def register(self, name: str) -> Callable[[Entry], Entry]:
        """Return a decorator that registers an object under ``name``."""

        def file(entry: Entry) -> Entry:
            if name in self._entries:
                raise ValueError(f"{self.noun} {name!r} is registered already")
            self._entries[name] = entry
            return entry

        return file

    def register_family(self, name: str, pattern: str) -> Callable[[Maker], Maker]:
        """Return a decorator for what makes an entry from the groups of any name that a pattern matches.

        Such entries are found by name but not counted or iterated; ``name`` stands for all of them where
        names are listed.
        """

        def file(make: Maker) -> Maker:
            self.families[name] = re.compile(pattern, re.ASCII), make
            return make

        return file

    def __getitem__(self, name: str) -> Entry:
        entry = self._find(name)
        if entry is not None:
            return entry
        names = ", ".join((*self, *self.families))
        near = nearest_name(name, self._entries)
        raise SelectionError(f"no {self.noun} {name!r}: {near}there are {names}")

    def _find(self, name: str) -> Entry | None:
        entry = self._entries.get(name) or self._member(name)
        if entry is None:
            self._more()
            entry = self._entries.get(name) or self._member(name)
        return entry

    def _member(self, name: str) -> Entry | None:
        for pattern, make in self.families.values():
            match = pattern.fullmatch(name)
            if match is not None:
                return make(name, *match.groups())
        return None

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None


def nearest_name(name: str, names: Iterable[str]) -> str:
    """ "Did you mean ...?" for a message; empty if no name is near."""
    lower = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    return f"did you mean {lower[near[0]]!r}? " if near else ""


def docstring(function: Callable[..., Any]) -> str:
    """A function's docstring; read from its source under ``python -OO``."""
    if function.__doc__ is not None:
        return inspect.cleandoc(function.__doc__)
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    return ast.get_docstring(tree) or "" if isinstance(tree, ast.FunctionDef) else ""


GROUPS: Mapping[str, str] = {
    "measures": "a module that declares measures under @measure",
    "commands": "a function of its name under @command",
    "hooks": "a Tracker, notified of each pass after our own",
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
    loaded = []
    for entry in entry_points_of(group):
        value, fault = None, ""
        try:
            value = entry.load()
        except Exception as error:  # another package's code may raise anything
            fault = " ".join(f"{type(error).__name__}: {error}".split())
            what = clean(f"the plugin {entry.name} of {package_of(entry)} is left out: {fault}")
            print(f"attnscope: {what}", file=sys.stderr)
        loaded.append(Plugin(group, entry.name, package_of(entry), value, fault))
    return tuple(loaded)


def plugins(group: str) -> dict[str, Any]:
    """The plugins of a group by name, without those that cannot be loaded."""
    return {each.name: each.value for each in load_plugins(group) if not each.fault}
