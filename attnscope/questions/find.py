"""Questions about two parts of a text: ``it -> cat``. Parsed, never run as code."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from math import isnan

import torch
from torch import Tensor

from attnscope.attention import Attention, Axis, Head, Site
from attnscope.capture.observers.coarsen import BLOCK, SharedRows, rows_at_a_time
from attnscope.errors import SelectionError
from attnscope.models import Model, ModelInput
from attnscope.questions.parts import Group, Part, part_of, word_groups
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import (
    kind_title,
    kinds_of,
    name_pass,
    number_ranges,
    provenance,
    require_selected,
)
from attnscope.registry import nearest_name

HELP = (
    "write a word (cat), one of several (cat#2), a token's number (5), a quoted phrase ('the mat'), [CLS], "
    "special, punctuation, image, image 2, sound, /regex/, or *; on one side also a number of tokens from "
    "the other (-2, +1); what has an arrow in it stands in quotes"
)

CLOSED = r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|/(?:\\.|[^/\\])*/)(?:\#\d+)?"""
"""A phrase or a regular expression up to where its quotes or strokes close: an arrow may be in it."""

SIDES = re.compile(rf"(?P<left>{CLOSED}|(?:(?!<?->).)+)\s*(?P<arrow><?->)(?P<right>.*)", re.S)

RIGHT = re.compile(rf"{CLOSED}|(?:(?!<?->).)+", re.S)


@dataclass(frozen=True, slots=True)
class Question:
    """How much of the attention of one part goes to another."""

    left: Part
    right: Part

    def __str__(self) -> str:
        return f"{self.left.text} -> {self.right.text}"


def parse_questions(text: str) -> tuple[Question, ...]:
    """``it -> cat``, or both ways: ``it <-> cat``. Raises ``SelectionError`` for what is no question."""
    sides = SIDES.fullmatch(text.strip())
    left, right = (sides[side].strip() if sides else "" for side in ("left", "right"))
    if sides is None or not left or not RIGHT.fullmatch(right):
        raise SelectionError(f"{text!r} is no question: write FROM -> TO, like 'it -> cat'; {HELP}")
    one, other = part_of(left), part_of(right)
    if one.step is not None and other.step is not None:
        raise SelectionError(
            f"{text!r} counts tokens on both sides: one side is a part, as in '* -> {right}'"
        )
    there = Question(one, other)
    return (there,) if sides["arrow"] == "->" else (there, Question(other, one))


def is_question(text: str) -> bool:
    """Whether an argument is a question, and no text."""
    return "->" in text


@dataclass(frozen=True, eq=False)
class Aim:
    """A question on the axes of one call: which rows are read, and which keys they are asked about."""

    rows: dict[int, float]  # and how much each counts
    left: tuple[Group, ...]
    right: tuple[Group, ...]
    step: int | None
    word: Tensor  # [key], the word that each key is a piece of
    target: Tensor  # [word] bool
    wanted: Tensor  # [key] bool: the target's words, or nothing of a step

    @classmethod
    def of(cls, question: Question, queries: Axis, keys: Axis) -> Aim | None:
        """``None`` where one of the parts does not exist."""
        left, right, step = question.left.tokens(queries), question.right.tokens(keys), question.right.step
        if question.left.step is not None:  # each key is asked about from as many tokens away
            left, right, step = _moved(right, question.left.step, len(queries)), (), -question.left.step
        if not left or not (right or step is not None):
            return None
        rows: dict[int, float] = {}
        for group in left:
            for row in group:
                rows[row] = rows.get(row, 0.0) + 1 / len(group)
        word = list(range(len(keys)))  # a step counts tokens; else words, and the groups that are meant
        if step is None:
            meant = {key for group in right for key in group}
            for _, group in word_groups(keys):
                rest = [key for key in group if key not in meant]  # of a word, a piece may be meant
                for key in rest:
                    word[key] = rest[0]
            for group in right:
                for key in group:
                    word[key] = group[0]
        firsts = {group[0] for group in right}
        target = torch.tensor([key in firsts for key in range(len(keys))])
        each = torch.tensor(word)
        return cls(rows, left, right, step, each, target, target[each])


def _moved(groups: tuple[Group, ...], step: int, length: int) -> tuple[Group, ...]:
    """The same places so many tokens on, as far as they exist."""
    moved = (tuple(at + step for at in group if 0 <= at + step < length) for group in groups)
    return tuple(group for group in moved if group)


@dataclass(frozen=True)
class Looking:
    """How much of what one head does answers a question.

    ``weight`` is the share of the attention of the left part that goes to the right part, ``baseline`` the
    same of even attention over the open keys, and ``rank`` the place of the right part's heaviest word among
    all words of the row: 1 is the heaviest; ``None`` where every word is meant. All are means over the
    ``rows`` of the left part that may look at the right part at all; rows of one word's pieces count as one.
    """

    head: Head
    weight: float
    baseline: float
    rank: float | None
    rows: int


