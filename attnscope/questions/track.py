"""The scores of every head over the checkpoints of a training run: what appears, and when."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from math import isfinite, isnan, nan
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, TypeAlias

from attnscope.errors import AttnscopeError, InputError, NoCheckpoint
from attnscope.measures import MEASURES, HeadScores
from attnscope.models import Model
from attnscope.questions.answer import Answer
from attnscope.questions.corpus import CorpusRun
from attnscope.questions.corpus_stats import corpus_stats
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import pluralize
from attnscope.records import Meaning, Notes, record
from attnscope.storage.corpus import Corpus
from attnscope.storage.files import parse_json, write_whole
from attnscope.text import visible
from attnscope.views import Column, Curve, Curves, HeadMap, Table, head_map

LISTED_HEADS = 6  # heads of each measure that are listed and drawn; --csv and --json have all

APPEARANCE_SHARE = 0.5
"""A pattern has appeared once its score has covered this share of the way from baseline to last value."""

UNIFORM_TOLERANCE = 0.005  # a score closer than this to uniform attention is printed as the same

APPEARS = "the first step after which it stays above the midpoint between its baseline and its last value"

Scores: TypeAlias = tuple[float | None, ...]


@record("a head over the checkpoints")
class Course:
    """One measure of one head at each checkpoint; ``None`` where it has no such score there."""

    measure: Annotated[str, Meaning("the measure")]
    head: Annotated[str, Meaning("its address, with its kind of attention where there are several")]
    layer: Annotated[int, Meaning("its layer")]
    values: Annotated[Scores, Meaning("the score at each checkpoint; null where there is none")]
    baseline: Annotated[Scores, Meaning("the same for uniform attention")]
    appears: Annotated[int | None, Meaning(APPEARS)]

    @property
    def ends(self) -> tuple[float, float]:
        """The first score and the last."""
        present = [value for value in self.values if value is not None]
        return present[0], present[-1]

    @property
    def change(self) -> float:
        """How far the score moved from the first checkpoint to the last."""
        return self.ends[1] - self.ends[0]


@record("heads over the checkpoints of a run", "track")
class Track:
    """The course of every head, for each measure, largest change first."""

    checkpoints: Annotated[tuple[str, ...], Meaning("the checkpoints, in the order of their steps")]
    steps: Annotated[tuple[int, ...], Meaning("the step of each")]
    courses: Annotated[
        tuple[Course, ...], Meaning("each measure of each head, those first that changed most")
    ]
    notes: Notes
    title: str = ""

    def of(self, measure: str) -> list[Course]:
        """The courses of one measure."""
        return [course for course in self.courses if course.measure == measure]


def step_of(name: str, place: int) -> int:
    """The step in a checkpoint's name (checkpoint-500, step1000); otherwise its position among them."""
    numbers = re.findall(r"\d+", Path(name).name)
    return int(numbers[-1]) if numbers and len(numbers[-1]) <= 12 else place


def track(
    checkpoints: Sequence[str],
    load: Callable[[str], Model],
    corpus: Corpus,
    measures: Sequence[str],
    selection: Selection | None = None,
    *,
    run: CorpusRun = CorpusRun(),  # noqa: B008
    log: Path | None = None,
    report: Callable[[str], None] = lambda sentence: None,
) -> Track:
    """Measure every head at every checkpoint, on the same texts.

    A checkpoint that cannot be read, or has NaN weights, is left out and passed to ``report``. ``log``
    stores the result of each as a line of JSON; those it has are not run again. Raises ``NoCheckpoint``
    if none can be read, ``InputError`` if the log is of other texts or measures.
    """
    settings = {"texts": corpus.fingerprint(), "measures": list(measures), "selection": str(selection)}
    entries = {} if log is None or not log.exists() else _read_log(log, settings)
    names_by_step: dict[int, str] = {}
    notes: list[str] = []
    for step, name in sorted((step_of(name, place), name) for place, name in enumerate(checkpoints)):
        try:
            if step in names_by_step:
                raise InputError(f"step {step:,} is {visible(names_by_step[step])}")
            if name not in entries:
                model = load(name)
                for weight, numbers in model.module.named_parameters():
                    if numbers.is_floating_point() and not numbers.isfinite().all():
                        raise InputError(f"its weights {weight} are not all finite numbers")
                stats = corpus_stats(model, corpus, selection, names=tuple(measures), run=run)
                scores = [scores_of(head, measures) for head in stats.heads]
                measured = {"checkpoint": name, "scores": scores, "notes": list(stats.notes)}
                entries[name] = settings | measured
                if log is not None:
                    lines = [json.dumps(entry) for entry in entries.values()]
                    write_whole(log, "".join(f"{line}\n" for line in lines).encode())
            names_by_step[step] = name
            notes += [note for note in entries[name].get("notes", ()) if note not in notes]
        except (AttnscopeError, OSError) as error:
            notes.append(f"{visible(Path(name).name)} is left out: {visible(str(error))}")
            report(notes[-1])
    if not names_by_step:
        raise NoCheckpoint(f"none of the {len(checkpoints):,} checkpoints can be read")
    steps = {step: entries[name]["scores"] for step, name in names_by_step.items()}
    names = tuple(names_by_step.values())
    ends = " to ".join(dict.fromkeys(visible(Path(name).name) for name in (names[0], names[-1])))
    result = courses_of(steps, measures, tuple(notes), f"{ends} · {visible(corpus.name)}")
    return replace(result, checkpoints=names)


