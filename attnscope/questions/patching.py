"""Patching: a head's output in one text, or a part of it, put into the pass of another text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from attnscope.attention import Attention, AttentionCall, Head, Site
from attnscope.capture import recording
from attnscope.capture.rows.scores import ScoredRows
from attnscope.errors import InputError, ModelError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.questions.cause import (
    Intervention,
    average_effects,
    subtract_scores,
    summarize_effects,
)
from attnscope.questions.importance import editing
from attnscope.questions.intervention import (
    Calls,
    Change,
    Effect,
    Made,
    Scored,
    SeenPass,
    Swept,
    calls_of,
    mix_rows,
    mixed_values,
    naming,
    put_heads,
    scoring,
    sweep,
    sweep_calls,
)
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import name_pass, quote_text

What: TypeAlias = Literal["output", "q", "k", "v", "pattern"]  # what can be patched

PARTS: Mapping[str, tuple[str, Sequence[str]]] = {
    "output": ("outputs", ()),
    "q": ("queries", ("query",)),
    "k": ("keys", ("key",)),
    "v": ("values", ("value",)),
    "pattern": ("weights", ("query", "key")),
}
"""Each in words, and the terms of the call that it is."""

LOGITS = "logits"  # the end of a path that leads to no head


@dataclass(frozen=True, eq=False)
class TextPair:
    """A text, another one that differs in what decides the prediction, and the prediction."""

    clean: ModelInput
    corrupt: ModelInput
    target: str | None = None
    against: str | None = None
    where: str = ""  # among several pairs: the beginning of error messages

    @contextmanager
    def scoring(self, model: Model, noise: bool = False) -> Iterator[tuple[Scored, Scored]]:
        """The prediction of the clean text, in the pass to change and in that whose parts are put there.

        Parts of the clean text go into the pass of the corrupt one; with ``noise`` the other way. Raises as
        ``intervention.scoring`` does.
        """
        with (
            naming(self.where),
            scoring(model, self.clean, self.target, self.against, self.corrupt) as clean,
        ):
            corrupt = replace(clean, prepared=self.corrupt)
            yield (clean, corrupt) if noise else (corrupt, clean)


def read_pairs(
    table: str, read: Callable[[str], ModelInput], target: str | None = None, against: str | None = None
) -> list[TextPair]:
    """One tab-separated pair per line: the text, the other one, optionally a target and another word.

    Raises ``InputError`` for a line without two texts.
    """
    pairs: list[TextPair] = []
    for number, line in enumerate(table.splitlines(), 1):
        if not line.strip():
            continue
        parts = [part.strip() for part in line.split("\t")]
        if not 2 <= len(parts) <= 4 or not all(parts[:2]):
            raise InputError(
                f"line {number:,}: write two texts with a tab between them, and then the target and the "
                "other word, if this pair has its own"
            )
        own, other = (*parts[2:], "", "")[:2]
        where = f"pair {len(pairs) + 1:,}"
        pairs.append(TextPair(read(parts[0]), read(parts[1]), own or target, other or against, where))
    if not pairs:
        raise InputError("there is no pair of texts in the file")
    return pairs


class Receiver(NamedTuple):
    """The end of a path: some input of a head, or the output without a head."""

    head: Head | None
    named: str = ""
    parts: Sequence[str] = ()

    @classmethod
    def parse(cls, text: str) -> Receiver:
        """``logits``, or a head and its input: ``L9H9:q``. Raises ``SelectionError``."""
        name, _, part = text.partition(":")
        if name.strip() == LOGITS and not part:
            return cls(None)
        if part not in ("", "q", "k", "v", "pattern"):
            raise SelectionError(f"no part {part!r} of a head: write L9H9:q, k, v or pattern, or logits")
        return cls(Head(name), part or "qkv", PARTS[part][1] if part else ("query", "key", "value"))

    def __str__(self) -> str:
        return LOGITS if self.head is None else f"{self.head}:{self.named}"

    def call(self, sites: Sequence[Site]) -> int:
        """The number of its call; after the last one for the output. Raises ``SelectionError``."""
        if self.head is None:
            return len(sites)
        asked = Selection(self.head)
        found = [number for number, site in enumerate(sites) if asked.meets(site)]
        if len(found) != 1:
            raise SelectionError(f"{self.head} is {len(found)} attention calls: name one, with its kind")
        return found[0]


@dataclass(eq=False)
class _Calls:
    """Observer: stores every call's arguments."""

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
    """The output of every head of a call.  -> [batch, head, query, size]"""
    return mix_rows(ScoredRows(call), call.value, 0, call.query.shape[2])


@dataclass(frozen=True, eq=False)
class TwoPasses:
    """The pass to change, and that of the other text, whose parts are put there."""

    scored: Scored
    here: SeenPass
    there: SeenPass
    mine: Sequence[AttentionCall]  # of the pass to change, and of the other; empty unless asked for
    theirs: Sequence[AttentionCall]

    @classmethod
    def of(cls, base: Scored, donor: Scored, parts: bool = False) -> TwoPasses:
        """Run both texts; ``parts`` keeps what the calls received.

        Raises ``ModelError`` for heads that cannot be changed, ``InputError`` for passes that differ in their
        attention calls or give the same score.
        """
        calls = [_Calls(), _Calls()]
        here, there = (
            each.run([seen] if parts else []) for each, seen in zip((base, donor), calls, strict=True)
        )
        if [each.shape for each in here.given] != [each.shape for each in there.given]:
            raise InputError("the passes of the texts have different attention calls")
        subtract_scores(there.score, here.score)
        return cls(base, here, there, *(each.calls for each in calls))


