"""``attnscope check``: claims about heads, for training jobs and continuous integration."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Argument, Option

from attnscope.cli.command import Group, Often, command, refuse, refuse_combined, refuse_without
from attnscope.cli.corpus import CorpusOptions, check_texts, measure_corpus
from attnscope.cli.deliver import deliver
from attnscope.cli.messages import notify
from attnscope.cli.options import (
    LayerOptions,
    NumbersOptions,
    TextAmong,
    WeightedModelOptions,
    select,
)
from attnscope.cli.source import (
    load_model,
    model_progress,
    read_source,
    split_text,
)

if TYPE_CHECKING:
    from attnscope.questions.check import CheckResult

COMPARISON = re.compile(r"[<>=]\s*\S+$|^(any|all|count\(|min\(|max\(|(\w+\.)?[Ll]\d+([Hh]\d+)?\.).*[<>=]")
"""What is a claim by its end or its beginning, also one with a slip in it."""


class ClaimOptions(Group):
    """The claims, and a snapshot to compare with."""

    panel = "Snapshots"
    claims: Annotated[
        list[str] | None,
        Argument(
            help='"L0H2.previous > 0.9", "L0H2.role = previous", "any.induction > 0.4", "all.entropy < 3",'
            ' "L3.entropy < 2", "min(L3.entropy) > 0.1", "count(previous > 0.5) >= 2"; and the text.'
        ),
    ] = None
    save_snapshot: Annotated[Path | None, Often(help="Write all scores to a file.")] = None
    with_snapshot: Annotated[Path | None, Often(help="Compare all scores with such a file.")] = None
    with_model: Annotated[
        str | None, Option(help="With --from a server's file: do this model's rows agree?")
    ] = None
    tolerance: Annotated[
        float, Option(help="Allowed difference: absolute up to 1, relative above.", min=0.0)
    ] = 0.05


class CheckOutput(NumbersOptions):
    """Where the outcomes go."""

    format: Annotated[
        Literal["junit", "github"] | None,
        Option(help="For CI: JUnit XML, or lines that GitHub shows as annotations."),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_combined(("format", "as_json as_latex", ""))


def deliver_check(result: CheckResult, tolerance: float, output: CheckOutput, model: Any, **how: Any) -> None:
    """Print the outcomes in the requested format."""
    from attnscope.questions.check import check_answer, github_annotations, junit_report

    if output.format == "junit":
        print(junit_report(result, tolerance, model.name))
    elif output.format == "github":
        print(github_annotations(result, tolerance))
    else:
        deliver("check", check_answer(result, tolerance), output, **how)


@command
def check(
    options: ClaimOptions,
    source: TextAmong,
    corpus: CorpusOptions,
    attention: LayerOptions,
    output: CheckOutput,
    model: WeightedModelOptions,
) -> None:
    """Check claims about heads: exit code 0 if all hold, 1 if one fails.

    A claim names a head and a measure (attnscope explain lists them), any or all heads, the heads of a layer,
    or a count of heads.

    Examples:

    attnscope check "L2H1.previous > 0.8" --texts sample_inputs/sentences.txt
    attnscope check "count(previous > 0.5) >= 2" "The cat sat on the mat."
    attnscope check "any.induction > 0.4" --repeat-random 20 -m own-causal
    attnscope check "min(L3.entropy) > 0.1" "The cat sat on the mat."
    attnscope check --texts sample_inputs/sentences.txt --save-snapshot old.json
    attnscope check --texts sample_inputs/sentences.txt --with-snapshot old.json
    """
    from attnscope.measures import DEFAULT
    from attnscope.questions.check import (
        CheckResult,
        check_served,
        compare_snapshot,
        parse_claim,
        save_snapshot,
    )
    from attnscope.questions.processes import torchrun_processes
    from attnscope.questions.stats import measure_heads

    spelled, source = split_text(
        options.claims, source, COMPARISON.search, "a claim compares: 'L0H2.previous > 0.9'"
    )
    claims = [parse_claim(each) for each in spelled]
    asks = claims or options.save_snapshot or options.with_snapshot
    refuse_without(("tolerance", "with_snapshot with_model"))
    if options.with_model is not None:
        from attnscope.models.served import ServedModel

        refuse(asks, "--with-model", "compares rows: no claims, no snapshots")
        served = read_source(source, model).load()
        words = "only valid with --from, and queries and keys in the file"
        refuse(not isinstance(served, ServedModel), "--with-model", words)
        assert isinstance(served, ServedModel)
        other = load_model(replace(model, model=options.with_model))
        with model_progress(other, served.prepared):
            checked = CheckResult(check_served(served, other))
        read = served.prepared
        how: dict[str, Any] = {"read": (served, read), "other": (other, read)}
        deliver_check(checked, options.tolerance, output, served, **how)
        raise SystemExit(int(not checked.holds))
    refuse(not asks, "CLAIMS", "give a claim, --save-snapshot or --with-snapshot")
    names = tuple(dict.fromkeys((*DEFAULT, *(name for each in claims for name in each.names))))
    selection = select(attention)
    check_texts(corpus, source)
    if corpus.many:
        result = measure_corpus(corpus, source, model, selection, names=names)
    else:
        refuse(not source.names_one, "--texts", "give a text, --texts CORPUS or --file")
        kind = "fused" if names == DEFAULT else "other"
        with read_source(source, model).open_with_progress(kind=kind) as (loaded, prepared):
            result = measure_heads(loaded, prepared, selection, names=names)
    verdicts = tuple(each.verdict(result.heads) for each in claims)
    checked = CheckResult(verdicts)
    if options.with_snapshot is not None:
        checked = replace(compare_snapshot(result, options.with_snapshot, options.tolerance), claims=verdicts)
    if torchrun_processes().number == 0:  # of several processes, only the first prints and writes
        how = {"metadata": model.metadata, "read": result.read}
        deliver_check(checked, options.tolerance, output, result.read[0], **how)
        if options.save_snapshot is not None:
            save_snapshot(result, options.save_snapshot)
            notify(f"saved {options.save_snapshot}")
    raise SystemExit(int(not checked.holds))
