"""What a prediction needs: each head changed alone, and all of them; edges cut from heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from math import exp
from operator import attrgetter
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from attnscope.attention import Attention, Axis, Head, Site
from attnscope.axes import Array
from attnscope.capture.record import FunctionObserver
from attnscope.capture.rows.scores import mix
from attnscope.errors import InputError, ModelError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.models.huggingface.load import Classifier
from attnscope.models.targets import Prediction, predicted_tokens, score_prediction, split_target
from attnscope.progress import report
from attnscope.questions.answer import Answer, csv_rows, format_table
from attnscope.questions.find import ResolvedQuestion, explain_no_answer
from attnscope.questions.intervention import BLOCK, Calls, Change, Made, PlainPass, mixed_values
from attnscope.questions.rules import Question
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import group_by, kind_title, list_some, name_pass
from attnscope.records import Address, Meaning, Notes, record
from attnscope.text import per_cent, visible
from attnscope.views import HeadMap, effect_maps, number
from attnscope.views.heads import LEAST_EFFECT, signed_number, size_of_effects

CutMode: TypeAlias = Literal["renormalize", "zero", "mean"]
"""A row is renormalized, as after a mask, or its pairs are set to zero, or to their mean over a corpus."""

Result = TypeVar("Result")
Text = TypeVar("Text")

MIN_DIFFERENCE = 1e-5  # in nats or logits, of two texts for a share of it to mean anything
LISTED = 8  # heads that are listed; the map and the numbers have all of them


@record("what a change does to the prediction")
class Effect:
    """A prediction after a change."""

    effect: Annotated[float, Meaning("the change of the score; of a patch, the share that it restores")]
    score: Annotated[float, Meaning("the score after the change")]
    divergence: Annotated[float, Meaning("KL divergence of the prediction from before to after, in nats")]


@dataclass(frozen=True, eq=False)
class ScoredPrediction:
    """A prediction whose score is recomputed in changed passes."""

    model: Model
    prepared: ModelInput
    prediction: Prediction
    other: ModelInput | None = None  # another text
    reference: float | None = None  # its score
    whole: float = 1.0  # what effects are divided by: how far that one is away

    @classmethod
    @contextmanager
    def from_words(
        cls, model: Model, prepared: ModelInput, target: str | None, against: str | None
    ) -> Iterator[ScoredPrediction]:
        """The prediction that words name, to be changed in the block."""
        if prepared.replay is not None:
            raise ModelError("a trace holds no weights of the model: give the model and the text")
        model.learn_kinds(prepared)
        with torch.no_grad(), model.threads(prepared):
            yield cls(model, prepared, score_prediction(model, prepared, target, against))

    def relative_to(self, other: ModelInput, before: Tensor, reference: Tensor) -> ScoredPrediction:
        """The same with effects as shares of the way from one prediction to that of another text."""
        score, other_score = float(self.score(before)), float(self.score(reference))
        if abs(other_score - score) < MIN_DIFFERENCE:
            raise InputError(f"both texts give the same score ({score:.4g}): choose another target")
        return replace(self, other=other, reference=other_score, whole=other_score - score)

    @property
    def arguments(self) -> tuple[Model, ModelInput, Callable[[], Tensor]]:
        """What ``PlainPass.run`` runs."""
        return self.model, self.prepared, self.logits

    def logits(self) -> Tensor:
        """One pass.  -> [vocabulary] or [class], float64"""
        return self.prediction.scores(self.model, self.prepared)[0].cpu().double()

    def score(self, logits: Tensor) -> Tensor:
        """The log-probability of the prediction, or its logit minus the other word's."""
        chosen, against = self.prediction.chosen, self.prediction.against
        return logits.log_softmax(-1)[chosen] if against is None else logits[chosen] - logits[against]

    def effect(self, before: Tensor, after: Tensor) -> Effect:
        """What a change does."""
        pair = torch.stack([before, after]).log_softmax(-1)
        divergence = float(F.kl_div(pair[1], pair[0], reduction="sum", log_target=True))
        score = float(self.score(after))
        return Effect((score - float(self.score(before))) / self.whole, score, divergence)

    def outcome(self, before: Tensor) -> dict[str, Any]:
        """What a ``ScoreOutcome`` says of the prediction before changes."""
        return {
            "prediction": self.prediction.description,
            "unit": "log-probability" if self.prediction.against is None else "logit difference",
            "score": float(self.score(before)),
            "reference": self.reference,
            "title": self.model.title if self.other else name_pass(self.model, self.prepared),
        }


