"""How well heads find known answers: a file of questions, asked in one pass over its texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from attnscope.attention import Head, Site
from attnscope.capture import Record
from attnscope.errors import InputError
from attnscope.models import Model
from attnscope.models.inputs import Batch
from attnscope.questions.answer import Answer
from attnscope.questions.corpus import (
    BatchResult,
    CorpusRun,
    CorpusWork,
    Measured,
    Progress,
    ReadText,
    merge_shards,
)
from attnscope.questions.gold_reading import REACH, Asked, GoldReading, GoldTotals, Scored, ask_batch
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import extent, list_some, pluralize, selected_sites
from attnscope.records import ADDRESS, Meaning, Notes, plain, record
from attnscope.registry import nearest_name
from attnscope.storage.corpus import CorpusText
from attnscope.storage.gold import GoldFile
from attnscope.text import round_short
from attnscope.views import Column, Table

Error: TypeAlias = Annotated[float | None, Meaning("its standard error over texts")]


@record("a head's answers to the questions of a label")
class GoldScore:
    """How well one head finds the answers of a label in one direction."""

    head: Annotated[Head, ADDRESS]
    rows: Annotated[int, Meaning("questions that were asked")]
    texts: Annotated[int, Meaning("texts with any of them")]
    accuracy: Annotated[
        float, Meaning("the share with the largest weight on an answer, special tokens and the word aside")
    ]
    accuracy_error: Error
    weight: Annotated[float, Meaning("how much the answers get on average")]
    weight_error: Error
    baseline: Annotated[float, Meaning("how much the answers get under uniform attention")]
    offset: Annotated[int, Meaning("the best fixed distance, in words", shape={"type": "integer"})]
    fixed: Annotated[float, Meaning("the accuracy of the word at that distance")]
    chosen: Annotated[float, Meaning("the accuracy on the texts on which heads are ranked")]
    aer: Annotated[float | None, Meaning("the alignment error rate, of alignments")] = None
    aer_error: Error = None

    @property
    def rank(self) -> tuple[float, float, Head]:
        """What heads are sorted by, best first."""
        return -self.chosen, -self.weight, self.head


@record("a label in one direction")
class LabelScores:
    """All heads by how well they find the answers of one label in one direction, best first."""

    label: Annotated[str, Meaning("the label of the file")]
    way: Annotated[str, Meaning("which words attend to which; of alignments, which rows", name="direction")]
    heads: Annotated[tuple[GoldScore, ...], Meaning("every head, the one that finds most answers first")]


def rank_heads(total: GoldTotals, ways: Sequence[str], held_out: bool) -> list[LabelScores]:
    """Every label and direction that was asked, those with the most questions first."""
    chosen, scored = ((0,), (1,)) if held_out else ((0, 1), (0, 1))  # which halves
    scores, counts = list[LabelScores](), Counter[str]()
    for slot, number in total.slots.items():
        ranked: list[GoldScore] = []
        for site, sums in total.sums.items() if slot[0] is not None else ():
            links = total.slots.get((None, slot[1]))
            agreed = None if links is None else sums.of(links, scored)
            ranked += _score(site, sums.heads, sums.of(number, chosen), sums.of(number, scored), agreed)
        if slot[0] is not None and ranked:
            ranked.sort(key=lambda head: head.rank)
            scores.append(LabelScores(slot[0], ways[slot[1]], tuple(ranked)))
            counts[slot[0]] = max(counts[slot[0]], *(head.rows for head in ranked))
    labels = sorted(counts, key=lambda label: (-counts[label], label))
    return sorted(scores, key=lambda each: (labels.index(each.label), ways.index(each.way)))


def _score(
    site: Site, heads: Sequence[int], chosen: Scored, scored: Scored, agreed: Scored | None
) -> Iterator[GoldScore]:
    """The scores of each head on ``scored``, and the distance that is best on ``chosen``."""
    offset = int(chosen[1].argmax())
    for number, head in enumerate(heads):
        best, (right, weight) = chosen[0][number][0], scored[0][number]
        if best and right and weight:
            links = agreed and agreed[0][number][0]
            yield GoldScore(
                Head(site.layer, head, site.kind),
                *(right.rows, right.texts, right.value, right.error),
                *(weight.value, weight.error, weight.baseline),
                *(offset - REACH, float(scored[1][offset]) / right.rows, best.value),
                *((1 - links.value, links.error) if links else ()),
            )


@record("heads by how many known answers they find (--gold)", "find")
class GoldResult:
    """Every label and direction, those with the most questions first, and notes."""

    title: str
    labels: Annotated[tuple[LabelScores, ...], Meaning("every label and direction, the most frequent first")]
    held_out: Annotated[bool, Meaning("whether heads were ranked on other texts than those scored")]
    notes: Notes
    read: tuple[Any, ...] = ()  # the model, and what it read


def find_gold(
    model: Model,
    file: GoldFile,
    selection: Selection | None = None,
    *,
    relations: Sequence[str] = (),
    held_out: bool = False,
    run: CorpusRun = CorpusRun(),  # noqa: B008
) -> GoldResult:
    """Ask every head all questions of a file, in one pass over its texts.

    ``relations`` limits the labels to these, and those with these before a colon. With ``held_out``,
    heads are ranked and offsets chosen on every other text, and the scores are from the remaining ones.
    Raises ``InputError`` for a file without usable questions.
    """
    work = _GoldWork(model, file, selection or Selection(), run, GoldTotals())
    work.relations = tuple(relations)
    asked = {
        "question": "answers",
        "file of questions": file.fingerprint(),
        "set of relations": list(relations),
    }
    work.walk(asked, GoldTotals.from_state)
    result = _finish(work.total, work.progress, Measured.of(model, file), file, relations, held_out)
    return replace(result, notes=(*result.notes, *run.notes), read=(model, *result.read[1:]))


def merged_gold(
    paths: Sequence[Path],
    file: GoldFile,
    selection: Selection | None = None,
    *,
    relations: Sequence[str] = (),
    held_out: bool = False,
) -> GoldResult:
    """What ``find_gold`` gives, from the sums of all its shards; needs no model.

    Raises ``InputError`` for files of other sums.
    """
    asked = {
        "question": "answers",
        "file of questions": file.fingerprint(),
        "set of relations": list(relations),
        "selection of heads": asdict(selection or Selection()),
    }
    total, progress, about = merge_shards(paths, asked, lambda _, state: GoldTotals.from_state(state))
    return _finish(total, progress, about, file, relations, held_out)


def _finish(
    total: GoldTotals,
    progress: Progress,
    about: Measured,
    file: GoldFile,
    relations: Sequence[str],
    held_out: bool,
) -> GoldResult:
    """The scores of all sums."""
    labels = tuple(rank_heads(total, file.directions, held_out))
    if not labels:
        raise InputError(_nothing(total, about, relations))
    title = f"{about.title} · {progress.layout[0]} · {progress.describe(file.path)}"
    notes = [*about.notes, *progress.left_out]
    if total.lost:
        lost = pluralize(total.lost, "pair")
        notes.append(f"{lost} could not be asked: a word shares its tokens or was cut off")
    if total.skipped:
        skipped = ", ".join(sorted(total.skipped))
        notes.append(f"attention that is not over the tokens was left out: {skipped}")
    if file.links and len(labels) > 1:
        notes.append(_compare_rows(*sorted(labels, key=lambda each: each.heads[0].rank)))
    read = about.model, file.path, (progress.texts, progress.tokens)
    return GoldResult(title, labels, held_out, tuple(notes), read)


def _compare_rows(better: LabelScores, worse: LabelScores) -> str:
    """Which rows of a target follow an alignment, by the best head of each."""
    verbs = {"predicting": "predict", "reading": "have read"}
    best = f"rows that {verbs[better.way]} a word find its source best, not those that {verbs[worse.way]} it"
    return f"{best}: {better.heads[0].accuracy:.2f} right, {worse.heads[0].accuracy:.2f}"


class _GoldWork(CorpusWork):
    source: GoldFile
    relations: tuple[str, ...]

    def inputs(self, entries: Sequence[CorpusText]) -> list[tuple[str, ...]]:
        """The text, and its target if there is one."""
        return [(gold.text,) if gold.target is None else (gold.text, gold.target) for gold in entries]

    def plan_batch(self, texts: Sequence[ReadText]) -> Asked:
        """The questions about a batch."""
        if texts[0].entry.target is not None and "cross" not in texts[0].prepared.axes:
            raise InputError(f"{self.model.name} is not an encoder-decoder: it reads no text and its target")
        return ask_batch([self._meant(text) for text in texts], self.source, self.total)

    def measure_batch(self, batch: Batch, asked: Asked) -> BatchResult:
        """One forward pass of a batch, with all its questions."""

        def read() -> tuple[GoldReading, Record]:
            reading = GoldReading(asked, len(self.total.slots), self.selection)
            return reading, self.model.run(batch.prepared, [reading])

        reading, record = self.known_passes.run(read)
        if not self.progress.layout:
            selected_sites(record, self.selection)
            self.progress.layout = extent(record.sites), ""
        reading.found.lost = max((each.lost for every in asked.values() for each in every), default=0)
        return reading.found, 0, 0, ()

    def _meant(self, text: ReadText) -> ReadText:
        """The text with the requested pairs; nsubj includes nsubj:pass."""
        if not self.relations:
            return text
        labels = {pair.label for pair in text.entry.pairs}
        meant = {each for each in labels if {each, each.partition(":")[0]} & set(self.relations)}
        self.total.others |= labels - meant
        pairs = tuple(pair for pair in text.entry.pairs if pair.label in meant)
        return text._replace(entry=text.entry._replace(pairs=pairs))


def _nothing(total: GoldTotals, about: Measured, relations: Sequence[str]) -> str:
    """Why no question was asked."""
    if total.others and relations:
        labels = sorted(total.others)
        near = nearest_name(relations[0], labels)
        return f"no {' or '.join(relations)} in {about.corpus}: {near}it has {list_some(labels, 20)}"
    if total.skipped:
        kinds = " and ".join(sorted(total.skipped))
        return f"the {kinds} attention of {about.name} is not over the tokens"
    return f"no pair of {about.corpus} can be asked of {about.name}"


MAX_RARITY = 10
"""A direction is not listed if the other one of its label is asked more than this many times as often."""


def gold_answer(result: GoldResult, top: int = 1) -> Answer:
    """For each label the ``top`` heads that find most answers, with errors if there is room."""
    return Answer((_table(result, top),), {}, lambda: result, lambda: _csv_rows(result, top))


def _comparable(result: GoldResult) -> dict[str, list[tuple[LabelScores, GoldScore]]]:
    """The heads of each label in both directions, best first, without a direction that is rarely asked."""
    by_label: dict[str, list[tuple[LabelScores, GoldScore]]] = {}
    for each in result.labels:
        by_label.setdefault(each.label, []).extend((each, head) for head in each.heads)
    for label, rows in by_label.items():
        most = max(head.rows for _, head in rows)
        rows = [row for row in rows if row[1].rows * MAX_RARITY >= most]
        by_label[label] = sorted(rows, key=lambda row: row[1].rank)
    return by_label


def _csv_rows(result: GoldResult, top: int) -> Iterator[list[Any]]:
    """The columns, then one line per head, label and direction; ``printed`` marks the table's."""
    printed = {id(head) for rows in _comparable(result).values() for _, head in rows[:top]}
    yield ["label", "direction", *plain(result.labels[0].heads[0]), "printed"]
    for each in result.labels:
        for head in each.heads:
            yield [each.label, each.way, *plain(head).values(), id(head) in printed]


