"""Scores of every head over many texts: sums that add up in any order, saved, merged, and read as scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from attnscope.capture import FUSED, Record
from attnscope.errors import InputError
from attnscope.measures import DEFAULT, Measurement, settle_roles
from attnscope.models import Model
from attnscope.models.inputs import Batch, Limit
from attnscope.models.targets import note_repeats
from attnscope.questions.corpus import (
    BatchResult,
    CorpusRun,
    CorpusWork,
    Measured,
    NoTexts,
    Progress,
    merge_shards,
)
from attnscope.questions.loss import HeadSums, MeanOutputs, Way, corpus_means, describe_way, predicted_side
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import describe_kernels, extent, require_selected
from attnscope.questions.stats import ALL_FUSED, Stats, count_fused, measuring_pass, with_predictions
from attnscope.records import read
from attnscope.storage.checkpoint import fingerprint
from attnscope.storage.corpus import Corpus


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
                sums.scores()
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
    """Measure every selected head over all texts of a corpus; each score has its standard error.

    Texts of equal token count go through the model together, without padding, so the scores equal those
    of single texts. The standard error is explained in ``Sums.scores``.
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
    model: Model,
    corpus: Corpus,
    *,
    names: tuple[str, ...] = DEFAULT,
    run: CorpusRun = CorpusRun(),  # noqa: B008
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
    importances, removals = total.importances.scores(), total.removals.scores()
    if (asked["importance"] and not importances) or (asked["ablation"] and not removals):
        raise InputError(
            f"{about.corpus} holds nothing that {about.name} predicts: give longer texts, or, "
            "of an encoder-decoder, one text and its target"
        )
    layers, _ = progress.layout or ("", "")
    path = None if about.path is None else Path(about.path)
    ran = count_fused(progress.taken, progress.calls)
    parts = about.title, layers, progress.describe(path), "fused pass" * (ran == ALL_FUSED)
    return Stats(
        settle_roles(with_predictions(list(total.measured.scores()), importances, removals)),
        " · ".join(part for part in parts if part),
        ran,
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
            require_selected(measured.scores(), record, self.selection)
            self.progress.layout = extent(record.sites), describe_kernels(record.sites)
        fused = sum(call.kernel == FUSED for call in record.sites)
        predicted = predicted_side(batch.labels) if self.importance or self.ablation else ()
        return sums, fused, len(record.sites), (*record.notes, *note_repeats(self.model, predicted))
