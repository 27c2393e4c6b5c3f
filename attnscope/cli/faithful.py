"""``--faithful``: the order of tokens that a prediction really hangs on, as a table, numbers or a picture."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from attnscope.cli.deliver import deliver
from attnscope.cli.options import ModelOptions, NumbersOptions, PrintedOptions, WeighedModelOptions
from attnscope.cli.source import SourceInput, reading

if TYPE_CHECKING:
    from attnscope.questions.selection import Selection


TOP = 12
"""Heads that are listed, unless another number is asked for."""

WIDE = 116
"""Columns from which curves have room."""


def check_alone(alone: bool) -> None:
    """Refuse what says nothing of a prediction."""
    if not alone:
        raise click.BadParameter(
            "only valid with one text and a model, without --token, --layer, --from or --csv",
            param_hint="--faithful",
        )


def show_methods(
    given: SourceInput, target: str | None, output: NumbersOptions, picture: PrintedOptions
) -> None:
    """All ways of weighing and of following attention, the best first."""
    from attnscope.questions.faithful import compare_methods, of_faithful

    loaded, prepared = given.open(predicting=True)
    with reading(loaded, prepared):
        result = compare_methods(loaded, prepared, target)
    deliver("flow", of_faithful(result, len(result.ranked), _marks(picture)), output, picture)


def show_heads(
    given: SourceInput,
    selection: Selection,
    model: WeighedModelOptions,
    top: int | None,
    output: NumbersOptions,
    picture: PrintedOptions,
) -> None:
    """All heads by one way of weighing, the best first."""
    from attnscope.questions.faithful import compare_weighed_heads, of_faithful

    unweighed: ModelOptions = replace(model, weigh="raw", target=None)  # weighed below, and asked once
    loaded, prepared = replace(given, model=unweighed).open(predicting=True)
    with reading(loaded, prepared):
        result = compare_weighed_heads(loaded, prepared, model.weigh, model.target, selection)
    deliver("stats", of_faithful(result, top or TOP, _marks(picture)), output, picture, model.metadata)


def _marks(picture: PrintedOptions) -> str:
    """What curves are drawn with in the terminal; nothing where it has no room for them."""
    from rich.console import Console

    from attnscope.render.terminal.surface import ASCII_SPARKS, SPARKS

    console = Console()
    if console.width < WIDE:
        return ""
    return ASCII_SPARKS if picture.plain or not console.encoding.startswith("utf") else SPARKS