def for_each_text(what: str, texts: Sequence[Text], run: Callable[[Text], Result]) -> list[Result]:
    """The result of ``run`` for each text; progress and errors give its number."""
    results = []
    for at, text in enumerate(texts, 1):
        report(what, at, len(texts))
        try:
            results.append(run(text))
        except (InputError, SelectionError) as error:
            raise type(error)(f"{what} {at:,}: {error}" if len(texts) > 1 else str(error)) from None
    return results


@record("a head, changed alone")
class ChangedHead(Effect):
    """A prediction after a change of one head."""

    head: Address
    error: Annotated[float | None, Meaning("the effect's standard error over texts", optional=True)] = None
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


PredictChanged: TypeAlias = Callable[[Calls], Tensor]  # predicts with some heads changed
Estimates: TypeAlias = Mapping[Head, Effect]


def measure_effects(
    scored: ScoredPrediction,
    first: PlainPass,
    calls: Calls,
    changed: str,
    predict: PredictChanged | None,
    estimates: Estimates,
) -> Intervention:
    """Change each head alone, and all of them at once.

    ``estimates`` stand beside the effects, or in their place without ``predict``: then no head is changed.
    """
    effects, together = dict(estimates), None
    if predict is not None:
        for at, (head, mine) in enumerate(calls.items(), 1):
            report("head", at, len(calls))
            effects[head] = scored.effect(first.before, predict({head: mine}))
        together = scored.effect(first.before, predict(calls))
    beside = {} if predict is None else {head: each.effect for head, each in estimates.items()}
    heads = [
        ChangedHead(**vars(each), head=head, estimate=beside.get(head)) for head, each in effects.items()
    ]
    return Intervention(
        **scored.outcome(first.before),
        notes=(*scored.model.notes, *scored.prepared.notes, *first.record.notes),
        changed=changed,
        heads=tuple(sorted(heads, key=lambda each: -abs(each.effect))),
        together=together,
        estimated=predict is None,
        correlation=_correlate(heads),
    )


def _ratio(shares: Sequence[float], wholes: Array) -> float:
    """The sum of effects over the sum of the differences that they are shares of."""
    return float(np.dot(shares, wholes) / wholes.sum())


def _mean_effect(effects: Sequence[Effect], wholes: Array) -> Effect:
    score, divergence = np.mean([(each.score, each.divergence) for each in effects], 0).tolist()
    return Effect(_ratio([each.effect for each in effects], wholes), score, divergence)


def _mean_head(head: Head, effects: Sequence[ChangedHead], wholes: Array) -> ChangedHead:
    """A head's effect over several texts, with the standard error of that ratio of sums."""
    mean, count = _mean_effect(effects, wholes), len(effects)
    estimates = [each.estimate for each in effects if each.estimate is not None]
    deviations = wholes * [each.effect - mean.effect for each in effects]
    error = float((np.square(deviations).sum() * count / (count - 1)) ** 0.5 / abs(wholes.sum()))
    return ChangedHead(
        **vars(mean), head=head, error=error, estimate=_ratio(estimates, wholes) if estimates else None
    )