def _table(result: GoldResult, top: int) -> Table:
    by_label = _comparable(result)
    every = [head for each in result.labels for head in each.heads]
    several = len({head.head.kind for head in every}) > 1
    rate = any(head.aer is not None for head in every)
    left = ("label", "rows" if rate else "direction", "head", *(("kind",) * several))
    numbers = ("right", "fixed", "weight", *(("AER",) * rate), "asked")
    printed = [
        ((label if not number else "", each.way, head.head.name, *((head.head.kind or "",) * several)), head)
        for label, rows in by_label.items()
        for number, (each, head) in enumerate(rows[:top])
    ]
    wide, narrow = (
        tuple((*named, *_cells(head, rate, room)) for named, head in printed) for room in (True, False)
    )
    better = sum(rows[0][1].accuracy > rows[0][1].fixed for rows in by_label.values())
    rare = len(result.labels) - len({id(each) for rows in by_label.values() for each, _ in rows})
    notes = _table_notes(result, better, len(by_label), rate)
    if rare:
        them = ("directions occur", "them") if rare > 1 else ("direction occurs", "it")
        notes.append(f"{rare:,} {them[0]} too rarely to be compared: --json has {them[1]}")
    table = Table(
        tuple(Column(name, name in numbers, "keep") for name in (*left, *numbers)),
        wide,
        title=result.title,
        notes=(*notes, *result.notes),
        dim=frozenset(place for place, (_, head) in enumerate(printed) if head.accuracy <= head.fixed),
    )
    return replace(table, narrow=replace(table, rows=narrow, gap=1))


