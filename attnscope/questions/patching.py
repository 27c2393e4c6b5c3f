"""Patching: a head's output in one text, or a part of it, put into the pass of another text.

With ``--by token``: causal tracing (Meng et al. 2022), where the state of one token after one layer is
replaced by that of the other text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from attnscope.attention import Attention, AttentionCall, Head, HeldRows, Kind, Site
from attnscope.capture.record import Seeing
from attnscope.capture.rows.scores import ScoredRows, find_scores
from attnscope.errors import InputError, ModelError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.progress import tell
from attnscope.questions.answer import Answer
from attnscope.questions.cause import Intervention, ScoreOutcome, average_effects, measure_effects, of_effects
from attnscope.questions.intervention import (
    NEAR,
    Calls,
    Change,
    Effect,
    Made,
    PlainPass,
    RanLayer,
    Scored,
    attending_layers,
    calls_of,
    editing,
    mix_rows,
    mixed_values,
    naming,
    put_heads,
    run_keeping_layers,
    scoring,
)
from attnscope.questions.parts import word_groups
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import name_pass, quote_text
from attnscope.records import Meaning, record
from attnscope.views import head_map

What: TypeAlias = Literal["output", "q", "k", "v", "pattern"]  # what can be patched

PARTS: Mapping[str, tuple[str, Sequence[str]]] = {
    "output": ("outputs", ()),
    "q": ("queries", ("query",)),
    "k": ("keys", ("key",)),
    "v": ("values", ("value",)),
    "pattern": ("weights", tuple(each.name for each in fields(AttentionCall) if each.name != "value")),
    "qkv": ("queries, keys and values", ("query", "key", "value")),
}
"""Each in words, and the terms of the call that it is."""

LOGITS = "logits"  # the end of a path that leads to no head
OTHER_CALLS = "the passes of the texts have different attention calls"


@dataclass(frozen=True, eq=False)
class TextPair:
    """A text, another one that differs in what decides the prediction, and the prediction."""

    clean: ModelInput
    corrupt: ModelInput
    target: str | None = None
    against: str | None = None

    @contextmanager
    def scoring(self, model: Model, noise: bool = False) -> Iterator[tuple[Scored, Scored]]:
        """The prediction in the pass to change, and in that whose parts go there (``noise``: corrupt)."""
        one, other = self.clean.tokens, self.corrupt.tokens
        if len(one) != len(other):
            words = zip(word_groups(one), word_groups(other), strict=False)
            why = (
                f": {mine.label!r} has {len(here):,} piece{'s' * (len(here) > 1)} and {theirs.label!r} "
                f"{len(there):,} piece{'s' * (len(there) > 1)}"
                for (mine, here), (theirs, there) in words
                if len(here) != len(there)
            )
            raise InputError(
                f"the texts differ in their number of tokens, {len(one):,} and {len(other):,}"
                f"{next(why, '')}; a patch needs the same number"
            )
        with scoring(model, self.clean, self.target, self.against) as clean:
            corrupt = replace(clean, prepared=self.corrupt)
            yield (clean, corrupt) if noise else (corrupt, clean)


def read_pairs(
    table: str, read: Callable[[str], ModelInput], target: str | None = None, against: str | None = None
) -> list[TextPair]:
    """One tab-separated pair per line: the text, the other one, optionally a target and another word."""
    pairs: list[TextPair] = []
    for at, line in enumerate(table.splitlines(), 1):
        if not line.strip():
            continue
        parts = [part.strip() for part in line.split("\t")]
        if not 2 <= len(parts) <= 4 or not all(parts[:2]):
            raise InputError(
                f"line {at:,}: write two texts with a tab between them, and then the target and the "
                "other word, if this pair has its own"
            )
        own, other = (*parts[2:], "", "")[:2]
        pairs.append(TextPair(read(parts[0]), read(parts[1]), own or target, other or against))
    if not pairs:
        raise InputError("there is no pair of texts in the file")
    return pairs


class Receiver(NamedTuple):
    """The end of a path: some input of a head, or the output without a head."""

    head: Head | None
    part: str = "qkv"

    @classmethod
    def parse(cls, text: str) -> Receiver:
        """``logits``, or a head and its input: ``L9H9:q``. Raises ``SelectionError``."""
        name, _, part = text.partition(":")
        if name.strip() == LOGITS and not part:
            return cls(None)
        if part not in ("", "q", "k", "v", "pattern"):
            raise SelectionError(f"no part {part!r} of a head: write L9H9:q, k, v or pattern, or logits")
        return cls(Head(name), part or "qkv")

    def __str__(self) -> str:
        return LOGITS if self.head is None else f"{self.head}:{self.part}"

    def call(self, sites: Sequence[Site]) -> int:
        """The number of its call; after the last one for the output. Raises ``SelectionError``."""
        if self.head is None:
            return len(sites)
        asked = Selection(self.head)
        found = [number for number, site in enumerate(sites) if asked.meets(site)]
        if len(found) != 1:
            raise SelectionError(f"{self.head} is {len(found)} attention calls: name one, with its kind")
        return found[0]


def _call(attention: Attention) -> AttentionCall:
    read = attention.read
    call = read.call if isinstance(read, (ScoredRows, HeldRows)) else None
    if call is None or find_scores(read) is None:
        raise ModelError(
            f"{attention.site.name} shows weights without its queries and keys: patch --what output"
        )
    return call


def _mixed(call: AttentionCall, other: AttentionCall, parts: Sequence[str]) -> Tensor:
    """The output of every head of a call with parts of another one.  -> [batch, head, query, size]"""
    call = replace(call, **{name: getattr(other, name) for name in parts})
    return mix_rows(ScoredRows(call), call.value, 0, call.query.shape[2])


@dataclass(frozen=True, eq=False)
class TwoPasses:
    """The pass to change, and that of the other text, whose parts are put there."""

    scored: Scored
    here: PlainPass
    there: PlainPass
    mine: Sequence[AttentionCall] = ()  # of the pass to change; empty unless asked for

    @classmethod
    def of(cls, base: Scored, donor: Scored, what: What = "output", *, keep_calls: bool = False) -> TwoPasses:
        """Run both texts. Raises ``InputError`` for passes that differ in their attention calls."""
        mine, theirs = list[AttentionCall](), list[AttentionCall]()
        see = Seeing(lambda attention: mine.append(_call(attention)))
        saw = Seeing(lambda attention: theirs.append(_call(attention)))
        there = PlainPass.run(*donor.asked, None, [saw] * (what != "output"), keep_outputs=True)
        change = None if what == "output" else _give_part(what, theirs)
        here = PlainPass.run(*base.asked, change, [see] * keep_calls, keep_outputs=True)
        if [each.shape for each in here.given] != [each.shape for each in there.given]:
            raise InputError(OTHER_CALLS)
        scored = base.toward(here.before, there.before)
        return cls(scored, here if change else here.putting(there.given), there, mine)


def _give_part(what: What, theirs: Sequence[AttentionCall]) -> Change:
    def change(number: int, attention: Attention) -> Made:
        call, others = _call(attention), theirs[number : number + 1]
        if [call.query.shape] != [other.query.shape for other in others]:
            raise InputError(OTHER_CALLS)
        before = mix_rows(attention.read, mixed_values(attention), 0, len(attention.queries))
        return Made(_mixed(call, others[0], PARTS[what][1]), before=before)

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
    named = PARTS[what][0] if to is None else f"the way to {to}"
    changed, found = f"patch {named} of {_way(noise)}", list[Intervention]()
    for number, pair in enumerate(pairs, 1):
        with naming("pair", number, len(pairs)), pair.scoring(model, noise) as (base, donor):
            passes = TwoPasses.of(base, donor, what, keep_calls=to is not None and to.head is not None)
            scored, first, title = passes.scored, passes.here, _title(base, donor)
            calls = calls_of(first.record, selection or Selection(), heads)
            run: Callable[[Calls], Tensor] = first.changed
            if to is not None:
                run, calls = _path_runner(passes, to, calls)
            estimates = _estimate(passes, calls) if fast else {}
            found.append(
                measure_effects(scored, first, calls, changed, title, run, estimates, exact or not fast)
            )
    title = f"{model.title} · {len(found):,} pairs of texts"
    return average_effects(found, "the prediction of each pair", title)


def _way(noise: bool) -> str:
    return "the other text into this" if noise else "this into the other"


def _title(base: Scored, donor: Scored) -> str:
    return f"{name_pass(base.model, base.prepared)} ← {quote_text(donor.prepared)}"


def _estimate(passes: TwoPasses, calls: Calls) -> dict[Head, Effect]:
    """The effect of each head's output from one gradient: gradient of the score times the difference."""
    scored, here, there = passes.scored, passes.here, passes.there
    added = list[Tensor]()

    def add(number: int, output: Tensor) -> Tensor:
        added.append(torch.zeros_like(output, requires_grad=True))
        return output + added[-1]

    with torch.enable_grad():
        with editing(scored.model, add):
            score = scored.score(scored.logits())
        slopes = torch.autograd.grad(score, added, allow_unused=True)
    found = dict[Head, Effect]()
    for head, mine in calls.items():
        moved = sum(
            float((slope * (there.given[call] - here.given[call]))[:, :, head.head].sum())
            for call in mine
            if (slope := slopes[call]) is not None
        )
        found[head] = Effect(moved / scored.whole, float(scored.score(here.before)) + moved, float("nan"))
    return found


