"""What a prediction needs: each head changed alone, and all of them; edges taken out of heads.

An intervention replaces what a head gives at some rows. The rows come from the formula that every picture is
drawn from, so a weight that is cut before the softmax is a weight that a mask had closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from attnscope.attention import Attention, Axis, Head, RowSource, Site
from attnscope.capture import Record, recording
from attnscope.capture.hooks.gate import edited
from attnscope.capture.record import tolerance
from attnscope.capture.rows.proof import mix
from attnscope.errors import InputError, ModelError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.models.huggingface.load import Classifier
from attnscope.models.targets import Prediction, score_prediction
from attnscope.progress import tell
from attnscope.questions.ablate import Calls, PlainPass
from attnscope.questions.answer import Answer
from attnscope.questions.find import Question, ResolvedQuestion, explain_nothing
from attnscope.questions.logits import Address
from attnscope.questions.parts import word_groups
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import name_pass
from attnscope.records import Meaning, Notes, record
from attnscope.views.heads import maps_by_kind, number
from attnscope.views.table import Column, Table

How: TypeAlias = Literal["renormalize", "zero", "mean"]
"""Whether the other weights of a row make up for the cut ones, as behind a mask, or stay as they are.

With ``mean`` the weights are set to their mean over a corpus, with ``zero`` to zero."""

BLOCK, LISTED = 512, 8
"""Rows that are computed at a time, and heads that are listed; the map and the numbers have all of them."""

SAME = 1e-5
"""Nats, or logits, by which two texts must differ for a share of the difference to mean anything."""


@record("what a change does to the prediction")
class Effect:
    """A prediction after a change."""

    effect: Annotated[float, Meaning("the change of the score; of a patch, the share that comes back")]
    score: Annotated[float, Meaning("the score after the change")]
    divergence: Annotated[float, Meaning("KL divergence of the prediction from before to after, in nats")]


@record("a head, changed alone")
class ChangedHead(Effect):
    """A prediction after a change of one head."""

    head: Address
    error: Annotated[
        float | None, Meaning("the standard error of the effect over pairs of texts", optional=True)
    ] = None
    estimate: Annotated[
        float | None, Meaning("the linear estimate of the effect from one gradient", optional=True)
    ] = None


@record("an intervention: each head changed alone, and all of them at once", "cut", "patch")
class Intervention:
    """What each head does to a prediction, the head that does most first.

    ``together`` changes all of the heads in one pass. ``reference`` is the other text's score, for a patch.
    """

    changed: Annotated[str, Meaning("what was changed")]
    prediction: Annotated[str, Meaning("the prediction whose score it is")]
    unit: Annotated[str, Meaning("what the score is")]
    score: Annotated[float, Meaning("the score of the pass as it is")]
    reference: Annotated[float | None, Meaning("the score of the other text; null without one")]
    heads: Annotated[tuple[ChangedHead, ...], Meaning("every head, the one that does most first")]
    together: Annotated[
        Effect | None, Meaning("with all these heads changed at once; null where effects are estimated")
    ]
    estimated: Annotated[bool, Meaning("whether effects are a linear estimate from one gradient")]
    title: Annotated[str, Meaning("the model and the text")]
    notes: Notes
    correlation: Annotated[
        float | None, Meaning("how the effects correlate with their estimates, over heads", optional=True)
    ] = None


class Made(NamedTuple):
    """What the heads of one call give at some rows instead, and what they gave.  [batch, head, row, size]"""

    rows: Tensor  # [row]
    outputs: Tensor
    before: Tensor


Change: TypeAlias = Callable[[int, Attention], "Made | None"]
"""What becomes of an attention call of this number; ``None`` leaves it alone."""


@dataclass(eq=False)
class Changes:
    """Observer: makes the change of every call while the pass runs."""

    change: Change
    made: list[Made | None] = field(default_factory=list)

    def observe(self, attention: Attention) -> None:
        """Make the change of a call."""
        self.made.append(self.change(len(self.made), attention))

    def check(self, number: int, output: Tensor) -> Made | None:
        """The change of the call that returned ``output``, [batch, query, head, size], which proves it."""
        if number >= len(self.made):
            raise ModelError("this attention is known only after its layer has run, and cannot be changed")
        made = self.made[number]
        if made is None:
            return None
        given = output.detach().transpose(1, 2)
        if given.shape[:2] != made.before.shape[:2] or int(made.rows[-1]) >= given.shape[2]:
            raise ModelError("the heads shown are not those that this layer sums")
        given = given[:, :, made.rows]
        size = float(given.abs().amax()) or 1.0
        if not float((made.before - given).abs().amax()) <= tolerance(output.dtype) * size:
            raise ModelError(
                "weights × values do not reproduce this layer's output: its heads cannot be changed"
            )
        return made


# what is changed


@dataclass(eq=False)
class _EdgePairs:
    """Observer: adds up the weights of the pairs that questions mean, by call and head."""

    questions: Sequence[Question]
    sums: dict[Site, Tensor] = field(default_factory=dict)  # [head, weights | pairs]
    _known: dict[tuple[Axis, Axis], Tensor | None] = field(default_factory=dict)

    def of(self, attention: Attention) -> Tensor | None:
        """The pairs of a call, bool; ``None`` where there are none.  -> [query, key]"""
        axes = attention.queries, attention.keys
        if axes not in self._known:
            self._known[axes] = _pairs(self.questions, *axes)
        return self._known[axes]

    def observe(self, attention: Attention) -> None:
        """Add the weights of a call that its mask does not close."""
        pairs = self.of(attention)
        if pairs is None:
            return
        for start in range(0, len(pairs), BLOCK):
            block = pairs[start : start + BLOCK]
            if block.any():
                weights = attention.rows(start, start + len(block))
                meant = block.to(weights.device) & attention.allowed(start, start + len(block))
                both = torch.stack([weights.masked_fill(~meant, 0), meant.expand_as(weights)], -1)
                added = both.double().sum((0, 2, 3)).cpu()
                self.sums[attention.site] = self.sums.get(attention.site, 0) + added


Means: TypeAlias = Mapping[Site, Tensor]
"""The mean weight of some pairs in each head of a call: [head]."""


def mean_weights(
    model: Model, texts: Iterable[ModelInput], questions: Sequence[Question]
) -> tuple[Means, int]:
    """The mean weight of the pairs that questions mean in some texts, and how many texts have such pairs.

    Raises ``SelectionError`` if none of them has.
    """
    total, count = _EdgePairs(questions), 0
    for prepared in texts:
        pairs = _EdgePairs(questions)
        with torch.no_grad(), model.threads(prepared):
            model.run(prepared, [pairs])
        count += any(bool(sums[:, 1].any()) for sums in pairs.sums.values())
        for site, sums in pairs.sums.items():
            total.sums[site] = total.sums.get(site, 0) + sums
    if not count:
        raise SelectionError(f"no text of the corpus has {' or '.join(map(str, questions))}: no mean")
    means = {site: sums[:, 0] / sums[:, 1] for site, sums in total.sums.items() if bool(sums[:, 1].all())}
    return means, count


def cut_edges(questions: Sequence[Question], how: How, means: Means | None = None) -> Change:
    """Take the weights of some pairs of tokens out of every head, or set them to their means."""
    known = _EdgePairs(questions)

    def change(number: int, attention: Attention) -> Made | None:
        pairs = known.of(attention)
        mean = torch.zeros(attention.heads) if means is None else means.get(attention.site)
        if pairs is None or mean is None:
            return None
        parts = [_cut_rows(attention, pairs, start, how, mean) for start in range(0, len(pairs), BLOCK)]
        found = [part for part in parts if part is not None]
        if not found:
            return None
        rows, outputs, before = zip(*found, strict=True)
        return Made(torch.cat(rows), torch.cat(outputs, 2), torch.cat(before, 2))

    return change


def _pairs(questions: Sequence[Question], queries: Axis, keys: Axis) -> Tensor | None:
    """The pairs of tokens that are meant, bool; ``None`` where there are none.  -> [query, key]"""
    pairs = torch.zeros(len(queries), len(keys), dtype=torch.bool)
    for question in questions:
        asked = ResolvedQuestion.of(question, queries, keys)
        if asked is not None and asked.step is not None:
            for row in asked.rows:
                pairs[row] |= torch.arange(len(keys)) == row + asked.step
        elif asked is not None:
            pairs[list(asked.rows)] |= asked.wanted
    return pairs if pairs.any() else None


def _cut_rows(attention: Attention, pairs: Tensor, start: int, how: How, mean: Tensor) -> Made | None:
    """The rows of a block in which something is cut that may be looked at."""
    rows = pairs[start : start + BLOCK].any(1).nonzero()[:, 0]
    if not len(rows):
        return None
    first, last = start + int(rows[0]), start + int(rows[-1]) + 1
    device = attention.rows(0, 0).device
    picked = (rows + start - first).to(device)
    allowed = attention.allowed(first, last)[:, :, picked].to(device)
    cut = pairs[start + rows].to(device) & allowed  # [batch or 1, head or 1, row, key]
    able = cut.flatten(0, 1).any(0).any(-1)  # [row]
    if not bool(able.any()):
        return None
    picked, cut = picked[able], cut[:, :, able]
    weights = attention.rows(first, last)[:, :, picked]
    left = torch.where(cut, mean.to(weights)[:, None, None], weights)
    if how == "renormalize":
        alone = (cut >= allowed[:, :, able]).all(-1).flatten(0, 1).any(0)  # [row]
        if bool(alone.any()):
            at = attention.queries[first + int(picked[alone][0])]
            name = repr(at.text) if not isinstance(at, int) else f"token {at}"
            raise InputError(f"{name} has no other key to look at: pass --how zero")
        # what a sink takes is no weight of a row, and stays in its sum
        total = weights.sum(-1, keepdim=True)
        sink = torch.where((total - 1).abs() < SAME, 0, 1 - total)
        left = left / (left.sum(-1, keepdim=True) + sink).clamp(min=torch.finfo(left.dtype).tiny)
    values = mixed_values(attention)
    return Made((picked + first).cpu(), mix(left, values), mix(weights, values))


def mix_rows(read: RowSource, values: Tensor, first: int, count: int) -> Tensor:
    """What the heads give at the rows from ``first`` on, ``count`` being all.  -> [batch, head, row, size]"""
    blocks = (read.rows(at, min(at + BLOCK, count), None) for at in range(first, count, BLOCK))
    return torch.cat([mix(block, values) for block in blocks], 2)


def mixed_values(attention: Attention) -> Tensor:
    """What the heads of a call mixed. Raises ``ModelError`` where nobody saw it."""
    values = attention.values
    if values is None or values.shape[2] != len(attention.keys):
        raise ModelError(f"{attention.site.name} cannot be changed: the values that it mixes are not known")
    return values


# the passes


@dataclass(frozen=True, eq=False)
class Scored:
    """A prediction whose score is asked for again, in passes that are changed."""

    model: Model
    prepared: ModelInput
    prediction: Prediction

    def logits(self) -> Tensor:
        """One pass.  -> [vocabulary] or [class], float64"""
        at = self.prediction.at
        if isinstance(self.model, Classifier):
            scores = self.model.class_scores(self.prepared)[0]
            scores = scores if at is None else scores[at]
        else:
            text, place = torch.tensor([0]), torch.tensor([at])
            device = self.model.device
            scores = self.model.logits(self.prepared, text.to(device), place.to(device))[0]
        return scores.cpu().double()

    @property
    def unit(self) -> str:
        """What the score is."""
        return "log-probability" if self.prediction.against is None else "logit difference"

    def score(self, logits: Tensor) -> Tensor:
        """The log-probability of the prediction, or how far its logit is above the other word's."""
        chosen, against = self.prediction.chosen, self.prediction.against
        return logits.log_softmax(-1)[chosen] if against is None else logits[chosen] - logits[against]

    def effect(self, before: Tensor, after: Tensor) -> Effect:
        """The change of the score, the score, and the divergence, after a change."""
        pair = torch.stack([before, after]).log_softmax(-1)
        divergence = float(F.kl_div(pair[1], pair[0], reduction="sum", log_target=True))
        score = float(self.score(after))
        return Effect(score - float(self.score(before)), score, divergence)


