"""``attnscope info``: what can be seen of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

from attnscope.cli.command import command
from attnscope.cli.options.declare import argument, flag
from attnscope.cli.options.model import ModelOptions
from attnscope.cli.options.picture import NumbersOptions
from attnscope.cli.options.source import SourceOptions
from attnscope.cli.plain import print_answer
from attnscope.cli.source import read_source, reading
from attnscope.text import visible

if TYPE_CHECKING:
    from attnscope.models import Model, ModelInput

TEXT = "The cat sat on the mat because it was tired."


@dataclass(frozen=True, kw_only=True)
class ModelArgument:
    """A model that is named first, without -m."""

    first: str | None = argument("The model, as --model names one; with --model, the text.", metavar="MODEL")


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """What is asked of the model."""

    audit: bool = flag(
        "Prove that tokens are mixed by the attention that is shown, and name what else mixes."
    )


@command
def info(
    named: ModelArgument,
    source: SourceOptions,
    asked: AuditOptions,
    output: NumbersOptions,
    model: ModelOptions,
) -> None:
    """List every attention call of a model's forward pass, and the layers that have none.

    A short text goes through once as the model is, and once with its own output_attentions, so that the
    table can say where the model itself would report other weights than those that it used.

    With --audit it goes through again and again, each time with one other token, while all attention that is
    shown answers as before. A module whose numbers then move with more than one token mixes tokens by itself:
    by attention that was missed, a convolution, a recurrence, a pooling. Each is named.

    Examples:

    attnscope info own

    attnscope info openai-community/gpt2 --json

    attnscope info facebook/dinov2-base --image cat.png

    attnscope info model.py:Model --inputs inputs.npz --audit
    """

    if model.model is None:
        model = replace(model, model=named.first)
    elif named.first is not None:
        if source.second_text is not None:
            raise typer.BadParameter("name the model once, first or with --model", param_hint="MODEL")
        source = replace(source, text=named.first, second_text=source.text)
    if not source.names_one:
        source = replace(source, text=TEXT)
    loaded, prepared = read_source(source, model).open(looking=False)
    (_audit if asked.audit else _survey)(loaded, prepared, output.as_json)


def _survey(model: Model, prepared: ModelInput, as_json: bool) -> None:
    from attnscope.analysis.survey import survey
    from attnscope.cli.looks.table import print_survey, survey_numbers

    with reading(model, prepared):
        result = survey(model, prepared)
    if as_json:
        print_answer("info", survey_numbers(result))
    else:
        print_survey(result)


def _audit(model: Model, prepared: ModelInput, as_json: bool) -> None:
    from attnscope.analysis.audit.audit import audit
    from attnscope.cli.looks.table import audit_numbers

    with reading(model, prepared):
        result = audit(model, prepared)
    if as_json:
        print_answer("info", audit_numbers(result))
    else:
        print(*map(visible, result.sentences), sep="\n")
