"""What a head carries from one text into another: its output, or a part of it, put into the other pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from attnscope.attention import Attention, AttentionCall, Head, Site
from attnscope.capture import Record, recording
from attnscope.capture.hooks.gate import edited
from attnscope.capture.rows.scores import ScoredRows
from attnscope.errors import InputError, ModelError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.models.targets import Prediction, score_prediction
from attnscope.progress import tell
from attnscope.questions.ablate import Calls, PlainPass, calls_of
from attnscope.questions.cause import (
    SAME,
    Change,
    ChangedHead,
    Effect,
    Intervention,
    Made,
    Scored,
    Swept,
    mix_rows,
    mixed_values,
    put_heads,
    require_texts,
    sort_heads,
    sweep_heads,
)
from attnscope.questions.importance import gated_sites
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import name_pass, quote_text

What: TypeAlias = Literal["output", "q", "k", "v", "pattern"]
"""What of a head is put into another pass."""

PARTS: Mapping[str, tuple[str, Sequence[str]]] = {
    "output": ("outputs", ()),
    "q": ("queries", ("query",)),
    "k": ("keys", ("key",)),
    "v": ("values", ("value",)),
    "pattern": ("weights", ("query", "key")),
}
"""What each is in words, and which terms of the call it is."""

LOGITS = "logits"
"""What a path leads to if not to a head."""


@dataclass(frozen=True, eq=False)
class TextPair:
    """A text, another one that differs in what the prediction hangs on, and the prediction."""

    clean: ModelInput
    corrupt: ModelInput
    target: str | None = None
    against: str | None = None
    where: str = ""  # in a file of pairs: what an error begins with


class Receiver(NamedTuple):
    """Where a path ends: in some of what a head receives, or at the output without a head."""

    head: Head | None
    named: str = ""
    parts: Sequence[str] = ()

    @classmethod
    def parse(cls, text: str) -> Receiver:
        """``logits``, or a head and what of it: ``L9H9:q``. Raises ``SelectionError``."""
        name, _, part = text.partition(":")
        if name.strip() == LOGITS and not part:
            return cls(None)
        if part not in ("", "q", "k", "v", "pattern"):
            raise SelectionError(f"no part {part!r} of a head: write L9H9:q, k, v or pattern, or logits")
        return cls(Head(name), part or "qkv", PARTS[part][1] if part else ("query", "key", "value"))

    def __str__(self) -> str:
        return LOGITS if self.head is None else f"{self.head}:{self.named}"

    def call(self, sites: Sequence[Site]) -> int:
        """The number of its call; behind the last one for the output. Raises ``SelectionError``."""
        if self.head is None:
            return len(sites)
        asked = Selection(self.head)
        found = [number for number, site in enumerate(sites) if asked.meets(site)]
        if len(found) != 1:
            raise SelectionError(f"{self.head} is {len(found)} attention calls: name one, with its kind")
        return found[0]


@dataclass(eq=False)
class _Calls:
    """Observer: keeps what every call received."""

    calls: list[AttentionCall] = field(default_factory=list)

    def observe(self, attention: Attention) -> None:
        self.calls.append(_call(attention))


def _call(attention: Attention) -> AttentionCall:
    if not isinstance(attention.read, ScoredRows):
        raise ModelError(
            f"{attention.site.name} shows weights without its queries and keys: patch --what output"
        )
    return attention.read.call


def _mixed(call: AttentionCall) -> Tensor:
    """What every head of a call gives.  -> [batch, head, query, size]"""
    return mix_rows(ScoredRows(call), call.value, 0, call.query.shape[2])


@dataclass(frozen=True, eq=False)
class _Pair:
    """The pass of one text, which is kept, and the text into whose pass its heads are put."""

    base: Scored
    donor: Scored
    reference: float
    outputs: Sequence[Tensor]  # of each call: [batch, query, head, size]
    received: Sequence[AttentionCall]

    @classmethod
    def run(cls, model: Model, pair: TextPair, prediction: Prediction, what: What, noise: bool) -> _Pair:
        donor, base = (pair.corrupt, pair.clean) if noise else (pair.clean, pair.corrupt)
        scored, outputs, calls = Scored(model, donor, prediction), list[Tensor](), _Calls()

        def keep(number: int, output: Tensor) -> None:
            outputs.append(output.detach().clone())

        observers = [] if what == "output" else [calls]
        with recording(model.module, observers, donor.axes, warn=False), edited(keep):
            reference = float(scored.score(scored.logits()))
        return cls(Scored(model, base, prediction), scored, reference, outputs, calls.calls)

    def change(self, what: What) -> Change:
        """Give every head what it had in the other pass: all of its output, or a part of what makes it."""

        def change(number: int, attention: Attention) -> Made | None:
            if number >= len(self.outputs):
                raise InputError("the passes of the two texts have different numbers of attention calls")
            count = len(attention.queries)
            before = mix_rows(attention.read, mixed_values(attention), 0, count)
            rows = torch.arange(count)
            if what == "output":
                return Made(rows, self.outputs[number].transpose(1, 2), before)
            theirs = {name: getattr(self.received[number], name) for name in PARTS[what][1]}
            return Made(rows, _mixed(replace(_call(attention), **theirs)), before)

        return change


@dataclass(frozen=True, eq=False)
class _Found:
    """What one pair of texts gave: changes of the score, not yet shares of a difference."""

    pair: _Pair
    score: float
    heads: Mapping[Head, ChangedHead]
    together: Effect | None
    record: Record

    @property
    def whole(self) -> float:
        """The difference that may come back."""
        return self.pair.reference - self.score


def patch(
    model: Model,
    pairs: Sequence[TextPair],
    selection: Selection | None = None,
    *,
    heads: Sequence[Head] = (),
    what: What = "output",
    to: Receiver | None = None,
    noise: bool = False,
    fast: bool = False,
    exact: bool = False,
) -> Intervention:
    """Put each head of one text into the pass of the other: how much of the difference comes with it.

    The prediction is that of the clean text. Its heads go into the pass of the corrupt one, or the other way
    with ``noise``. Over several pairs the effect is the share of the sum of differences. With ``to``, only
    what a head changes there is put into the pass, all other heads being as they are (path patching, Wang et
    al. 2022). ``fast`` estimates the effects of outputs from one gradient (with ``exact``: beside them).
    Raises ``InputError`` for texts of different lengths or with the same score.
    """
    selection = selection or Selection()
    found = []
    for pair in pairs:
        try:
            found.append(_patch_pair(model, pair, selection, heads, what, to, noise, (fast, exact)))
        except (InputError, SelectionError) as error:
            raise type(error)(f"{pair.where}: {error}" if pair.where else str(error)) from None
    first, count, units = found[0].pair, len(found), {each.pair.base.unit for each in found}
    if len(units) > 1:
        raise InputError("some pairs have a word against the target and some have none: give all or none")
    if abs(sum(each.whole for each in found)) < SAME * count:
        raise InputError(f"both texts give the same score ({first.reference:.4g}): choose another target")
    whole, single = sum(each.whole for each in found), count == 1
    named = PARTS[what][0]
    if to is not None:
        named = f"the way to {to}"
    changed = sort_heads(
        ChangedHead(
            **vars(_average(parts := [each.heads[head] for each in found], whole)),
            head=head,
            error=_error([each.effect for each in parts], [each.whole for each in found]),
            estimate=sum(each.estimate or 0.0 for each in parts) / whole if exact and fast else None,
        )
        for head in found[0].heads
    )
    both = torch.tensor([(each.effect, each.estimate) for each in changed if each.estimate is not None])
    title = f"{name_pass(model, first.base.prepared)} ← {quote_text(first.donor.prepared)}"
    together = [each.together for each in found if each.together is not None]
    return Intervention(
        changed=f"patch {named} of {'the other text into this' if noise else 'this into the other'}",
        prediction=first.base.prediction.description if single else "the prediction of each pair",
        unit=first.base.unit,
        score=sum(each.score for each in found) / count,
        reference=sum(each.pair.reference for each in found) / count,
        heads=changed,
        together=_average(together, whole) if together else None,
        estimated=fast and not exact,
        title=title if single else f"{model.title} · {count:,} pairs of texts",
        notes=tuple(
            dict.fromkeys(
                note
                for each, pair in zip(found, pairs, strict=True)
                for note in (*model.notes, *pair.clean.notes, *each.record.notes)
            )
        ),
        correlation=float(both.T.corrcoef()[0, 1]) if len(both) > 1 else None,
    )


def _average(effects: Sequence[Effect], whole: float) -> Effect:
    """The share of the sum of all differences that comes back; the mean score and divergence."""
    count = len(effects)
    return Effect(
        effect=sum(each.effect for each in effects) / whole,
        score=sum(each.score for each in effects) / count,
        divergence=sum(each.divergence for each in effects) / count,
    )


def _error(moved: Sequence[float], wholes: Sequence[float]) -> float | None:
    """The standard error of a ratio of sums over pairs; none of one pair."""
    count, whole = len(moved), sum(wholes)
    if count < 2:
        return None
    squares = sum((each - sum(moved) / whole * all_) ** 2 for each, all_ in zip(moved, wholes, strict=True))
    return float((squares * count / (count - 1)) ** 0.5 / abs(whole))


def _patch_pair(
    model: Model,
    pair: TextPair,
    selection: Selection,
    heads: Sequence[Head],
    what: What,
    to: Receiver | None,
    noise: bool,
    ways: tuple[bool, bool],
) -> _Found:
    """What every head does in one pair; ``ways``: estimated, exact beside the estimate."""
    require_texts(pair.clean, pair.corrupt)
    fast, exact = ways
    with torch.no_grad(), model.threads(pair.clean):
        prediction = score_prediction(model, pair.clean, pair.target, pair.against)
        passes = _Pair.run(model, pair, prediction, what, noise)
        if fast:
            before, estimates, record = _estimate(passes, selection, heads)
        if fast and not exact:
            score = float(passes.base.score(before))
            found = {
                head: ChangedHead(moved, score + moved, float("nan"), head)
                for head, moved in estimates.items()
            }
            return _Found(passes, score, found, None, record)
        if to is None:
            swept = sweep_heads(passes.base, passes.change(what), selection, heads)
        else:
            swept = _sweep_paths(passes, to, selection, heads)
    found = {
        head: ChangedHead(**vars(effect), head=head, estimate=estimates[head] if fast else None)
        for head, effect in swept.heads.items()
    }
    return _Found(passes, float(passes.base.score(swept.before)), found, swept.together, swept.record)


def _estimate(
    pair: _Pair, selection: Selection, heads: Sequence[Head]
) -> tuple[Tensor, Mapping[Head, float], Record]:
    """The effect of each head's output from one gradient: the slope of the score times the difference."""
    scored, added, mine = pair.base, list[Tensor](), list[Tensor]()

    def add(number: int, output: Tensor) -> Tensor:
        mine.append(output.detach())
        added.append(torch.zeros_like(output, requires_grad=True))
        return output + added[-1]

    with torch.enable_grad(), recording(scored.model.module, warn=False) as record, edited(add) as gates:
        before = scored.logits()
        slopes = torch.autograd.grad(scored.score(before), added, allow_unused=True)
    gated_sites(scored.model, record, gates)
    heads_meant = calls_of(record, selection, heads)
    moved = dict.fromkeys(heads_meant, 0.0)
    for head, calls in heads_meant.items():
        for call in calls:
            slope, difference = slopes[call], pair.outputs[call] - mine[call]
            if slope is not None:
                moved[head] += float((slope * difference)[:, :, head.head].sum())
    return before.detach(), moved, record


