"""What a run over a file of questions adds up, and how a file keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any, get_args

from attnscope.attention import Head, Kind, Site
from attnscope.capture import Record
from attnscope.errors import InputError
from attnscope.models import Model, ModelInput
from attnscope.questions.corpus import (
    Batch,
    CorpusRun,
    Processes,
    Progress,
    Walk,
    batches,
    together,
    windows,
    workers,
)
from attnscope.questions.corpus_stats import Kept
from attnscope.questions.gold_asked import (
    REACH,
    Asked,
    GoldReading,
    GoldSums,
    ReadText,
    SiteSums,
    Slots,
    ask_batch,
)
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import extent, require_selected
from attnscope.registry import nearest_name
from attnscope.storage import checkpoint as checkpoints
from attnscope.storage.gold import GoldFile, GoldText


@dataclass
class GoldTotals:
    """Sums over batches, and what they are of: ``others`` are labels that were not asked for.

    ``lost`` pairs could not be asked, and attention of the kinds ``skipped`` is not over the tokens.
    """

    sums: GoldSums = field(default_factory=GoldSums)
    slots: Slots = field(default_factory=Slots)
    others: set[str] = field(default_factory=set)
    lost: int = 0
    skipped: set[Kind] = field(default_factory=set)

    def state(self) -> dict[str, Any]:
        """All of it as plain lists, which JSON keeps exactly."""
        return {
            "sums": self.sums.state(),
            "slots": list(self.slots.numbers),
            "others": sorted(self.others),
            "lost": self.lost,
            "skipped": sorted(self.skipped),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> GoldTotals:
        """What ``state`` wrote down. Raises ``ValueError`` or ``TypeError`` for anything else."""
        slots = Slots()
        for slot in state["slots"]:
            slots.number(slot if slot is None else (str(slot[0]), int(slot[1])), 0)
        lost, others, skipped = state["lost"], state["others"], state["skipped"]
        sound = type(lost) is int and lost >= 0 and all(isinstance(other, str) for other in others)
        sound &= len(slots.numbers) == len(state["slots"]) and set(skipped) <= set(get_args(Kind))
        sound &= all(slot is None or slot[1] in (0, 1) for slot in slots.numbers)
        if not sound:
            raise ValueError("the questions do not fit together")
        return cls(GoldSums.from_state(state["sums"], slots.count), slots, set(others), lost, set(skipped))


@dataclass(frozen=True)
class Scored:
    """How well one head finds the answers of a label in one direction, over ``rows`` questions.

    ``accuracy`` is the share of the questions whose row has its largest word among the answers, ``weight``
    what the answers get on average and ``baseline`` what they get of even attention. ``fixed`` is the
    accuracy of the word that is ``offset`` words away, the best such distance. ``chosen`` is the accuracy on
    the texts on which heads are ranked, ``aer`` the alignment error rate, where the answers are a whole
    alignment. Each ``error`` is a standard error over texts.
    """

    head: Head
    rows: int
    texts: int
    accuracy: float
    accuracy_error: float | None
    weight: float
    weight_error: float | None
    baseline: float
    offset: int
    fixed: float
    chosen: float
    aer: float | None = None
    aer_error: float | None = None


@dataclass(frozen=True)
class Label:
    """All heads by how well they find the answers of one label in one direction, the best first."""

    label: str
    way: str
    heads: tuple[Scored, ...]


def rank_heads(total: GoldSums, slots: Slots, ways: Sequence[str], held_out: bool) -> Iterator[Label]:
    """Every label and direction that was asked, those with the most questions first."""
    found = []
    agreement = slots.numbers.get(None)
    for slot, number in slots.numbers.items():
        if slot is None:
            continue
        ranked: list[Scored] = []
        for site, sums in total.sites.items():
            halves = ([2 * number], [2 * number + 1]) if held_out else ([2 * number, 2 * number + 1],) * 2
            chosen, scored = (sums.part(rows) for rows in halves)
            if chosen.asked[0] and scored.asked[0]:
                heads = list(_score(site, total.heads[site], chosen, scored))
                if agreement is not None:
                    shift = 2 * (agreement - number)
                    heads = _with_error_rate(heads, sums.part([row + shift for row in halves[1]]))
                ranked += heads
        ranked.sort(key=lambda head: (-head.chosen, -head.weight, head.head))
        if ranked:
            found.append(Label(slot[0], ways[slot[1]], tuple(ranked)))
    counts: dict[str, int] = {}
    for each in found:
        counts[each.label] = max(counts.get(each.label, 0), max(head.rows for head in each.heads))
    order_ = {label: place for place, label in enumerate(counts)}
    yield from sorted(found, key=lambda each: (-counts[each.label], order_[each.label]))


def _score(site: Site, heads: Sequence[int], chosen: SiteSums, scored: SiteSums) -> Iterator[Scored]:
    """The figures of each head on ``scored``, beside the distance that is best on ``chosen``."""
    offset = int(chosen.offsets[0].argmax())
    rows = float(scored.asked[0])
    right, weight = scored.ratios(scored.right), scored.ratios(scored.weight)
    order = (chosen.right[0, 0] / chosen.asked[0]).tolist()
    for place, head in enumerate(heads):
        yield Scored(
            Head(site.layer, head, site.kind),
            int(rows),
            int(scored.texts[0]),
            right[place].value,
            right[place].error,
            weight[place].value,
            weight[place].error,
            float(scored.even[0]) / rows,
            offset - REACH,
            float(scored.offsets[0, offset]) / rows,
            order[place],
        )


def _with_error_rate(heads: Sequence[Scored], agreement: SiteSums) -> list[Scored]:
    """The same heads with their alignment error rates."""
    return [
        replace(head, aer=1 - ratio.value, aer_error=ratio.error)
        for head, ratio in zip(heads, agreement.ratios(agreement.right), strict=True)
    ]


@dataclass(frozen=True)
class GoldAnswers:
    """Every label and direction, those with the most questions first, and what to know."""

    title: str
    labels: tuple[Label, ...]
    held_out: bool
    notes: tuple[str, ...]


def find_gold(
    model: Model,
    file: GoldFile,
    selection: Selection | None = None,
    *,
    relations: Sequence[str] = (),
    held_out: bool = False,
    run: CorpusRun = CorpusRun(),  # noqa: B008
) -> GoldAnswers:
    """Ask every head all questions of a file, in one pass over its texts.

    ``relations`` asks for these labels alone, or those with these before a colon. With ``held_out`` heads are
    ranked and offsets chosen on every other text, and the figures are those of the texts between. A file
    without questions that can be asked raises ``InputError``. Started by torchrun, the processes share the
    batches of each window, and each returns the same answers.
    """
    work = _Work(model, file, selection or Selection(), tuple(relations), run)
    identity = {
        "model": checkpoints.fingerprint(model.module),
        "file of questions": file.fingerprint(),
        "set of relations": list(work.relations),
        "selection of heads": asdict(work.selection),
        "limit": [run.limit, run.max_tokens, run.truncate],
        "weighing": None if model.weigh == "raw" else model.weigh,
    }
    with together() as processes:
        kept = Kept(run.checkpoint, identity, processes)
        found = kept.load(GoldTotals.from_state)
        work.total, work.progress = found or (GoldTotals(), Progress())
        for window in windows(islice(file.texts(), work.progress.entries, run.limit)):
            for reached in work.measure(window, processes):
                if kept.is_due():
                    kept.save(work.total.state, reached)
            kept.save(work.total.state, work.progress)
        if processes.count > 1:
            work.total, work.progress = processes.broadcast((work.total, work.progress))
    if not work.progress.texts:
        raise InputError(f"{file.name} holds no text that {model.name} can read")
    labels = tuple(rank_heads(work.total.sums, work.total.slots, file.ways, held_out))
    if not labels:
        raise InputError(_nothing(work))
    title = f"{model.title} · {work.progress.layout[0]} · {_count(work.progress.texts, 'text')}, "
    title += f"{work.progress.tokens:,} tokens"
    return GoldAnswers(title, labels, held_out, (*model.notes, *_notes(work)))


_Share = tuple[GoldSums, set[Kind], int]
"""The sums of a batch, the kinds of attention that are not over the tokens, and how many pairs were lost."""


@dataclass
class _Work:
    """What stays the same from window to window, and the sums so far."""

    model: Model
    file: GoldFile
    selection: Selection
    relations: tuple[str, ...]
    run: CorpusRun
    total: GoldTotals = field(default_factory=GoldTotals)
    progress: Progress = field(default_factory=Progress)

    def measure(self, window: list[GoldText], processes: Processes) -> Iterator[Progress]:
        """Put this process's share of a window through the model, texts of one length together.

        Yields how far the sums are, as ``Walk`` does.
        """
        begun = replace(self.progress, places=list(self.progress.places))
        read = self._prepare(window, processes)
        jobs = [
            (batch, ask_batch(batch, read, self.file, self.total.slots))
            for batch in batches(text.prepared for text in read)
        ]
        walk = Walk(self._pass, self._share, self._add, self.run.watch, workers(self.model))
        yield from walk.window(jobs, self.progress, begun, window[-1].done, processes)

    def _share(self, _: Batch, result: tuple[GoldReading, Record]) -> _Share:
        """What a batch adds."""
        reading, record = result
        if not self.progress.layout:
            chosen = [site for site in record.sites if self.selection.heads(site.site, site.heads)]
            require_selected(chosen, record, self.selection)
            self.progress.layout = [extent(record.sites), ""]
        lost = max((asked.lost for asked in reading.asked.values()), default=0)
        return reading.sums, reading.skipped, lost

    def _add(self, share: _Share) -> None:
        sums, skipped, lost = share
        self.total.sums.merge(sums)
        self.total.skipped |= skipped
        self.total.lost += lost

    def _pass(self, asked: tuple[Batch, dict[Kind, Asked]]) -> tuple[GoldReading, Record]:
        """One forward pass of a batch, with all its questions."""
        reading = GoldReading(asked[1], self.total.slots.count, self.selection)
        return reading, self.model.run(asked[0].prepared, [reading])

    def _prepare(self, window: list[GoldText], processes: Processes) -> list[ReadText]:
        """The texts of a window as the model reads them, without those that it cannot read."""
        sound = [gold for gold in window if not gold.fault]
        made = iter(self._inputs(sound))
        read = []
        for gold in window:
            self.progress.entries += 1
            prepared = InputError(gold.fault) if gold.fault else next(made)
            if isinstance(prepared, InputError):
                if self.run.strict:
                    raise InputError(f"{self.file.name}, {gold.where}: {prepared}")
                self.progress.skip(gold.where)
                if processes.number == 0:
                    self.run.report(f"{gold.where}: {prepared}")
                continue
            if gold.target is not None and "cross" not in prepared.axes:
                raise InputError(f"{self.model.name} is no encoder-decoder: it reads no text and its target")
            self.progress.note(prepared.notes)
            read.append(ReadText(self._meant(gold), prepared, 1 - self.progress.entries % 2))
        return read

    def _inputs(self, golds: Sequence[GoldText]) -> list[ModelInput | InputError]:
        targets = sum(gold.target is not None for gold in golds)
        if 0 < targets < len(golds):
            raise InputError(f"{self.file.name} has texts with a target and without: part them in two files")
        return self.model.prepare_all(
            [(gold.text,) if gold.target is None else (gold.text, gold.target) for gold in golds],
            max_tokens=self.run.max_tokens,
            truncate=self.run.truncate,
        )

    def _meant(self, gold: GoldText) -> GoldText:
        """The text with the pairs that are asked for."""
        if not self.relations:
            return gold
        pairs = tuple(pair for pair in gold.pairs if is_meant(pair.label, self.relations))
        self.total.others |= {pair.label for pair in gold.pairs if pair not in pairs}
        return replace(gold, pairs=pairs)


def is_meant(label: str, relations: Sequence[str]) -> bool:
    """Whether a label is one of these, or a kind of one: nsubj:pass of nsubj."""
    return label in relations or label.partition(":")[0] in relations


def _nothing(work: _Work) -> str:
    """Why no question was asked."""
    if work.total.others:
        labels = sorted(work.total.others)
        near = nearest_name(work.relations[0], labels)
        has = ", ".join(labels[:20]) + (", ..." if len(labels) > 20 else "")
        return f"no {' or '.join(work.relations)} in {work.file.name}: {near}it has {has}"
    if work.total.skipped:
        kinds = " and ".join(sorted(work.total.skipped))
        return f"the {kinds} attention of {work.model.name} is not over the tokens"
    return f"no pair of {work.file.name} can be asked of {work.model.name}"


def _notes(work: _Work) -> list[str]:
    """What was left out."""
    notes = [*work.progress.left_out]
    if work.total.lost:
        notes.append(
            f"{_count(work.total.lost, 'pair')} could not be asked: a word shares its tokens or was cut off"
        )
    if work.total.skipped and work.total.sums.sites:
        notes.append(
            f"attention that is not over the tokens was left out: {', '.join(sorted(work.total.skipped))}"
        )
    return notes


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