def courses_of(
    found: Mapping[int, list[dict[str, Any]]], measures: Sequence[str], notes: tuple[str, ...], title: str
) -> Track:
    """The course of every head over the steps at which ``scores_of`` gave its scores."""
    tables = [{(each["kind"], each["head"]): each for each in heads} for heads in found.values()]
    steps = tuple(found)
    heads = dict.fromkeys(head for table in tables for head in table)
    if any(table.keys() != heads.keys() for table in tables):
        notes = ("checkpoints differ in their heads", *notes)
    which = f"step {steps[0]:,}" if len(steps) == 1 else f"steps {min(steps):,} to {max(steps):,}"
    title = f"{pluralize(len(steps), 'checkpoint')} · {which} · {title}"
    several = len({kind for kind, _ in heads}) > 1
    courses = []
    for measure in measures:
        every = []
        for kind, name in heads:
            rows = [table.get((kind, name), {}) for table in tables]
            pairs = (row.get("scores", {}).get(measure, (None, None)) for row in rows)
            values, baseline = zip(*pairs, strict=True)
            if any(value is not None for value in values):
                layer = next(row["layer"] for row in rows if row)
                appears, label = _appears(values, baseline, steps), f"{kind} {name}" if several else name
                every.append(Course(measure, label, layer, values, baseline, appears))
        courses += sorted(every, key=lambda course: -abs(course.change))
    return Track(tuple(map(str, steps)), steps, tuple(courses), notes, title)


def scores_of(head: HeadScores, measures: Sequence[str]) -> dict[str, Any]:
    """The part of a log line about a head."""
    scores = {
        name: [value if isfinite(value) else None for value in (score.value, score.baseline)]
        for name, score in head.scores.items()
        if name in measures
    }
    return {"head": head.name, "kind": head.site.kind, "layer": head.site.layer, "scores": scores}


def _read_log(path: Path, settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = {}
    for line in path.read_text("utf-8").splitlines():
        try:
            entry = parse_json(line)
            heads = entry["scores"]
            scores = [(each["head"], each["kind"], each["layer"], dict(each["scores"])) for each in heads]
            fits = {name: entry[name] for name in settings} == settings
            entries[entry["checkpoint"]] = entry
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"{path} is no log of attnscope track: delete it, or name another file"
            ) from None
        if not fits or not scores:
            raise InputError(f"{path} is of other texts, measures or heads: name another file")
    return entries


def _appears(values: Scores, baseline: Scores, steps: Sequence[int]) -> int | None:
    """The step from which a score stays at least half way from its baseline to its last value.

    ``None`` if it ends within ``UNIFORM_TOLERANCE`` of its baseline: half of nothing is noise.
    """
    pairs = zip(values, baseline, strict=True)
    way = [nan if value is None or even is None else value - even for value, even in pairs]
    last = next((each for each in reversed(way) if not isnan(each)), 0.0)
    far = [abs(last) >= UNIFORM_TOLERANCE and each / last >= APPEARANCE_SHARE for each in way]
    late = list(takewhile(itemgetter(1), zip(reversed(steps), reversed(far), strict=True)))
    return late[-1][0] if late else None


def track_answer(result: Track) -> Answer:
    """For each measure its curves, the table of what appears when, and the largest score of each layer."""
    views: list[Any] = []
    pictures = {}
    for measure in dict.fromkeys(course.measure for course in result.courses):
        courses, unit = result.of(measure), MEASURES[measure].unit
        shown = courses[:LISTED_HEADS]
        most = f"the {len(shown)} of {len(courses)} heads that changed most"
        notes = (most, *result.notes) if len(shown) < len(courses) else result.notes
        last = result.steps[-1] + max((b - a for a, b in pairwise(result.steps)), default=1)
        curves = tuple(Curve(each.head, each.values, each.baseline) for each in shown)
        pictures[measure] = Curves(
            measure, unit, (*result.steps, last), curves, f"{measure} by step", result.title, notes, "step"
        )
        rows = []
        for each in shown:
            scores = (f"{round(value, 2) + 0.0:.2f}" for value in (*each.ends, each.change))
            rows.append((each.head, *scores, "–" if each.appears is None else f"{each.appears:,}"))
        names = (f"first, {unit}", "last", "change", "appears at step")
        columns = (Column("head"), *(Column(name, True) for name in names))
        views += [pictures[measure], Table(columns, tuple(rows))]
        if len(result.steps) > 1:
            views.append(_layers(measure, courses))

    def table() -> Iterator[Sequence[object]]:
        yield "measure", "head", "step", "value", "baseline", "appears"
        for each in result.courses:
            for step, value, even in zip(result.steps, each.values, each.baseline, strict=True):
                yield each.measure, each.head, step, value, even, each.appears

    return Answer(tuple(views), pictures, lambda: result, table)


def _layers(measure: str, courses: Sequence[Course]) -> HeadMap:
    """The mean of each layer's heads at each checkpoint, on a map with a column per checkpoint."""
    rows: dict[int, list[float]] = {}
    for layer in sorted({course.layer for course in courses}):
        lines = [course.values for course in courses if course.layer == layer]
        columns = [[value for value in column if value is not None] for column in zip(*lines, strict=True)]
        rows[layer] = [fmean(column) if column else float("nan") for column in columns]
    unit = MEASURES[measure].unit
    title = f"{measure}, the mean of each layer; columns are checkpoints in order"
    return head_map(rows, measure, unit=unit, from_zero=unit == "share", title=title, marks=("L", ""))
