"""Which heads attend from one part of a text to another: ``it -> cat``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import chain
from math import isnan
from typing import Annotated

import torch
from torch import Tensor

from attnscope.attention import Attention, Axis, Head, Site
from attnscope.capture.observers import BLOCK, RowObserver, SharedRows, rows_at_a_time
from attnscope.capture.record import SiteRecord
from attnscope.errors import SelectionError
from attnscope.fused.fused_pass import FusedPass
from attnscope.fused.request import Request, Statistics
from attnscope.measures import HeadScores
from attnscope.models import Model, ModelInput
from attnscope.questions import sentences
from attnscope.questions.answer import Answer
from attnscope.questions.parts import Group, TextPart, word_groups
from attnscope.questions.rules import Question, Rule, RuleCells
from attnscope.questions.rules import parse_questions as parse_questions
from attnscope.questions.selection import Selection
from attnscope.records import ADDRESS, Meaning, Notes, record
from attnscope.registry import nearest_name
from attnscope.text import number_ranges
from attnscope.views import Column, HeadMap, Heatmap, Table, View, maps_by_kind, number


@dataclass(frozen=True, eq=False)
class ResolvedQuestion:
    """A question on the axes of one call: the rows to read, and the keys asked about."""

    rows: dict[int, float]  # and how much each counts
    left: tuple[Group, ...]
    right: tuple[Group, ...]
    rule: Rule | None  # of keys that depend on the row
    axes: tuple[Axis, Axis]
    word: Tensor  # [key], the word that each key belongs to
    target: Tensor  # [word] bool
    wanted: Tensor  # [key] bool: the target's words; empty for a rule
    everything: bool  # whether all words are asked about

    @classmethod
    def of(cls, question: Question, queries: Axis, keys: Axis) -> ResolvedQuestion | None:
        """``None`` if one of the parts does not exist."""
        rule = question.varying
        left, right = question.left.tokens(queries), () if question.rule else question.right.tokens(keys)
        if question.left.step is not None:  # each key is asked about from the same distance
            far, length = question.left.step, len(queries)
            moved = (tuple(at + far for at in group if 0 <= at + far < length) for group in right)
            left, right = tuple(group for group in moved if group), ()
        apart = rule is not None and rule.repeats and queries != keys  # no token of another sequence
        if apart or not left or not (right or rule is not None):
            return None
        rows: dict[int, float] = {}
        for row, share in ((row, 1 / len(group)) for group in left for row in group):
            rows[row] = rows.get(row, 0.0) + share
        word = _words(keys, right) if rule is None else torch.arange(len(keys))  # a rule counts tokens
        target = torch.zeros(len(keys), dtype=torch.bool)
        target[[group[0] for group in right]] = True
        everything = question.right.everything and rule is None
        return cls(rows, left, right, rule, (queries, keys), word, target, target[word], everything)

    @cached_property
    def cells(self) -> RuleCells:
        """Every row and key, but not how far they are from each other."""
        # without tokens, no two are the same
        rows, keys = (torch.tensor([[getattr(each, "id", each) for each in axis]]) for axis in self.axes)
        named = dict[str, Tensor]()
        for atom in self.rule.atoms if self.rule else ():
            named[atom.text] = torch.zeros(1, 1, len(self.wanted), dtype=torch.bool)
            named[atom.text][..., list(chain.from_iterable(atom.tokens(self.axes[1])))] = True
        return RuleCells.of_ids(rows, keys, lambda part: named[part.text])

    def keys(self, rows: Sequence[int]) -> Tensor:
        """The keys that each of some rows is asked for.  -> bool, [row or 1, key]"""
        if self.rule is None:
            return self.wanted[None]
        at = torch.tensor(rows)
        gaps = torch.arange(len(self.wanted)) - at[:, None]
        return self.rule.keys(self.cells._replace(gaps=gaps, rows=self.cells.rows[:, at]))[0]

    @property
    def table(self) -> Tensor:
        """The cells that it is about, bool.  [query, key]"""
        rows, table = list(self.rows), torch.zeros(*map(len, self.axes), dtype=torch.bool)
        table[rows] = self.keys(rows)
        return table


def _words(keys: Axis, parts: Sequence[Group]) -> Tensor:
    """The first token of each key's word, or of the part that it is in.  -> [key]"""
    word, meant = torch.arange(len(keys)), set(chain.from_iterable(parts))  # maybe pieces of words
    rests = ([key for key in group if key not in meant] for _, group in word_groups(keys))
    for word_or_part in (*filter(None, rests), *map(list, parts)):
        word[word_or_part] = word_or_part[0]
    return word


