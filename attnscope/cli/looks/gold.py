"""Questions with known answers on the command line: what is asked, and what is printed."""

from __future__ import annotations

import csv
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Protocol

import typer

from attnscope.cli.command import write
from attnscope.cli.corpus import Report, corpus_run, watch_progress
from attnscope.cli.heads import select
from attnscope.cli.options.gold import GoldOptions
from attnscope.cli.options.heads import LayerOptions
from attnscope.cli.options.model import ModelOptions, WeighedModelOptions
from attnscope.cli.options.source import SourceOptions
from attnscope.cli.plain import print_answer
from attnscope.cli.source import load_model
from attnscope.cli.waiting import progress_bar

if TYPE_CHECKING:
    from attnscope.storage.gold import TimedLines

LISTED = 8
"""Heads that are listed of timed words."""


class Output(Protocol):
    """Where an answer goes."""

    @property
    def top(self) -> int | None:
        """How many heads of each label are listed."""

    @property
    def as_json(self) -> bool:
        """Whether all figures are printed as JSON."""

    @property
    def as_csv(self) -> bool:
        """Whether all figures are printed as CSV."""

    @property
    def out(self) -> Any:
        """The picture file that was asked for."""


def check_gold(gold: GoldOptions, words: list[str], source: SourceOptions, output: Output) -> bool:
    """Whether answers are read from a file; what goes together badly is wrong usage."""
    if gold.gold is None:
        default = GoldOptions()
        for each in fields(gold):
            if getattr(gold, each.name) != getattr(default, each.name):
                name = f"--{each.name.replace('_', '-')}"
                raise typer.BadParameter("it goes with --gold FILE", param_hint=name)
        return False
    if words or source.names_one:
        raise typer.BadParameter("the file has the texts: give no text and no question", param_hint="--gold")
    if output.out is not None:
        raise typer.BadParameter("there is no picture of --gold: use --json or --csv", param_hint="--out")
    return True


def answer_gold(
    gold: GoldOptions,
    source: SourceOptions,
    attention: LayerOptions,
    output: Output,
    model: WeighedModelOptions,
) -> None:
    """Ask all heads the questions of a file, and print how well they do."""
    from attnscope.analysis.corpus.processes import torchrun_processes
    from attnscope.analysis.gold.gold import find_gold
    from attnscope.answers import gold as answers
    from attnscope.storage.gold import TimedLines, read_gold

    assert gold.gold is not None
    file = read_gold(gold.gold, alignments=gold.alignments, coreference=gold.coreference)
    if isinstance(file, TimedLines):
        _answer_times(file, gold, source, attention, output, model)
        return
    relations = [name.strip() for name in (gold.relation or "").split(",") if name.strip()]
    loaded = load_model(model)
    with corpus_run(source, gold, file.size) as run:
        result = find_gold(
            loaded, file, select(attention), relations=relations, held_out=gold.held_out, run=run
        )
    if torchrun_processes().number:
        return
    if output.as_json:
        print_answer("find", answers.numbers_of(result) | model.said)
    elif output.as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(answers.table_of(result))
    else:
        from rich.console import Console

        answers.print_gold(result, output.top or 1, Console(highlight=False))


def _answer_times(
    file: TimedLines,
    gold: GoldOptions,
    source: SourceOptions,
    attention: LayerOptions,
    output: Output,
    model: WeighedModelOptions,
) -> None:
    """Ask all cross-attention heads when the words of a file are said."""
    from attnscope.analysis.gold.timed import find_times
    from attnscope.answers import timed as answers

    if gold.relation is not None:
        raise typer.BadParameter("timed words have no labels", param_hint="--relation")
    if gold.checkpoint is not None:
        raise typer.BadParameter("timed words keep no sums", param_hint="--checkpoint")
    loaded = load_model(model)
    with progress_bar() as draw:
        result = find_times(
            loaded,
            file,
            select(attention),
            held_out=gold.held_out,
            limit=gold.limit,
            truncate=source.truncate,
            strict=gold.strict,
            report=Report(),
            watch=watch_progress(file.size, gold.limit, draw),
        )
    if output.as_json:
        print_answer("find", answers.numbers_of(result) | model.said)
    elif output.as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows(answers.table_of(result))
    else:
        from rich.console import Console

        plain = ModelOptions(**{each.name: getattr(model, each.name) for each in fields(ModelOptions)})
        opening = write("align", plain)
        answers.print_times(result, output.top or LISTED, opening, Console(highlight=False))