def _path_runner(passes: TwoPasses, to: Receiver, calls: Calls) -> tuple[Callable[[Calls], Tensor], Calls]:
    """Predicts with some heads changed for one receiver alone, all other heads frozen; heads before it.

    One pass gives the receiver's new input, and another one its effect on the prediction.
    """
    scored, first, frozen = passes.scored, passes.here, passes.here.given
    end = to.call([each.site for each in first.record.sites])
    senders = {head: [call for call in mine if call < end] for head, mine in calls.items()}
    senders = {head: mine for head, mine in senders.items() if mine}
    if not senders:
        raise SelectionError(f"none of these heads comes before {to}")

    def send(sent: Calls) -> Tensor:
        changes, seen = first.changes(sent), list[AttentionCall]()
        see = Seeing(lambda attention: seen.append(_call(attention)))

        def freeze(number: int, output: Tensor) -> Tensor:
            mine = put_heads(changes, number, frozen[number])
            return frozen[number].clone() if mine is None else mine

        with first.edited_from(min(changes), freeze, [see] * (to.head is not None)) as skipped:
            logits = scored.logits()
        if to.head is None:
            return logits
        made = Made(_mixed(passes.mine[end], seen[end - skipped], PARTS[to.part][1]))
        changed = {end: (made, [(slice(None), to.head.head)])}
        with first.edited_from(end, partial(put_heads, changed)):
            return scored.logits()

    return send, senders


