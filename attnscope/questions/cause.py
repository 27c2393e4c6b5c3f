"""What a prediction needs: each head changed alone, and all of them; edges cut from heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from attnscope.attention import Attention, Axis, Head, Site
from attnscope.capture.record import Seeing
from attnscope.capture.rows.scores import mix
from attnscope.errors import InputError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.progress import tell
from attnscope.questions.answer import Answer, csv_rows
from attnscope.questions.find import Question, ResolvedQuestion, explain_nothing
from attnscope.questions.intervention import (
    BLOCK,
    SAME,
    Calls,
    Change,
    Effect,
    Made,
    PlainPass,
    Scored,
    calls_of,
    mixed_values,
    scoring,
)
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import name_pass
from attnscope.records import Address, Meaning, Notes, record
from attnscope.views import Column, HeadMap, Table, effect_maps, number

How: TypeAlias = Literal["renormalize", "zero", "mean"]
"""Whether the other weights of a row are renormalized, as after a mask, or stay.

With ``mean`` the weights are set to their mean over a corpus, with ``zero`` to zero.
"""

LISTED = 8  # heads that are listed; the map and the numbers have all of them

Columns: TypeAlias = Mapping[str, Callable[[Any], str]]
"""The columns of a table: each with its part of an entry."""

OPTIONAL: Columns = {
    "error": lambda each: f"±{each.error:.3f}",
    "estimate": lambda each: f"{each.estimate:+.3f}",
}
"""Those that not every answer has."""


@record("a head, changed alone")
class ChangedHead(Effect):
    """A prediction after a change of one head."""

    head: Address
    error: Annotated[float | None, Meaning("the standard error of the effect over texts", optional=True)] = (
        None
    )
    estimate: Annotated[
        float | None, Meaning("the linear estimate of the effect from one gradient", optional=True)
    ] = None


@record("a prediction whose score is measured")
class ScoreOutcome:
    """Which prediction it is, and its score."""

    prediction: Annotated[str, Meaning("the prediction whose score it is")]
    unit: Annotated[str, Meaning("what the score is")]
    score: Annotated[float, Meaning("the score of the pass as it is, or its mean over texts")]
    reference: Annotated[float | None, Meaning("the score of the other text; null without one")]
    title: Annotated[str, Meaning("the model and the text")]
    notes: Notes


@record("an intervention: each head changed alone, and all of them at once", "cut", "patch")
class Intervention(ScoreOutcome):
    """Each head's effect on a prediction, largest first."""

    changed: Annotated[str, Meaning("what was changed")]
    heads: Annotated[tuple[ChangedHead, ...], Meaning("every head, the one that does most first")]
    together: Annotated[
        Effect | None, Meaning("with all these heads changed at once; null where effects are estimated")
    ]
    estimated: Annotated[bool, Meaning("whether effects are a linear estimate from one gradient")] = False
    correlation: Annotated[
        float | None, Meaning("how the effects correlate with their estimates, over heads", optional=True)
    ] = None

    @property
    def whole(self) -> float:
        """The difference from the other text, if there is one; effects are shares of it."""
        return 1.0 if self.reference is None else self.reference - self.score


def measure_effects(
    scored: Scored,
    first: PlainPass,
    calls: Calls,
    changed: str,
    title: str = "",
    run: Callable[[Calls], Tensor] | None = None,
    estimates: Mapping[Head, Effect] = MappingProxyType({}),
    exact: bool = True,
) -> Intervention:
    """Change each head alone, and all of them at once; ``run`` predicts with some heads changed.

    ``estimates`` stand beside the effects, or in their place if not ``exact``: then no head is changed.
    """
    run, found, together = run or first.changed, dict(estimates), None
    if exact:
        for done, (head, mine) in enumerate(calls.items()):
            tell("head", done + 1, len(calls))
            found[head] = scored.effect(first.before, run({head: mine}))
        together = scored.effect(first.before, run(calls))
    beside = {head: each.effect for head, each in estimates.items()} if exact else {}
    heads = [ChangedHead(**vars(each), head=head, estimate=beside.get(head)) for head, each in found.items()]
    return Intervention(
        prediction=scored.prediction.description,
        unit=scored.unit,
        score=float(scored.score(first.before)),
        reference=scored.reference,
        title=title or name_pass(scored.model, scored.prepared),
        notes=(*scored.model.notes, *scored.prepared.notes, *first.record.notes),
        changed=changed,
        heads=tuple(sorted(heads, key=_smallness)),
        together=together,
        estimated=not exact,
        correlation=_correlate(heads),
    )