def _cells(head: GoldScore, rate: bool, wide: bool) -> list[str]:
    """The scores of a head; with the error of the weight if there is room."""
    weight = f"{_ratio(head.weight, head.weight_error if wide else None)} ({round_short(head.baseline)})"
    aer = [] if not rate else ["" if head.aer is None else _ratio(head.aer, head.aer_error)]
    right, fixed = _ratio(head.accuracy, head.accuracy_error), f"{head.fixed:.2f} at {head.offset:+d}"
    return [right, fixed, weight, *aer, f"{head.rows:,}"]


def _ratio(value: float, error: float | None) -> str:
    return f"{value:.2f}" if error is None else f"{value:.2f} ±{error:.2f}"


def _table_notes(result: GoldResult, better: int, labels: int, rate: bool) -> list[str]:
    right = "right more often than the word at a fixed distance"
    best = f"for {better:,} of {labels:,} labels the head is {right} (the other lines are dim)"
    if labels == 1:
        best = f"the head is {'' if better else 'not '}{right}"
    chosen = "heads and distances are the best of these texts: --held-out scores them on others"
    if result.held_out:
        half = "the scores are those of the other half"
        chosen = f"heads and distances were chosen on one half of the texts; {half}"
    return [
        best,
        "right: the word's largest weight, special tokens and itself aside, goes to an answer; "
        "fixed: the best word at one distance, in words",
        "weight: the attention to the answers (baseline, under uniform attention, in parentheses)",
        *(["AER: alignment error rate, the smaller the better (Och and Ney 2003)"] if rate else []),
        chosen,
    ]