def _give_part(what: What, theirs: Sequence[AttentionCall]) -> Change:
    """Give every head a part of its computation in another pass."""

    def change(number: int, attention: Attention) -> Made:
        before = mix_rows(attention.read, mixed_values(attention), 0, len(attention.queries))
        parts = {name: getattr(theirs[number], name) for name in PARTS[what][1]}
        return Made(slice(None), _mixed(replace(_call(attention), **parts)), before)

    return change


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
    """Put each head of one text into the pass of the other: how much of the difference it restores.

    The prediction is that of the clean text. Its heads go into the pass of the corrupt one, or the other
    way with ``noise``. Over several pairs the effect is the share of the sum of differences. With ``to``,
    only a head's effect on that receiver is put into the pass, with all other heads unchanged (path
    patching, Wang et al. 2022). ``fast`` estimates the effects of outputs from one gradient (with
    ``exact``: beside them). Raises ``InputError`` for texts of different lengths or with the same score.
    """
    selection = selection or Selection()
    named = PARTS[what][0] if to is None else f"the way to {to}"
    found = []
    for pair in pairs:
        with pair.scoring(model, noise) as (base, donor):
            received = what != "output" or (to is not None and to.head is not None)
            passes = TwoPasses.of(base, donor, received)
            estimate = _estimate(passes, selection, heads) if fast else None
            if estimate is not None and not exact:
                swept = estimate
            elif to is not None:
                swept = _sweep_paths(passes, to, selection, heads)
            elif what == "output":
                swept = sweep(base, base.plain(selection, heads).putting(passes.there.given))
            else:
                swept = sweep(base, base.plain(selection, heads, _give_part(what, passes.theirs)))
        found.append(
            summarize_effects(
                base,
                swept,
                f"patch {named} of {'the other text into this' if noise else 'this into the other'}",
                f"{name_pass(model, base.prepared)} ← {quote_text(donor.prepared)}",
                passes.there.score,
                estimate,
            )
        )
    title = f"{model.title} · {len(found):,} pairs of texts"
    return average_effects(found, "the prediction of each pair", title)


def _estimate(passes: TwoPasses, selection: Selection, heads: Sequence[Head]) -> Swept:
    """The effect of each head's output from one gradient: gradient of the score times the difference."""
    scored, here, there = passes.scored, passes.here, passes.there
    added = list[Tensor]()

    def add(number: int, output: Tensor) -> Tensor:
        added.append(torch.zeros_like(output, requires_grad=True))
        return output + added[-1]

    with torch.enable_grad():
        with editing(scored.model, add) as (record, _):
            before = scored.logits()
        slopes = torch.autograd.grad(scored.score(before), added, allow_unused=True)
    found = dict[Head, Effect]()
    for head, calls in calls_of(record, selection, heads).items():
        moved = sum(
            float((slope * (there.given[call] - here.given[call]))[:, :, head.head].sum())
            for call in calls
            if (slope := slopes[call]) is not None
        )
        found[head] = Effect(moved, here.score + moved, float("nan"))
    return Swept(before.detach(), found, None, record)


def _sweep_paths(passes: TwoPasses, to: Receiver, selection: Selection, heads: Sequence[Head]) -> Swept:
    """The effect of each head through one receiver alone, with all other heads frozen.

    One pass gives the receiver's new input, and another one its effect on the prediction.
    """
    scored, frozen = passes.scored, passes.here.given
    first = scored.plain(selection, heads).putting(passes.there.given)
    end = to.call(first.sites)
    first.verify([end])
    senders = {head: [call for call in calls if call < end] for head, calls in first.calls.items()}
    senders = {head: calls for head, calls in senders.items() if calls}
    if not senders:
        raise SelectionError(f"none of these heads comes before {to}")

    def send(sent: Calls) -> Tensor:
        changed, seen = first.changes(sent), _Calls()

        def freeze(number: int, output: Tensor) -> Tensor:
            mine = put_heads(changed, number, frozen[number])
            return frozen[number].clone() if mine is None else mine

        observers = [] if to.head is None else [seen]
        with (
            recording(scored.model.module, observers, scored.prepared.axes, warn=False),
            first.edited_from(min(changed), freeze) as skipped,
        ):
            logits = scored.logits()
        if to.head is None:
            return logits
        own, theirs = passes.mine[end], seen.calls[end - skipped]
        outcome = _mixed(replace(own, **{name: getattr(theirs, name) for name in to.parts}))
        made = Made(slice(None), outcome)
        with first.edited_from(end, partial(put_heads, {end: (made, [to.head.head])})):
            return scored.logits()

    return sweep_calls(scored, first, senders, send)
