"""Patching: a head's output in one text, or a part of it, put into the pass of another text.

With ``--by token``: causal tracing (Meng et al. 2022), where the state of one token after one layer is
replaced by that of the other text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Annotated, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from attnscope.attention import Attention, AttentionCall, Head, Kind
from attnscope.capture.record import FunctionObserver
from attnscope.capture.rows.scores import ScoredRows, call_behind, find_scores
from attnscope.errors import InputError, ModelError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.progress import report
from attnscope.questions import cause
from attnscope.questions.answer import Answer
from attnscope.questions.cause import ScoredPrediction
from attnscope.questions.intervention import (
    TOLERANCE_NATS,
    Calls,
    LayerPass,
    Made,
    PlainPass,
    mix_rows,
    mixed_values,
)
from attnscope.questions.parts import word_groups
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import group_by, quote_texts
from attnscope.records import Meaning, record
from attnscope.views import HeadMap, effect_limits, head_map

What: TypeAlias = Literal["output", "q", "k", "v", "pattern"]  # what can be patched

PARTS: Mapping[str, tuple[str, Sequence[str]]] = {
    "output": ("head outputs", ()),
    "q": ("queries", ("query",)),
    "k": ("keys", ("key",)),
    "v": ("values", ("value",)),
    "pattern": (
        "attention weights",
        tuple(each.name for each in fields(AttentionCall) if each.name != "value"),
    ),
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
    def scoring(
        self, model: Model, noise: bool = False
    ) -> Iterator[tuple[ScoredPrediction, ScoredPrediction]]:
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
        with ScoredPrediction.from_words(model, self.clean, self.target, self.against) as clean:
            corrupt = replace(clean, prepared=self.corrupt)
            yield (clean, corrupt) if noise else (corrupt, clean)


def name_patch(what: str, pairs: Sequence[TextPair], noise: bool) -> str:
    """What is patched from which text into which, in words; ``noise``: from the other one into the text."""
    texts = ("the first text of each pair", "the second")
    if len(pairs) == 1:
        texts = quote_texts(pairs[0].clean, pairs[0].corrupt)
    donor, base = texts[::-1] if noise else texts
    return f"{what} of {donor} patched into {base}"


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


def _call(attention: Attention) -> AttentionCall:
    read = attention.read
    call = call_behind(read)
    if call is None or find_scores(read) is None:
        raise ModelError(
            f"{attention.site.name} shows weights without its queries and keys: patch --what output"
        )
    return call


def _collect_calls(calls: list[AttentionCall]) -> FunctionObserver:
    return FunctionObserver(lambda attention: calls.append(_call(attention)))


def _mixed(call: AttentionCall, other: AttentionCall, parts: Sequence[str]) -> Tensor:
    """The output of every head of a call with parts of another one.  -> [batch, head, query, size]"""
    call = replace(call, **{name: getattr(other, name) for name in parts})
    return mix_rows(ScoredRows(call), call.value, 0, call.query.shape[2])


@dataclass(frozen=True, eq=False)
class TwoPasses:
    """The pass to change, and that of the other text, whose parts are put there."""

    scored: ScoredPrediction
    here: PlainPass
    there: PlainPass
    mine: Sequence[AttentionCall] = ()  # of the pass to change; empty unless asked for

    @classmethod
    def of(
        cls,
        base: ScoredPrediction,
        donor: ScoredPrediction,
        what: What = "output",
        *,
        keep_calls: bool = False,
    ) -> TwoPasses:
        """Run both texts. Raises ``InputError`` for passes that differ in their attention calls."""
        mine, theirs = list[AttentionCall](), list[AttentionCall]()

        def give_part(number: int, attention: Attention) -> Made:
            call, others = _call(attention), theirs[number : number + 1]
            if [call.query.shape] != [other.query.shape for other in others]:
                raise InputError(OTHER_CALLS)
            before = mix_rows(attention.read, mixed_values(attention), 0, len(attention.queries))
            return Made(_mixed(call, others[0], PARTS[what][1]), before=before)

        change, saw = (None, []) if what == "output" else (give_part, [_collect_calls(theirs)])
        there = PlainPass.run(*donor.arguments, None, saw, keep_outputs=True)
        here = PlainPass.run(*base.arguments, change, [_collect_calls(mine)] * keep_calls, keep_outputs=True)
        if [each.shape for each in here.given] != [each.shape for each in there.given]:
            raise InputError(OTHER_CALLS)
        scored = base.relative_to(donor.prepared, here.before, there.before)
        return cls(scored, here if change else here.putting(there.given), there, mine)

    def estimate(self, calls: Calls) -> dict[Head, cause.Effect]:
        """The effect of each head's output from one gradient: gradient of the score times the difference."""
        found, slopes = dict[Head, cause.Effect](), self.here.slopes(self.scored.score)
        for head, mine in calls.items():
            moved = sum(
                float((slope * (self.there.given[call] - self.here.given[call]))[:, :, head.head].sum())
                for call in mine
                if (slope := slopes[call]) is not None
            )
            score = float(self.scored.score(self.here.before)) + moved
            found[head] = cause.Effect(moved / self.scored.whole, score, float("nan"))
        return found

    def path(self, to: Receiver, calls: Calls) -> tuple[cause.PredictChanged, Calls]:
        """Predicts with heads changed for one receiver alone, all other heads held; and those before it.

        One pass gives the receiver's new input, and another one its effect on the prediction.
        """
        receiver, sites = to.head, self.here.record.sites
        ends = [number for number, each in enumerate(sites) if Selection(receiver).meets(each.site)]
        if receiver is not None and len(ends) != 1:
            raise SelectionError(f"{receiver} is {len(ends)} attention calls: name one, with its kind")
        end = len(sites) if receiver is None else ends[0]
        earlier = ((head, [call for call in mine if call < end]) for head, mine in calls.items())
        senders = {head: mine for head, mine in earlier if mine}
        if not senders:
            raise SelectionError(f"none of these heads comes before {to}")

        def send(sent: Calls) -> Tensor:
            if receiver is None:
                return self.here.changed(sent, hold=True)
            seen = list[AttentionCall]()  # from the first change on
            self.here.changed(sent, [_collect_calls(seen)], hold=True)
            made = Made(_mixed(self.mine[end], seen[end - len(sites)], PARTS[to.part][1]))
            return replace(self.here, made={end: made}).changed({receiver: [end]})

        return send, senders


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
) -> cause.Intervention:
    """Put each head of one text into the pass of the other: how much of the difference it restores.

    The prediction is that of the clean text. Its heads go into the pass of the corrupt one, or the other
    way with ``noise``. Over several pairs the effect is the share of the sum of differences. With ``to``,
    only a head's effect on that receiver is put into the pass, with all other heads unchanged (path
    patching, Wang et al. 2022). ``fast`` estimates the effects of outputs from one gradient (with
    ``exact``: beside them). Raises ``InputError`` for texts of different lengths or with the same score.
    """
    run_all, to_whom = exact or not fast, "" if to is None else f" on the way to {to}"

    def name(pairs: Sequence[TextPair]) -> str:
        return f"{name_patch(PARTS[what][0], pairs, noise)}{to_whom}"

    def ask(pair: TextPair) -> cause.Intervention:
        with pair.scoring(model, noise) as (base, donor):
            passes = TwoPasses.of(base, donor, what, keep_calls=to is not None and to.head is not None)
            first = passes.here
            calls = first.calls(selection or Selection(), heads)
            run, calls = (first.changed, calls) if to is None else passes.path(to, calls)
            estimates = passes.estimate(calls) if fast else {}
            changing = run if run_all else None
            return cause.measure_effects(passes.scored, first, calls, name([pair]), changing, estimates)

    title, found = f"{model.title} · {len(pairs):,} pairs of texts", cause.for_each_text("pair", pairs, ask)
    return cause.average_effects(found, "the prediction of each pair", title, name(pairs))


