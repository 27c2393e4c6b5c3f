"""Runs over many texts, shared among threads and processes, with progress; scores of every head over them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from itertools import islice, zip_longest
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any, NamedTuple

from attnscope.capture import FUSED, KnownPasses, Record
from attnscope.errors import InputError
from attnscope.measures import DEFAULT, Measurement, settle_roles
from attnscope.models import Model, ModelInput, inputs
from attnscope.models.inputs import Batch, Limit
from attnscope.models.targets import note_repeats
from attnscope.models.text.tokens import read_unknown, say_unknown
from attnscope.questions.loss import HeadSums, MeanOutputs, Way, corpus_means, describe_way, predicted_side
from attnscope.questions.processes import Processes, in_order, together, workers
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import describe_kernels, extent, pluralize, require_selected
from attnscope.questions.stats import Stats, count_fused, measuring_pass, with_predictions
from attnscope.records import read
from attnscope.storage.checkpoint import fingerprint, read_checkpoint, read_shards, write_checkpoint
from attnscope.storage.corpus import Corpus, CorpusText
from attnscope.version import __version__

LISTED_PLACES = 3  # of texts that could not be read, in a note

VERSIONS = [f"{name} {version(name)}" for name in ("torch", "transformers")] + [f"attnscope {__version__}"]

SUMMED_FIELDS = ("texts", "tokens", "notes", "taken", "calls", "layout")
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
    notes: tuple[str, ...] = ()  # other notes on texts
    taken: int = 0  # calls that the fused pass computed
    calls: int = 0
    layout: tuple[str, ...] = ()  # what ran, in words
    batches: int = 0  # of the next window that are already counted
    windows: int = 0  # that are done
    finished: bool = False

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

    def merge(self, other: Progress) -> None:
        """Add what another shard has counted; shards are added in their order."""
        for name in ("texts", "tokens", "skipped", "cut", "unknown", "taken", "calls"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.places = tuple(sorted((*self.places, *other.places))[:LISTED_PLACES])
        self.notes += tuple(note for note in other.notes if note not in self.notes)
        self.lacks, self.layout = self.lacks or other.lacks, self.layout or other.layout

    @property
    def left_out(self) -> tuple[str, ...]:
        """The notes, and how many texts were skipped or cut, in words."""
        notes = [*self.notes]
        notes += [say_unknown(self.unknown, self.tokens, spelling) for spelling in self.lacks]
        if self.skipped:
            places, more = (place for _, place in self.places), ", ..." * (self.skipped > len(self.places))
            notes.append(f"{pluralize(self.skipped, 'text')} could not be read: {', '.join(places)}{more}")
        if self.cut:
            were = "was" if self.cut == 1 else "were"
            notes.append(f"{pluralize(self.cut, 'text')} {were} cut at the limit of tokens")
        return tuple(notes)


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


ROUND_BATCHES = 4  # per process, after which several processes combine their sums
SAVING_SECONDS = 20.0  # after which the sums are saved again, once the running batches have ended


class ReadText(NamedTuple):
    """A text, as the model reads it, and its number in the corpus from 1."""

    entry: CorpusText
    prepared: ModelInput
    number: int


BatchResult = tuple[Any, int, int, Sequence[str]]  # sums, calls of the fused pass, of all, and notes


@dataclass
class CorpusWork(ABC):
    """One pass over many texts: what all batches share, and the sums so far in ``total``."""

    model: Model
    source: Corpus
    selection: Selection
    run: CorpusRun
    total: Any
    progress: Progress = field(default_factory=Progress, init=False)
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
        with together() as processes:
            if not self.source.repeatable and (run.checkpoint or processes.count > 1):
                raise InputError(f"{self.source.name} cannot be resumed or shared: save it to a file")
            path = run.checkpoint if processes.number == 0 else None
            saved = processes.broadcast(None if path is None else read_checkpoint(path, identity))
            if saved is not None:
                self._resume(saved, restore)
            about, saved_at = asdict(Measured.of(self.model, self.source)), monotonic()
            for reached in self._run(processes):
                if path and (reached is self.progress or monotonic() - saved_at >= SAVING_SECONDS):
                    state = {"sums": self.total.state(), "progress": asdict(reached), "about": about}
                    write_checkpoint(path, identity, state)
                    saved_at = monotonic()
            if processes.count > 1:
                self.total, self.progress = processes.broadcast((self.total, self.progress))
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
            "version": VERSIONS,
            **settings,
        }

    def _run(self, processes: Processes) -> Iterator[Progress]:
        """Read every window of this shard; yields how to go on whenever the sums have more batches."""
        left = islice(self.source.entries(), self.progress.entries, self.run.limit)
        for window, whole in deal(windows(left), self.run.shard[1], self.progress.windows):
            if whole and not self._own:  # another shard's
                self.progress.entries += len(window)
                self.progress.done = window[-1].done
                self.progress.windows += 1
            else:
                yield from self._window(window, processes, slice(None) if whole else self._share)
        self.progress.finished = True
        yield self.progress

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

    def _window(self, window: list[CorpusText], processes: Processes, share: slice) -> Iterator[Progress]:
        """Do this process's share of a window; yields how to go on whenever the sums have more batches."""
        progress, begun = self.progress, replace(self.progress)
        read = list(self._read(window, processes))
        batches = inputs.batches(text.prepared for text in read)
        jobs = [(batch, self.plan_batch([read[number] for number in batch.numbers])) for batch in batches]
        batches, jobs = batches[share], jobs[share]
        tokens = sum(batch.tokens for batch in batches)
        tokens_done = sum(batch.tokens for batch in batches[: begun.batches])
        left = jobs[begun.batches :]
        own = left[processes.number :: processes.count]
        round_ = processes.count * (ROUND_BATCHES if processes.count > 1 else 1)
        # a longer text is work for all threads
        whole = all(batch.tokens <= inputs.BATCH_TOKENS for batch in batches)
        count = workers(self.model, len(own)) if whole else 1
        with closing(in_order(lambda job: self.measure_batch(*job), own, count)) as results:
            for start in range(0, len(left), round_):
                shares = []
                for number, (batch, _) in enumerate(left[start : start + round_]):
                    if number % processes.count == processes.number:
                        shares.append(next(results))
                    tokens_done += batch.tokens
                    progress.texts += batch.texts
                    progress.tokens += batch.tokens
                    progress.done = begun.done + (window[-1].done - begun.done) * tokens_done // tokens
                    self.run.watch(progress)
                for each in zip_longest(*processes.gather(shares)):
                    for sums, fused, calls, notes in filter(None, each):  # in the order of the batches
                        self.total.merge(sums)
                        progress.taken += fused
                        progress.calls += calls
                        progress.note(notes)
                grown = {name: getattr(progress, name) for name in SUMMED_FIELDS}
                yield replace(begun, **grown, batches=begun.batches + start + round_)
        progress.done, progress.batches = window[-1].done, 0
        progress.windows += 1
        yield progress

    def _read(self, window: Sequence[CorpusText], processes: Processes) -> Iterator[ReadText]:
        """The texts of a window as the model reads them, without unreadable ones."""
        inputs = self.inputs([entry for entry in window if not entry.fault])
        limit = Limit(self.run.max_tokens, self.run.truncate)
        prepared_texts, own = iter(self.model.prepare_all(inputs, limit, chat=self.run.chat)), self._own
        for entry in window:
            self.progress.entries += 1
            prepared = InputError(entry.fault) if entry.fault else next(prepared_texts)
            if not isinstance(prepared, InputError):
                self.progress.note(prepared.notes if own else ())
                yield ReadText(entry, prepared, self.progress.entries)
                continue
            if self.run.strict:
                raise InputError(f"{self.source.name}, {entry.where}: {prepared}")
            if not own:
                continue
            self.progress.skipped += 1
            place = self.progress.entries, entry.where
            self.progress.places = (*self.progress.places, place)[:LISTED_PLACES]
            if processes.number == 0:
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


