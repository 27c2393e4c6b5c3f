"""Many prompts from one template, ``When {A} and {B} met, {A} gave``, and averages over them."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from io import StringIO
from itertools import groupby
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from attnscope.attention import Head, Token
from attnscope.axes import Coarsening, Place, Weights, coarsen
from attnscope.capture.effects import Effects
from attnscope.errors import InputError, SelectionError
from attnscope.measures.roles import role
from attnscope.models import Model, ModelInput
from attnscope.progress import report
from attnscope.questions.cause import Intervention, all_notes, average_effects, cut, for_each_text
from attnscope.questions.head import OneHead, head_picture, one_head
from attnscope.questions.logits import LayerPrediction, Lens, Writes
from attnscope.questions.parts import locate_tokens
from attnscope.questions.rules import Question, parse_questions
from attnscope.questions.score_terms import ScorePass, ScoreTerms
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import pluralize
from attnscope.questions.why import Cell, FollowedCells, Why, explain_path
from attnscope.scores import Score
from attnscope.text import visible
from attnscope.views import Heatmap, name_weight

SLOT = re.compile(r"\{(\w+)\}")


class Prompt(NamedTuple):
    """A filled template, with its target and the other word."""

    text: str
    target: str | None
    against: str | None
    slots: tuple[tuple[str, int, int], ...] = ()  # each with where it begins and ends in the text
    fill: Callable[[str], str] = str  # fills the slots of another text


def _fill(row: Mapping[str, str], line: int, text: str) -> str:
    """A text with its slots filled by a row of a table. Raises ``InputError`` for one that is not filled."""
    for name in SLOT.findall(text):
        if name not in row:
            raise InputError(f"no column {name!r} in the file: it has {', '.join(row)}")
        if not row[name]:
            raise InputError(f"line {line:,} of the file has no {name}")
    return SLOT.sub(lambda match: row[match[1]], text)


def read_prompts(
    template: str, table: str, target: str | None = None, against: str | None = None
) -> list[Prompt]:
    """A prompt for each row of a table, whose first line names the slots of template and words."""
    first = table.partition("\n")[0]
    if not SLOT.search(template):
        raise InputError(
            "the text has no slot: write 'When {A} and {B} met', A and B being columns of the file"
        )
    read = csv.reader(StringIO(table), delimiter="\t" if "\t" in first else ",", skipinitialspace=True)
    names, *rows = [[cell.strip() for cell in row] for row in read if any(map(str.strip, row))] or [[]]
    prompts = []
    for number, row in enumerate(rows, 2):
        fill = partial(_fill, dict.fromkeys(names, "") | dict(zip(names, row, strict=False)), number)
        slots = tuple(
            (found[0], len(fill(template[: found.start()])), len(fill(template[: found.end()])))
            for found in SLOT.finditer(template)
        )
        own, other = (None if word is None else fill(word) for word in (target, against))
        prompts.append(Prompt(fill(template), own, other, slots, fill))
    if not prompts:
        raise InputError("the file has no rows below its header")
    return prompts


def _mean(values: Sequence[float]) -> tuple[float, float | None]:
    error = float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
    return float(np.mean(values)), error


def align_prompt(prompt: Prompt, tokens: Sequence[Token]) -> Coarsening:
    """The tokens of a prompt as in the template: all tokens of a slot are one place."""
    found = [
        next(
            (n for n, (_, begin, end) in enumerate(prompt.slots) if at and begin <= at[0] < end), -1 - number
        )
        for number, at in enumerate(locate_tokens(tokens, prompt.text))
    ]  # the slot of each token, or a number of its own
    parts = [(slot, tuple(group)) for slot, group in groupby(range(len(tokens)), found.__getitem__)]
    places = []
    for number, (slot, group) in enumerate(parts):
        name = tokens[group[0]].text if slot < 0 else prompt.slots[slot][0]
        places.append(Place(name, number, number + 1, tokens[group[0]].special))
    return Coarsening(tuple(places), tuple((group,) for _, group in parts), (), (1,) * len(tokens))


def align_prompts(texts: Sequence[tuple[Prompt, ModelInput]]) -> list[Coarsening]:
    """That of each prompt. Raises ``SelectionError`` for one with other tokens between its slots."""
    axes = [align_prompt(prompt, prepared.tokens) for prompt, prepared in texts]
    for number, ((prompt, _), axis) in enumerate(zip(texts, axes, strict=True), 1):
        if axis.places != axes[0].places:
            raise SelectionError(f"prompt {number:,} has other tokens between its slots: {prompt.text!r}")
    return axes


def mean_head(
    model: Model, texts: Sequence[tuple[Prompt, ModelInput]], template: str, selection: Selection
) -> OneHead:
    """The mean map of one head over prompts, aligned by the template, and the means of its scores."""
    maps, results = list[Weights](), list[OneHead]()
    for number, ((_, prepared), axis) in enumerate(zip(texts, align_prompts(texts), strict=True), 1):
        report("prompt", number, len(texts))
        results.append(one_head(model, prepared, selection))
        shown = results[-1].heatmap.weights
        if shown.values.shape != (axis.size, axis.size):
            raise SelectionError("prompts are aligned on one text: this head's rows or columns are others")
        maps.append(coarsen(shown, axis, axis)[0])
    first = results[0]
    scores = {}
    for name in first.scores.scores:
        found = [each for one in results if (each := one.scores.scores.get(name)) is not None]
        mean, error = _mean([each.value for each in found])
        baseline, _ = _mean([each.baseline for each in found])
        scores[name] = Score(mean, baseline, sum(each.rows for each in found), len(found), error)
    of_all = replace(first.scores, scores=scores, role=role(scores))
    averaged = "scores are averages over the prompts; a slot's columns are summed, its rows averaged"
    title = f"{model.title} · mean of {_describe(template, len(results))}"
    values = np.mean([each.values for each in maps], 0)
    whole = replace(maps[0], values=values, allowed=np.any([each.allowed for each in maps], 0))
    notes = (averaged, *all_notes(results))
    picture = head_picture(whole, of_all, first.site, title, selection, notes, "over all prompts")
    picture = replace(picture, bar=name_weight(model.weighting))
    return OneHead(picture, of_all, first.site)


def mean_maps(
    model: Model, texts: Sequence[tuple[Prompt, ModelInput]], template: str, heads: Iterable[Head]
) -> tuple[dict[Head, Heatmap], tuple[str, ...]]:
    """The mean map of each head over prompts; a note says why if they have none."""
    try:
        maps = {head: mean_head(model, texts, template, Selection(head)).heatmap for head in heads}
    except SelectionError as error:
        return {}, (f"the page has no maps: {error}",)
    return maps, ()


def _describe(template: str, count: int) -> str:
    return f"{pluralize(count, 'prompt')} of “{template}”"


def mean_cut(
    model: Model,
    prompts: Sequence[Prompt],
    read: Callable[[str], ModelInput],
    template: str,
    questions: Sequence[Question],
    **more: Any,
) -> Intervention:
    """The mean effects of edges cut over prompts, which fill the edges, too; an error names its prompt."""
    named = ", ".join(map(str, questions))

    def ask(prompt: Prompt) -> Intervention:
        edges = [edge for each in questions for edge in parse_questions(prompt.fill(str(each)))]
        words = {"target": prompt.target, "against": prompt.against}
        return cut(model, read(prompt.text), edges, **more | words, label=named * (len(prompts) > 1))

    title = f"{model.title} · {_describe(template, len(prompts))}"
    return average_effects(for_each_text("prompt", prompts, ask), "the prediction of each prompt", title)


def mean_writes(results: Sequence[Writes], template: str) -> Writes:
    """What each part adds to the score on average, with the standard errors of heads."""
    effects, errors = Effects(), dict[Head, float]()
    for name in ("heads", "feed_forward", "mixers"):
        each: list[dict[Any, float]] = [getattr(one.effects, name) for one in results]
        for part in dict.fromkeys(part for one in each for part in one):
            mean, error = _mean([one.get(part, 0.0) for one in each])
            getattr(effects, name)[part] = mean
            if name == "heads" and error is not None:
                errors[part] = error
    effects.embeddings = fmean(one.effects.embeddings for one in results)
    effects.biases = fmean(one.effects.biases for one in results)
    return replace(
        results[0],
        effects=effects,
        words=(),
        score=fmean(one.score for one in results),
        rest=fmean(one.rest for one in results),
        title=results[0].title.partition(" · ")[0],
        prediction=f"the mean of {_describe(template, len(results))}; ± is the standard error",
        notes=all_notes(results),
        errors=errors,
    )


def mean_lens(results: Sequence[Lens], template: str) -> Lens:
    """The rank and the log-probability of the targets after each layer, on average."""
    layers = []
    for each in zip(*(one.layers for one in results), strict=True):
        gaps = [one.difference for one in each if one.difference is not None]
        rank, logs = fmean(one.rank for one in each), fmean(one.log_probability for one in each)
        layers.append(LayerPrediction(each[0].layer, rank, logs, fmean(gaps) if gaps else None, ()))
    named = list(dict.fromkeys(one.target for one in results))
    return Lens(
        " or ".join(named[:3]) + " ..." * (len(named) > 3),
        f"the mean of {_describe(template, len(results))}",
        tuple(layers),
        results[0].title.partition(" · ")[0],
        all_notes(results),
    )


def mean_why(
    model: Model,
    prompts: Sequence[Prompt],
    texts: Sequence[ModelInput],
    template: str,
    question: Question,
    head: Head,
    against: Question | None = None,
    depth: int = 1,
) -> Why:
    """The mean terms of a head's score over prompts, which fill the parts of the question, too.

    An earlier head is followed in the same cell of the template in all prompts, or at the same distance.
    """
    notes = dict[str, None]()

    def for_each(step: Callable[[int, ScorePass], Any]) -> list[Any]:
        return for_each_text("prompt", range(len(prompts)), lambda at: step(at, run(at)))

    def run(at: int) -> ScorePass:
        ran = ScorePass.run(model, texts[at])
        notes.update(dict.fromkeys((*texts[at].notes, *ran.record.notes)))
        return ran

    def ask(at: int, ran: ScorePass) -> ScoreTerms:
        fill = prompts[at].fill
        other = None if against is None else parse_questions(fill(str(against)))[0]
        return ran.explain(head, parse_questions(fill(str(question)))[0], other)

    def choose(carried: Sequence[Mapping[Cell, float]]) -> FollowedCells:
        return agreed_cells(carried, align_prompts([*zip(prompts, texts, strict=True)]))

    named = None if against is None else str(against)
    names = question.left.text, question.right.text
    path, about = explain_path(for_each, ask, choose, depth, named, names)
    title = f"{model.title} · {_describe(template, len(prompts))}"
    return Why(str(question), named, path, len(prompts), title, (*about, *model.notes, *notes))


def agreed_cells(carried: Sequence[Mapping[Cell, float]], axes: Sequence[Coarsening]) -> FollowedCells:
    """The cells that carry most on average: with keys of one place of the template, or at one distance.

    In a place of several tokens it is the cell that carries most in each prompt.

    Raises ``SelectionError`` for a head whose keys are not the template's tokens.
    """
    named = [dict[Any, Cell]() for _ in axes]  # by place or distance; None: the largest
    for values, axis, cells in zip(carried, axes, named, strict=True):
        owner = [place for place, (group,) in enumerate(axis.parts) for _ in group]
        if len(owner) != len({key for _, key in values}):
            raise SelectionError("prompts are aligned on one text: the keys of an earlier head are others")
        for cell in sorted(values, key=lambda each: abs(values[each])):
            row, key = cell
            for way in ((True, owner[row], owner[key]), (False, owner[row], key - row)):
                cells[way] = cells[None] = cell

    def measure(way: tuple[bool, int, int]) -> tuple[float, float | None]:
        return _mean([values[cells[way]] for values, cells in zip(carried, named, strict=True)])

    def rank(way: tuple[bool, int, int]) -> tuple[float, float]:
        alone = len(axes[0].parts[way[2]][0]) == 1 if way[0] else 0.5  # else the distance says more
        return abs(measure(way)[0]), alone

    shared = (way for way in named[0] if way and all(way in each for each in named))
    by_place, _, to = found = max(shared, key=rank)
    steps = f"{pluralize(abs(to), 'token')} {'before' if to < 0 else 'after'}" if to else "itself"
    name = _name(axes[0].places, to) if by_place else steps
    agree = sum(each[found] == each[None] for each in named)
    return FollowedCells([each[found] for each in named], *measure(found), agree, name)


def _name(places: Sequence[Place], at: int) -> str:
    """A place of a template, with its number among those that read alike, as ``find`` writes it."""
    texts = [visible(each.text.strip() or each.text) for each in places[: at + 1]]
    return texts[at] + f"#{texts.count(texts[at])}" * (texts.count(texts[at]) > 1)