def average_effects(
    texts: Sequence[Intervention], prediction: str, title: str, changed: str = ""
) -> Intervention:
    """The effects over several texts: their sum over that of differences, with its standard error.

    ``changed`` says what was changed in all, unless it is the same in each.
    """
    first, count = texts[0], len(texts)
    if count == 1:
        return first
    pairs = [(each.score, each.reference) for each in texts]
    wholes = np.array([1.0 if other is None else other - score for score, other in pairs])
    if len({each.unit for each in texts}) > 1:
        raise InputError("only some texts have a word against the target: give one for all or for none")
    if abs(wholes.sum()) < MIN_DIFFERENCE * count:
        raise InputError("summed over all texts, the scores do not differ: name the target of each")

    by_head = group_by((head for each in texts for head in each.heads), attrgetter("head"))
    heads = [_mean_head(head, effects, wholes) for head, effects in by_head.items()]
    together = [each.together for each in texts if each.together is not None]
    return replace(
        first,
        prediction=prediction,
        score=float(np.mean([each.score for each in texts])),
        reference=None if first.reference is None else float(np.mean([each.reference for each in texts])),
        title=title,
        changed=changed or first.changed,
        notes=all_notes(texts),
        heads=tuple(sorted(heads, key=lambda each: -abs(each.effect))),
        together=_mean_effect(together, wholes) if together else None,
        correlation=_correlate(heads),
    )


def all_notes(answers: Iterable[Any]) -> tuple[str, ...]:
    """The notes of several answers, each once."""
    return tuple(dict.fromkeys(note for each in answers for note in each.notes))


def _correlate(heads: Sequence[ChangedHead]) -> float | None:
    both = torch.tensor([(each.effect, each.estimate) for each in heads if each.estimate is not None])
    return float(both.T.corrcoef()[0, 1]) if len(both) > 1 else None


def _row_finder(questions: Sequence[Question]) -> Callable[[Attention], Iterator[tuple[Tensor, ...]]]:
    """Finds the rows of a call with an unmasked pair of tokens of the questions, block by block.

    -> numbers, [row]; weights, unmasked keys, unmasked pairs, [batch, head, row, key]
    """

    @cache  # calls share their axes
    def pairs_of(queries: Axis, keys: Axis) -> Tensor:
        pairs = torch.zeros(len(queries), len(keys), dtype=torch.bool)
        for question in questions:
            resolved = ResolvedQuestion.of(question, queries, keys)
            if resolved is not None:
                rows = list(resolved.rows)
                pairs[rows] |= resolved.keys(rows)
        return pairs

    def find(attention: Attention) -> Iterator[tuple[Tensor, ...]]:
        pairs = pairs_of(attention.queries, attention.keys)
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

    return find


Means: TypeAlias = Mapping[Site, Tensor]  # the mean weight of some pairs in each head of a call: [head]


def mean_weights(
    model: Model, texts: Iterable[ModelInput], questions: Sequence[Question]
) -> tuple[Means, int]:
    """The mean weight of the questions' pairs in some texts, and how many texts have such pairs."""
    sums, count, seen = dict[Site, Tensor](), 0, list[Site]()  # [head, weights | pairs]
    find = _row_finder(questions)

    def add(attention: Attention) -> None:
        for _, weights, _, meant in find(attention):
            both = torch.stack([weights.masked_fill(~meant, 0), meant.expand_as(weights)], -1)
            sums[attention.site] = sums.get(attention.site, 0) + both.double().sum((0, 2, 3)).cpu()
            seen.append(attention.site)

    for prepared in texts:
        seen.clear()
        with torch.no_grad(), model.threads(prepared):
            model.run(prepared, [FunctionObserver(add)])
        count += bool(seen)
    if not count:
        raise SelectionError(f"no text of the corpus has {' or '.join(map(str, questions))}: no mean of it")
    return {site: each[:, 0] / each[:, 1] for site, each in sums.items() if bool(each[:, 1].all())}, count


