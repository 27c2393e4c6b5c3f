"""Questions with known answers on the command line: what is asked, and what is printed."""

from __future__ import annotations

import csv
import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

import typer

from attnscope.cli.corpus import corpus_run
from attnscope.cli.heads import select
from attnscope.cli.options.gold import GoldOptions
from attnscope.cli.options.heads import LayerOptions
from attnscope.cli.options.model import WeighedModelOptions
from attnscope.cli.options.source import SourceOptions
from attnscope.cli.plain import print_answer
from attnscope.cli.retired import RETIRED
from attnscope.cli.source import load_model
from attnscope.errors import InputError

SOUNDS = re.compile(r'"audio"\s*:')
"""What a line has that names a sound."""


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
    from attnscope.storage.gold import read_gold

    assert gold.gold is not None
    file = read_gold(gold.gold, alignments=gold.alignments, coreference=gold.coreference)
    if gold.gold.suffix.lower() in (".jsonl", ".ndjson") and gold.alignments is None:
        _refuse_sounds(gold.gold)
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


def _refuse_sounds(path: Path) -> None:
    """Say what became of sounds with timed words, rather than that each of their lines is wrong."""
    from attnscope.storage.lines import read_lines

    first = next((line.text for line in read_lines(path) if line.fault or line.text.strip()), "")
    if SOUNDS.search(first):
        raise InputError(RETIRED["sounds in --gold"])
