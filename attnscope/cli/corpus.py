"""A corpus on the command line: its options, its progress bar, what is said of texts left out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from attnscope.analysis.corpus.corpus_stats import Progress
    from attnscope.analysis.selection import Selection
    from attnscope.analysis.stats import Stats
    from attnscope.models import Model
    from attnscope.storage.corpus import Corpus

CORPUS = "Many texts"
STOPPED = 130
"""The exit code of a run that Ctrl-C stopped, as shells have it."""

MOST_REPORTED = 20
"""Texts that are reported one by one when they cannot be read; further ones are only counted."""


def _option(text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=CORPUS, show_default=False, **more)


Texts = Annotated[
    Path | None,
    _option("Read a corpus: a text a line (.txt), JSON lines (.jsonl), .parquet, or a folder of .txt files."),
]
Field = Annotated[str, _option("Where .jsonl and .parquet keep the text; text if not given.")]
Limit = Annotated[int | None, _option("Stop after so many texts.", min=1)]
Strict = Annotated[bool, _option("End at the first text that cannot be read, not skip it.", "--strict")]
Checkpoint = Annotated[
    Path | None, _option("Keep the sums in this file; the same command goes on from there.")
]


def refuse_without_texts(context: typer.Context) -> None:
    """Wrong usage, if an option was given that says something about a corpus and there is none."""
    for name in ("limit", "strict", "checkpoint"):
        if context.params[name]:
            raise typer.BadParameter(f"--{name} goes with --texts", param_hint=f"--{name}")


def measure_corpus(
    context: typer.Context, model: Model, corpus: Corpus, selection: Selection, names: tuple[str, ...]
) -> Stats:
    """The figures of a corpus as the command's options ask for them, with a bar while it runs.

    Ctrl-C ends the command; with a checkpoint it says how to go on.
    """
    from attnscope.analysis.corpus.corpus_stats import corpus_stats

    asked = context.params
    with _bar(corpus, asked["limit"]) as watch:
        try:
            return corpus_stats(
                model,
                corpus,
                selection,
                names=names,
                exact_kernel=asked.get("exact_kernel", False),
                importance=asked.get("importance", False),
                max_tokens=asked["max_tokens"],
                truncate=asked["truncate"],
                strict=asked["strict"],
                limit=asked["limit"],
                checkpoint=asked["checkpoint"],
                report=_Report(),
                watch=watch,
            )
        except KeyboardInterrupt:
            hint = "give --checkpoint FILE to go on from where it stopped"
            if asked["checkpoint"] is not None:
                hint = f"the same command goes on from what {asked['checkpoint']} holds"
            print(f"attnscope: stopped; {hint}", file=sys.stderr)
            raise typer.Exit(STOPPED) from None


class _Report:
    """Says what is wrong with a text, for the first ones."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, sentence: str) -> None:
        from attnscope.axes import visible

        self.count += 1
        if self.count <= MOST_REPORTED:
            print(f"attnscope: skipped {visible(sentence)}", file=sys.stderr)
        elif self.count == MOST_REPORTED + 1:
            print("attnscope: further texts that are skipped are only counted", file=sys.stderr)


@contextmanager
def _bar(corpus: Corpus, limit: int | None) -> Iterator[Callable[[Progress], None]]:
    """A live bar with tokens a second on a terminal; nothing where nobody is looking."""
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    import time

    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = BarColumn(), TextColumn("{task.description}", markup=False), TimeRemainingColumn()
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=1.0)
        start, first = time.monotonic(), -1

        def draw(progress: Progress) -> None:
            nonlocal first
            if first < 0:  # a checkpoint's tokens were read in another run
                first = progress.tokens
            pace = (progress.tokens - first) / max(time.monotonic() - start, 1e-9)
            done = progress.done / max(corpus.size, 1)
            if limit is not None:
                done = max(done, progress.texts / limit)
            words = f"{progress.texts:,} texts  {progress.tokens:,} tokens  {pace:,.0f} tokens/s"
            bar.update(task, completed=done, description=words)

        yield draw