@record("a head's answer")
class HeadScore:
    """How much of one head's attention from the left part goes to the right part.

    ``rank`` is the place of the right part's heaviest word among all words of the row: 1 is the heaviest;
    ``None`` if every word is meant, and over a corpus. All are means over the ``rows`` of the left part that
    can attend to the right part; rows of one word's pieces count as one, but not over a corpus.
    """

    head: Annotated[Head, ADDRESS]
    weight: Annotated[float, Meaning("how much the rows attend to the keys")]
    baseline: Annotated[float, Meaning("the same for uniform attention")]
    rank: Annotated[float | None, Meaning("the place of the keys among all words")]
    rows: Annotated[int, Meaning("rows that counted")]

    @property
    def place(self) -> tuple[bool, float, Head]:
        """Its place in a list: the largest weight first, what is no number last."""
        return isnan(self.weight), -self.weight, self.head


@dataclass(eq=False)
class QuestionSums:
    """The sums of the rows of one call that a question is about."""

    site: Site
    asked: ResolvedQuestion
    step: int  # rows that are read at a time
    sums: Tensor  # [weight | baseline | rank, head]
    share: float = 0.0  # of the rows in the sums
    rows: int = 0

    @property
    def wanted(self) -> Sequence[int]:
        """The rows that it is about."""
        return list(self.asked.rows)

    def end(self) -> None:
        """Nothing is left to do."""

    def add(self, rows: Tensor, allowed: Tensor, start: int) -> None:
        """Add rows of the call, [batch, head, row, key], from row ``start`` on."""
        weights, count = rows, rows.shape[2]
        mine = [row for row in range(start, start + count) if row in self.asked.rows]
        if not mine:
            return
        if len(mine) < count:
            part = [row - start for row in mine]
            weights, allowed = weights[:, :, part], allowed[:, :, part]
        weights, allowed, wanted = weights.cpu(), allowed.cpu(), self.asked.wanted
        fixed = self.asked.rule is None
        if fixed:
            given = weights[..., wanted].sum(-1, dtype=torch.float64)  # [batch, head, row]
            opened = allowed[..., wanted].sum(-1)  # [batch or 1, head or 1, row]
        else:  # a sum of the few keys of each row
            named = self.asked.keys(mine)  # [row or 1, key]
            given = (weights * named).sum(-1, dtype=torch.float64)
            opened = (allowed & named).sum(-1)
        even, there = opened / allowed.sum(-1).clamp(min=1), allowed.any(-1)
        heavier = torch.zeros_like(given)
        if not self.asked.everything:
            if fixed:
                words = torch.zeros_like(weights).index_add_(-1, self.asked.word, weights)
                best = words[..., self.asked.target].amax(-1)
            else:
                words, best = weights, weights.masked_fill(~named, 0).amax(-1)
            more = torch.gt(words, best[..., None], out=torch.empty_like(words))  # faster than bools
            heavier = more.sum(-1)
        self._count(mine, given, opened.any(0).any(0), even, heavier, there)

    def add_statistics(self, statistics: Statistics, step: int) -> None:
        """Add all rows of a call from the fused pass, each with the weight on one key."""
        low, high = statistics.runs.low, statistics.runs.high  # [text, row]
        key = torch.arange(low.shape[1]) + step
        opened = (low <= key) & (key < high)
        even = (opened / (high - low).clamp(min=1))[:, None]
        name, mine = str(step), list(self.asked.rows)
        given, heavier = statistics.at[name][..., mine], statistics.heavier[name][..., mine]
        there = torch.ones_like(even[..., mine], dtype=torch.bool)
        self._count(mine, given, opened.any(0)[mine], even[..., mine], heavier, there)

    def _count(
        self, mine: list[int], given: Tensor, able: Tensor, even: Tensor, heavier: Tensor, there: Tensor
    ) -> None:
        """Count rows by number: their weights, [batch, head, row], which can attend, and which texts have."""
        share = torch.tensor([self.asked.rows[row] for row in mine], dtype=torch.float64) * able
        for place, each in enumerate((given, even, heavier + 1)):
            texts = there.expand(max(len(there), len(each)), -1, -1)
            self.sums[place] += (each.double() * texts).sum(0) / texts.sum(0).clamp(min=1) @ share
        self.share += float(share.sum())
        self.rows += int(able.sum())

    def heads(self, numbers: Sequence[int]) -> list[HeadScore]:
        """The means, one per head; empty if no row could attend."""
        site, ranked = self.site, not self.asked.everything
        table = zip(numbers, *(self.sums / self.share).tolist(), strict=True) if self.share else ()
        return [
            HeadScore(
                Head(site.layer, head, site.kind), weight, baseline, rank if ranked else None, self.rows
            )
            for head, weight, baseline, rank in table
        ]


