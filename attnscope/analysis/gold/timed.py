"""Which cross-attention heads of a model that hears find when each word is said."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from attnscope.analysis.corpus.progress import Progress
from attnscope.analysis.gold.moments import Moments, find_moments
from attnscope.analysis.gold.sums import Ratio
from attnscope.analysis.selection import Selection
from attnscope.attention import Head
from attnscope.axes import Array
from attnscope.errors import InputError
from attnscope.models import Model
from attnscope.models.inputs import Part
from attnscope.storage.gold import TimedLines

PICKED = 10
"""Heads to align by, at most: those of the models that name them are six to twenty."""


@dataclass(frozen=True)
class HeadTimes:
    """How well one head finds when words are said, over ``words`` of them.

    ``accuracy`` is the share of the words of which the strongest moment lies inside of the word, ``weight``
    what goes there on average and ``baseline`` what does of even attention. ``off`` is how many seconds
    begins and ends lie beside the true ones, if this head alone aligns the words. ``chosen`` is the accuracy
    on the texts on which heads are ranked. Each ``error`` is a standard error over texts.
    """

    head: Head
    words: int
    texts: int
    accuracy: float
    accuracy_error: float | None
    weight: float
    weight_error: float | None
    baseline: float
    off: float
    off_error: float | None
    chosen: float


@dataclass(frozen=True)
class TimedAnswers:
    """Every head, the best first; ``picked`` are those to align by.

    ``fixed`` and ``fixed_off`` are accuracy and seconds of the best straight line from tokens to time.
    """

    title: str
    heads: tuple[HeadTimes, ...]
    picked: tuple[Head, ...]
    fixed: float
    fixed_off: float
    held_out: bool
    notes: tuple[str, ...]


def find_times(
    model: Model,
    file: TimedLines,
    selection: Selection | None = None,
    *,
    held_out: bool = False,
    limit: int | None = None,
    truncate: bool = False,
    strict: bool = False,
    report: Callable[[str], None] = lambda sentence: None,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> TimedAnswers:
    """Ask every cross-attention head when the words of a file are said, in one pass over its sounds.

    With ``held_out`` heads are ranked and the line is laid on every other sound, and the figures are those of
    the sounds between. A sound that cannot be read is passed to ``report``, or raises ``InputError`` if
    ``strict``; so does a file without any.
    """
    progress, halves = Progress(), (list[Moments](), list[Moments]())
    for text in islice(file.texts(), limit):
        progress.entries += 1
        progress.done = text.done
        try:
            if text.fault:
                raise InputError(text.fault)
            prepared = model.prepare_audio(text.sound, text.text, Part(truncate=truncate))
        except InputError as error:
            if strict:
                raise InputError(f"{file.name}, {text.where}: {error}") from error
            progress.skip(text.where)
            report(f"{text.where}: {error}")
            continue
        progress.note(prepared.notes)
        halves[1 - progress.entries % 2].append(find_moments(model, prepared, text))
        progress.texts += 1
        progress.tokens += len(prepared.tokens)
        watch(progress)
    chosen, scored = halves if held_out else ((*halves[0], *halves[1]),) * 2
    for half in (chosen, scored):
        if not sum(len(each.even) for each in half):
            more = " for both halves" if held_out else ""
            raise InputError(f"{file.name} holds no timed word{more} that {model.name} can hear")
    wanted = selection or Selection()
    if wanted.kind not in (None, "cross"):
        raise InputError(f"timed words are looked for in cross attention, not in that of the {wanted.kind}")
    heads = _rank(chosen, scored, wanted.layers)
    if not heads:
        raise InputError(f"{model.name} has no cross attention in the layers that were asked for")
    fixed, fixed_off = _score_line(chosen, scored)
    lost = sum(each.lost for half in (chosen, scored)[: 1 + held_out] for each in half)
    notes = [*model.notes, *progress.left_out]
    notes += [f"{lost:,} {'word has' if lost == 1 else 'words have'} no tokens of their own"] if lost else []
    title = f"{model.title} · {len(heads)} heads · {progress.texts:,} sounds"
    return TimedAnswers(title, heads, _pick(heads, fixed), fixed, fixed_off, held_out, tuple(notes))


def _rank(
    chosen: Sequence[Moments], scored: Sequence[Moments], layers: Sequence[int] | None
) -> tuple[HeadTimes, ...]:
    """Every head by its accuracy on ``chosen``, with its figures on ``scored``."""
    counts = np.array([len(each.even) for each in scored])
    accuracy, weight, off = (
        _ratios(np.array([getattr(each, name).sum(-1) for each in scored]), counts)
        for name in ("right", "weight", "off")
    )
    order = np.concatenate([each.right for each in chosen], -1).mean(-1)
    baseline = float(np.concatenate([each.even for each in scored]).mean())
    heads = [
        HeadTimes(
            Head(head.layer, head.head, "cross"),
            int(counts.sum()),
            int((counts > 0).sum()),
            *accuracy[place],
            *weight[place],
            baseline,
            *off[place],
            float(order[place]),
        )
        for place, head in enumerate(scored[0].heads)
        if layers is None or head.layer in layers
    ]
    return tuple(sorted(heads, key=lambda each: (-each.chosen, each.off, each.head)))


def _ratios(totals: Array, counts: Array) -> list[Ratio]:
    """The mean over words of each head, and its standard error over texts.  [text, head], [text] -> [head]"""
    texts = int((counts > 0).sum())
    means = totals.sum(0) / counts.sum()
    spread = np.square(totals - means * counts[:, None]).sum(0)
    errors = np.sqrt(spread * texts / max(texts - 1, 1)) / counts.sum()
    return [
        Ratio(float(mean), float(error) if texts > 1 else None)
        for mean, error in zip(means, errors, strict=True)
    ]


def _score_line(chosen: Sequence[Moments], scored: Sequence[Moments]) -> tuple[float, float]:
    """How well the best straight line from a token's place to its time does: accuracy, and seconds beside.

    Two lines are laid through the begins and ends of ``chosen``: so many seconds a token, or so many tokens a
    sound. The better one there is taken.
    """

    def places(half: Sequence[Moments], paced: bool) -> Array:  # [word, 2]
        return np.concatenate([each.rows * (each.pace if paced else 1.0) for each in half])

    def score(half: Sequence[Moments], line: Array, paced: bool) -> tuple[float, float]:
        found, times = np.polyval(line, places(half, paced)), np.concatenate([each.times for each in half])
        middle = found.mean(1)
        inside = (times[:, 0] <= middle) & (middle < times[:, 1])
        return float(inside.mean()), float(np.abs(found - times).mean())

    times = np.concatenate([each.times for each in chosen]).ravel()
    lines = [(np.polyfit(places(chosen, paced).ravel(), times, 1), paced) for paced in (False, True)]
    best = max(lines, key=lambda line: score(chosen, *line)[0])
    return score(scored, *best)


def _pick(heads: Sequence[HeadTimes], fixed: float) -> tuple[Head, ...]:
    """The heads to align by, the best of those that beat the line by a standard error."""
    better = [each.head for each in heads if each.chosen - (each.accuracy_error or 0.0) > fixed]
    return tuple(sorted(better[:PICKED]))