class Swept(NamedTuple):
    """The prediction as it is, what becomes of it with each head changed alone, and with all at once."""

    before: Tensor
    heads: Mapping[Head, Effect]
    together: Effect
    record: Record


def sweep_heads(scored: Scored, change: Change, selection: Selection, heads: Sequence[Head]) -> Swept:
    """Change every head alone, and all of them at once; no head is found where nothing is changed.

    A head's change comes from the first pass, as nothing before the head differs; the layers before it are
    not run again.
    """
    made, changes = list[Made | None](), Changes(change)
    first = PlainPass.run(
        scored.model,
        scored.prepared,
        scored.logits,
        selection,
        heads,
        edit=lambda number, output: made.append(changes.check(number, output)),
        observers=[changes],
    )
    before, found = first.before, dict[Head, Effect]()
    together = partial(change_together, scored.model, scored.prepared, scored.logits, change)
    if not any(made[call] for mine in first.calls.values() for call in mine):
        return Swept(before, found, Effect(0.0, 0.0, 0.0), first.record)
    for done, (head, mine) in enumerate(first.calls.items()):
        tell("head", done + 1, len(first.calls))
        made_here = made[mine[0]]
        if len(mine) > 1:
            after = together({head: mine})
        elif made_here is None:
            after = before
        else:
            with first.edited_from(mine[0], partial(put_heads, {mine[0]: (made_here, [head.head])})):
                after = scored.logits()
        found[head] = scored.effect(before, after)
    return Swept(before, found, scored.effect(before, together(first.calls)), first.record)