NAMED = 6  # places of a part, or runs of them, that a note names


@record("a question")
class QuestionResult:
    """All heads that a question applies to, the largest share first, and notes."""

    question: Annotated[Question, Meaning("as it was asked", shape=str, plain=str)]
    heads: Annotated[tuple[HeadScore, ...], Meaning("every head, the one that looks most first")]
    notes: Annotated[tuple[str, ...], Meaning("what to know about it")] = ()

    def maps(self) -> dict[str, HeadMap]:
        """Every head's share as a map, one for each kind of attention."""
        shares = {each.head: each.weight for each in self.heads}
        return maps_by_kind(
            shares, "attention", lambda kind: f"{self.question} · {sentences.kind_title(kind)}", unit="share"
        )

    def table(self, top: int) -> Table:
        """The heads with the largest shares, one line each."""
        if not self.heads:
            return Table(title=str(self.question), notes=self.notes)
        several = len({each.head.kind for each in self.heads}) > 1
        whole = all(each.rank is None or each.rank.is_integer() for each in self.heads[:top])
        left = ("head", *(("kind",) if several else ()))
        columns = [Column(name, name not in left, "keep") for name in (*left, "share", "baseline", "rank")]
        rows, largest = [], min(self.heads[0].weight or 1.0, 1.0)
        for each in self.heads[:top]:
            rank = "–" if each.rank is None else f"{each.rank:.{0 if whole else 1}f}"
            kind = (each.head.kind or "",) if several else ()
            shares = (
                number(share, largest if share >= 0.01 else share) for share in (each.weight, each.baseline)
            )
            rows.append((each.head.name, *kind, *shares, rank))
        ranks = "rank: 1 where no other key has a larger weight in the row"
        notes = [f"{len(rows)} of {len(self.heads):,} heads: --top {len(self.heads)}"]
        notes *= len(rows) < len(self.heads)
        notes += [ranks] * any(each.rank is not None for each in self.heads[:top])
        return Table(tuple(columns), tuple(rows), notes=(*notes, *self.notes))


@record("heads by how much one part of a text attends to another", "find", "spans")
class FindResult:
    """The answers to some questions about one text."""

    answers: Annotated[tuple[QuestionResult, ...], Meaning("every question", name="questions")]
    title: str
    notes: Notes

    @property
    def first(self) -> QuestionResult:
        """The first question that has an answer."""
        return next(answer for answer in self.answers if answer.heads)


LISTED_HEADS = 8  # heads that are listed of each question


def find_answer(result: FindResult, top: int = LISTED_HEADS, commands: Sequence[str] = ()) -> Answer:
    """For each question a map of all heads, and the top ones; ``commands`` open one of them."""
    views: list[View] = [Table(subtitle=result.title)]
    pictures: dict[str, HeadMap] = {}
    for place, answer in enumerate(result.answers, 1):
        maps, table = answer.maps(), answer.table(top)
        views += [*maps.values(), table]
        for kind, view in maps.items():
            names = [str(place)] * (len(result.answers) > 1) + [kind] * (len(maps) > 1)
            notes = (*answer.notes, *result.notes)
            pictures["-".join(names)] = replace(view, subtitle=result.title, notes=notes)
    views[-1] = replace(table, notes=(*table.notes, *result.notes), commands=tuple(commands))
    return Answer(tuple(views), pictures, lambda: result, partial(_csv_rows, result))


def _csv_rows(result: FindResult) -> Iterator[tuple[object, ...]]:
    yield "question", "kind", "layer", "head", "weight", "baseline", "rank", "rows"
    for answer in result.answers:
        for each in answer.heads:
            head = each.head.kind, each.head.layer, each.head.head
            yield answer.question, *head, each.weight, each.baseline, each.rank, each.rows


