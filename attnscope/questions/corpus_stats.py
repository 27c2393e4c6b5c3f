"""The figures of every head over many texts, what a run adds up, and the file that keeps it meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from attnscope.capture import Record
from attnscope.errors import AttnscopeError, InputError
from attnscope.measures import DEFAULT, Measurement, settle_roles
from attnscope.models import Model, ModelInput
from attnscope.questions.ablate import Means, Removals, Way, corpus_means, describe_way
from attnscope.questions.corpus import Batch, CorpusRun, Progress, Walk, batches, windows, workers
from attnscope.questions.importance import Importances
from attnscope.questions.processes import Processes, together
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import describe_kernels, extent, require_selected
from attnscope.questions.stats import Stats, measuring_pass, what_ran, with_predictions
from attnscope.storage import checkpoint as checkpoints
from attnscope.storage.corpus import Corpus, CorpusText

EVERY = 20.0
"""Seconds after which the sums are written again, at the latest when the batches that run have ended."""


Sums = TypeVar("Sums")


@dataclass
class Totals:
    """Sums over batches. They are added batch by batch, in one order whatever the number of processes."""

    measured: Measurement
    importances: Importances
    removals: Removals

    @classmethod
    def of(cls, names: Sequence[str]) -> Totals:
        """Nothing yet, of the measures with these names."""
        return cls(Measurement(names), Importances(), Removals())

    def merge(self, other: Totals) -> None:
        """Add another batch."""
        self.measured.merge(other.measured)
        self.importances.merge(other.importances)
        self.removals.merge(other.removals)

    def __reduce__(self) -> tuple[Any, ...]:  # what another process is sent
        return Totals.from_state, (self.state(),)

    def state(self) -> dict[str, Any]:
        """The sums as plain lists, which JSON keeps exactly."""
        return {name: getattr(self, name).state() for name in ("measured", "importances", "removals")}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Totals:
        """What ``state`` wrote down."""
        return cls(
            Measurement.from_state(state["measured"]),
            Importances.from_state(state["importances"]),
            Removals.from_state(state["removals"]),
        )


def read_totals(state: Mapping[str, Any], names: Sequence[str]) -> Totals:
    """What ``Totals.state`` wrote down, of the measures with these names; anything else raises an error."""
    totals = Totals.from_state(state)
    totals.measured.merge(Measurement(names))  # refuses another set of measures
    totals.measured.figures()
    totals.importances.figures()
    totals.removals.figures()
    return totals


@dataclass
class CheckpointFile:
    """The file of a checkpoint, if there is one: read by process 0 when the run begins, and written by it."""

    path: Path | None
    identity: Mapping[str, Any]
    processes: Processes
    written: float = 0.0

    def load(self, read: Callable[[Mapping[str, Any]], Sums]) -> tuple[Sums, Progress] | None:
        """Where an earlier run came to, if there was one; ``read`` makes its sums. Raises ``InputError``."""
        found = None
        if self.path is not None and self.processes.number == 0:
            found = checkpoints.read_checkpoint(self.path, self.identity)
        found = self.processes.broadcast(found)
        self.written = monotonic()
        if found is None:
            return None
        try:
            return read(found["sums"]), Progress.from_state(found["progress"])
        except (
            AttnscopeError,
            ArithmeticError,
            AttributeError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ):
            raise InputError(
                f"{self.path} holds sums that this command never wrote: delete it, or name another file"
            ) from None

    def is_due(self) -> bool:
        """Whether this process writes the file, and has not done so for a while."""
        mine = self.path is not None and self.processes.number == 0
        return mine and monotonic() - self.written >= EVERY

    def save(self, state: Callable[[], Mapping[str, Any]], progress: Progress) -> None:
        """Write the file, if this process does; ``state`` tells the sums. Raises ``OutputError``."""
        if self.path is None or self.processes.number > 0:
            return
        checkpoints.write_checkpoint(
            self.path, self.identity, {"sums": state(), "progress": asdict(progress)}
        )
        self.written = monotonic()


_Share = tuple[Totals, int, int, Sequence[str]]
"""The sums of a batch, how many of its calls the fused pass computed, how many ran, and notes on it."""


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
        kept = CheckpointFile(run.checkpoint, identity, processes)
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
        window: list[CorpusText],
        total: Totals,
        processes: Processes,
    ) -> Iterator[Progress]:
        """Measure this process's share of a window, and add all shares to ``total`` where the answer is.

        Yields how far ``total`` is, as ``Walk`` does.
        """
        begun = replace(self.progress, places=list(self.progress.places))
        jobs = [(batch, None) for batch in batches(self._prepare(window, processes))]
        names = tuple(total.measured.measures)
        walk: Walk[None, tuple[Measurement, Record, int], _Share] = Walk(
            lambda job: self._pass(job[0], Measurement(names)),
            self._share,
            lambda share: self._add(total, *share),
            self.run.watch,
            1 if self.importance or self.ablation else workers(self.model),
        )
        yield from walk.window(jobs, self.progress, begun, window[-1].done, processes)

    def _share(self, batch: Batch, result: tuple[Measurement, Record, int]) -> _Share:
        """What a batch adds."""
        measured, record, taken = result
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

    def _add(self, total: Totals, sums: Totals, taken: int, calls: int, notes: Sequence[str]) -> None:
        total.merge(sums)
        self.progress.taken += taken
        self.progress.calls += calls
        self.progress.note(notes)

    def _prepare(self, window: list[CorpusText], processes: Processes) -> Iterator[ModelInput]:
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
        importances, removals = total.importances.figures(), total.removals.figures()
        if (self.importance and not importances) or (self.ablation and not removals):
            raise InputError(
                f"{self.corpus.name} holds nothing that {self.model.name} predicts: give longer texts, or, "
                "of an encoder-decoder, one text and its target"
            )
        layers, how = progress.layout or ("", "")
        size = f"{progress.texts:,} texts, {progress.tokens:,} tokens"
        parts = (self.model.title, layers, size, how)
        return Stats(
            settle_roles(with_predictions(list(total.measured.figures()), importances, removals)),
            " · ".join(part for part in parts if part),
            what_ran(progress.taken, progress.calls),
            (*self.model.notes, *progress.left_out, *describe_way(self.ablation)),
        )
