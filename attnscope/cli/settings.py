"""Defaults that users set for any option: ATTNSCOPE_MODEL, the project's pyproject.toml, their config.toml.

    [tool.attnscope]               # in config.toml the same keys without a table
    model = "openai-community/gpt2"
    hide-special = true

The first source that sets an option wins. A project may come from anywhere, so options that run code or
write files can only be set in the user's own file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from attnscope.errors import InputError

if TYPE_CHECKING:
    from attnscope.views import Table

VARIABLE = "ATTNSCOPE_MODEL"

USERS_OWN = ("trust-remote-code", "allow-pickle", "out", "keep", "checkpoint", "pooled", "save")
"""Options that run code or write files."""

LARGEST = 1 << 20  # most bytes of a settings file


class UserDefault(NamedTuple):
    """The default of an option (named without its dashes), and where it is set."""

    name: str
    value: Any
    origin: str


def users_file() -> Path:
    """The path of the user's own defaults."""
    from platformdirs import user_config_path

    return user_config_path("attnscope") / "config.toml"


def read_settings() -> dict[str, UserDefault]:
    """The settings, by option name. Raises ``InputError`` for an unreadable file."""
    found = {each.name: each for each in (*_read(users_file(), ()), *_of_project())}
    if model := os.environ.get(VARIABLE):
        found["model"] = UserDefault("model", model, VARIABLE)
    return found


def _of_project() -> Iterator[UserDefault]:
    """The settings of the current project: the nearest pyproject.toml."""
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
    """The settings in a table of a TOML file; empty without a file."""
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

    Raises ``InputError`` for an unknown option, and for a value of the wrong type.
    """
    command, every = context.command, context.parent.command if context.parent else None
    taken = {}
    for name, setting in settings.items():
        option = _find(command, name)
        if option is None:
            if isinstance(every, click.Group) and not any(
                _find(other, name)
                for each in every.list_commands(context)
                if (other := every.get_command(context, each)) is not None
            ):
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
    """All settings, by option, and where they are set."""
    from attnscope.views import Column, Table

    rows = tuple((f"--{each.name}", str(each.value), each.origin) for each in read_settings().values())
    places = f"{VARIABLE}, [tool.attnscope] of the project's pyproject.toml, {users_file()}"
    notes = ("the first of these that sets an option counts: " + places,)
    columns = Column("option", long="keep"), Column("default", long="keep"), Column("set in", long="rest")
    return Table(columns, rows or (("none", "", ""),), notes=notes)


def _find(command: click.Command, name: str) -> click.Parameter | None:
    return next((each for each in command.params if f"--{name}" in each.opts), None)
