"""The figures of every head over many texts, on one process or several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from attnscope.analysis.corpus.batches import Batch, batches, windows
from attnscope.analysis.corpus.processes import Processes, together
from attnscope.analysis.corpus.progress import Progress
from attnscope.analysis.corpus.workers import in_order, workers
from attnscope.analysis.intervention.importance import Importances
from attnscope.analysis.selection import Selection
from attnscope.analysis.sentences import describe_kernels, extent, require_selected
from attnscope.analysis.stats import Stats, measuring_pass, what_ran
from attnscope.capture import Record
from attnscope.errors import InputError
from attnscope.measures import DEFAULT, Measurement
from attnscope.models import Model, ModelInput
from attnscope.storage import checkpoint as checkpoints
from attnscope.storage.corpus import Corpus, Entry

NAMED = 3
"""Places of texts that were left out which a note names."""


def corpus_stats(
    model: Model,
    corpus: Corpus,
    selection: Selection | None = None,
    *,
    names: tuple[str, ...] = DEFAULT,
    exact_kernel: bool = False,
    importance: bool = False,
    max_tokens: int | None = None,
    truncate: bool = False,
    strict: bool = False,
    limit: int | None = None,
    checkpoint: Path | None = None,
    report: Callable[[str], None] = lambda sentence: None,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> Stats:
    """Measure every head that is meant over all texts of a corpus; each figure has its standard error.

    Texts of equal token count go through the model together, without padding, so the figures are those of one
    text after the other. Only ``windows`` of texts are held at once. A text that cannot be read is skipped
    and its place passed to ``report``, or raises ``InputError`` if ``strict``; ``limit`` stops after so many.
    ``watch`` is told after every batch how far the run is.

    ``checkpoint`` names a file that keeps the sums after every window; a run that finds it goes on from there
    to bit-identical sums. Started by torchrun, the processes share the batches of each window, and each
    returns the figures of all: the same batches whatever their number, so counts are equal and figures differ
    by the rounding of float64 sums alone. The standard error is explained in ``measures.sums.Sums.figures``.
    """
    run = _Run(
        model,
        corpus,
        selection or Selection(),
        importance,
        exact_kernel,
        max_tokens,
        truncate,
        strict,
        report,
    )
    identity = {
        "model": checkpoints.fingerprint(model.module),
        "corpus": corpus.fingerprint(),
        "set of measures": list(names),
        "selection of heads": asdict(run.selection),
        "limit": [limit, max_tokens, truncate],
        "kernel": exact_kernel,
        "importance": importance,
    }
    with together() as processes:
        total = _Sums(Measurement(names), Importances())
        if checkpoint is not None:
            saved = checkpoints.load(checkpoint, identity) if processes.number == 0 else None
            saved = processes.broadcast(saved)
            if saved is not None:
                total, run.progress = _Sums.from_state(saved["sums"]), Progress(**saved["progress"])
        entries = islice(corpus.entries(), run.progress.entries, limit)
        for window in windows(entries):
            mine = _Sums(Measurement(names), Importances())
            ran = run.measure(window, mine, processes, watch)
            for state, (taken, calls) in processes.gather((mine.state(), ran)):
                total.merge(_Sums.from_state(state))
                run.progress.taken += taken
                run.progress.calls += calls
            if checkpoint is not None and processes.number == 0:
                state = {"sums": total.state(), "progress": asdict(run.progress)}
                checkpoints.save(checkpoint, identity, state)
        if processes.count > 1:
            sums, progress = processes.broadcast((total.state(), asdict(run.progress)))
            total, run.progress = _Sums.from_state(sums), Progress(**progress)
    return run.stats(total)


@dataclass
class _Sums:
    """What is added up: over batches, windows and processes."""

    measured: Measurement
    importances: Importances

    def merge(self, other: _Sums) -> None:
        """Add what another process or window has seen."""
        self.measured.merge(other.measured)
        self.importances.merge(other.importances)

    def state(self) -> dict[str, Any]:
        """The sums as plain lists, which JSON keeps exactly."""
        return {"measured": self.measured.state(), "importances": self.importances.state()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> _Sums:
        """What ``state`` wrote down."""
        return cls(Measurement.from_state(state["measured"]), Importances.from_state(state["importances"]))


@dataclass
class _Run:
    """What stays the same from window to window, and the progress so far."""

    model: Model
    corpus: Corpus
    selection: Selection
    importance: bool
    exact_kernel: bool
    max_tokens: int | None
    truncate: bool
    strict: bool
    report: Callable[[str], None]
    progress: Progress = field(default_factory=Progress)

    def measure(
        self,
        window: list[Entry],
        sums: _Sums,
        processes: Processes,
        watch: Callable[[Progress], None],
    ) -> tuple[int, int]:
        """Add this process's share of a window to ``sums``, and count all of its texts.

        Returns how many calls of attention the fused pass computed, and how many ran.
        """
        before, progress = self.progress.done, self.progress
        taken, calls = 0, 0
        made = batches(self._prepare(window, processes))
        tokens = sum(batch.tokens for batch in made)
        passed = 0
        names = tuple(sums.measured.measures)
        threads = 1 if self.importance else workers(self.model)
        mine = made[processes.number :: processes.count]
        with closing(in_order(lambda batch: self._pass(batch, Measurement(names)), mine, threads)) as seen:
            for number, batch in enumerate(made):
                if number % processes.count == processes.number:
                    measured, record, passes = next(seen)
                    sums.measured.merge(measured)
                    taken += passes
                    calls += len(record.sites)
                    self._note(record.notes)
                    if self.importance:
                        with suppress(InputError):  # nothing to guess: such texts do not count
                            sums.importances.add(self.model, batch.prepared, batch.labels)
                    if not progress.layout:
                        require_selected(sums.measured.figures(), record, self.selection)
                        progress.layout = [extent(record.sites), describe_kernels(record.sites)]
                passed += batch.tokens
                progress.texts += batch.texts
                progress.tokens += batch.tokens
                progress.done = before + (window[-1].done - before) * passed // tokens
                watch(progress)
        progress.done = window[-1].done
        return taken, calls

    def _prepare(self, window: list[Entry], processes: Processes) -> Iterator[ModelInput]:
        """The texts of a window as the model reads them, without those that it cannot read."""
        readable = [entry for entry in window if not entry.fault]
        made = iter(
            self.model.prepare_all(
                [entry.text for entry in readable], max_tokens=self.max_tokens, truncate=self.truncate
            )
        )
        self.progress.entries += len(window)
        for entry in window:
            prepared = InputError(entry.fault) if entry.fault else next(made)
            if not isinstance(prepared, InputError):
                self._note(prepared.notes)
                yield prepared
                continue
            if self.strict:
                raise InputError(f"{self.corpus.name}, {entry.where}: {prepared}")
            self.progress.skipped += 1
            self.progress.places += [entry.where] if len(self.progress.places) < NAMED else []
            if processes.number == 0:
                self.report(f"{entry.where}: {prepared}")

    def _note(self, notes: Sequence[str]) -> None:
        """Count the texts that were cut, and keep whatever else a model says of a text, once."""
        self.progress.cut += any(note.startswith("cut:") for note in notes)
        self.progress.notes += [
            note for note in notes if not note.startswith("cut:") and note not in self.progress.notes
        ]

    def _pass(self, batch: Batch, measured: Measurement) -> tuple[Measurement, Record, int]:
        """One forward pass of a batch, measured; how many calls of it the fused pass computed."""
        measured.label(batch.labels)
        sides = batch.labels.get("encoder") or batch.labels.get("decoder") or ((), ())
        record, taken = measuring_pass(
            self.model, batch.prepared, measured, self.selection, sides[0], exact_kernel=self.exact_kernel
        )
        return measured, record, taken

    def stats(self, total: _Sums) -> Stats:
        """The answer. Raises ``InputError`` if no text could be read."""
        seen = self.progress
        if not seen.texts:
            raise InputError(f"{self.corpus.name} holds no text that {self.model.name} can read")
        layers, how = seen.layout or ("", "")
        size = f"{seen.texts:,} texts, {seen.tokens:,} tokens"
        parts = (self.model.title, layers, size, how)
        notes = (*self.model.notes, *seen.notes)
        if seen.skipped:
            more = ", ..." if seen.skipped > len(seen.places) else ""
            notes += (f"{_texts(seen.skipped)} could not be read: {', '.join(seen.places)}{more}",)
        if seen.cut:
            notes += (f"{_texts(seen.cut)} {'was' if seen.cut == 1 else 'were'} cut at the limit of tokens",)
        return Stats(
            tuple(total.measured.figures()),
            " · ".join(part for part in parts if part),
            what_ran(seen.taken, seen.calls),
            notes,
            total.importances.figures(),
        )


def _texts(count: int) -> str:
    return "1 text" if count == 1 else f"{count:,} texts"
