"""A corpus on the command line: its run, its progress bar, and notes on omitted texts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Any, TypeVar

from attnscope.cli.command import refuse
from attnscope.cli.options import CorpusOptions, SourceOptions, TextsOptions
from attnscope.cli.waiting import progress_bar, stop, warn
from attnscope.errors import InputError
from attnscope.text import visible

if TYPE_CHECKING:
    from attnscope.models import Model, ModelInput
    from attnscope.questions.corpus import CorpusRun, Progress
    from attnscope.questions.selection import Selection
    from attnscope.questions.stats import Stats
    from attnscope.storage.corpus import Corpus

Prepared = TypeVar("Prepared")

MOST_REPORTED = 20  # unreadable texts that are reported one by one; further ones are only counted


def check_texts(asked: CorpusOptions, source: SourceOptions) -> None:
    """Refuse a text beside a corpus, or a corpus option without one."""
    one = asked.texts is None
    refuse(not one and source.names_one, "TEXT", "give a text or --texts, not both")
    for name in ("limit", "strict", "checkpoint"):
        refuse(one and getattr(asked, name), f"--{name}", f"--{name} goes with --texts")


def each_text(
    asked: TextsOptions, prepare: Callable[[str], Prepared], *, strict: bool, chat: bool = False
) -> Iterator[tuple[str, Prepared]]:
    """The place of each text of a corpus, and what ``prepare`` makes of it.

    A text that cannot be read is reported and skipped, or raises ``InputError`` if ``strict``.
    """
    corpus, report = open_corpus(asked, chat=chat), reporter()
    for entry in islice(corpus.entries(), asked.limit):
        try:
            if entry.fault:
                raise InputError(entry.fault)
            prepared = prepare(entry.text)
        except InputError as error:
            if strict:
                raise InputError(f"{corpus.name}, {entry.where}: {error}") from None
            report(f"{entry.where}: {error}")
        else:
            yield entry.where, prepared


def open_corpus(asked: TextsOptions, *, chat: bool = False) -> Corpus:
    """The corpus that options name; a line of chats is read whole."""
    from attnscope.storage.corpus import read_corpus

    assert asked.texts is not None
    return read_corpus(asked.texts, None if chat else asked.field)


def prepare_corpus(model: Model, asked: TextsOptions, source: SourceOptions) -> Iterator[ModelInput]:
    """The first texts of a corpus, prepared for a model; unreadable ones are reported and left out."""
    from attnscope.questions.loss import MEAN_TEXTS

    first = replace(asked, limit=asked.limit or MEAN_TEXTS)
    read = text_reader(model, source)
    return (prepared for _, prepared in each_text(first, read, strict=False, chat=source.chat))


def text_reader(model: Model, source: SourceOptions) -> Callable[[str], ModelInput]:
    """Prepares one text of a corpus as the options ask."""
    from attnscope.models.inputs import Limit

    read = model.prepare_chat if source.chat else model.prepare
    return partial(read, limit=Limit(source.max_tokens, source.truncate))


def measure_corpus(
    asked: CorpusOptions,
    source: SourceOptions,
    load: Callable[[], Model],
    selection: Selection,
    names: tuple[str, ...],
    **more: Any,
) -> Stats:
    """The figures of a corpus as the options ask, with a progress bar; ``more`` goes to ``corpus_stats``."""
    from attnscope.questions.corpus import corpus_stats

    corpus = open_corpus(asked, chat=source.chat)
    model = load()
    with corpus_run(source, asked, corpus.size) as run:
        return corpus_stats(model, corpus, selection, names=names, run=run, **more)


@contextmanager
def corpus_run(source: SourceOptions, asked: Any, size: int) -> Iterator[CorpusRun]:
    """The settings of a run, with a bar and tokens per second on a terminal; Ctrl-C says how to resume.

    ``asked`` are options with a ``limit``, ``strict`` and a ``checkpoint``.
    """
    from attnscope.questions.corpus import CorpusRun

    start, before = time.monotonic(), list[int]()  # the tokens that an earlier run read, in a checkpoint
    with progress_bar() as draw:

        def watch(progress: Progress) -> None:
            if draw is None:
                return
            before.append(progress.tokens)
            pace = (progress.tokens - before[0]) / max(time.monotonic() - start, 1e-9)
            done = max(progress.done / max(size, 1), progress.texts / asked.limit if asked.limit else 0)
            draw(done, f"{progress.texts:,} texts  {progress.tokens:,} tokens  {pace:,.0f} tokens/s")

        try:
            yield CorpusRun(
                **{name: getattr(source, name) for name in ("max_tokens", "truncate", "chat")},
                **{name: getattr(asked, name) for name in ("limit", "strict", "checkpoint")},
                report=reporter(),
                watch=watch,
            )
        except KeyboardInterrupt:
            resumed = f"the same command resumes from {asked.checkpoint}"
            stop("give --checkpoint FILE to resume" if asked.checkpoint is None else resumed)


def reporter() -> Callable[[str], None]:
    """Reports what is wrong with the first few unreadable texts."""
    numbers = count(1)

    def report(sentence: str) -> None:
        number = next(numbers)
        if number <= MOST_REPORTED:
            warn(f"skipped {visible(sentence)}")
        elif number == MOST_REPORTED + 1:
            warn("more texts are skipped, counted but not listed")

    return report
