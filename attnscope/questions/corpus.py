"""Runs over many texts: batches of equal length, shared among threads and processes, with progress."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, zip_longest
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from attnscope.attention import Kind, Token
from attnscope.capture import KnownPasses
from attnscope.errors import AttnscopeError, InputError
from attnscope.models import Model, ModelInput
from attnscope.models.inputs import Limit
from attnscope.models.text.tokens import read_unknown, say_unknown
from attnscope.questions.processes import Processes, in_order, together, workers
from attnscope.questions.selection import Selection
from attnscope.records import read
from attnscope.storage.corpus import Corpus, CorpusText
from attnscope.storage.files import fingerprint, read_checkpoint, write_checkpoint

NAMED = 3  # places of omitted texts that a note names


@dataclass
class Progress:
    """How far a run is, and notes on its texts."""

    done: int = 0  # in the corpus's own unit
    entries: int = 0  # that were read
    texts: int = 0
    tokens: int = 0
    skipped: int = 0  # texts that could not be read
    places: tuple[str, ...] = ()  # the first of them
    cut: int = 0  # texts that were longer than the model reads
    unknown: int = 0  # tokens that are not in its vocabulary
    lacks: tuple[str, ...] = ()  # how it spells them
    notes: tuple[str, ...] = ()  # other notes on texts
    taken: int = 0  # calls that the fused pass computed
    calls: int = 0
    layout: tuple[str, ...] = ()  # what ran, in words
    batches: int = 0  # of the next window that are already counted

    def skip(self, where: str) -> None:
        """Count a text that could not be read."""
        self.skipped += 1
        self.places = (*self.places, where)[:NAMED]

    def note(self, notes: Sequence[str]) -> None:
        """Count a text that was cut, and unknown tokens; keep each other note once."""
        for note in notes:
            unknown = read_unknown(note)
            if note.startswith("cut:"):
                self.cut += 1
            elif unknown is not None:
                self.unknown += unknown[0]
                self.lacks = (unknown[1],)
            elif note not in self.notes:
                self.notes += (note,)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The notes, and how many texts were skipped or cut, in words."""
        notes = [*self.notes]
        notes += [say_unknown(self.unknown, self.tokens, spelling) for spelling in self.lacks]
        if self.skipped:
            more = ", ..." if self.skipped > len(self.places) else ""
            notes.append(f"{counted(self.skipped, 'text')} could not be read: {', '.join(self.places)}{more}")
        if self.cut:
            were = "was" if self.cut == 1 else "were"
            notes.append(f"{counted(self.cut, 'text')} {were} cut at the limit of tokens")
        return tuple(notes)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Progress:
        """The progress from a file. Raises ``ValueError`` for anything else."""
        found: Progress = read(cls, state)
        negative = any(isinstance(each, int) and each < 0 for each in vars(found).values())
        if negative or len(found.layout) not in (0, 2):
            raise ValueError("these are no counts")
        return found


