"""How an option or an argument of a command is declared as the field of a group, and the panels of the help.

    @dataclass(frozen=True, kw_only=True)
    class CutOptions:
        line: int | None = option("Take one line of the input.", panel=TEXT)
        truncate: bool = flag("Cut a text that is too long.", panel=TEXT)

``attnscope.cli.command`` makes parameters of the fields. A name that is not given is the field's.
"""

from collections.abc import Callable
from dataclasses import MISSING, field
from typing import Any

import typer

from attnscope.cli.options.complete import Complete
from attnscope.text import LARGEST

TEXT, MANY, WHERE, PICTURE, MODEL = "Text", "Many texts", "Which attention", "Picture", "Model"
"""The panels; an option without one is among those that people use most."""

DECLARED, UP_TO = "declared", "up to"
"""Under which names a field's metadata hold what Typer is told, and the largest number that can be meant."""

REQUIRED: Any = MISSING
"""The default of what must be given."""


def option(
    help: str,
    *names: str,
    panel: str | None = None,
    default: Any = None,
    min: float | None = None,
    max: float | None = None,
    largest: int = LARGEST,
    complete: Complete | None = None,
) -> Any:
    """An option with a value; the help prints its default, if it has one, and Tab completes it.

    ``largest`` is no limit of its own, as ``max`` is: nothing that the option counts has more.
    """
    shown = default is not None and default is not REQUIRED
    declared = typer.Option(
        *names,
        help=help,
        rich_help_panel=panel,
        min=min,
        max=max,
        show_default=shown,
        autocompletion=complete,
    )
    return field(default=default, metadata={DECLARED: declared, UP_TO: largest})


def flag(
    help: str, *names: str, panel: str | None = None, callback: Callable[[bool], bool] | None = None
) -> Any:
    """An option without a value, which is true where it is typed."""
    declared = typer.Option(*names, help=help, rich_help_panel=panel, callback=callback)
    return field(default=False, metadata={DECLARED: declared})


def argument(help: str, default: Any = None, metavar: str | None = None) -> Any:
    """An argument, which is typed without a name."""
    declared = typer.Argument(help=help, show_default=False, metavar=metavar)
    return field(default=default, metadata={DECLARED: declared})