@record("a layer's residual stream at a token, patched alone")
class PatchedToken(cause.Effect):
    """A prediction after one token's state after one layer was replaced."""

    kind: Annotated[Kind, Meaning("the side of the model")]
    layer: Annotated[int, Meaning("the layer after which it is patched")]
    position: Annotated[int, Meaning("the token's number")]
    token: Annotated[str, Meaning("the token; with the other text's after ← where they differ")]

    @property
    def label(self) -> str:
        """The token and its number."""
        return f"{self.token.strip()} {self.position}"


@record("the residual stream patched token by token (--by token)", "patch")
class TokenTrace(cause.ScoreOutcome):
    """How much of the difference between two texts each token's state holds after each layer."""

    changed: Annotated[str, Meaning("what was changed")]
    tokens: Annotated[tuple[PatchedToken, ...], Meaning("every token after every layer, in their order")]


def trace_tokens(model: Model, pair: TextPair, *, noise: bool = False) -> TokenTrace:
    """Put the state of each token after each layer into the pass of the other text, one at a time."""
    with pair.scoring(model, noise) as (base, donor):
        there, here = LayerPass.run(*donor.arguments), LayerPass.run(*base.arguments)
        scored, before = base.relative_to(donor.prepared, here.before, there.before), here.before
        patched, layers = list[PatchedToken](), here.attending
        alone = len({kind for _, kind, _ in layers}) == 1
        for done, (at, kind, layer) in enumerate(layers, 1):
            report("layer", done, len(layers))
            axes = [each.prepared.axes[kind][0] for each in (base, donor)]
            states, others, length = here.ran[at].states, there.ran[at].states, len(axes[0])
            if states is None or others is None or {s[..., 0].numel() for s in (states, others)} != {length}:
                raise ModelError(f"the layers of {model.name} do not each give one state a token")

            def run(changed: Tensor, at: int = at) -> Tensor:
                with here.changing(at, changed):
                    return scored.logits()

            # with all states it is the other pass's prediction, if the model has a single side
            every, expected = (others, there.before) if alone else (states, before)
            if not torch.allclose(run(every), expected, atol=TOLERANCE_NATS, rtol=0):
                name = model.name
                raise ModelError(
                    f"later layers of {name} read more than what a layer returns: there is no residual stream"
                )
            rows, wanted = states.reshape(length, -1), others.reshape(length, -1)
            for position, tokens in enumerate(zip(*axes, strict=False)):
                after = before
                if not torch.equal(rows[position], wanted[position]):
                    changed = rows.clone()
                    changed[position] = wanted[position]
                    after = run(changed.view_as(states))
                effect = vars(scored.effect(before, after))
                named = dict.fromkeys(str(position) if isinstance(e, int) else e.text for e in tokens)
                token = "←".join(named)
                patched.append(PatchedToken(**effect, kind=kind, layer=layer, position=position, token=token))
    return TokenTrace(
        **scored.outcome(before),
        notes=(*model.notes, *pair.clean.notes, *here.record.notes),
        changed=name_patch("residual stream", [pair], noise),
        tokens=tuple(patched),
    )


def trace_answer(result: TokenTrace) -> Answer:
    """The states that restore most, and a map of tokens × layers for each side of the model."""
    limits = effect_limits(each.effect for each in result.tokens)  # all on one scale
    maps = dict[str, HeadMap]()
    for kind, states in group_by(result.tokens, lambda each: each.kind).items():
        tokens = group_by(states, lambda each: each.position)
        maps[kind] = head_map(
            {position: [each.effect for each in layers] for position, layers in tokens.items()},
            "recovered",
            limits=limits,
            signed=True,
            title=f"recovered score when the {kind}'s residual stream after layer L is patched",
            marks=("", "L"),
            labels=tuple(first.label for first, *_ in tokens.values()),
        )
    named = {"layer": "{0.layer}", **({"kind": "{0.kind}"} if len(maps) > 1 else {}), "token": "{0.label}"}
    csv = "kind", "layer", "position", "token"
    return cause.effects_answer(result, result.changed, result.tokens, named, maps, csv)
