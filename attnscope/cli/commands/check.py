"""``attnscope check``: claims about heads, for training jobs and continuous integration."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attnscope.cli.command import argument, command, option
from attnscope.cli.corpus import check_texts, measure_corpus
from attnscope.cli.deliver import print_answer
from attnscope.cli.heads import select
from attnscope.cli.options import CorpusOptions, LayerOptions, NumbersOptions, TextNamed, WeighedModelOptions
from attnscope.cli.source import load_model, read_source, reading

if TYPE_CHECKING:
    from attnscope.cli.cached_passes import PassKind
    from attnscope.questions.check import Change, Verdict
    from attnscope.questions.selection import Selection
    from attnscope.questions.stats import Stats

AGAINST = "Snapshots"
MOST = 10
"""Changed figures that are listed."""


@dataclass(frozen=True, kw_only=True)
class ClaimOptions:
    """What is claimed, and what the figures are held against."""

    panel = AGAINST
    claims: list[str] | None = argument(
        'Claims such as "L0H2.previous > 0.9", "L0H2.role = previous", "any.induction > 0.4", '
        '"all.entropy < 3", "count(previous > 0.5) >= 2".'
    )
    save: Path | None = option("Write all figures to a file.")
    against: Path | None = option("Compare all figures with such a file.")
    tolerance: float = option("How far a figure may be; a share of it above 1.", min=0.0, default=0.05)


@command
def check(
    asked: ClaimOptions,
    source: TextNamed,
    corpus: CorpusOptions,
    attention: LayerOptions,
    output: NumbersOptions,
    model: WeighedModelOptions,
) -> None:
    """Check claims about heads: exit code 0 if all of them hold, 1 if not.

    A claim names a head and a measure (attnscope stats --list), any or all heads, or a count of heads.

    Examples:

    attnscope check "L0H3.self > 0.5" "count(previous > 0.5) >= 2" --texts sample_inputs/sentences.txt

    attnscope check "any.induction > 0.1" -m own-causal --file sample_inputs/repeated.txt --truncate

    attnscope check --texts corpus.txt --save before.json

    attnscope check --texts corpus.txt --against before.json --tolerance 0.02
    """
    from attnscope.measures import DEFAULT
    from attnscope.questions.check import Checked, changes, claim, save_snapshot
    from attnscope.questions.processes import torchrun_processes
    from attnscope.records import plain

    claims = [claim(each) for each in asked.claims or ()]
    if not claims and asked.save is None and asked.against is None:
        raise click.BadParameter("claim something, or give --save or --against", param_hint="CLAIMS")
    names = tuple(dict.fromkeys((*DEFAULT, *(name for each in claims for name in each.names))))
    selection = select(attention)
    check_texts(corpus, source)
    if corpus.texts is not None:
        result = measure_corpus(corpus, source, lambda: load_model(model), selection, names)
    else:
        result = _measure(source, model, selection, names)
    verdicts = [each.judge(result.heads) for each in claims]
    first = torchrun_processes().number == 0  # of several processes one prints and writes
    if first and not output.as_json:
        _print_verdicts(verdicts)
    differences = None if asked.against is None else tuple(changes(result, asked.against, asked.tolerance))
    checked = Checked(tuple(verdicts), differences)
    if first and output.as_json:
        print_answer("check", plain(checked) | model.metadata)
    elif first and differences is not None:
        _print_differences(differences, asked)
    if first and asked.save is not None:
        save_snapshot(result, asked.save)
        print(f"saved {asked.save}", file=sys.stderr if output.as_json else sys.stdout)
    raise SystemExit(0 if checked.holds else 1)


def _measure(
    source: TextNamed, model: WeighedModelOptions, selection: Selection, names: tuple[str, ...]
) -> Stats:
    """The figures of one text."""
    from attnscope.measures import DEFAULT
    from attnscope.questions.stats import measure_heads

    if not source.names_one:
        raise click.BadParameter("give --texts CORPUS, --text or --file", param_hint="--texts")
    kind: PassKind = "fused" if names == DEFAULT else "other"
    loaded, prepared = read_source(source, model).open(kind=kind)
    with reading(loaded, prepared):
        return measure_heads(loaded, prepared, selection, names=names)


def _print_verdicts(verdicts: list[Verdict]) -> None:
    """Print one line a claim."""
    from attnscope.axes import visible

    width = max((len(verdict.claim) for verdict in verdicts), default=0)
    for verdict in verdicts:
        _print_line(verdict.holds, f"{visible(verdict.claim):{width}}  {verdict.evidence}")


def _print_line(holds: bool, words: str) -> None:
    """Print ok in green or FAILED in red, where there is colour, and what it is about."""
    from rich.console import Console
    from rich.text import Text

    verdict = Text(f"{'ok' if holds else 'FAILED':6}", "green" if holds else "bold red")
    Console(highlight=False).print(verdict + Text(f"  {words}"), soft_wrap=True)


def _print_differences(differences: Sequence[Change], asked: ClaimOptions) -> None:
    """Print what has changed since a snapshot."""
    from attnscope.axes import visible

    heads = len({change.head for change in differences})
    words = "all within"
    if differences:
        words = f"{len(differences):,} figures of {heads:,} heads differ by more than"
    _print_line(not differences, f"against {asked.against}: {words} {asked.tolerance:g}")
    for change in differences[:MOST]:
        before, now = ("none" if v is None else f"{v:.4g}" for v in (change.before, change.now))
        print(f"        {visible(change.head)}.{visible(change.measure)}: {before} before, {now} now")
    if len(differences) > MOST:
        print(f"        and {len(differences) - MOST:,} more")