def counted(number: int, thing: str) -> str:
    """So many things, in words."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


@dataclass(frozen=True, kw_only=True)
class CorpusRun:
    """How the texts of a corpus are read, and what is told and kept meanwhile."""

    limit: int | None = None  # most texts
    max_tokens: int | None = None  # that are read of each
    truncate: bool = False  # whether a text that is longer than the model's positions is cut
    chat: bool = False
    strict: bool = False  # whether an unreadable text raises ``InputError``; else ``report`` gets its place
    checkpoint: Path | None = None  # of the sums; a run that finds it resumes to bit-identical sums
    report: Callable[[str], None] = lambda sentence: None
    watch: Callable[[Progress], None] = lambda progress: None  # gets the progress after every batch


WINDOW_TEXTS = 8192
WINDOW_CHARACTERS = 1 << 20
"""Texts per window, among which equal lengths are batched, limited by number and size."""

BATCH_TOKENS = 4096  # tokens per pass: enough to keep the processor busy, few enough for its caches


class Batch(NamedTuple):
    """Texts of one length: what the model reads, and the tokens of the queries and keys of each text."""

    prepared: ModelInput
    labels: Mapping[Kind, tuple[Sequence[Sequence[Token]], Sequence[Sequence[Token]]]]
    texts: int
    tokens: int
    numbers: Sequence[int] = ()  # of the texts that were put into batches


def windows(entries: Iterable[CorpusText]) -> Iterator[list[CorpusText]]:
    """Split a stream of texts into windows."""
    window: list[CorpusText] = []
    characters = 0
    for entry in entries:
        window.append(entry)
        characters += len(entry.text)
        if len(window) == WINDOW_TEXTS or characters >= WINDOW_CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window


def batches(prepared: Iterable[ModelInput]) -> list[Batch]:
    """The texts in batches, longest first; the same texts always make the same batches."""
    alike: dict[tuple[object, ...], list[tuple[int, ModelInput]]] = {}
    for number, one in enumerate(prepared):
        shapes = [(name, tensor.shape) for name, tensor in one.inputs.items()]
        shape = (len(one.tokens), *shapes, *(tensor.shape for tensor in one.arguments))
        alike.setdefault(shape, []).append((number, one))
    groups = sorted(alike.values(), key=lambda group: -len(group[0][1].tokens))
    made = []
    for group in groups:
        size = max(1, BATCH_TOKENS // len(group[0][1].tokens))
        for start in range(0, len(group), size):
            numbers, texts = zip(*group[start : start + size], strict=True)
            made.append(join_texts(texts)._replace(numbers=numbers))
    return made


def join_texts(texts: Sequence[ModelInput]) -> Batch:
    """One batch of texts whose inputs have the same shapes."""
    import torch

    first = texts[0]
    inputs = {name: torch.cat([text.inputs[name] for text in texts]) for name in first.inputs}
    arguments = tuple(torch.cat(parts) for parts in zip(*(text.arguments for text in texts), strict=True))
    labels: dict[Kind, tuple[Sequence[Sequence[Token]], Sequence[Sequence[Token]]]] = {}
    for kind in first.axes:
        axes = [text.axes[kind] for text in texts]
        queries = [queries for queries, _ in axes if not isinstance(queries, range)]
        keys = [keys for _, keys in axes if not isinstance(keys, range)]
        if len(queries) == len(keys) == len(texts):
            one_sequence = all(queries is keys for queries, keys in axes)  # then their facts are had once
            labels[kind] = (queries, queries) if one_sequence else (queries, keys)
    tokens = tuple(token for text in texts for token in text.tokens)
    prepared = ModelInput(inputs, {}, tokens, settings=first.settings, arguments=arguments)
    return Batch(prepared, labels, len(texts), len(tokens))


ROUND = 4  # batches per process after which several processes combine their sums
EVERY = 20.0  # seconds after which the sums are saved again, once the running batches have ended


class ReadText(NamedTuple):
    """A text, as the model reads it, and its number in the corpus from 1."""

    entry: CorpusText
    prepared: ModelInput
    number: int


@dataclass
class CorpusWork(ABC):
    """One pass over many texts: what all batches share, and the sums so far in ``total``."""

    model: Model
    source: Corpus
    selection: Selection
    run: CorpusRun
    total: Any
    progress: Progress = field(default_factory=Progress, init=False)
    known: KnownPasses = field(default_factory=KnownPasses, init=False)

    @abstractmethod
    def share(self, batch: Batch, asked: Any) -> Any:
        """One forward pass of a batch, and what it adds to the sums, computed in any process."""

    @abstractmethod
    def add(self, share: Any) -> None:
        """Add it, in the order of the batches, whatever the number of processes."""

    def inputs(self, entries: Sequence[CorpusText]) -> list[tuple[str, ...]]:
        """The model's input for each text."""
        return [(entry.text,) for entry in entries]

    def ask(self, texts: Sequence[ReadText]) -> Any:
        """The work on a batch, determined in the order of the batches before any of them runs."""
        return None

    def walk(self, asked: Mapping[str, Any], restore: Callable[[Mapping[str, Any]], Any]) -> None:
        """Put every text through the model once, resuming from a checkpoint if there is one.

        ``asked`` identifies this run among others on the same model and heads, ``restore`` makes sums
        from their saved ``state``. Raises ``InputError`` if no text can be read. Processes of torchrun share
        the batches, and add all of them in the same order, so the sums are bit-identical.
        """
        run, model = self.run, self.model
        identity = {
            "model": fingerprint(model.module) if run.checkpoint else "",
            "selection of heads": asdict(self.selection),
            "limit": [run.limit, run.max_tokens, run.truncate, run.chat],
            "weighing": None if model.weigh == "raw" else model.weigh,
            **asked,
        }
        with together() as processes:
            path = run.checkpoint if processes.number == 0 else None
            found = processes.broadcast(None if path is None else read_checkpoint(path, identity))
            if found is not None:
                self._resume(found, restore)
            written = monotonic()
            for window in windows(islice(self.source.entries(), self.progress.entries, run.limit)):
                for reached in self._window(window, processes):
                    if path and (reached is self.progress or monotonic() - written >= EVERY):
                        state = {"sums": self.total.state(), "progress": asdict(reached)}
                        write_checkpoint(path, identity, state)
                        written = monotonic()
            if processes.count > 1:
                self.total, self.progress = processes.broadcast((self.total, self.progress))
        if not self.progress.texts:
            raise InputError(f"{self.source.name} holds no text that {model.name} can read")

    def _resume(self, found: Mapping[str, Any], restore: Callable[[Mapping[str, Any]], Any]) -> None:
        try:
            self.total, self.progress = restore(found["sums"]), Progress.from_state(found["progress"])
        except (
            AttnscopeError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
        ):  # fmt: skip
            raise InputError(
                f"{self.run.checkpoint} holds sums that this command never wrote: "
                "delete it, or name another file"
            ) from None

    def _window(self, window: list[CorpusText], processes: Processes) -> Iterator[Progress]:
        """Do this process's share of a window; yields how to go on whenever the sums have more batches."""
        progress, begun = self.progress, replace(self.progress)
        read = list(self._read(window, processes))
        made = batches(text.prepared for text in read)
        jobs = [(batch, self.ask([read[number] for number in batch.numbers])) for batch in made]
        every = sum(batch.tokens for batch in made)
        passed = sum(batch.tokens for batch in made[: begun.batches])
        left = jobs[begun.batches :]
        mine = left[processes.number :: processes.count]
        round_ = processes.count * (ROUND if processes.count > 1 else 1)
        whole = all(batch.tokens <= BATCH_TOKENS for batch in made)  # a longer text is work for all threads
        count = workers(self.model, len(mine)) if whole else 1
        with closing(in_order(lambda job: self.share(*job), mine, count)) as results:
            for start in range(0, len(left), round_):
                shares = []
                for number, (batch, _) in enumerate(left[start : start + round_]):
                    if number % processes.count == processes.number:
                        shares.append(next(results))
                    passed += batch.tokens
                    progress.texts += batch.texts
                    progress.tokens += batch.tokens
                    progress.done = begun.done + (window[-1].done - begun.done) * passed // every
                    self.run.watch(progress)
                for each in zip_longest(*processes.gather(shares)):
                    for share in filter(None, each):
                        self.add(share)
                yield replace(
                    begun,
                    texts=progress.texts,
                    tokens=progress.tokens,
                    notes=progress.notes,
                    taken=progress.taken,
                    calls=progress.calls,
                    layout=progress.layout,
                    batches=begun.batches + start + round_,
                )
        progress.done, progress.batches = window[-1].done, 0
        yield progress

    def _read(self, window: Sequence[CorpusText], processes: Processes) -> Iterator[ReadText]:
        """The texts of a window as the model reads them, without unreadable ones."""
        inputs = self.inputs([entry for entry in window if not entry.fault])
        limit = Limit(self.run.max_tokens, self.run.truncate)
        made = iter(self.model.prepare_all(inputs, limit, chat=self.run.chat))
        for entry in window:
            self.progress.entries += 1
            prepared = InputError(entry.fault) if entry.fault else next(made)
            if not isinstance(prepared, InputError):
                self.progress.note(prepared.notes)
                yield ReadText(entry, prepared, self.progress.entries)
                continue
            if self.run.strict:
                raise InputError(f"{self.source.name}, {entry.where}: {prepared}")
            self.progress.skip(entry.where)
            if processes.number == 0:
                self.run.report(f"{entry.where}: {prepared}")
