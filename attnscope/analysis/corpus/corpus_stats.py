"""The figures of every head over many texts, on one process or several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, zip_longest

from attnscope.analysis.corpus.batches import Batch, batches, windows
from attnscope.analysis.corpus.corpus_run import CorpusRun
from attnscope.analysis.corpus.processes import Processes, together
from attnscope.analysis.corpus.progress import Progress
from attnscope.analysis.corpus.totals import Kept, Totals, read_totals
from attnscope.analysis.corpus.workers import in_order, workers
from attnscope.analysis.figures.stats import Stats, measuring_pass, what_ran
from attnscope.analysis.intervention.importance import Importances
from attnscope.analysis.intervention.removal import Means, Removals, Way, corpus_means, describe_way
from attnscope.analysis.selection import Selection
from attnscope.analysis.sentences import describe_kernels, extent, require_selected
from attnscope.capture import Record
from attnscope.errors import InputError
from attnscope.measures import DEFAULT, Measurement, settle_roles
from attnscope.models import Model, ModelInput
from attnscope.storage import checkpoint as checkpoints
from attnscope.storage.corpus import Corpus, Entry

_Share = tuple[Totals, int, int, Sequence[str]]
"""The sums of a batch, how many of its calls the fused pass computed, how many ran, and notes on it."""

ROUND = 4
"""Batches of each of several processes after which these bring together what they have."""


def corpus_stats(
    model: Model,
    corpus: Corpus,
    selection: Selection | None = None,
    *,
    names: tuple[str, ...] = DEFAULT,
    exact_kernel: bool = False,
    importance: bool = False,
    ablation: Way | None = None,
    run: CorpusRun = CorpusRun(),  # noqa: B008
) -> Stats:
    """Measure every head that is meant over all texts of a corpus; each figure has its standard error.

    Texts of equal token count go through the model together, without padding, so the figures are those of one
    text after the other. Only ``windows`` of texts are held at once.

    Started by torchrun, the processes share the batches of each window, and each returns the figures of all:
    the same batches, added in the same order whatever the number of processes, so the sums are bit-identical,
    too. The standard error is explained in ``measures.sums.Sums.figures``.
    """
    work = _Work(model, corpus, selection or Selection(), importance, ablation, exact_kernel, run)
    identity = {
        "model": checkpoints.fingerprint(model.module),
        "corpus": corpus.fingerprint(),
        "set of measures": list(names),
        "selection of heads": asdict(work.selection),
        "limit": [run.limit, run.max_tokens, run.truncate],
        "kernel": exact_kernel,
        "importance": importance,
        "ablation": ablation,
        "weighing": None if model.weigh == "raw" else model.weigh,
    }
    if ablation == "mean":
        work.means = corpus_means(model, islice(corpus.entries(), run.limit), run.max_tokens, run.truncate)
    with together() as processes:
        kept = Kept(run.checkpoint, identity, processes)
        found = kept.load(lambda state: read_totals(state, names))
        total, work.progress = found or (Totals.of(names), Progress())
        entries = islice(corpus.entries(), work.progress.entries, run.limit)
        for window in windows(entries):
            for reached in work.measure(window, total, processes):
                if kept.is_due():
                    kept.save(total.state, reached)
            kept.save(total.state, work.progress)
        if processes.count > 1:
            total, work.progress = processes.broadcast((total, work.progress))
    return work.stats(total)


@dataclass
class _Work:
    """What stays the same from window to window, and the progress so far."""

    model: Model
    corpus: Corpus
    selection: Selection
    importance: bool
    ablation: Way | None
    exact_kernel: bool
    run: CorpusRun
    progress: Progress = field(default_factory=Progress)
    means: Means | None = None

    def measure(
        self,
        window: list[Entry],
        total: Totals,
        processes: Processes,
    ) -> Iterator[Progress]:
        """Measure this process's share of a window, and add all shares to ``total`` where the answer is.

        Yields, whenever ``total`` has more batches, how far it is: as a run says that begins with the window
        again and leaves those batches out.
        """
        progress = self.progress
        begun = replace(progress, places=list(progress.places))
        made = batches(self._prepare(window, processes))
        tokens = sum(batch.tokens for batch in made)
        passed = sum(batch.tokens for batch in made[: begun.batches])
        names = tuple(total.measured.measures)
        threads = 1 if self.importance or self.ablation else workers(self.model)
        left = made[begun.batches :]
        mine = left[processes.number :: processes.count]
        round_ = processes.count * (ROUND if processes.count > 1 else 1)
        with closing(in_order(lambda batch: self._pass(batch, Measurement(names)), mine, threads)) as passes:
            for start in range(0, len(left), round_):
                shares = []
                for number, batch in enumerate(left[start : start + round_]):
                    if number % processes.count == processes.number:
                        shares.append(self._share(batch, *next(passes)))
                    passed += batch.tokens
                    progress.texts += batch.texts
                    progress.tokens += batch.tokens
                    progress.done = begun.done + (window[-1].done - begun.done) * passed // tokens
                    self.run.watch(progress)
                self._merge(total, processes.gather(shares))
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

    def _share(self, batch: Batch, measured: Measurement, record: Record, taken: int) -> _Share:
        """What a batch adds."""
        sums = Totals(measured, Importances(), Removals(self.means))
        with suppress(InputError):  # nothing to guess: such texts do not count
            if self.importance:
                sums.importances.add(self.model, batch.prepared, batch.labels)
            if self.ablation:
                sums.removals.add(self.model, batch.prepared, batch.labels, self.selection)
        if not self.progress.layout:
            require_selected(measured.figures(), record, self.selection)
            self.progress.layout = [extent(record.sites), describe_kernels(record.sites)]
        return sums, taken, len(record.sites), record.notes

    def _merge(self, total: Totals, everyones: Sequence[Sequence[_Share]]) -> None:
        """Add the shares of a round in the order of their batches."""
        for shares in zip_longest(*everyones):
            for sums, taken, calls, notes in filter(None, shares):
                total.merge(sums)
                self.progress.taken += taken
                self.progress.calls += calls
                self.progress.note(notes)

    def _prepare(self, window: list[Entry], processes: Processes) -> Iterator[ModelInput]:
        """The texts of a window as the model reads them, without those that it cannot read."""
        readable = [entry for entry in window if not entry.fault]
        made = iter(
            self.model.prepare_all(
                [(entry.text,) for entry in readable],
                max_tokens=self.run.max_tokens,
                truncate=self.run.truncate,
            )
        )
        self.progress.entries += len(window)
        for entry in window:
            prepared = InputError(entry.fault) if entry.fault else next(made)
            if not isinstance(prepared, InputError):
                self.progress.note(prepared.notes)
                yield prepared
                continue
            if self.run.strict:
                raise InputError(f"{self.corpus.name}, {entry.where}: {prepared}")
            self.progress.skip(entry.where)
            if processes.number == 0:
                self.run.report(f"{entry.where}: {prepared}")

    def _pass(self, batch: Batch, measured: Measurement) -> tuple[Measurement, Record, int]:
        """One forward pass of a batch, measured; how many calls of it the fused pass computed."""
        measured.label(batch.labels)
        sides = batch.labels.get("encoder") or batch.labels.get("decoder") or ((), ())
        record, taken = measuring_pass(
            self.model, batch.prepared, measured, self.selection, sides[0], exact_kernel=self.exact_kernel
        )
        return measured, record, taken

    def stats(self, total: Totals) -> Stats:
        """The answer. Raises ``InputError`` if no text could be read."""
        progress = self.progress
        if not progress.texts:
            raise InputError(f"{self.corpus.name} holds no text that {self.model.name} can read")
        layers, how = progress.layout or ("", "")
        size = f"{progress.texts:,} texts, {progress.tokens:,} tokens"
        parts = (self.model.title, layers, size, how)
        return Stats(
            settle_roles(total.measured.figures()),
            " · ".join(part for part in parts if part),
            what_ran(progress.taken, progress.calls),
            (*self.model.notes, *progress.left_out, *describe_way(self.ablation)),
            total.importances.figures(),
            total.removals.figures(),
        )