def _sweep_paths(pair: _Pair, to: Receiver, selection: Selection, heads: Sequence[Head]) -> Swept:
    """What each head does through one receiver alone, all other heads giving what they gave.

    One pass tells what the receiver then gets, and another one what becomes of the prediction.
    """
    scored, received, outputs = pair.base, _Calls(), list[Tensor]()

    def keep(number: int, output: Tensor) -> None:
        outputs.append(output.detach().clone())

    first = PlainPass.run(
        scored.model, scored.prepared, scored.logits, selection, heads, edit=keep,
        observers=[] if to.head is None else [received],
    )  # fmt: skip
    end = to.call(first.sites)
    first.verify([end], scored.logits)
    senders = {head: [call for call in calls if call < end] for head, calls in first.calls.items()}
    senders = {head: calls for head, calls in senders.items() if calls}
    if not senders:
        raise SelectionError(f"none of these heads comes before {to}")

    def send(sent: Calls) -> Tensor:
        seen = _Calls()

        def freeze(number: int, output: Tensor) -> Tensor:
            mine = outputs[number].clone()
            for head, calls in sent.items():
                if number in calls:
                    mine[:, :, head.head] = pair.outputs[number][:, :, head.head]
            return mine

        start = min(call for calls in sent.values() for call in calls)
        observers = [] if to.head is None else [seen]
        with (
            recording(scored.model.module, observers, scored.prepared.axes, warn=False),
            first.edited_from(start, freeze) as skipped,
        ):
            logits = scored.logits()
        if to.head is None:
            return logits
        own, theirs = received.calls[end], seen.calls[end - skipped]
        outcome = _mixed(replace(own, **{name: getattr(theirs, name) for name in to.parts}))
        made = Made(torch.arange(outcome.shape[2]), outcome, outcome)
        with first.edited_from(end, partial(put_heads, {end: (made, [to.head.head])})):
            return scored.logits()

    found = {}
    for done, (head, calls) in enumerate(senders.items()):
        tell("head", done + 1, len(senders))
        found[head] = scored.effect(first.before, send({head: calls}))
    return Swept(first.before, found, scored.effect(first.before, send(senders)), first.record)
