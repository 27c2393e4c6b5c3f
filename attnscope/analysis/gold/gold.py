"""Which heads find the answers that a file of questions has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from attnscope.analysis.corpus.batches import Batch, batches, windows
from attnscope.analysis.corpus.progress import Progress
from attnscope.analysis.corpus.workers import in_order, workers
from attnscope.analysis.gold.asked import Asked, Slots, group_tokens
from attnscope.analysis.gold.ranked import Label, rank_heads
from attnscope.analysis.gold.reading import GoldReading
from attnscope.analysis.gold.sums import GoldSums
from attnscope.analysis.selection import Selection
from attnscope.analysis.sentences import extent, require_selected
from attnscope.attention import Axis, Kind
from attnscope.capture import Record
from attnscope.errors import InputError
from attnscope.models import Model, ModelInput
from attnscope.registry import nearest_name
from attnscope.storage.gold import GoldFile, GoldText


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
    limit: int | None = None,
    max_tokens: int | None = None,
    truncate: bool = False,
    strict: bool = False,
    report: Callable[[str], None] = lambda sentence: None,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> GoldAnswers:
    """Ask every head all questions of a file, in one pass over its texts.

    ``relations`` asks for these labels alone, or those with these before a colon. With ``held_out`` heads are
    ranked and offsets chosen on every other text, and the figures are those of the texts between. A text that
    cannot be read is passed to ``report``, or raises ``InputError`` if ``strict``; so does a file without
    questions that can be asked.
    """
    run = _Run(model, file, selection or Selection(), tuple(relations), max_tokens, truncate, strict, report)
    for window in windows(islice(file.texts(), limit)):
        run.measure(window, watch)
    if not run.progress.texts:
        raise InputError(f"{file.name} holds no text that {model.name} can read")
    labels = tuple(rank_heads(run.total, run.slots, file.ways, held_out))
    if not labels:
        raise InputError(_nothing(run))
    title = f"{model.title} · {run.progress.layout[0]} · {_count(run.progress.texts, 'text')}, "
    title += f"{run.progress.tokens:,} tokens"
    return GoldAnswers(title, labels, held_out, (*model.notes, *_notes(run)))


class _Read(NamedTuple):
    """A text with its pairs, as the model reads it, and in which half of the corpus it is."""

    gold: GoldText
    prepared: ModelInput
    half: int


@dataclass
class _Run:
    """What stays the same from window to window, and the sums so far."""

    model: Model
    file: GoldFile
    selection: Selection
    relations: tuple[str, ...]
    max_tokens: int | None
    truncate: bool
    strict: bool
    report: Callable[[str], None]
    slots: Slots = field(default_factory=Slots)
    total: GoldSums = field(default_factory=GoldSums)
    progress: Progress = field(default_factory=Progress)
    others: set[str] = field(default_factory=set)  # labels that were not asked for
    lost: int = 0
    skipped: set[Kind] = field(default_factory=set)

    def measure(self, window: list[GoldText], watch: Callable[[Progress], None]) -> None:
        """Put the texts of a window through the model, those of one length together."""
        read = self._prepare(window)
        made = [(batch, self._ask(batch, read)) for batch in batches(text.prepared for text in read)]
        before, passed = self.progress.done, 0
        every = sum(batch.tokens for batch, _ in made)
        with closing(in_order(self._pass, made, workers(self.model))) as seen:
            for (batch, _), (reading, record) in zip(made, seen, strict=True):
                if not self.progress.layout:
                    chosen = [site for site in record.sites if self.selection.heads(site.site, site.heads)]
                    require_selected(chosen, record, self.selection)
                    self.progress.layout = [extent(record.sites), ""]
                self.total.merge(reading.sums)
                self.skipped |= reading.skipped
                self.lost += max((asked.lost for asked in reading.asked.values()), default=0)
                passed += batch.tokens
                self.progress.texts += batch.texts
                self.progress.tokens += batch.tokens
                self.progress.done = before + (window[-1].done - before) * passed // every
                watch(self.progress)
        self.progress.done = window[-1].done

    def _pass(self, asked: tuple[Batch, dict[Kind, Asked]]) -> tuple[GoldReading, Record]:
        """One forward pass of a batch, with all its questions."""
        reading = GoldReading(asked[1], self.slots.count, self.selection)
        return reading, self.model.run(asked[0].prepared, [reading])

    def _ask(self, batch: Batch, golds: Sequence[_Read]) -> dict[Kind, Asked]:
        """The questions about a batch, by kind of attention: within a text, or from a target to its text."""
        texts = [golds[number] for number in batch.numbers]
        first = texts[0].prepared.axes
        kinds: dict[Kind, Asked] = {}
        for kind, axes in first.items():
            if (texts[0].gold.target is None) == (kind == "cross"):
                continue
            twin = next((other for other in kinds if first[other] == axes), None)  # the same tokens
            if twin is not None:
                kinds[kind] = kinds[twin]
            elif not any(isinstance(axis, range) for axis in axes):
                kinds[kind] = Asked(one_sequence=kind != "cross")
                for text in texts:
                    self._ask_text(text, kinds[kind], *text.prepared.axes[kind])
        return kinds

    def _ask_text(self, text: _Read, asked: Asked, rows: Axis, keys: Axis) -> None:
        gold = text.gold
        assert not isinstance(rows, range)
        assert not isinstance(keys, range)
        columns = group_tokens(keys, gold.text, gold.words)
        lines = columns if gold.target is None else group_tokens(rows, gold.target, gold.target_words)
        asked.ask(gold.pairs, lines, columns, self.slots, len(self.file.ways), text.half)
        if self.file.links:
            asked.ask_alignment(gold.pairs, self.slots, text.half)

    def _prepare(self, window: list[GoldText]) -> list[_Read]:
        """The texts of a window as the model reads them, without those that it cannot read."""
        sound = [gold for gold in window if not gold.fault]
        made = iter(self._inputs(sound))
        read = []
        for gold in window:
            self.progress.entries += 1
            prepared = InputError(gold.fault) if gold.fault else next(made)
            if isinstance(prepared, InputError):
                if self.strict:
                    raise InputError(f"{self.file.name}, {gold.where}: {prepared}")
                self.progress.skip(gold.where)
                self.report(f"{gold.where}: {prepared}")
                continue
            if gold.target is not None and "cross" not in prepared.axes:
                raise InputError(f"{self.model.name} is no encoder-decoder: it reads no text and its target")
            self.progress.note(prepared.notes)
            read.append(_Read(self._meant(gold), prepared, 1 - self.progress.entries % 2))
        return read

    def _inputs(self, golds: Sequence[GoldText]) -> list[ModelInput | InputError]:
        targets = sum(gold.target is not None for gold in golds)
        if 0 < targets < len(golds):
            raise InputError(f"{self.file.name} has texts with a target and without: part them in two files")
        return self.model.prepare_all(
            [(gold.text,) if gold.target is None else (gold.text, gold.target) for gold in golds],
            max_tokens=self.max_tokens,
            truncate=self.truncate,
        )

    def _meant(self, gold: GoldText) -> GoldText:
        """The text with the pairs that are asked for."""
        if not self.relations:
            return gold
        pairs = tuple(pair for pair in gold.pairs if is_meant(pair.label, self.relations))
        self.others |= {pair.label for pair in gold.pairs if pair not in pairs}
        return replace(gold, pairs=pairs)


def is_meant(label: str, relations: Sequence[str]) -> bool:
    """Whether a label is one of these, or a kind of one: nsubj:pass of nsubj."""
    return label in relations or label.partition(":")[0] in relations


def _nothing(run: _Run) -> str:
    """Why no question was asked."""
    if run.others:
        labels = sorted(run.others)
        near = nearest_name(run.relations[0], labels)
        has = ", ".join(labels[:20]) + (", ..." if len(labels) > 20 else "")
        return f"no {' or '.join(run.relations)} in {run.file.name}: {near}it has {has}"
    if run.skipped:
        return f"the {' and '.join(sorted(run.skipped))} attention of {run.model.name} is not over the tokens"
    return f"no pair of {run.file.name} can be asked of {run.model.name}"


def _notes(run: _Run) -> list[str]:
    """What was left out."""
    notes = [*run.progress.left_out]
    if run.lost:
        notes.append(
            f"{_count(run.lost, 'pair')} could not be asked: a word shares its tokens or was cut off"
        )
    if run.skipped and run.total.sites:
        notes.append(f"attention that is not over the tokens was left out: {', '.join(sorted(run.skipped))}")
    return notes


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