def sort_heads(heads: Iterable[ChangedHead]) -> tuple[ChangedHead, ...]:
    """The head that does most first."""
    return tuple(sorted(heads, key=lambda each: -abs(each.effect)))


def change_together(
    model: Model, prepared: ModelInput, predict: Callable[[], Tensor], change: Change, calls: Calls
) -> Tensor:
    """What ``predict`` gives with several heads changed in one pass, each as it then is."""
    changes = Changes(change)
    chosen: dict[int, list[int]] = {}
    for head, mine in calls.items():
        for call in mine:
            chosen.setdefault(call, []).append(head.head)

    def edit(number: int, output: Tensor) -> Tensor | None:
        made = changes.check(number, output)
        return None if made is None else put_heads({number: (made, chosen.get(number, []))}, number, output)

    with recording(model.module, [changes], prepared.axes, warn=False), edited(edit):
        return predict()


def put_heads(
    changed: Mapping[int, tuple[Made, Sequence[int]]], number: int, output: Tensor
) -> Tensor | None:
    """The output of a call with some heads changed.  [batch, query, head, size] -> the same"""
    if number not in changed:
        return None
    (made, heads), other = changed[number], output.clone()
    for head in heads:
        other[:, made.rows, head] = made.outputs[:, head].to(output)
    return other


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
) -> Intervention:
    """Take edges out of each head in turn, and out of all of them.

    ``renormalize`` is what a mask does before the softmax; ``zero`` drops the weights behind it, and ``mean``
    sets them to each head's mean over the same edges in ``texts``. Raises ``SelectionError`` for an edge that
    does not exist or is masked, ``ModelError`` for a model without an
    output head or whose heads cannot be changed.
    """
    selection = selection or Selection()
    require_texts(prepared)
    model.show_kinds(prepared)
    means, count = mean_weights(model, texts, questions) if how == "mean" else (None, 0)
    with torch.no_grad(), model.threads(prepared):
        prediction = score_prediction(model, prepared, target, against)
        scored, change = Scored(model, prepared, prediction), cut_edges(questions, how, means)
        before, found, together, record = sweep_heads(scored, change, selection, heads)
    if not found:
        sites = [site.site for site in record.sites if selection.meets(site.site)]
        raise SelectionError("; ".join(explain_nothing(question, prepared, sites) for question in questions))
    way = {"renormalize": "renormalized", "zero": "zeroed after the softmax"}.get(
        how, f"set to its mean over {count:,} text{'s' * (count > 1)}"
    )
    return Intervention(
        changed=f"cut {', '.join(map(str, questions))} ({way})",
        prediction=prediction.description,
        unit=scored.unit,
        score=float(scored.score(before)),
        reference=None,
        heads=sort_heads(ChangedHead(**vars(effect), head=head) for head, effect in found.items()),
        together=together,
        estimated=False,
        title=name_pass(model, prepared),
        notes=(*model.notes, *prepared.notes, *record.notes),
    )