@dataclass
class Totals:
    """Sums over batches, which do not depend on their order."""

    measured: Measurement
    importances: HeadSums = field(default_factory=partial(HeadSums, importance=True))
    removals: HeadSums = field(default_factory=HeadSums)

    def merge(self, other: Totals) -> None:
        """Add another batch."""
        for sums, more in zip(vars(self).values(), vars(other).values(), strict=True):
            sums.merge(more)

    def __reduce__(self) -> tuple[Any, ...]:  # sent by another process
        return Totals.from_state, (self.state(),)

    def state(self) -> dict[str, Any]:
        """The sums as plain lists, which JSON keeps exactly."""
        return {name: sums.state() for name, sums in vars(self).items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], names: Sequence[str] | None = None) -> Totals:
        """What ``state`` wrote down; with ``names`` of measures, anything else raises an error."""
        kinds: dict[str, Any] = {"measured": Measurement, "importances": HeadSums, "removals": HeadSums}
        totals = cls(**{name: kind.from_state(state[name]) for name, kind in kinds.items()})
        if names is not None:
            totals.measured.merge(Measurement(names))  # refuses another set of measures
            for sums in vars(totals).values():
                sums.figures()
        return totals


def corpus_stats(
    model: Model,
    corpus: Corpus,
    selection: Selection | None = None,
    *,
    names: tuple[str, ...] = DEFAULT,
    exact_kernel: bool = False,
    importance: bool = False,
    ablation: Way | None = None,
    run: CorpusRun = CorpusRun(),
) -> Stats:
    """Measure every selected head over all texts of a corpus; each score has its standard error.

    Texts of equal token count go through the model together, without padding, so the scores equal those
    of single texts. The standard error is explained in ``Sums.figures``.
    """
    selection, totals = selection or Selection(), Totals(Measurement(names))
    work = _StatsWork(model, corpus, selection, run, totals, importance, ablation, exact_kernel)
    if ablation == "mean":
        limit = Limit(run.max_tokens, run.truncate)
        work.means = corpus_means(model, islice(corpus.entries(), run.limit), limit)
    settings = {
        "question": "scores",
        "corpus": corpus.fingerprint(),
        "set of measures": list(names),
        "kernel": exact_kernel,
        "importance": importance,
        "ablation": ablation,
    }
    work.walk(settings, lambda state: Totals.from_state(state, names))
    stats = _finish(work.total, work.progress, Measured.of(model, corpus), settings)
    notes = (*stats.notes, *run.notes)
    return replace(stats, notes=notes, read=(model, *stats.read[1:]))