@dataclass(eq=False)
class Sums:
    """What the rows of one call add up to, for one question."""

    question: int
    site: Site
    count: InitVar[int]  # of heads
    aim: Aim
    everything: bool
    share: float = 0.0  # of the rows that are in the sums
    rows: int = 0

    def __post_init__(self, count: int) -> None:
        self.weight, self.baseline, self.rank = torch.zeros(3, count, dtype=torch.float64)  # [head] each

    def add(self, weights: Tensor, allowed: Tensor, start: int) -> None:
        """Rows of the call, [batch, head, row, key], from row ``start`` on."""
        mine = [row for row in self.aim.rows if start <= row < start + weights.shape[2]]
        if not mine:
            return
        part = [row - start for row in mine]
        weights, allowed = weights[:, :, part].cpu().double(), allowed[:, :, part].cpu()
        wanted, step = self.aim.wanted, self.aim.step
        if step is not None:
            wanted = torch.arange(weights.shape[-1]) == torch.tensor(mine)[:, None] + step  # [row, key]
        opened = (allowed & wanted).sum(-1)  # [batch or 1, head or 1, row]
        looks = (opened > 0).any(0).any(0)  # [row]
        share = torch.tensor([self.aim.rows[row] for row in mine], dtype=torch.float64) * looks
        even = (opened / allowed.sum(-1).clamp(min=1)).mean(0, dtype=torch.float64)
        self.weight += (weights @ wanted.double() if step is None else (weights * wanted).sum(-1)).mean(
            0
        ) @ share
        self.baseline += even @ share
        if not self.everything:
            words = torch.zeros_like(weights).index_add_(-1, self.aim.word, weights)
            best = words.masked_fill(~(self.aim.target if step is None else wanted), -1).amax(
                -1, keepdim=True
            )
            self.rank += (words > best).sum(-1).mean(0, dtype=torch.float64).add_(1) @ share
        self.share += float(share.sum())
        self.rows += int(looks.sum())

    def heads(self, numbers: Sequence[int]) -> list[Looking]:
        """The means, a head each; none where no row could look."""
        if not self.share:
            return []
        site = self.site
        table = torch.stack([self.weight, self.baseline, self.rank], 1) / self.share
        return [
            Looking(
                Head(site.layer, head, site.kind),
                weight,
                baseline,
                None if self.everything else rank,
                self.rows,
            )
            for head, (weight, baseline, rank) in zip(numbers, table.tolist(), strict=True)
        ]


NAMED = 6
"""Places of a part, or runs of them, that a note names."""