def find_heads(
    model: Model, prepared: ModelInput, questions: Sequence[Question], selection: Selection | None = None
) -> FindResult:
    """Run the model once, and rank its heads by their attention from one part of the text to another.

    Rows of a word's pieces are averaged, its columns summed; likewise for several places that match a part.
    In cross-attention the left part is in the decoder, the right part in the encoder. A question without an
    answer has no heads, and a note says why. Raises ``SelectionError`` if no question has an answer.
    """
    selection = selection or Selection()
    observers, fused = [QuestionObserver(question) for question in questions], None
    if asks_all_rows(questions) and model.weighting == "raw":
        steps = Request(
            at={str(each.step): partial(torch.add, each.step) for each in questions}, heavier=True
        )
        fused = FusedPass(steps)
    record = model.run(prepared, [SharedRows(observers, selection.heads)], fused)
    chosen = sentences.selected_sites(record, selection)
    numbers = {site.site: selection.heads(site.site, site.heads) for site in chosen}
    answers = []
    for question, observer in zip(questions, observers, strict=True):
        sums = observer.sums
        heads = [score for each in sums for score in each.heads(numbers[each.site])]
        heads.sort(key=lambda score: score.place)
        notes = _notes(question, sums) if heads else [explain_no_answer(question, prepared, chosen)]
        answers.append(QuestionResult(question, tuple(heads), tuple(notes)))
    if not any(answer.heads for answer in answers):
        raise SelectionError("; ".join(note for answer in answers for note in answer.notes))
    title = f"{sentences.name_pass(model, prepared)} · {sentences.provenance(chosen)}"
    return FindResult(tuple(answers), title, (*model.notes, *prepared.notes, *record.notes))


def corpus_heads(
    measured: Sequence[HeadScores], questions: Sequence[Question], title: str, notes: Sequence[str]
) -> FindResult:
    """The answers over a corpus, from the measures ``find(...)``: means over tokens, without a rank.

    Raises ``SelectionError`` if no question has an answer.
    """
    answers = []
    for question in questions:
        name = f"find({question})"
        heads = [
            HeadScore(each.address, score.value, score.baseline, None, score.rows)
            for each in measured
            for score in (each.scores.get(name),)
            if score is not None
        ]
        heads.sort(key=lambda each: each.place)
        absent = dict.fromkeys(each.absent[name] for each in measured if name in each.absent)
        answers.append(QuestionResult(question, tuple(heads), tuple(absent)))
    if not any(answer.heads for answer in answers):
        raise SelectionError("; ".join(note for answer in answers for note in answer.notes))
    return FindResult(tuple(answers), title, tuple(notes))


def asks_all_rows(questions: Sequence[Question]) -> bool:
    """Whether every row of a text is asked about one key: then the fused pass can answer."""
    return all(
        each.step is not None and (each.left.everything or each.right.everything) for each in questions
    )


@dataclass(eq=False)
class QuestionObserver(RowObserver):
    """Asks a question of every call, of the rows that it is about."""

    question: Question
    sums: list[QuestionSums] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.resolve = cache(partial(ResolvedQuestion.of, self.question))  # calls share their axes

    def begin(self, attention: Attention) -> QuestionSums | None:
        """Begin to read the rows that the question is about."""
        resolved, statistics = self.resolve(attention.queries, attention.keys), attention.statistics
        if resolved is None:
            return None
        sums = torch.zeros(3, attention.heads, dtype=torch.float64)
        sums_of_call = QuestionSums(attention.site, resolved, rows_at_a_time(attention, BLOCK), sums)
        self.sums.append(sums_of_call)
        step = self.question.step
        if step is None or not isinstance(statistics, Statistics) or str(step) not in statistics.heavier:
            return sums_of_call
        sums_of_call.add_statistics(statistics, step)
        return None

    def mark(
        self, view: Heatmap, prepared: ModelInput, site: SiteRecord, read: Sequence[int], head: int
    ) -> Heatmap:
        """A head's map with the cells of the question marked, and a note with their share.

        ``read`` are the heads of the site that were asked. Raises ``SelectionError`` if no cell is in the
        picture, or all are masked.
        """
        sums = next((each for each in self.sums if each.site == site.site), None)
        scores = [] if sums is None else sums.heads(read)
        if sums is None or not scores:
            raise SelectionError(explain_no_answer(self.question, prepared, [site]))
        marks = tuple((row, key) for row, key in sums.asked.table.nonzero().tolist())
        if not replace(view, marks=marks).marked.any():
            raise SelectionError(f"'{self.question}' is not in this picture, which leaves out some tokens")
        score = scores[read.index(head)]
        rows = f", the mean of {score.rows:,} rows" * (score.rows > 1)
        note = f"marked: {self.question} ({score.weight:.2f} in {score.head.name}{rows})"
        return replace(view, marks=(*view.marks, *marks), notes=(*view.notes, note))