def require_texts(one: ModelInput, other: ModelInput | None = None) -> None:
    """Raise ``ModelError`` for a trace, ``InputError`` for two texts of different token counts."""
    other = other or one
    if one.replay is not None or other.replay is not None:
        raise ModelError("a trace holds no weights of the model: give the model and the text")
    if len(one.tokens) != len(other.tokens):
        words = zip(word_groups(one.tokens), word_groups(other.tokens), strict=False)
        why = (
            f": {mine.label!r} has {_pieces(here)} and {theirs.label!r} {_pieces(there)}"
            for (mine, here), (theirs, there) in words
            if len(here) != len(there)
        )
        raise InputError(
            f"the texts differ in their number of tokens, {len(one.tokens):,} and {len(other.tokens):,}"
            f"{next(why, '')}; a patch needs the same number"
        )


def _pieces(group: Sized) -> str:
    return "1 piece" if len(group) == 1 else f"{len(group):,} pieces"


def of_intervention(result: Intervention) -> Answer:
    """The change in a line, the heads that do most, and a map of all heads a kind."""
    several = len({each.head.kind for each in result.heads}) > 1
    effect = "effect" if result.reference is None else "recovered"
    lines = [f"{result.unit} {result.score:.3f}"]
    if result.reference is not None:
        lines.append(f"{result.reference:.3f} in the other text")
    if result.together is not None:
        count, all_ = len(result.heads), result.together
        named = f"{effect} {all_.effect:+.3f}, score {all_.score:.3f}, KL {all_.divergence:.3f} nats"
        lines.append(f"all {count:,} heads at once: {named}" if count > 1 else named)
    if result.correlation is not None:
        lines.append(f"correlation with the estimates over heads: {result.correlation:.3f}")
    estimate = ["estimated from one gradient, not run: leave out --fast for the exact effects"]
    columns: dict[str, Callable[[ChangedHead], str]] = {
        "head": lambda each: each.head.name,
        "kind": lambda each: each.head.kind or "",
        effect: lambda each: f"{each.effect:+.3f}",
        "error": lambda each: f"±{each.error:.3f}",
        "estimate": lambda each: f"{each.estimate:+.3f}",
        "score": lambda each: f"{each.score:.3f}",
        "KL": lambda each: number(each.divergence) or "–",
    }
    shown = [name for name in columns if name not in ("kind", "error", "estimate")]
    shown[1:1] = ["kind"] if several else []
    shown[-2:-2] = _more(result)
    table = Table(
        tuple(Column(name, name not in ("head", "kind"), "keep") for name in shown),
        tuple(tuple(columns[name](each) for name in shown) for each in result.heads[:LISTED]),
        title=f"{result.changed} · {result.title}",
        subtitle="; ".join([result.prediction, *lines]),
        notes=(*estimate[: result.estimated], *result.notes),
    )
    unit = "" if effect == "recovered" else result.unit
    effects = {each.head: each.effect for each in result.heads}
    maps = maps_by_kind(effects, effect, unit=unit, lead=f"{effect}, ")
    return Answer((table, *maps.values()), maps, lambda: result, table=lambda: _csv_rows(result))


def _csv_rows(result: Intervention) -> Iterator[tuple[object, ...]]:
    more = _more(result)
    yield "kind", "layer", "head", "effect", "score", "divergence", *more
    for each in result.heads:
        head, those = each.head, (getattr(each, name) for name in more)
        yield head.kind, head.layer, head.head, each.effect, each.score, each.divergence, *those


def _more(result: Intervention) -> list[str]:
    """What is known of the heads of some interventions alone."""
    return [
        name
        for name in ("error", "estimate")
        if any(getattr(each, name) is not None for each in result.heads)
    ]
