"""A named table of functions or objects that answers a wrong name with the nearest right one."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from attnscope.errors import SelectionError

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform as dataclass_transform
else:

    def dataclass_transform(**options: Any) -> Any:
        """Does nothing at run time: tells type checkers what makes dataclasses."""
        return lambda function: function


Entry = TypeVar("Entry")
Maker = TypeVar("Maker", bound="Callable[..., Any]")


class Registry(Mapping[str, Entry]):
    """Names to entries of one kind, in order of registration.

    ``noun`` names the kind in messages ("measure", "colour map"), ``retired`` gives the new name of each
    old one. ``more`` registers what other packages add; it is called when an unknown name is looked up.
    Registering a name twice raises ``ValueError``; looking up an unknown name raises ``SelectionError``.
    """

    def __init__(
        self, noun: str, retired: Mapping[str, str] | None = None, more: Callable[[], object] = lambda: None
    ) -> None:
        self.noun, self.retired, self._more = noun, retired or {}, more
        self._entries: dict[str, Entry] = {}
        self._families: dict[str, tuple[re.Pattern[str], Callable[..., Entry]]] = {}

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
            self._families[name] = re.compile(pattern, re.ASCII), make
            return make

        return file

    @property
    def families(self) -> tuple[str, ...]:
        """The names that stand for families of entries."""
        return tuple(self._families)

    def __getitem__(self, name: str) -> Entry:
        entry = self._find(name)
        if entry is None:
            raise SelectionError(self._no_such(name))
        return entry

    def _find(self, name: str) -> Entry | None:
        entry = self._entries.get(name) or self._member(name)
        if entry is None:
            self._more()
            entry = self._entries.get(name) or self._member(name)
        return entry

    def _member(self, name: str) -> Entry | None:
        for pattern, make in self._families.values():
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

    def _no_such(self, name: str) -> str:
        if name in self.retired:
            return f"the {self.noun} {name!r} is now {self.retired[name]!r}"
        names = ", ".join((*self, *self.families))
        return f"no {self.noun} {name!r}: {nearest_name(name, self._entries)}there are {names}"


def nearest_name(name: str, names: Iterable[str]) -> str:
    """ "Did you mean ...?" for a message; empty if no name is near."""
    lower = {known.lower(): known for known in names}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    return f"did you mean {lower[near[0]]!r}? " if near else ""


def docstring(function: Callable[..., Any]) -> str:
    """A function's docstring; read from its source under ``python -OO``."""
    if function.__doc__ is not None:
        return inspect.cleandoc(function.__doc__)
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    return ast.get_docstring(tree) or "" if isinstance(tree, ast.FunctionDef) else ""