def cut_edges(questions: Sequence[Question], how: CutMode, means: Means | None = None) -> Change:
    """Cut the weights of some pairs of tokens from every head, or set them to their means."""
    find = _row_finder(questions)

    def change(number: int, attention: Attention) -> Made | None:
        mean = torch.zeros(attention.heads) if means is None else means.get(attention.site)
        if mean is None:
            return None
        parts = list[tuple[Tensor, Tensor, Tensor]]()
        for rows, weights, allowed, meant in find(attention):
            cut_weights = torch.where(meant, mean.to(weights)[:, None, None], weights)
            if how == "renormalize":
                alone = (meant >= allowed).all(-1).flatten(0, 1).any(0).cpu()  # [row]
                if bool(alone.any()):
                    at = attention.queries[int(rows[alone][0])]
                    name = repr(at.text) if not isinstance(at, int) else f"token {at}"
                    raise InputError(f"{name} attends to no other key: use --how zero")
                # a sink's share is not a weight of the row, and stays in its sum
                total = weights.sum(-1, keepdim=True)
                sink = torch.where((total - 1).abs() < MIN_DIFFERENCE, 0, 1 - total)
                rest = cut_weights.sum(-1, keepdim=True) + sink
                cut_weights = cut_weights / rest.clamp(min=torch.finfo(rest.dtype).tiny)
            values = mixed_values(attention)
            parts.append((mix(cut_weights, values), rows, mix(weights, values)))
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
    how: CutMode = "renormalize",
    texts: Iterable[ModelInput] = (),
    target: str | None = None,
    against: str | None = None,
    label: str = "",
) -> Intervention:
    """Cut edges from each head in turn, and from all of them.

    ``mean`` is taken over the same edges in ``texts``; ``label`` says what is cut if not the questions.
    """
    means, count = mean_weights(model, texts, questions) if how == "mean" else (None, 0)
    way = {"renormalize": "renormalized", "zero": "zeroed after the softmax"}.get(
        how, f"set to its mean over {count:,} text{'s' * (count > 1)}"
    )
    selection = selection or Selection()
    with ScoredPrediction.from_words(model, prepared, target, against) as scored:
        first = PlainPass.run(*scored.arguments, cut_edges(questions, how, means))
        calls = first.calls(selection, heads)
        whole = [head for head, mine in calls.items() if not any(first.made[call] for call in mine)]
        if len(whole) == len(calls):
            sites = [each for each in first.record.sites if selection.meets(each.site)]
            raise SelectionError("; ".join(explain_no_answer(each, prepared, sites) for each in questions))
        advice = () if label else tuple(_suggest_targets(scored, questions, target))
        changed = f"cut {label or ', '.join(map(str, questions))} ({way})"
        result = measure_effects(scored, first, calls, changed, first.changed, {})
        result = replace(result, notes=(*advice, *result.notes))
    if whole:
        layers = list_some(list(dict.fromkeys(f"{head.kind} layer {head.layer}" for head in whole)))
        note = f"no effect in {layers}: these pairs are already masked, or keys stand for no tokens"
        return replace(result, notes=(*result.notes, note))
    return result


def _suggest_targets(
    scored: ScoredPrediction, questions: Sequence[Question], target: str | None
) -> Iterator[str]:
    """Other places that a target may mean: the row of the edges, or where the word itself stands."""
    tokens, at = predicted_tokens(scored.prepared), scored.prediction.at
    word, number = split_target(target)
    if isinstance(scored.model, Classifier) or at is None or number is not None or not tokens:
        return
    mask = scored.model.objective.mask
    if mask is not None and tokens[at].id == mask:
        return
    if word is None:
        rows = {row for each in questions for group in each.left.tokens(tokens) for row in group}
        if len(rows) == 1 and at not in rows:
            (row,) = rows
            where = "after" if mask is None else "in the place of"
            named = f"{where} {visible(tokens[row].text)!r}, where the edge begins"
            yield f"without --target, the end of the text is predicted; --target {row} predicts {named}"
    elif mask is not None and tokens[at].text.casefold() != word.casefold():
        words = [each.text.strip().casefold() for each in tokens]
        if word.casefold() in words:
            there = f"{word}@{words.index(word.casefold())}"
            yield f"--target {there} predicts {word!r} where it stands in the text"


