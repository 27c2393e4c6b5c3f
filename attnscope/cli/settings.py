"""Defaults that users set for any option: ATTNSCOPE_MODEL, the project's pyproject.toml, their config.toml.

    [tool.attnscope]               # in config.toml the same keys without a table
    model = "openai-community/gpt2"
    hide-special = true

The first that sets an option counts. A project comes from anywhere: what runs code or writes files may only
be set in the user's own file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attnscope.errors import InputError

if TYPE_CHECKING:
    from attnscope.views.table import Table

VARIABLE = "ATTNSCOPE_MODEL"

USERS_OWN = ("trust-remote-code", "allow-pickle", "out", "keep", "checkpoint", "pooled", "save")
"""Options that run code or write files."""

LARGEST = 1 << 20
"""Bytes of a file of settings."""


@dataclass(frozen=True)
class UserDefault:
    """The default of an option, named as it is typed without its dashes, and where it is set."""

    name: str
    value: Any
    origin: str


def users_file() -> Path:
    """Where the user's own defaults are."""
    from platformdirs import user_config_path

    return user_config_path("attnscope") / "config.toml"


def read_settings() -> dict[str, UserDefault]:
    """What is set, by the name of the option. Raises ``InputError`` for what cannot be read."""
    found = {each.name: each for each in (*_read(users_file(), ()), *_of_project())}
    if model := os.environ.get(VARIABLE):
        found["model"] = UserDefault("model", model, VARIABLE)
    return found


def _of_project() -> Iterator[UserDefault]:
    """The settings of the project that the command runs in: the nearest pyproject.toml."""
    files = (folder / "pyproject.toml" for folder in (Path.cwd(), *Path.cwd().parents))
    path = next((file for file in files if file.is_file()), Path("pyproject.toml"))
    for setting in _read(path, ("tool", "attnscope")):
        runs_code = setting.name == "model" and ".py:" in str(setting.value)
        if runs_code or setting.name in USERS_OWN:
            raise InputError(
                f"{path} sets {setting.name}: options that run code or write files belong in {users_file()}"
            )
        yield setting


def _read(path: Path, table: tuple[str, ...]) -> Iterator[UserDefault]:
    """The settings of a table of a TOML file; none where there is no file."""
    from attnscope.storage.files import read_regular

    if not path.is_file():
        return
    try:
        content = read_regular(path, LARGEST).decode("utf-8")
        if not all(name in content for name in table):
            return
        toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
        settings: Any = toml.loads(content)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    for name in table:
        settings = settings.get(name, {}) if isinstance(settings, Mapping) else {}
    if not isinstance(settings, Mapping):
        raise InputError(f"{path}: {'.'.join(table)} is not a table")
    for name, value in settings.items():
        yield UserDefault(name.replace("_", "-"), value, str(path))


def defaults_of(context: click.Context, settings: Mapping[str, UserDefault]) -> dict[str, Any]:
    """The defaults of a command's parameters, as they would be typed.

    Raises ``InputError`` for a name that no command knows, and for a value of the wrong type.
    """
    command, every = context.command, context.parent.command if context.parent else None
    taken = {}
    for name, setting in settings.items():
        option = _find(command, name)
        if option is None:
            known = not isinstance(every, click.Group) or any(
                _find(other, name)
                for each in every.list_commands(context)
                if (other := every.get_command(context, each)) is not None
            )
            if not known:
                raise InputError(f"{setting.origin} sets {name}: no command has an option --{name}")
            continue
        value, flag = setting.value, getattr(option, "is_flag", False)
        several = option.multiple and isinstance(value, list)
        if flag is not isinstance(value, bool) or not (several or isinstance(value, (bool, str, int, float))):
            kind = "true or false" if flag else "a text or a number"
            raise InputError(f"{setting.origin} sets {name} to {value!r}: write {kind}")
        taken[option.name or name] = value if flag else [*map(str, value)] if several else str(value)
    return taken


def settings_table() -> Table:
    """What is set, by option, and where."""
    from attnscope.views.table import Column, Table

    rows = tuple((f"--{each.name}", str(each.value), each.origin) for each in read_settings().values())
    places = f"{VARIABLE}, [tool.attnscope] of the project's pyproject.toml, {users_file()}"
    notes = ("the first of these that sets an option counts: " + places,)
    columns = Column("option", long="keep"), Column("default", long="keep"), Column("set in", long="rest")
    return Table(columns, rows or (("none", "", ""),), notes=notes)


def _find(command: click.Command, name: str) -> click.Parameter | None:
    return next((each for each in command.params if f"--{name}" in each.opts), None)
