"""``attnscope info``: every attention call of a model, or whether there is other mixing of tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from attnscope.cli.command import Group, command, fields_of, is_typed, refuse, refuse_combined, refuse_without
from attnscope.cli.deliver import deliver
from attnscope.cli.options import MANY, ModelOptions, NumbersOptions, SourceOptions
from attnscope.cli.settings import settings_table
from attnscope.cli.source import read_source
from attnscope.registry import GROUPS, load_plugins

if TYPE_CHECKING:
    from attnscope.views import Table

TEXT = "The cat sat on the mat because it was tired."


class ModelArgument(Group):
    """A model named as an argument, without -m."""

    first: Annotated[str | None, Argument(help="The model; with --model, the text.", metavar="MODEL")] = None


class AuditOptions(Group):
    """What is asked about the model."""

    audit: Annotated[bool, Option(help="Name what mixes tokens besides the attention shown.")] = False
    prove: Annotated[bool, Option(help="Prove each layer by identity values.")] = False
    copying: Annotated[bool, Option(help="Rank heads by how much they copy, from the weights alone.")] = False
    cost: Annotated[bool, Option(help="Estimate memory and time from the config alone.")] = False
    tokens: Annotated[int, Option(help="With --cost: the tokens of a text.", metavar="N", min=1)] = 512
    texts: Annotated[
        str | None, Option(help="With --cost: a corpus, as stats --texts reads it.", rich_help_panel=MANY)
    ] = None
    defaults: Annotated[bool, Option(help="List the defaults that you set, and where.")] = False
    plugins: Annotated[bool, Option(help="List what other packages add.")] = False


def plugins_table() -> Table:
    """The installed plugins, what each adds, and what is wrong with it."""
    from attnscope.views import Column, Table

    loaded = [each for group in GROUPS for each in load_plugins(group)]
    rows = [(each.group, each.name, each.package, each.fault or "loaded") for each in loaded]
    names = ("adds", "name", "package", "state")
    columns = tuple(Column(name, long="rest" if name == "state" else "keep") for name in names)
    notes = tuple(f"attnscope.{group}: {what}" for group, what in GROUPS.items())
    return Table(columns, tuple(rows) or (("none", "", "", ""),), notes=notes)


@command
def info(
    named: ModelArgument,
    source: SourceOptions,
    options: AuditOptions,
    output: NumbersOptions,
    model: ModelOptions,
) -> None:
    """List the attention calls of a model, and the layers that have none.

    A short text goes through as the model is, and once with its own output_attentions: the table says where
    these differ from the weights that were used.

    With --audit one token changes at a time, while all attention that is shown answers as before. A module
    whose numbers move with more than that token mixes tokens by itself, and is named. With --prove each
    kernel runs on values that are 1 at one token, 0 elsewhere: do they give the rows that are shown?

    With --copying: the share of tokens whose own logit rises most when a head attends to them, and the signs
    of the eigenvalues of its OV circuit (Elhage et al. 2021).

    Examples:

    attnscope info own
    attnscope info openai-community/gpt2 --copying
    attnscope info sample_inputs/own_model.py:OwnModel --audit
    attnscope info own-causal --prove
    attnscope info Qwen/Qwen2.5-7B --cost --tokens 8192
    """
    from attnscope.questions.answer import Answer

    groups = SourceOptions, AuditOptions, NumbersOptions, ModelOptions, ModelArgument
    for mode in ("defaults", "plugins"):
        refuse_combined((fields_of(*groups, but=(mode, "as_latex")), mode, "it is a table of its own"))
    refuse_combined(
        (
            fields_of(SourceOptions, AuditOptions, but=("cost", "tokens", "texts")),
            "cost",
            "it reads the config alone",
        ),
        ("copying", "audit prove", ""),
        ("prove", "audit", ""),
    )
    refuse_without(("tokens texts", "cost"))
    refuse_combined(("tokens", "texts", "its texts have tokens"))
    if options.defaults or options.plugins:
        table = settings_table() if options.defaults else plugins_table()
        return deliver("info", Answer((table,), {}, dict), output)
    if options.cost:
        from attnscope.models.untrusted_folder import ModelSource
        from attnscope.questions.cost import cost_answer, estimate_corpus_cost, estimate_cost
        from attnscope.storage.corpus import read_corpus

        name = named.first or model.name
        refuse(
            name in ("own", "own-causal") or ".py:" in name, "--cost", "name a folder or a model of the hub"
        )
        source_of = ModelSource(name, model.revision, model.trust_remote_code)
        if options.texts is None:
            return deliver(
                "info", cost_answer(estimate_cost(source_of, options.tokens)), output, read=(name,)
            )
        cost = estimate_corpus_cost(source_of, read_corpus(options.texts))
        deliver("info", cost_answer(cost), output, read=(name, Path(options.texts)))
        return None
    if not is_typed("model"):
        model = replace(model, model=named.first or model.model)
    elif named.first is not None:
        refuse(source.text is not None, "MODEL", "name the model once, first or with --model")
        source = replace(source, text=named.first)
    if not source.names_one:
        source = replace(source, text=TEXT)
    from attnscope.questions.audit import audit
    from attnscope.questions.composition import copying_answer, measure_copying
    from attnscope.questions.info import (
        describe_model,
        proof_answer,
        prove_model,
        survey_answer,
        survey_model,
    )
    from attnscope.views import Column, Table

    pass_source = read_source(source, model)
    with pass_source.open_with_progress(cached=False, predicting=options.copying) as (loaded, prepared):
        if options.copying:
            answer = copying_answer(measure_copying(loaded, prepared))
        elif options.audit:
            mixers = audit(loaded, prepared)
            sentences = Table((Column(""),), tuple((each,) for each in mixers.sentences))
            answer = Answer((sentences,), {}, lambda: mixers)
        elif options.prove:
            answer = proof_answer(prove_model(loaded, prepared), loaded.title)
        else:
            survey = survey_model(loaded, prepared)
            answer = survey_answer(survey, describe_model(loaded, survey))
    deliver("info", answer, output, read=(loaded, prepared))
