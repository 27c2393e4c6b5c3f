"""The figures of every head over many texts, and what a run adds up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from attnscope.capture import FUSED, Record
from attnscope.errors import InputError
from attnscope.measures import DEFAULT, Measurement, settle_roles
from attnscope.models import Model
from attnscope.models.inputs import Limit
from attnscope.questions.corpus import Batch, CorpusRun, CorpusWork
from attnscope.questions.loss import HeadSums, MeanOutputs, Way, corpus_means, describe_way
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import describe_kernels, extent, require_selected
from attnscope.questions.stats import Stats, count_fused, measuring_pass, with_predictions
from attnscope.storage.corpus import Corpus


@dataclass
class Totals:
    """Sums over batches. They are added batch by batch, in one order whatever the number of processes."""

    measured: Measurement
    importances: HeadSums = field(default_factory=partial(HeadSums, importance=True))
    removals: HeadSums = field(default_factory=HeadSums)

    def merge(self, other: Totals) -> None:
        """Add another batch."""
        for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True):
            mine.merge(theirs)

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
    run: CorpusRun = CorpusRun(),  # noqa: B008
) -> Stats:
    """Measure every selected head over all texts of a corpus; each figure has its standard error.

    Texts of equal token count go through the model together, without padding, so the figures equal those
    of single texts. The standard error is explained in ``Sums.figures``.
    """
    work = _StatsWork(model, corpus, selection or Selection(), run, Totals(Measurement(names)))
    work.importance, work.ablation, work.exact_kernel = importance, ablation, exact_kernel
    if ablation == "mean":
        limit = Limit(run.max_tokens, run.truncate)
        work.means = corpus_means(model, islice(corpus.entries(), run.limit), limit)
    asked = {
        "corpus": corpus.fingerprint(),
        "set of measures": list(names),
        "kernel": exact_kernel,
        "importance": importance,
        "ablation": ablation,
    }
    work.walk(asked, lambda state: Totals.from_state(state, names))
    total, progress = work.total, work.progress
    importances, removals = total.importances.figures(), total.removals.figures()
    if (importance and not importances) or (ablation and not removals):
        raise InputError(
            f"{corpus.name} holds nothing that {model.name} predicts: give longer texts, or, "
            "of an encoder-decoder, one text and its target"
        )
    layers, how = progress.layout or ("", "")
    parts = (model.title, layers, f"{progress.texts:,} texts, {progress.tokens:,} tokens", how)
    return Stats(
        settle_roles(with_predictions(list(total.measured.figures()), importances, removals)),
        " · ".join(part for part in parts if part),
        count_fused(progress.taken, progress.calls),
        (*model.notes, *progress.left_out, *describe_way(ablation)),
    )


_Share = tuple[Totals, int, int, Sequence[str]]  # sums, calls of the fused pass, of all, and notes


class _StatsWork(CorpusWork):
    importance: bool
    ablation: Way | None
    exact_kernel: bool
    means: MeanOutputs | None = None

    def share(self, batch: Batch, asked: None) -> _Share:
        """One forward pass of a batch, measured, and those that importance and ablation take."""
        measured, record = self.known.run(lambda: self._measure(batch))
        sums = Totals(measured, removals=HeadSums(means=self.means))
        with suppress(InputError):  # nothing to predict: such texts do not count
            if self.importance:
                sums.importances.add(self.model, batch.prepared, batch.labels)
            if self.ablation:
                sums.removals.add(self.model, batch.prepared, batch.labels, self.selection)
        if not self.progress.layout:
            require_selected(measured.figures(), record, self.selection)
            self.progress.layout = extent(record.sites), describe_kernels(record.sites)
        taken = sum(call.kernel == FUSED for call in record.sites)
        return sums, taken, len(record.sites), record.notes

    def _measure(self, batch: Batch) -> tuple[Measurement, Record]:
        measured = Measurement(tuple(self.total.measured.measures))
        measured.label(batch.labels)
        sides = batch.labels.get("encoder") or batch.labels.get("decoder") or ((), ())
        record = measuring_pass(
            self.model, batch.prepared, measured, self.selection, sides[0], exact_kernel=self.exact_kernel
        )
        return measured, record

    def add(self, share: _Share) -> None:
        """Add it."""
        sums, taken, calls, notes = share
        self.total.merge(sums)
        self.progress.taken += taken
        self.progress.calls += calls
        self.progress.note(notes)