@dataclass
class CorpusSums:
    """The sums of every head over some texts, which add up in any order to those over all of them."""

    total: Totals
    progress: Progress
    about: Measured
    identity: dict[str, Any]  # of the model, its version and the measures

    def __add__(self, other: CorpusSums) -> CorpusSums:
        """The sums over the texts of both. Raises ``InputError`` for sums of another model or measures."""
        differing = [name for name, value in self.identity.items() if other.identity.get(name) != value]
        if differing:
            raise InputError(f"these sums are of another {' and '.join(differing)}: they do not add up")
        total, progress = Totals.from_state(self.total.state()), replace(self.progress)
        total.merge(other.total)
        progress.merge(other.progress)
        return replace(self, total=total, progress=progress)

    def finish(self) -> Stats:
        """The scores of every head. Raises ``NoTexts`` without any."""
        if not self.progress.texts:
            raise NoTexts(f"{self.about.corpus} holds no text that {self.about.name} can read")
        return _finish(self.total, self.progress, self.about, {"importance": False, "ablation": None})


def corpus_sums(
    model: Model, corpus: Corpus, *, names: tuple[str, ...] = DEFAULT, run: CorpusRun = CorpusRun()
) -> CorpusSums:
    """What ``corpus_stats`` makes its scores of, to be added up with the sums of other texts."""
    total = Totals(Measurement(names))
    work = _StatsWork(model, corpus, Selection(), run, total, False, None, False)
    with suppress(NoTexts):  # another part may have some
        work.walk({}, lambda state: Totals.from_state(state, names))
    identity = work.identity({"set of measures": list(names)})
    identity["model"] = fingerprint(model.module)
    return CorpusSums(work.total, work.progress, Measured.of(model, corpus), identity)