@record("a layer's residual stream at a token, patched alone")
class PatchedToken(Effect):
    """A prediction after one token's state after one layer was replaced."""

    kind: Annotated[Kind, Meaning("the side of the model")]
    layer: Annotated[int, Meaning("the layer behind which it is patched")]
    position: Annotated[int, Meaning("the token's number")]
    token: Annotated[str, Meaning("the token; with the other text's behind ← where they differ")]

    @property
    def label(self) -> str:
        """The token and its number."""
        return f"{self.token.strip()} {self.position}"


@record("the residual stream patched token by token (--by token)", "patch")
class TokenTrace(ScoreOutcome):
    """How much of the difference between two texts each token's state holds after each layer."""

    changed: Annotated[str, Meaning("what was changed")]
    tokens: Annotated[tuple[PatchedToken, ...], Meaning("every token behind every layer, in their order")]


def trace_tokens(model: Model, pair: TextPair, *, noise: bool = False) -> TokenTrace:
    """Put the state of each token after each layer into the pass of the other text, one at a time."""
    with pair.scoring(model, noise) as (base, donor):
        there, theirs, _ = run_keeping_layers(*donor.asked)
        before, mine, seen = run_keeping_layers(*base.asked)
        scored = base.toward(before, there)
        found, layers = list[PatchedToken](), attending_layers(model, mine, seen)
        alone = len({kind for _, kind, _ in layers}) == 1
        for done, (at, kind, layer) in enumerate(layers):
            tell("layer", done + 1, len(layers))
            axes = [each.prepared.axes[kind][0] for each in (base, donor)]
            ran, states, others = mine.ran[at], mine.ran[at].states, theirs.ran[at].states
            length = len(axes[0])
            if states is None or others is None or {s[..., 0].numel() for s in (states, others)} != {length}:
                raise ModelError(f"the layers of {model.name} do not each give one state a token")

            def run(changed: Tensor, at: int = at, ran: RanLayer = ran) -> Tensor:
                with mine.giving([*mine.ran[:at], ran.with_states(changed)]):
                    return scored.logits()

            # with all states it is the other pass's prediction, if the model has a single side
            every, expected = (others, there) if alone else (states, before)
            if not torch.allclose(run(every), expected, atol=NEAR, rtol=0):
                name = model.name
                raise ModelError(
                    f"what a layer of {name} returns is not all that those behind it read: no stream"
                )
            rows, wanted = states.reshape(length, -1), others.reshape(length, -1)
            for position, tokens in enumerate(zip(*axes, strict=False)):
                after = before
                if not torch.equal(rows[position], wanted[position]):
                    changed = rows.clone()
                    changed[position] = wanted[position]
                    after = run(changed.view_as(states))
                effect = scored.effect(before, after)
                named = dict.fromkeys(str(position) if isinstance(e, int) else e.text for e in tokens)
                found.append(
                    PatchedToken(
                        **vars(effect), kind=kind, layer=layer, position=position, token="←".join(named)
                    )
                )
    return TokenTrace(
        changed=f"patch states of {_way(noise)}",
        prediction=base.prediction.description,
        unit=base.unit,
        score=float(base.score(before)),
        reference=scored.reference,
        tokens=tuple(found),
        title=_title(base, donor),
        notes=(*model.notes, *pair.clean.notes, *seen.notes),
    )


def of_trace(result: TokenTrace) -> Answer:
    """The states that restore most, and a map of tokens × layers for each side of the model."""
    kinds: dict[str, dict[int, list[PatchedToken]]] = {}
    for each in result.tokens:
        kinds.setdefault(each.kind, {}).setdefault(each.position, []).append(each)
    top = max((abs(each.effect) for each in result.tokens), default=0.0) or 1.0
    maps = {
        kind: head_map(
            {position: [each.effect for each in layers] for position, layers in tokens.items()},
            "recovered",
            limits=(-top, top),  # all on one scale
            signed=True,
            title=f"recovered, the {kind}'s residual stream behind each layer",
            marks=("", "L"),
            labels=tuple(first.label for first, *_ in tokens.values()),
        )
        for kind, tokens in kinds.items()
    }
    named: dict[str, Callable[[Any], str]] = {"layer": lambda each: str(each.layer)}
    if len(maps) > 1:
        named["kind"] = lambda each: each.kind
    named["token"] = lambda each: each.label
    csv = "kind", "layer", "position", "token"
    return of_effects(result, result.changed, result.tokens, named, maps, csv)