def _notes(question: Question, sums: Sequence[QuestionSums]) -> list[str]:
    """Notes on parts that match several places, and on rows that cannot attend."""
    notes = []
    resolved = sums[0].asked
    left = question.left if question.left.step is None else question.right
    for part, groups, what in ((left, resolved.left, "averaged"), (question.right, resolved.right, "summed")):
        if len(groups) > 1 and not part.everything:
            runs = number_ranges({group[0] for group in groups}).split(", ")
            at = sentences.list_some(runs, NAMED)
            notes.append(f"{part.text} is at {len(groups):,} places ({at}): {what}")
    blind = len(resolved.rows) - max(each.rows for each in sums)
    if blind:
        notes.append(f"{blind:,} of {len(resolved.rows):,} tokens have no such position and are not counted")
    return notes


def explain_no_answer(question: Question, prepared: ModelInput, sites: Sequence[SiteRecord]) -> str:
    """Why a question has no answer: what does not exist, stands on no one call's axes, or is masked."""
    kinds = sentences.kinds_of([each.site for each in sites])
    sides = [axes for kind, axes in prepared.axes.items() if kind in kinds]
    if missing := next(_missing_parts(question, sides), None):
        return missing
    where = " and ".join(sentences.kind_title(kind) for kind in kinds)
    left, right = question.left.text, question.right.text
    shapes = {(each.site.kind, each.queries, each.keys) for each in sites}
    labelled = (axes for kind, axes in prepared.axes.items() if (kind, *map(len, axes)) in shapes)
    if question.rule or all(ResolvedQuestion.of(question, *axes) is None for axes in labelled):
        never = f"in {where}, no row of {left!r} has a key of {right!r}"
        if question.rule and not question.rule.relative:
            never += f"; for a phrase, write '{right}' in quotes"
        return f"no attention goes from {left!r} to {right!r}: {never}"
    return f"{left!r} cannot attend to {right!r} in {where}: those keys are masked"


def _missing_parts(question: Question, sides: Sequence[tuple[Axis, Axis]]) -> Iterator[str]:
    """What a question names and the axes do not have: a part, or a token at its distance."""
    parts = (question.left, question.right)
    for side, part in enumerate(parts):
        named = part.step is None and not (side and question.rule)
        if named and sides and not any(part.tokens(axes[side]) for axes in sides):
            yield _absent(part, sides[0][side], ("queries", "keys")[side])
    for side, (part, other) in enumerate((parts, parts[::-1])):
        if part.step is None:
            continue
        places = ((axes, at) for axes in sides for group in other.tokens(axes[1 - side]) for at in group)
        if not any(0 <= at + part.step < len(axes[side]) for axes, at in places):
            where = "after" if part.step > 0 else "before"
            yield f"no token is {abs(part.step):,} {where} {other.text!r}"


def _absent(part: TextPart, axis: Axis, side: str) -> str:
    """The message that a part does not exist, with near matches."""
    name, number = part.place
    if part.text.isdigit():
        return f"no token {part.text}: the {side} are tokens 0 to {len(axis) - 1:,}"
    if number == 0:
        return f"no {part.text!r}: the first is {name}#1"
    if number is not None and (count := len(TextPart(name).tokens(axis))):
        return f"no {part.text!r}: {name} occurs {sentences.pluralize(count, 'time')} among the {side}"
    places = [place for place, _ in word_groups(axis)]
    near = nearest_name(name, [place.text.strip() for place in places])
    read = sentences.list_some(list(dict.fromkeys(place.label for place in places)))
    return f"{part.text!r} is not in the text: {near}its tokens are {read}"