@dataclass(frozen=True)
class Answer:
    """All heads that a question is about, the one that looks most first, and what to know of the question."""

    question: Question
    heads: tuple[Looking, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answers:
    """The answers to some questions about one text."""

    answers: tuple[Answer, ...]
    title: str
    notes: tuple[str, ...]


def find(
    model: Model, prepared: ModelInput, questions: Sequence[Question], selection: Selection | None = None
) -> Answers:
    """Run the model once, and rank its heads by how much they look from one part of the text to another.

    Only the rows of the left parts are computed. Rows of a word's pieces are averaged, its columns summed; of
    several places that a part fits, rows are averaged and columns summed. In cross-attention the left part is
    one of the decoder's, the right part one of the encoder's. A question without an answer (a part that does
    not exist, or keys that are masked) has no heads, and a note that says why. Raises ``SelectionError``
    where no question has an answer.
    """
    selection = selection or Selection()
    observer = _Questions(tuple(questions))
    record = model.run(prepared, [SharedRows([observer], selection.heads)])
    chosen = [site for site in record.sites if selection.heads(site.site, site.heads)]
    require_selected(chosen, record, selection)
    numbers = {site.site: selection.heads(site.site, site.heads) or () for site in chosen}
    answers = []
    for place, question in enumerate(questions):
        sums = [each for each in observer.sums if each.question == place]
        heads = [looking for each in sums for looking in each.heads(numbers[each.site])]
        heads.sort(key=lambda looking: (isnan(looking.weight), -looking.weight, looking.head))
        notes = _notes(question, sums) if heads else [_nothing(question, prepared, list(numbers))]
        answers.append(Answer(question, tuple(heads), tuple(notes)))
    if not any(answer.heads for answer in answers):
        raise SelectionError("; ".join(note for answer in answers for note in answer.notes))
    title = f"{name_pass(model, prepared)} · {provenance(chosen)}"
    return Answers(tuple(answers), title, (*model.notes, *prepared.notes, *record.notes))


@dataclass(eq=False)
class _Questions:
    """Observer: asks all questions of every call, of the rows that they are about."""

    questions: tuple[Question, ...]
    sums: list[Sums] = field(default_factory=list)
    aims: list[tuple[int, tuple[Axis, Axis], Aim | None]] = field(default_factory=list)

    def begin(self, attention: Attention) -> _Reading | None:
        asked = []
        for number, question in enumerate(self.questions):
            aim = self._aim(number, attention.queries, attention.keys)
            if aim is not None:
                everything = question.right.everything and aim.step is None
                asked.append(Sums(number, attention.site, attention.heads, aim, everything))
        self.sums += asked
        return _Reading(asked, rows_at_a_time(attention, BLOCK)) if asked else None

    def _aim(self, number: int, queries: Axis, keys: Axis) -> Aim | None:
        """A question on these axes: looked for once, for all calls that have the same."""
        for known, axes, aim in self.aims:
            if known == number and axes == (queries, keys):
                return aim
        aim = Aim.of(self.questions[number], queries, keys)
        self.aims.append((number, (queries, keys), aim))
        return aim


@dataclass(frozen=True, eq=False)
class _Reading:
    """The rows that the questions about one call need."""

    asked: Sequence[Sums]
    step: int

    @property
    def wanted(self) -> Sequence[int]:
        return sorted({row for each in self.asked for row in each.aim.rows})

    def add(self, rows: Tensor, allowed: Tensor, start: int) -> None:
        for each in self.asked:
            each.add(rows, allowed, start)

    def end(self) -> None:
        """Nothing is left to do."""


def _notes(question: Question, sums: Sequence[Sums]) -> list[str]:
    """Where a part stands at several places, and rows that cannot look."""
    notes = []
    aim = sums[0].aim
    left = question.left if question.left.step is None else question.right
    for part, groups, what in ((left, aim.left, "averaged"), (question.right, aim.right, "summed")):
        if len(groups) > 1 and not part.everything:
            runs = number_ranges({group[0] for group in groups}).split(", ")
            at = ", ".join([*runs[:NAMED], *(["..."] if len(runs) > NAMED else [])])
            notes.append(f"{part.text} stands at {len(groups):,} places ({at}): {what}")
    blind = len(aim.rows) - max(each.rows for each in sums)
    if blind:
        notes.append(f"{blind:,} of {len(aim.rows):,} rows cannot look there, and are left out")
    return notes


def _nothing(question: Question, prepared: ModelInput, sites: Sequence[Site]) -> str:
    """Why a question has no answer: what does not exist, or what no row may look at."""
    kinds = kinds_of(sites)
    sides = [axes for kind, axes in prepared.axes.items() if kind in kinds]
    parts = (question.left, question.right)
    for side, part in enumerate(parts):
        if part.step is None and sides and not any(part.tokens(axes[side]) for axes in sides):
            return _absent(part, sides[0][side], ("queries", "keys")[side])
    for side, part in enumerate(parts):
        other = parts[1 - side]
        if part.step is not None and not any(_leads(other, part.step, axes, side) for axes in sides):
            way = "behind" if part.step > 0 else "before"
            return f"no token stands {abs(part.step):,} {way} {other.text!r}"
    where = " and ".join(kind_title(kind) for kind in kinds)
    left, right = question.left.text, question.right.text
    return f"{left!r} cannot look at {right!r} in {where}: those keys are masked"


def _absent(part: Part, axis: Axis, side: str) -> str:
    """That a part does not exist, and what is near it."""
    name, number = part.place
    if part.text.isdigit():
        return f"no token {part.text} among the {side}, which are 0 to {len(axis) - 1:,}"
    if number == 0:
        return f"no {part.text!r} among the {side}: the first is {name}#1"
    if number is not None and (count := len(Part(name).tokens(axis))):
        return f"no {part.text!r} among the {side}: {name} stands at {count:,} place{'s' * (count > 1)}"
    near = nearest_name(name, [place.text.strip() for place, _ in word_groups(axis)])
    return f"no {part.text!r} among the {side}: {near}they read {_listed(axis)}"


def _leads(part: Part, step: int, axes: tuple[Axis, Axis], side: int) -> bool:
    """Whether a distance leads from some token of a part to one of the axis of ``side``."""
    groups = part.tokens(axes[1 - side])
    return any(0 <= at + step < len(axes[side]) for group in groups for at in group)


def _listed(axis: Axis) -> str:
    labels = list(dict.fromkeys(place.label for place, _ in word_groups(axis)))
    return ", ".join(labels[:12]) + (", ..." if len(labels) > 12 else "")