def average_effects(found: Sequence[Intervention], prediction: str, title: str) -> Intervention:
    """The same over several texts: the sum of effects over that of differences, with its standard error."""
    first, count = found[0], len(found)
    if count == 1:
        return first
    wholes = np.array([each.whole for each in found])
    if len({each.unit for each in found}) > 1:
        raise InputError("some texts have a word against the target and some have none: give all or none")
    if abs(wholes.sum()) < SAME * count:
        raise InputError("over all texts the scores are the same: name the target of each")

    def ratio(shares: Sequence[float]) -> float:
        return float(np.dot(shares, wholes) / wholes.sum())

    def mean(effects: Sequence[Effect]) -> Effect:
        score, divergence = np.mean([(each.score, each.divergence) for each in effects], 0).tolist()
        return Effect(ratio([each.effect for each in effects]), score, divergence)

    by_head: dict[Head, list[ChangedHead]] = {}
    for each in (head for one in found for head in one.heads):
        by_head.setdefault(each.head, []).append(each)
    heads = []
    for head, parts in by_head.items():
        alone, estimates = mean(parts), [each.estimate for each in parts if each.estimate is not None]
        apart = wholes * [each.effect - alone.effect for each in parts]
        error = float((np.square(apart).sum() * count / (count - 1)) ** 0.5 / abs(wholes.sum()))
        estimate = ratio(estimates) if estimates else None
        heads.append(ChangedHead(**vars(alone), head=head, error=error, estimate=estimate))
    together = [each.together for each in found if each.together is not None]
    return replace(
        first,
        prediction=prediction,
        score=float(np.mean([each.score for each in found])),
        reference=None if first.reference is None else float(np.mean([each.reference for each in found])),
        title=title,
        notes=tuple(dict.fromkeys(note for each in found for note in each.notes)),
        heads=tuple(sorted(heads, key=_smallness)),
        together=mean(together) if together else None,
        correlation=_correlate(heads),
    )


def _smallness(each: Effect) -> float:
    return -abs(each.effect)


def _correlate(heads: Sequence[ChangedHead]) -> float | None:
    both = torch.tensor([(each.effect, each.estimate) for each in heads if each.estimate is not None])
    return float(both.T.corrcoef()[0, 1]) if len(both) > 1 else None


def _pair_finder(questions: Sequence[Question]) -> Callable[[Axis, Axis], Tensor]:
    """Finds the pairs of tokens of the questions, [query, key] bool, once for all calls with equal axes."""

    @cache
    def find(queries: Axis, keys: Axis) -> Tensor:
        pairs = torch.zeros(len(queries), len(keys), dtype=torch.bool)
        for question in questions:
            asked = ResolvedQuestion.of(question, queries, keys)
            if asked is not None and asked.step is not None:
                for row in asked.rows:
                    pairs[row] |= torch.arange(len(keys)) == row + asked.step
            elif asked is not None:
                pairs[list(asked.rows)] |= asked.wanted
        return pairs

    return find


