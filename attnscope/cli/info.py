"""``attnscope info``: what can be seen of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import typer

from attnscope.cli.command import command
from attnscope.cli.options.declare import argument
from attnscope.cli.options.model import ModelOptions
from attnscope.cli.options.picture import NumbersOptions
from attnscope.cli.options.source import SourceOptions
from attnscope.cli.plain import print_plain
from attnscope.cli.source import read_source, reading

TEXT = "The cat sat on the mat because it was tired."


@dataclass(frozen=True, kw_only=True)
class ModelArgument:
    """A model that is named first, without -m."""

    first: str | None = argument("The model, as --model names one; with --model, the text.", metavar="MODEL")


@command
def info(named: ModelArgument, source: SourceOptions, output: NumbersOptions, model: ModelOptions) -> None:
    """List every attention call of a model's forward pass, and the layers that have none.

    A short text goes through once as the model is, and once with its own output_attentions, so that the
    table can say where the model itself would report other weights than those that it used.

    Examples:

    attnscope info own

    attnscope info openai-community/gpt2 --json

    attnscope info facebook/dinov2-base --image cat.png
    """
    from attnscope.analysis.survey import survey
    from attnscope.cli.table import print_survey, survey_numbers

    if model.model is None:
        model = replace(model, model=named.first)
    elif named.first is not None:
        if source.second_text is not None:
            raise typer.BadParameter("name the model once, first or with --model", param_hint="MODEL")
        source = replace(source, text=named.first, second_text=source.text)
    if not source.names_one:
        source = replace(source, text=TEXT)
    loaded, prepared = read_source(source, model).open()
    with reading(loaded, prepared):
        seen = survey(loaded, prepared)
    if output.as_json:
        print_plain(survey_numbers(seen))
    else:
        print_survey(seen)
