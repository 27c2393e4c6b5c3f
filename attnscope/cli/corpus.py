"""Many texts on the command line: which, how they are read, and a run over them with its progress."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from glob import glob
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import Option

from attnscope.cli.command import (
    Group,
    Often,
    fields_of,
    is_typed,
    refuse,
    refuse_combined,
    refuse_typed,
    refuse_without,
)
from attnscope.cli.messages import notify, progress_bar, stop, warn
from attnscope.cli.options import MANY, ModelOptions, SourceOptions
from attnscope.cli.source import load_model
from attnscope.errors import InputError
from attnscope.text import visible

if TYPE_CHECKING:
    from attnscope.models import Model, ModelInput
    from attnscope.questions.corpus import CorpusRun, Progress
    from attnscope.questions.selection import Selection
    from attnscope.questions.stats import Stats
    from attnscope.storage.corpus import Corpus

Prepared = TypeVar("Prepared")

MOST_REPORTED_TEXTS = 20  # unreadable texts that are reported one by one; further ones are only counted

MERGED = "the sums have been measured"
FIELD = "names a field of .jsonl, or a column of .parquet"


class TextsOptions(Group):
    """A corpus, or the first texts of one."""

    panel = MANY
    settable = "field limit"
    needed = "texts"  # one of which limit, strict, checkpoint and field are about
    texts: Annotated[
        str | None,
        Often(
            help="A corpus: .txt (a text a line), .jsonl, .parquet, .gz, a folder, 'a*.jsonl', - or hf://NAME."
        ),
    ] = None
    field: Annotated[str, Option(help="The .jsonl field or .parquet column that holds the text.")] = "text"
    limit: Annotated[int | None, Option(help="Stop after N texts.", min=1)] = None

    def __post_init__(self) -> None:
        refuse_without(("limit strict checkpoint", self.needed), ("field", "texts"))
        plain = self.texts is not None and self.texts.lower().endswith((".txt", ".txt.gz", ".txt.zst"))
        refuse(is_typed("field") and plain, "--field", FIELD)

    @property
    def path(self) -> Path | None:
        """The corpus as a path, which describes what was read."""
        return None if self.texts is None else Path(self.texts)


class CorpusOptions(TextsOptions):
    """A corpus that is measured as a whole; the run can be stopped and resumed, or shared."""

    panel = MANY
    strict: Annotated[bool, Option(help="Stop at a text that cannot be read; default: skip it.")] = False
    checkpoint: Annotated[Path | None, Option(help="Save the sums in a file; the same command resumes.")] = (
        None
    )
    shard: Annotated[
        str | None, Option(help="Measure part I of N of the texts; see --merge.", metavar="I/N")
    ] = None
    merge: Annotated[
        str | None, Option(help="Add up the sums of all shards: 'sums-*.json'.", metavar="FILES")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_without(("shard", "checkpoint"))
        parse_shard(self.shard)

    @property
    def many(self) -> bool:
        """Whether many texts are measured, or their sums are merged."""
        return self.texts is not None or self.merge is not None


def parse_shard(shard: str | None) -> tuple[int, int]:
    """The number of a shard, and of how many. Raises wrong usage."""
    if shard is None:
        return 1, 1
    from attnscope.questions.corpus import MOST_SHARDS

    match = re.fullmatch(r"(\d{1,3})/(\d{1,3})", shard, re.ASCII)
    number, count = map(int, match.groups()) if match else (0, 0)
    words = f"{shard!r:.40} is no part of the texts: write I/N, 1/8 to 8/8, of up to {MOST_SHARDS}"
    refuse(not 1 <= number <= count <= MOST_SHARDS, "--shard", words)
    return number, count


def find_sums(pattern: str, *groups: Any) -> tuple[Path, ...]:
    """The files of sums that --merge names. Raises wrong usage for typed options of these groups."""
    refuse_typed(fields_of(*groups), f"cannot be combined with --merge: {MERGED}")
    paths = [pattern] if Path(pattern).exists() else sorted(glob(pattern))
    refuse(not paths, "--merge", f"no file matches {pattern}")
    return tuple(map(Path, paths))


def check_texts(options: CorpusOptions, source: SourceOptions) -> None:
    """Refuse a text beside a corpus."""
    refuse(
        options.many and source.names_one,
        "--texts" if options.merge is None else "--merge",
        "cannot be combined with a text or another input",
    )


def each_text(
    options: TextsOptions, prepare: Callable[[str], Prepared], *, strict: bool, chat: bool = False
) -> Iterator[tuple[str, Prepared]]:
    """The place of each text, and what ``prepare`` makes of it; skips unreadable ones unless ``strict``."""
    corpus, report = open_corpus(options, chat=chat), reporter()
    for entry in islice(corpus.entries(), options.limit):
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


def open_corpus(options: TextsOptions, *, chat: bool = False) -> Corpus:
    """The corpus that options name; a line of chats is read whole."""
    from attnscope.storage.corpus import read_corpus

    assert options.texts is not None
    piped = options.texts == "-" and not is_typed("field")  # its lines are texts
    corpus = read_corpus(options.texts, None if chat or piped else options.field)
    refuse(is_typed("field") and corpus.field is None and not chat, "--field", FIELD)
    return corpus


def prepare_corpus(model: Model, options: TextsOptions, source: SourceOptions) -> Iterator[ModelInput]:
    """The first texts of a corpus, prepared for a model; unreadable ones are reported and left out."""
    from attnscope.questions.loss import MEAN_TEXTS

    first = replace(options, limit=options.limit or MEAN_TEXTS)
    read = text_reader(model, source)
    return (prepared for _, prepared in each_text(first, read, strict=False, chat=source.chat))


def text_reader(model: Model, source: SourceOptions) -> Callable[[str], ModelInput]:
    """Prepares one text of a corpus as the options ask."""
    from attnscope.models.inputs import Limit
    from attnscope.models.request import InputRequest

    read = model.prepare_chat if source.chat else model.prepare
    limit = Limit(source.max_tokens, source.truncate)
    return lambda text: replace(read(text, limit=limit), request=InputRequest(text=text))


def measure_corpus(
    options: CorpusOptions, source: SourceOptions, model: ModelOptions, selection: Selection, **how: Any
) -> Stats:
    """The scores of a corpus as the options ask, with a progress bar; ``how`` goes to ``corpus_stats``."""
    from attnscope.questions.corpus_stats import corpus_stats, merged_stats

    if options.merge is not None:
        refuse_combined(("texts", "merge", MERGED))
        paths = find_sums(options.merge, source, model)
        how.pop("exact_kernel", None)
        return merged_stats(paths, selection, **how)

    corpus = open_corpus(options, chat=source.chat)
    loaded = load_model(model, predicting=bool(how.get("importance") or how.get("ablation")))
    with corpus_run(source, options, corpus.size) as run:
        return corpus_stats(loaded, corpus, selection, run=run, **how)


@contextmanager
def corpus_run(source: Any, options: Any, size: int) -> Iterator[CorpusRun]:
    """The settings of a run, with a bar and tokens per second on a terminal; Ctrl-C says how to resume."""
    from attnscope.questions.corpus import CorpusRun, EmptyShard

    start, before = time.monotonic(), list[int]()  # the tokens that an earlier run read, in a checkpoint
    with progress_bar() as draw:

        def watch(progress: Progress) -> None:
            if draw is None:
                return
            before.append(progress.tokens)
            pace = (progress.tokens - before[0]) / max(time.monotonic() - start, 1e-9)
            done = max(progress.done / max(size, 1), progress.texts / options.limit if options.limit else 0)
            draw(done, f"{progress.texts:,} texts  {progress.tokens:,} tokens  {pace:,.0f} tokens/s")

        try:
            yield CorpusRun(
                **{name: getattr(source, name) for name in ("max_tokens", "truncate", "chat")},
                **{name: getattr(options, name) for name in ("limit", "strict", "checkpoint")},
                shard=parse_shard(options.shard),
                merge=() if options.merge is None else find_sums(options.merge),
                report=reporter(),
                watch=watch,
            )
        except EmptyShard as error:
            notify(f"{error}: its sums are saved in {options.checkpoint}")
            raise SystemExit(0) from None
        except KeyboardInterrupt:
            resumed = f"the same command resumes from {options.checkpoint}"
            stop("give --checkpoint FILE to resume" if options.checkpoint is None else resumed)


def reporter() -> Callable[[str], None]:
    """Reports what is wrong with the first few unreadable texts."""
    numbers = count(1)

    def report(sentence: str) -> None:
        number = next(numbers)
        if number <= MOST_REPORTED_TEXTS:
            warn(f"skipped {visible(sentence)}")
        elif number == MOST_REPORTED_TEXTS + 1:
            warn("further skipped texts are counted but not listed")

    return report