def _rows_with(attention: Attention, pairs: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """The rows with an unmasked pair, block by block: numbers, weights, unmasked keys and unmasked pairs.

    -> [row], [batch, head, row, key] three times
    """
    for start in range(0, len(pairs), BLOCK):
        rows = start + pairs[start : start + BLOCK].any(1).nonzero()[:, 0]
        if len(rows):
            first, last = int(rows[0]), int(rows[-1]) + 1
            weights = attention.rows(first, last)[:, :, rows - first]
            allowed = attention.allowed(first, last).to(weights.device)[:, :, rows - first]
            meant = pairs[rows].to(weights.device) & allowed
            able = meant.flatten(0, 1).any(0).any(-1).cpu()  # [row]
            if bool(able.any()):
                yield rows[able], weights[:, :, able], allowed[:, :, able], meant[:, :, able]


Means: TypeAlias = Mapping[Site, Tensor]  # the mean weight of some pairs in each head of a call: [head]


def mean_weights(
    model: Model, texts: Iterable[ModelInput], questions: Sequence[Question]
) -> tuple[Means, int]:
    """The mean weight of the questions' pairs in some texts, and how many texts have such pairs."""
    sums, count, find = dict[Site, Tensor](), 0, _pair_finder(questions)  # [head, weights | pairs]
    for prepared in texts:
        seen = list[Site]()

        def add(attention: Attention, seen: list[Site] = seen) -> None:
            for _, weights, _, meant in _rows_with(attention, find(attention.queries, attention.keys)):
                both = torch.stack([weights.masked_fill(~meant, 0), meant.expand_as(weights)], -1)
                added = both.double().sum((0, 2, 3)).cpu()
                sums[attention.site] = sums.get(attention.site, 0) + added
                seen.append(attention.site)

        with torch.no_grad(), model.threads(prepared):
            model.run(prepared, [Seeing(add)])
        count += bool(seen)
    if not count:
        raise SelectionError(f"no text of the corpus has {' or '.join(map(str, questions))}: no mean")
    return {site: each[:, 0] / each[:, 1] for site, each in sums.items() if bool(each[:, 1].all())}, count


def cut_edges(questions: Sequence[Question], how: How, means: Means | None = None) -> Change:
    """Cut the weights of some pairs of tokens from every head, or set them to their means."""
    find = _pair_finder(questions)

    def change(number: int, attention: Attention) -> Made | None:
        mean = torch.zeros(attention.heads) if means is None else means.get(attention.site)
        if mean is None:
            return None
        parts = list[tuple[Tensor, Tensor, Tensor]]()
        for rows, weights, allowed, meant in _rows_with(attention, find(attention.queries, attention.keys)):
            left = torch.where(meant, mean.to(weights)[:, None, None], weights)
            if how == "renormalize":
                alone = (meant >= allowed).all(-1).flatten(0, 1).any(0).cpu()  # [row]
                if bool(alone.any()):
                    at = attention.queries[int(rows[alone][0])]
                    name = repr(at.text) if not isinstance(at, int) else f"token {at}"
                    raise InputError(f"{name} has no other key to look at: pass --how zero")
                # a sink's share is not a weight of the row, and stays in its sum
                total = weights.sum(-1, keepdim=True)
                sink = torch.where((total - 1).abs() < SAME, 0, 1 - total)
                left = left / (left.sum(-1, keepdim=True) + sink).clamp(min=torch.finfo(left.dtype).tiny)
            values = mixed_values(attention)
            parts.append((mix(left, values), rows, mix(weights, values)))
        if not parts:
            return None
        outputs, numbers, before = zip(*parts, strict=True)
        return Made(torch.cat(outputs, 2), torch.cat(numbers), torch.cat(before, 2))

    return change


def cut(
    model: Model,
    prepared: ModelInput,
    questions: Sequence[Question],
    selection: Selection | None = None,
    *,
    heads: Sequence[Head] = (),
    how: How = "renormalize",
    texts: Iterable[ModelInput] = (),
    target: str | None = None,
    against: str | None = None,
    named: str = "",
) -> Intervention:
    """Cut edges from each head in turn, and from all of them.

    ``mean`` is taken over the same edges in ``texts``; ``named`` says what is cut if not the questions.
    """
    means, count = mean_weights(model, texts, questions) if how == "mean" else (None, 0)
    way = {"renormalize": "renormalized", "zero": "zeroed after the softmax"}.get(
        how, f"set to its mean over {count:,} text{'s' * (count > 1)}"
    )
    selection = selection or Selection()
    with scoring(model, prepared, target, against) as scored:
        first = PlainPass.run(*scored.asked, cut_edges(questions, how, means))
        calls = calls_of(first.record, selection, heads)
        if not any(first.made[call] for mine in calls.values() for call in mine):
            sites = [each.site for each in first.record.sites if selection.meets(each.site)]
            raise SelectionError("; ".join(explain_nothing(each, prepared, sites) for each in questions))
        changed = f"cut {named or ', '.join(map(str, questions))} ({way})"
        return measure_effects(scored, first, calls, changed)


def of_effects(
    result: ScoreOutcome,
    changed: str,
    effects: Sequence[Any],
    named: Columns,
    maps: Mapping[str, HeadMap],
    csv: Sequence[str],
    lines: Sequence[str] = (),
    said: Sequence[str] = (),
) -> Answer:
    """The change in a line, the largest effects, ``named`` by their columns, and maps of all."""
    effect = "effect" if result.reference is None else "recovered"
    score = [f"{result.unit} {result.score:.3f}"]
    if result.reference is not None:
        score.append(f"{result.reference:.3f} in the other text")
    known = [name for name in OPTIONAL if any(getattr(each, name, None) is not None for each in effects)]
    columns: Columns = {
        **named,
        effect: lambda each: f"{each.effect:+.3f}",
        **{name: OPTIONAL[name] for name in known},
        "score": lambda each: f"{each.score:.3f}",
        "KL": lambda each: number(each.divergence) or "–",
    }
    table = Table(
        tuple(Column(name, name not in ("head", "kind", "token"), "keep") for name in columns),
        tuple(
            tuple(cell(each) for cell in columns.values())
            for each in sorted(effects, key=_smallness)[:LISTED]
        ),
        title=f"{changed} · {result.title}",
        subtitle="; ".join([result.prediction, *score, *lines]),
        notes=(*said, *result.notes),
    )
    csv = (*csv, "effect", "score", "divergence", *known)
    return Answer((table, *maps.values()), maps, lambda: result, lambda: csv_rows(effects, csv))


def of_intervention(result: Intervention) -> Answer:
    """The change in a line, the heads with the largest effects, and a map of all heads per kind."""
    effect, lines = "effect" if result.reference is None else "recovered", []
    if result.together is not None:
        count, all_ = len(result.heads), result.together
        one = f"{effect} {all_.effect:+.3f}, score {all_.score:.3f}, KL {all_.divergence:.3f} nats"
        lines.append(f"all {count:,} heads at once: {one}" if count > 1 else one)
    if result.correlation is not None:
        lines.append(f"correlation with the estimates over heads: {result.correlation:.3f}")
    quick = "estimated from one gradient, not run: leave out --fast for the exact effects"
    unit = result.unit if result.reference is None else ""
    effects = {each.head: each.effect for each in result.heads}
    maps = effect_maps(effects, effect, unit=unit, lead=f"{effect}, ")
    named: dict[str, Callable[[Any], str]] = {"head": lambda each: each.head.name}
    if len({each.head.kind for each in result.heads}) > 1:
        named["kind"] = lambda each: each.head.kind or ""
    csv = "head.kind", "head.layer", "head.head"
    said = [quick] * result.estimated
    return of_effects(result, result.changed, result.heads, named, maps, csv, lines, said)
