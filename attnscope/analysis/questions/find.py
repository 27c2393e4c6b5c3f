"""Which heads look from one part of a text to another: ``it -> cat``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan

from torch import Tensor

from attnscope.analysis.questions.aim import Aim, Looking, Sums
from attnscope.analysis.questions.parts import Part, word_groups
from attnscope.analysis.questions.question import Question
from attnscope.analysis.selection import Selection
from attnscope.analysis.sentences import (
    kind_title,
    kinds_of,
    name_pass,
    number_ranges,
    provenance,
    require_selected,
)
from attnscope.attention import Attention, Axis, Site
from attnscope.capture.observers.coarse_map import BLOCK
from attnscope.capture.observers.shared_rows import SharedRows, rows_at_a_time
from attnscope.errors import SelectionError
from attnscope.models import Model, ModelInput
from attnscope.registry import nearest_name

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
