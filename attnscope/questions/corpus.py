"""Runs over many texts, shared among threads, processes and machines, with progress and saved sums."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from time import monotonic, thread_time
from types import SimpleNamespace
from typing import Any, NamedTuple

from attnscope.capture import KnownPasses
from attnscope.capture.placing.split_heads import count_parts
from attnscope.errors import InputError
from attnscope.limits import release_memory
from attnscope.models import Model, ModelInput, inputs
from attnscope.models.inputs import Batch, Limit
from attnscope.models.text.tokens import read_unknown, say_unknown
from attnscope.questions.processes import FEW, LostProcess, Sharing, in_order, together, workers
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import pluralize
from attnscope.records import read
from attnscope.storage.checkpoint import fingerprint, read_checkpoint, read_shards, write_checkpoint
from attnscope.storage.corpus import Corpus, CorpusText
from attnscope.text import clean
from attnscope.version import __version__

LISTED_PLACES = 3  # of texts that could not be read, in a note

VERSIONS = [f"{name} {version(name)}" for name in ("torch", "transformers")] + [f"attnscope {__version__}"]

SUMMED_FIELDS = ("texts", "tokens", "notes", "taken", "calls", "layout", "batches")
"""What grows batch by batch; all else is counted again with a window inside which a run resumes."""


@dataclass
class Progress:
    """How far a run is, and notes on its texts."""

    done: int = 0  # in the corpus's own unit
    entries: int = 0  # that were read
    texts: int = 0
    tokens: int = 0
    skipped: int = 0  # texts that could not be read
    places: tuple[tuple[int, str], ...] = ()  # the first of them, with their numbers
    cut: int = 0  # texts that were longer than the model reads
    unknown: int = 0  # tokens that are not in its vocabulary
    lacks: tuple[str, ...] = ()  # how it spells them
    notes: Mapping[str, int] = field(default_factory=dict)  # other notes, and the first text of each
    taken: int = 0  # calls that the fused pass computed
    calls: int = 0
    layout: tuple[str, ...] = ()  # what ran, in words
    batches: tuple[int, ...] = ()  # those of the next window that are already counted
    windows: int = 0  # that are done
    finished: bool = False

    def note(self, notes: Sequence[str], text: int) -> None:
        """Count a text that was cut, and unknown tokens; keep each other note once."""
        for note in notes:
            unknown = read_unknown(note)
            if note.startswith("cut:"):
                self.cut += 1
            elif unknown is not None:
                self.unknown += unknown[0]
                self.lacks = (unknown[1],)
            else:
                self.notes = {**self.notes, note: min(text, self.notes.get(note, text))}

    def merge(self, other: Progress) -> None:
        """Add what another shard has counted; shards are added in their order."""
        for name in ("texts", "tokens", "skipped", "cut", "unknown", "taken", "calls"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.places = tuple(sorted((*self.places, *other.places))[:LISTED_PLACES])
        for note, text in other.notes.items():
            self.note([note], text)
        self.lacks, self.layout = self.lacks or other.lacks, self.layout or other.layout
        self.batches += other.batches

    @property
    def left_out(self) -> tuple[str, ...]:
        """The notes, and how many texts were skipped or cut, in words."""
        notes = sorted(self.notes, key=lambda note: self.notes[note])
        notes += [say_unknown(self.unknown, self.tokens, spelling) for spelling in self.lacks]
        if self.skipped:
            places, more = (place for _, place in self.places), ", ..." * (self.skipped > len(self.places))
            notes.append(f"{pluralize(self.skipped, 'text')} could not be read: {', '.join(places)}{more}")
        if self.cut:
            were = "was" if self.cut == 1 else "were"
            notes.append(f"{pluralize(self.cut, 'text')} {were} cut at the limit of tokens")
        return tuple(notes)

    def describe(self, path: Path | None) -> str:
        """The corpus of this path, and how much of it was read: ``cats.txt: 26 texts, 609 tokens``."""
        name = "" if path is None else "standard input: " if path == Path("-") else f"{clean(path.name)}: "
        return f"{name}{pluralize(self.texts, 'text')}, {pluralize(self.tokens, 'token')}"


@dataclass(frozen=True, kw_only=True)
class CorpusRun:
    """How the texts of a corpus are read, and what is reported and saved meanwhile."""

    limit: int | None = None  # most texts
    max_tokens: int | None = None  # that are read of each
    truncate: bool = False  # whether a text that is longer than the model's positions is cut
    chat: bool = False
    strict: bool = False  # whether an unreadable text raises ``InputError``; else ``report`` gets its place
    checkpoint: Path | None = None  # of the sums; a run that finds it resumes to bit-identical sums
    shard: tuple[int, int] = (1, 1)  # which part of the texts is read, of how many
    merge: tuple[Path, ...] = ()  # the sums of all shards, which are added up in place of a run
    report: Callable[[str], None] = lambda sentence: None
    watch: Callable[[Progress], None] = lambda progress: None  # gets the progress after every batch

    @property
    def notes(self) -> tuple[str, ...]:
        """That the answer is about one shard, if it is."""
        number, count = self.shard
        return () if count == 1 else (f"shard {number} of {count}: --merge adds up the sums of all",)


WINDOW_TEXTS = 8192
WINDOW_CHARACTERS = 1 << 20
"""Texts per window, among which equal lengths are batched, limited by number and size."""


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


MOST_SHARDS = 128  # the texts of so many windows are held at a time


Window = list[CorpusText]


def deal(stream: Iterable[Window], count: int, begun: int) -> Iterator[tuple[Window, bool]]:
    """Each window, and whether it is dealt whole: each shard gets one of a full round.

    The windows of the last round, which is not full, are shared batch by batch. ``begun`` windows are done.
    """
    stream = iter(stream)
    while dealt := list(islice(stream, count - begun % count)):
        whole = (begun + len(dealt)) % count == 0
        yield from ((window, whole) for window in dealt)
        begun += len(dealt)


RELEASING_SECONDS = 1.0  # of processor time after which free memory is given back again, in some 10 ms
SAVING_SECONDS = 20.0  # after which the sums are saved again, once the running batches have ended


class ReadText(NamedTuple):
    """A text, as the model reads it, and its number in the corpus from 1."""

    entry: CorpusText
    prepared: ModelInput
    number: int


BatchResult = tuple[Any, int, int, Sequence[str]]  # sums, calls of the fused pass, of all, and notes


class Job(NamedTuple):
    """A batch of a window, its number there, what is planned for it, and the number of its first text."""

    number: int
    batch: Batch
    plan: Any
    text: int


@dataclass
class Increment:
    """What some batches of a window add to the sums and to the progress."""

    sums: Any
    progress: Progress

    def merge(self, other: Increment) -> None:
        """Add other batches."""
        self.sums.merge(other.sums)
        self.progress.merge(other.progress)


@dataclass
class CorpusWork(ABC):
    """One pass over many texts: what all batches share, and the sums so far in ``total``."""

    model: Model
    source: Corpus
    selection: Selection
    run: CorpusRun
    total: Any
    progress: Progress = field(default_factory=Progress, init=False)
    begun: Progress = field(default_factory=Progress, init=False)  # before the window that is being read
    known_passes: KnownPasses = field(default_factory=KnownPasses, init=False)

    @abstractmethod
    def measure_batch(self, batch: Batch, plan: Any) -> BatchResult:
        """One forward pass of a batch, and what it adds to the sums, computed in any process."""

    def inputs(self, entries: Sequence[CorpusText]) -> list[tuple[str, ...]]:
        """The model's input for each text."""
        return [(entry.text,) for entry in entries]

    def plan_batch(self, texts: Sequence[ReadText]) -> Any:
        """The work on a batch, determined in the order of the batches before any of them runs."""
        return None

    def walk(self, settings: Mapping[str, Any], restore: Callable[[Mapping[str, Any]], Any]) -> None:
        """Put every text through the model once, resuming from a checkpoint if there is one.

        ``settings`` identify this run among others on the same model and heads, ``restore`` makes sums
        from their saved ``state``. Raises ``InputError`` if no text can be read. Processes of torchrun share
        the batches; sums do not depend on their order. Of several shards, only one is read; its batches are
        those of the whole run. With ``run.merge``, the sums of all shards are read instead.
        """
        run, identity = self.run, self.identity(settings)
        if run.merge:
            self.total, self.progress, _ = merge_shards(run.merge, identity, lambda _, sums: restore(sums))
            return
        identity["shard"] = run.shard if run.shard[1] > 1 else None
        with together(count_parts(self.model.module)) as sharing:
            if not self.source.repeatable and (run.checkpoint or sharing.count > 1):
                raise InputError(f"{self.source.name} cannot be resumed or shared: save it to a file")
            path = run.checkpoint if sharing.first else None
            saved = sharing.share("saved", None if path is None else read_checkpoint(path, identity))
            if saved is not None:
                self._resume(saved, restore)
            about = asdict(Measured.of(self.model, self.source))
            saved_at, released_at = monotonic(), thread_time()

            def save(path: Path) -> None:
                state = {"sums": self.total.state(), "progress": asdict(self.reached), "about": about}
                write_checkpoint(path, identity, state)

            try:
                for _ in self._run(sharing):
                    if path and (self.begun is self.progress or monotonic() - saved_at >= SAVING_SECONDS):
                        save(path)
                        saved_at = monotonic()
                    if thread_time() - released_at >= RELEASING_SECONDS:
                        release_memory()
                        released_at = thread_time()
            except LostProcess as lost:
                self._add(sharing)
                if path is None:
                    raise LostProcess(f"{lost}; --checkpoint FILE saves what the others measure") from None
                save(path)
                saved = f"{pluralize(self.reached.texts, 'text')} saved in {path}"
                raise LostProcess(f"{lost}; {saved}, and the same command goes on from there") from None
            self.total, self.progress = sharing.share("sums", (self.total, self.progress))
        if not self.progress.texts:
            sentence = f"{self.source.name} holds no text that {self.model.name} can read"
            raise NoTexts(sentence) if run.shard[1] == 1 else EmptyShard(f"{sentence} in this shard")

    def identity(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What sums are of, besides the shard."""
        run, model = self.run, self.model
        return {
            "model": fingerprint(model.module) if run.checkpoint or run.merge else "",
            "selection of heads": asdict(self.selection),
            "limit": [run.limit, run.max_tokens, run.truncate, run.chat],
            "weighting": None if model.weighting == "raw" else model.weighting,
            "mixers": model.mixers,
            "channel": model.channel,
            "version": VERSIONS,
            **settings,
        }

    @property
    def reached(self) -> Progress:
        """How to go on with the sums as they are."""
        grown = {name: getattr(self.progress, name) for name in SUMMED_FIELDS}
        return self.progress if self.begun is self.progress else replace(self.begun, **grown)

    def _run(self, sharing: Sharing) -> Iterator[None]:
        """Read every window of this shard; yields whenever the sums have more batches."""
        self.begun = self.progress
        left = islice(self.source.entries(), self.progress.entries, self.run.limit)
        for window, whole in deal(windows(left), self.run.shard[1], self.progress.windows):
            if whole and not self._own:  # another shard's
                self.progress.entries += len(window)
                self.progress.done = window[-1].done
                self.progress.windows += 1
            else:
                yield from self._window(window, sharing, slice(None) if whole else self._share)
        self.progress.finished = True
        yield

    @property
    def _own(self) -> bool:
        """Whether the next window is this shard's: whole, or at least to count the texts in it."""
        number, count = self.run.shard
        return self.progress.windows % count == number - 1

    @property
    def _share(self) -> slice:
        """Which batches of a window are this shard's, if it is shared."""
        number, count = self.run.shard
        return slice(number - 1, None, count)

    def _resume(self, saved: Mapping[str, Any], restore: Callable[[Mapping[str, Any]], Any]) -> None:
        problem = f"{self.run.checkpoint} is no checkpoint of this run: delete it, or name another file"
        self.total, self.progress, _ = _restore(saved, restore, problem)
        self.progress.finished = False

    def _window(self, window: list[CorpusText], sharing: Sharing, share: slice) -> Iterator[None]:
        """Do this shard's share of a window, with other processes; yields whenever the sums have more."""
        progress, begun = self.progress, replace(self.progress)
        self.begun = begun
        jobs = self._jobs(window, sharing)[share]
        progress.batches = tuple(job.number for job in jobs if job.number in begun.batches)
        left = [job for job in jobs if job.number not in progress.batches]
        tokens = sum(job.batch.tokens for job in left)
        for part in self._measure(left, sharing):
            sharing.give(part)
            self._add(sharing)
            share_done = (progress.tokens - begun.tokens) / tokens
            progress.done = begun.done + int((window[-1].done - begun.done) * share_done)
            self.run.watch(progress)
            yield
            sharing.check()
        sharing.hand_over()
        while sharing.first and len(progress.batches) < len(jobs):
            sharing.wait()
            self._add(sharing)
            yield
        progress.done, progress.batches = window[-1].done, ()
        progress.windows += 1
        self.begun = progress
        yield

    def _jobs(self, window: list[CorpusText], sharing: Sharing) -> list[Job]:
        """The texts of a window in batches; the inputs of single texts are freed."""
        read, jobs = list(self._read(window, sharing)), []
        for number, batch in enumerate(inputs.batches(text.prepared for text in read)):
            texts = [read[place] for place in batch.numbers]
            jobs.append(Job(number, batch, self.plan_batch(texts), texts[0].number))
        return jobs

    def _measure(self, jobs: Sequence[Job], sharing: Sharing) -> Iterator[Increment]:
        """The results of those batches that no other process takes."""
        # a longer text is work for all threads
        whole = all(job.batch.tokens <= inputs.BATCH_TOKENS for job in jobs)
        count = workers(self.model, len(jobs) // sharing.count) if whole else 1
        some = len(jobs) if sharing.count == 1 else 1 if count == 1 else FEW * count
        for start in sharing.places(f"window {self.progress.windows}", len(jobs), some):
            with closing(in_order(self._measure_job, jobs[start : start + some], count)) as parts:
                yield from parts

    def _measure_job(self, job: Job) -> Increment:
        sums, fused, calls, notes = self.measure_batch(job.batch, job.plan)
        texts, tokens, layout = job.batch.texts, job.batch.tokens, self.progress.layout
        progress = Progress(texts=texts, tokens=tokens, taken=fused, calls=calls, layout=layout)
        progress.batches = (job.number,)
        progress.note(notes, job.text)
        return Increment(sums, progress)

    def _add(self, sharing: Sharing) -> None:
        """Add what this process and others have measured since the last time."""
        for part in sharing.received():
            self.total.merge(part.sums)
            self.progress.merge(part.progress)

    def _read(self, window: Sequence[CorpusText], sharing: Sharing) -> Iterator[ReadText]:
        """The texts of a window as the model reads them, without unreadable ones."""
        inputs = self.inputs([entry for entry in window if not entry.fault])
        limit = Limit(self.run.max_tokens, self.run.truncate)
        prepared_texts, own = iter(self.model.prepare_all(inputs, limit, chat=self.run.chat)), self._own
        for entry in window:
            self.progress.entries += 1
            prepared = InputError(entry.fault) if entry.fault else next(prepared_texts)
            if not isinstance(prepared, InputError):
                self.progress.note(prepared.notes if own else (), self.progress.entries)
                yield ReadText(entry, prepared, self.progress.entries)
                continue
            if self.run.strict:
                raise InputError(f"{self.source.name}, {entry.where}: {prepared}")
            if not own:
                continue
            self.progress.skipped += 1
            place = self.progress.entries, entry.where
            self.progress.places = (*self.progress.places, place)[:LISTED_PLACES]
            if sharing.first:
                self.run.report(f"{entry.where}: {prepared}")


class NoTexts(InputError):
    """Nothing of a corpus can be read."""


class EmptyShard(NoTexts):
    """A shard has no text, as a corpus may have fewer batches than shards; its sums are saved."""


@dataclass(frozen=True)
class Measured:
    """What sums are of, for whoever adds them up without the model."""

    name: str
    revision: str | None
    title: str
    notes: tuple[str, ...]
    path: str | None  # of the corpus
    corpus: str

    @classmethod
    def of(cls, model: Model, source: Corpus) -> Measured:
        """The model and the corpus of a run."""
        path, revision = getattr(source, "path", None), getattr(model, "revision", None)
        notes = tuple(model.notes)
        return cls(model.name, revision, model.title, notes, None if path is None else str(path), source.name)

    @property
    def model(self) -> Any:
        """What describes the model in an answer."""
        return SimpleNamespace(name=self.name, revision=self.revision)


Restored = tuple[Any, Progress, Any]


def _restore(saved: Mapping[str, Any], restore: Callable[[Mapping[str, Any]], Any], problem: str) -> Restored:
    """What a checkpoint holds. Raises ``InputError`` with the ``problem`` for anything else."""
    try:
        total, progress = restore(saved["sums"]), read(Progress, saved["progress"])
        counts = [each for each in vars(progress).values() if isinstance(each, int)]
        if min(counts) < 0 or len(progress.layout) not in (0, 2):
            raise ValueError
        return total, progress, read(Measured, saved["about"])
    except MemoryError:
        raise
    except Exception:  # a file may hold anything
        raise InputError(problem) from None


def merge_shards(
    paths: Sequence[Path], identity: Mapping[str, Any], restore: Callable[[Mapping[str, Any], Any], Any]
) -> Restored:
    """The sums of all shards of one run, equal to those of one run over all texts, bit for bit.

    ``restore`` makes sums from the identity and the state of one. Raises ``InputError`` as ``read_shards``.
    """
    merged: Restored | None = None
    for path, of, state in read_shards(paths, identity):
        problem = f"{path} does not hold the sums of this question: name other files"
        total, progress, about = _restore(state, partial(restore, of), problem)
        if merged is None:
            merged = total, progress, about
        else:
            merged[0].merge(total)
            merged[1].merge(progress)
    assert merged is not None
    if not merged[1].texts:
        raise InputError(f"the shards of {merged[2].corpus} hold no text that {merged[2].name} can read")
    return merged
