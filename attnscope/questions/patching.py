"""Patching: a head's output in one text, or a part of it, put into the pass of another text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from attnscope.questions.cause import Intervention, average_effects, summarize_effects
from attnscope.questions.importance import editing
from attnscope.questions.intervention import (
    Calls,
    Change,
    Effect,
    Fixed,
    Made,
    PlainPass,
    Scored,
    Swept,
    calls_of,
    heads_by_call,
    mix_rows,
    mixed_values,
    naming,
    put_heads,
    require_texts,
    sweep_calls,
    sweep_heads,
)
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import name_pass, quote_text

What: TypeAlias = Literal["output", "q", "k", "v", "pattern"]
"""What can be patched."""

PARTS: Mapping[str, tuple[str, Sequence[str]]] = {
    "output": ("outputs", ()),
    "q": ("queries", ("query",)),
    "k": ("keys", ("key",)),
    "v": ("values", ("value",)),
    "pattern": ("weights", ("query", "key")),
}
"""Each in words, and the terms of the call that it is."""

LOGITS = "logits"
"""The end of a path that leads to no head."""


@dataclass(frozen=True, eq=False)
class TextPair:
    """A text, another one that differs in what decides the prediction, and the prediction."""

    clean: ModelInput
    corrupt: ModelInput
    target: str | None = None
    against: str | None = None
    where: str = ""  # among several pairs: the beginning of error messages


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
class _Pair:
    """The stored pass of one text, and the text into whose pass its heads are put."""

    base: Scored
    donor: Scored
    reference: float
    outputs: Sequence[Tensor]  # of each call: [batch, query, head, size]
    received: Sequence[AttentionCall]

    @classmethod
    def run(cls, model: Model, pair: TextPair, what: What, noise: bool) -> _Pair:
        clean = Scored.of(model, pair.clean, pair.target, pair.against)
        corrupt = replace(clean, prepared=pair.corrupt)
        donor, base = (corrupt, clean) if noise else (clean, corrupt)
        calls = _Calls()
        reference, outputs, _ = donor.run([] if what == "output" else [calls])
        return cls(base, donor, reference, outputs, calls.calls)

    def change(self, what: What) -> Change | Fixed:
        """Give every head its value from the other pass: its whole output, or a part of its computation."""

        def give(number: int, site: Site, heads: int) -> Made:
            if number >= len(self.outputs):
                raise InputError("the passes of the two texts have different numbers of attention calls")
            return Made(slice(None), self.outputs[number].transpose(1, 2))

        def change(number: int, attention: Attention) -> Made:
            count = len(attention.queries)
            before = mix_rows(attention.read, mixed_values(attention), 0, count)
            given = give(number, attention.site, attention.heads)
            theirs = {name: getattr(self.received[number], name) for name in PARTS[what][1]}
            return given._replace(outputs=_mixed(replace(_call(attention), **theirs)), before=before)

        return Fixed(give) if what == "output" else change


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
    found = []
    for pair in pairs:
        with naming(pair.where):
            found.append(_patch_pair(model, pair, selection, heads, what, to, noise, (fast, exact)))
    if len(found) == 1:
        return found[0]
    return average_effects(
        found, "the prediction of each pair", f"{model.title} · {len(found):,} pairs of texts"
    )


def _patch_pair(
    model: Model,
    pair: TextPair,
    selection: Selection,
    heads: Sequence[Head],
    what: What,
    to: Receiver | None,
    noise: bool,
    ways: tuple[bool, bool],
) -> Intervention:
    """The effect of every head in one pair; ``ways``: estimated, or exact beside the estimate."""
    require_texts(pair.clean, pair.corrupt)
    fast, exact = ways
    with torch.no_grad(), model.threads(pair.clean):
        passes = _Pair.run(model, pair, what, noise)
        swept = _estimate(passes, selection, heads) if fast else None
        estimates = None if swept is None else {head: each.effect for head, each in swept.heads.items()}
        if swept is None or exact:
            swept = (
                sweep_heads(passes.base, passes.change(what), selection, heads)
                if to is None
                else _sweep_paths(passes, to, selection, heads)
            )
    named = PARTS[what][0] if to is None else f"the way to {to}"
    result = summarize_effects(
        passes.base,
        swept,
        f"patch {named} of {'the other text into this' if noise else 'this into the other'}",
        f"{name_pass(model, passes.base.prepared)} ← {quote_text(passes.donor.prepared)}",
        passes.reference,
        estimates if exact else None,
    )
    return replace(result, estimated=fast and not exact)


def _estimate(pair: _Pair, selection: Selection, heads: Sequence[Head]) -> Swept:
    """The effect of each head's output from one gradient: gradient of the score times the difference."""
    scored, added, mine = pair.base, list[Tensor](), list[Tensor]()

    def add(number: int, output: Tensor) -> Tensor:
        mine.append(output.detach())
        added.append(torch.zeros_like(output, requires_grad=True))
        return output + added[-1]

    with torch.enable_grad():
        with editing(scored.model, add) as (record, _):
            before = scored.logits()
        slopes = torch.autograd.grad(scored.score(before), added, allow_unused=True)
    score, found = float(scored.score(before)), dict[Head, Effect]()
    for head, calls in calls_of(record, selection, heads).items():
        moved = sum(
            float((slope * (pair.outputs[call] - mine[call]))[:, :, head.head].sum())
            for call in calls
            if (slope := slopes[call]) is not None
        )
        found[head] = Effect(moved, score + moved, float("nan"))
    return Swept(before.detach(), found, None, record)


def _sweep_paths(pair: _Pair, to: Receiver, selection: Selection, heads: Sequence[Head]) -> Swept:
    """The effect of each head through one receiver alone, with all other heads frozen.

    One pass gives the receiver's new input, and another one its effect on the prediction.
    """
    scored, received, outputs = pair.base, _Calls(), list[Tensor]()

    def keep(number: int, output: Tensor) -> None:
        outputs.append(output.detach().clone())

    first = PlainPass.run(
        scored.model, scored.prepared, scored.logits, selection, heads, keep=keep,
        observers=[] if to.head is None else [received],
    )  # fmt: skip
    end = to.call(first.sites)
    first.verify([end])
    senders = {head: [call for call in calls if call < end] for head, calls in first.calls.items()}
    senders = {head: calls for head, calls in senders.items() if calls}
    if not senders:
        raise SelectionError(f"none of these heads comes before {to}")

    def send(sent: Calls) -> Tensor:
        seen = _Calls()
        changed = {
            call: (Made(slice(None), pair.outputs[call].transpose(1, 2)), mine)
            for call, mine in heads_by_call(sent).items()
        }

        def freeze(number: int, output: Tensor) -> Tensor:
            mine = put_heads(changed, number, outputs[number])
            return outputs[number].clone() if mine is None else mine

        observers = [] if to.head is None else [seen]
        with (
            recording(scored.model.module, observers, scored.prepared.axes, warn=False),
            first.edited_from(min(changed), freeze) as skipped,
        ):
            logits = scored.logits()
        if to.head is None:
            return logits
        own, theirs = received.calls[end], seen.calls[end - skipped]
        outcome = _mixed(replace(own, **{name: getattr(theirs, name) for name in to.parts}))
        made = Made(slice(None), outcome)
        with first.edited_from(end, partial(put_heads, {end: (made, [to.head.head])})):
            return scored.logits()

    return sweep_calls(scored, first, senders, send)
