"""Runs over many texts, shared among threads and processes, with progress; scores of every head over them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from time import monotonic
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
from attnscope.storage.corpus import Corpus, CorpusText
from attnscope.storage.files import fingerprint, read_checkpoint, write_checkpoint

LISTED_PLACES = 3  # of texts that could not be read, in a note

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
    places: tuple[str, ...] = ()  # the first of them
    cut: int = 0  # texts that were longer than the model reads
    unknown: int = 0  # tokens that are not in its vocabulary
    lacks: tuple[str, ...] = ()  # how it spells them
    notes: tuple[str, ...] = ()  # other notes on texts
    taken: int = 0  # calls that the fused pass computed
    calls: int = 0
    layout: tuple[str, ...] = ()  # what ran, in words
    batches: int = 0  # of the next window that are already counted

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
            notes.append(
                f"{pluralize(self.skipped, 'text')} could not be read: {', '.join(self.places)}{more}"
            )
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
    report: Callable[[str], None] = lambda sentence: None
    watch: Callable[[Progress], None] = lambda progress: None  # gets the progress after every batch


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
        the batches, and add all of them in the same order, so the sums are bit-identical.
        """
        run, model = self.run, self.model
        identity = {
            "model": fingerprint(model.module) if run.checkpoint else "",
            "selection of heads": asdict(self.selection),
            "limit": [run.limit, run.max_tokens, run.truncate, run.chat],
            "weighting": None if model.weighting == "raw" else model.weighting,
            "mixers": model.mixers,
            **settings,
        }
        with together() as processes:
            if not self.source.repeatable and (run.checkpoint or processes.count > 1):
                raise InputError(f"{self.source.name} cannot be resumed or shared: save it to a file")
            path = run.checkpoint if processes.number == 0 else None
            saved = processes.broadcast(None if path is None else read_checkpoint(path, identity))
            if saved is not None:
                self._resume(saved, restore)
            saved_at = monotonic()
            for window in windows(islice(self.source.entries(), self.progress.entries, run.limit)):
                for reached in self._window(window, processes):
                    if path and (reached is self.progress or monotonic() - saved_at >= SAVING_SECONDS):
                        state = {"sums": self.total.state(), "progress": asdict(reached)}
                        write_checkpoint(path, identity, state)
                        saved_at = monotonic()
            if processes.count > 1:
                self.total, self.progress = processes.broadcast((self.total, self.progress))
        if not self.progress.texts:
            raise InputError(f"{self.source.name} holds no text that {model.name} can read")

    def _resume(self, saved: Mapping[str, Any], restore: Callable[[Mapping[str, Any]], Any]) -> None:
        try:
            self.total, self.progress = restore(saved["sums"]), read(Progress, saved["progress"])
            counts = [each for each in vars(self.progress).values() if isinstance(each, int)]
            if min(counts) < 0 or len(self.progress.layout) not in (0, 2):
                raise ValueError
        except MemoryError:
            raise
        except Exception:  # a file may hold anything
            raise InputError(
                f"{self.run.checkpoint} is no checkpoint of this run: delete it, or name another file"
            ) from None

    def _window(self, window: list[CorpusText], processes: Processes) -> Iterator[Progress]:
        """Do this process's share of a window; yields how to go on whenever the sums have more batches."""
        progress, begun = self.progress, replace(self.progress)
        read = list(self._read(window, processes))
        batches = inputs.batches(text.prepared for text in read)
        jobs = [(batch, self.plan_batch([read[number] for number in batch.numbers])) for batch in batches]
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
        yield progress

    def _read(self, window: Sequence[CorpusText], processes: Processes) -> Iterator[ReadText]:
        """The texts of a window as the model reads them, without unreadable ones."""
        inputs = self.inputs([entry for entry in window if not entry.fault])
        limit = Limit(self.run.max_tokens, self.run.truncate)
        prepared_texts = iter(self.model.prepare_all(inputs, limit, chat=self.run.chat))
        for entry in window:
            self.progress.entries += 1
            prepared = InputError(entry.fault) if entry.fault else next(prepared_texts)
            if not isinstance(prepared, InputError):
                self.progress.note(prepared.notes)
                yield ReadText(entry, prepared, self.progress.entries)
                continue
            if self.run.strict:
                raise InputError(f"{self.source.name}, {entry.where}: {prepared}")
            self.progress.skipped += 1
            self.progress.places = (*self.progress.places, entry.where)[:LISTED_PLACES]
            if processes.number == 0:
                self.run.report(f"{entry.where}: {prepared}")


@dataclass
class Totals:
    """Sums over batches. They are added batch by batch, in one order whatever the number of processes."""

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
        "corpus": corpus.fingerprint(),
        "set of measures": list(names),
        "kernel": exact_kernel,
        "importance": importance,
        "ablation": ablation,
    }
    work.walk(settings, lambda state: Totals.from_state(state, names))
    total, progress = work.total, work.progress
    importances, removals = total.importances.figures(), total.removals.figures()
    if (importance and not importances) or (ablation and not removals):
        raise InputError(
            f"{corpus.name} holds nothing that {model.name} predicts: give longer texts, or, "
            "of an encoder-decoder, one text and its target"
        )
    layers, _ = progress.layout or ("", "")
    parts = (model.title, layers, f"{progress.texts:,} texts, {progress.tokens:,} tokens")
    return Stats(
        settle_roles(with_predictions(list(total.measured.figures()), importances, removals)),
        " · ".join(part for part in parts if part),
        count_fused(progress.taken, progress.calls),
        (*model.notes, *progress.left_out, *describe_way(ablation)),
        read=(model, getattr(corpus, "path", None), (progress.texts, progress.tokens)),
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