def merged_stats(
    paths: Sequence[Path],
    selection: Selection | None = None,
    *,
    names: tuple[str, ...] = DEFAULT,
    importance: bool = False,
    ablation: Way | None = None,
) -> Stats:
    """What ``corpus_stats`` gives, from the sums of all its shards; needs neither the model nor the texts.

    Raises ``InputError`` for files of other sums, and without those of a measure among ``names``.
    """
    asked = {
        "question": "scores",
        "selection of heads": asdict(selection or Selection()),
        "importance": importance,
        "ablation": ablation,
    }

    def restore(of: Mapping[str, Any], state: Any) -> Totals:
        measured = read(tuple[str, ...], of["set of measures"])
        return Totals.from_state(state, measured)

    total, progress, about = merge_shards(paths, asked, restore)
    lacking = [name for name in names if name not in total.measured.measures]
    if lacking:
        raise InputError(f"these sums do not have {', '.join(lacking)}: measure the shards with that option")
    return _finish(total, progress, about, asked)


def _finish(total: Totals, progress: Progress, about: Measured, asked: Mapping[str, Any]) -> Stats:
    """The scores of all sums."""
    importances, removals = total.importances.figures(), total.removals.figures()
    if (asked["importance"] and not importances) or (asked["ablation"] and not removals):
        raise InputError(
            f"{about.corpus} holds nothing that {about.name} predicts: give longer texts, or, "
            "of an encoder-decoder, one text and its target"
        )
    layers, _ = progress.layout or ("", "")
    parts = (about.title, layers, f"{progress.texts:,} texts, {progress.tokens:,} tokens")
    path = None if about.path is None else Path(about.path)
    return Stats(
        settle_roles(with_predictions(list(total.measured.figures()), importances, removals)),
        " · ".join(part for part in parts if part),
        count_fused(progress.taken, progress.calls),
        (*about.notes, *progress.left_out, *describe_way(asked["ablation"])),
        read=(about.model, path, (progress.texts, progress.tokens)),
    )


@dataclass
class _StatsWork(CorpusWork):
    importance: bool
    ablation: Way | None
    exact_kernel: bool
    means: MeanOutputs | None = field(default=None, init=False)

    def measure_batch(self, batch: Batch, plan: None) -> BatchResult:
        """One forward pass of a batch, measured, and those that importance and ablation take."""
        sides = batch.labels.get("encoder") or batch.labels.get("decoder") or ((), ())

        def measure() -> tuple[Measurement, Record]:
            measured = Measurement(tuple(self.total.measured.measures))
            measured.label(batch.labels)
            arguments = (self.model, batch.prepared, measured, self.selection, sides[0])
            return measured, measuring_pass(*arguments, exact_kernel=self.exact_kernel, batched=True)

        measured, record = self.known_passes.run(measure)
        sums = Totals(measured, removals=HeadSums(means=self.means))
        with suppress(InputError):  # nothing to predict: such texts do not count
            if self.importance:
                sums.importances.add(self.model, batch.prepared, batch.labels)
            if self.ablation:
                sums.removals.add(self.model, batch.prepared, batch.labels, self.selection)
        if not self.progress.layout:
            require_selected(measured.figures(), record, self.selection)
            self.progress.layout = extent(record.sites), describe_kernels(record.sites)
        fused = sum(call.kernel == FUSED for call in record.sites)
        predicted = predicted_side(batch.labels) if self.importance or self.ablation else ()
        return sums, fused, len(record.sites), (*record.notes, *note_repeats(self.model, predicted))