def effects_answer(
    result: ScoreOutcome,
    changed: str,
    effects: Sequence[Any],
    first_columns: Mapping[str, str],
    maps: Mapping[str, HeadMap],
    csv: Sequence[str],
    lines: Sequence[str] = (),
) -> Answer:
    """The largest effects, the scores and ``lines`` below them, and maps of all.

    ``first_columns`` are the formats of the columns before the effect.
    """
    effect, score = "effect", f"{result.unit}: {result.score:.3f}"
    sign = f"effect: change of the {result.unit}; below 0: the prediction needs what was changed"
    if result.reference is not None:
        effect, score = "recovered", f"{score}; in the other text {result.reference:.3f}"
        sign = "recovered: share of that difference; 1: all of it; below 0: the wrong way"
    size = size_of_effects(each.effect for each in effects)
    farthest = size_of_effects(each.divergence for each in effects)
    optional: dict[str, Callable[[Any], str]] = {
        "error": lambda each: f"±{number(each.error, size)}",
        "estimate": lambda each: signed_number(each.estimate, size),
    }
    known = [name for name in optional if any(getattr(each, name, None) is not None for each in effects)]
    table = format_table(
        {
            **first_columns,
            effect: lambda each: signed_number(each.effect, size),
            **{name: optional[name] for name in known},
            result.unit: "{0.score:.3f}",
            "KL": lambda each: number(each.divergence, farthest) or "–",
        },
        sorted(effects, key=lambda each: -abs(each.effect))[:LISTED],
        left=("head", "kind", "token"),
        title=f"{changed} · {result.title}",
        subtitle=result.prediction,
        notes=(score, sign, *lines, *result.notes),
    )
    csv = (*csv, "effect", "score", "divergence", *known)
    # a file has no table beside it
    kinds = {kind: f" · {kind_title(kind)}" * (len(maps) > 1) for kind in maps}
    pictures = {
        kind: replace(view, title=table.title + kinds[kind], subtitle=table.subtitle, notes=table.notes)
        for kind, view in maps.items()
    }
    shown = maps.values() if len(effects) > 1 else ()
    return Answer((table, *shown), pictures, lambda: result, lambda: csv_rows(effects, csv))


def _judge(result: Intervention) -> Iterator[str]:
    """That the effects are too small to mean anything, or what they do to the target's probability."""
    first, count, every = result.heads[0], len(result.heads), result.together
    if abs(first.effect) < LEAST_EFFECT:
        none = every is not None and abs(every.effect) < LEAST_EFFECT
        where = f" in each head{', and in all at once' * none}" * (count > 1)
        yield f"no visible effect: below {LEAST_EFFECT}{where}"
    elif result.unit == "log-probability" and result.reference is None and first.error is None:
        changed = {first.head.name: first} | ({f"all {count:,}": every} if count > 1 else {})
        after = (f"{per_cent(exp(each.score))} with {name} changed" for name, each in changed.items() if each)
        yield f"probability of the target: {per_cent(exp(result.score))}; {', '.join(after)}"


def intervention_answer(result: Intervention) -> Answer:
    """The heads with the largest effects, that of all heads at once, and a map of all heads per kind."""
    heads, lines = result.heads, list[str]()
    effect, unit = ("effect", result.unit) if result.reference is None else ("recovered", "")
    if (every := result.together) is not None and len(heads) > 1:
        size = round(every.effect, 3) + 0.0  # without a negative zero
        after = f"{result.unit} {every.score:.3f}, KL {every.divergence:.3f} nats"
        lines.append(f"all {len(heads):,} heads at once: {effect} {size:+.3f}, {after}")
    lines += _judge(result)
    if result.correlation is not None:
        lines.append(f"correlation of effects and estimates over heads: {result.correlation:.3f}")
    if result.estimated:
        lines.append("effects are estimated from one gradient: leave out --fast for exact ones")
    maps = effect_maps({each.head: each.effect for each in heads}, effect, unit=unit, lead=f"{effect}, ")
    columns = {"head": "{0.head.name}"} | ({"kind": "{0.head.kind}"} if len(maps) > 1 else {})
    csv = "head.kind", "head.layer", "head.head"
    return effects_answer(result, result.changed, heads, columns, maps, csv, lines)
