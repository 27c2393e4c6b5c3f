"""Patching: a head's output in one text, or a part of it, put into the pass of another text.

With ``--by token``: causal tracing (Meng et al. 2022), where the state of one token after one layer is
replaced by that of the other text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from attnscope.attention import Attention, AttentionCall, Axis, Head, Kind, Site
from attnscope.capture.rows.scores import ScoredRows
from attnscope.errors import InputError, ModelError, SelectionError
from attnscope.models import Model, ModelInput
from attnscope.progress import tell
from attnscope.questions.answer import Answer, csv_rows
from attnscope.questions.cause import (
    LISTED,
    Columns,
    Intervention,
    ScoreOutcome,
    average_effects,
    sort_effects,
    summarize_effects,
    tabulate_effects,
)
from attnscope.questions.intervention import (
    NEAR,
    Calls,
    Change,
    Effect,
    KeptLayers,
    Made,
    PlainPass,
    RanLayer,
    Scored,
    Swept,
    attending_layers,
    calls_of,
    editing,
    mix_rows,
    mixed_values,
    naming,
    put_heads,
    run_keeping_layers,
    scoring,
    sweep,
)
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import name_pass, quote_text
from attnscope.records import Meaning, record
from attnscope.views import head_map, number

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
OTHER_CALLS = "the passes of the texts have different attention calls"


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
        """The prediction in the pass to change, and in that whose parts go there (``noise``: corrupt)."""
        with (
            naming(self.where),
            scoring(model, self.clean, self.target, self.against, self.corrupt) as clean,
        ):
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
    here: PlainPass
    there: PlainPass
    mine: Sequence[AttentionCall] = ()  # of the pass to change; empty unless asked for

    @classmethod
    def of(cls, base: Scored, donor: Scored, what: What = "output", *, keep_calls: bool = False) -> TwoPasses:
        """Run both texts. Raises ``InputError`` for passes that differ in their attention calls."""
        mine, theirs = _Calls(), _Calls()
        there = PlainPass.run(*donor.asked, None, [theirs] * (what != "output"), keep_outputs=True)
        change = None if what == "output" else _give_part(what, theirs.calls)
        here = PlainPass.run(*base.asked, change, [mine] * keep_calls, keep_outputs=True)
        if [each.shape for each in here.given] != [each.shape for each in there.given]:
            raise InputError(OTHER_CALLS)
        scored = base.toward(here.before, there.before)
        return cls(scored, here if change else here.putting(there.given), there, mine.calls)


def _give_part(what: What, theirs: Sequence[AttentionCall]) -> Change:
    def change(number: int, attention: Attention) -> Made:
        call, others = _call(attention), theirs[number : number + 1]
        if [call.query.shape] != [other.query.shape for other in others]:
            raise InputError(OTHER_CALLS)
        before = mix_rows(attention.read, mixed_values(attention), 0, len(attention.queries))
        parts = {name: getattr(others[0], name) for name in PARTS[what][1]}
        return Made(_mixed(replace(call, **parts)), before=before)

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
    for pair in pairs:
        with pair.scoring(model, noise) as (base, donor):
            passes = TwoPasses.of(base, donor, what, keep_calls=to is not None and to.head is not None)
            scored, first = passes.scored, passes.here
            calls = calls_of(first.record, selection or Selection(), heads)
            swept = estimate = _estimate(passes, calls) if fast else None
            if swept is None or exact:
                swept = sweep(scored, first, calls) if to is None else _sweep_paths(passes, to, calls)
        found.append(summarize_effects(scored, first, swept, changed, _title(base, donor), estimate))
    title = f"{model.title} · {len(found):,} pairs of texts"
    return average_effects(found, "the prediction of each pair", title)


def _way(noise: bool) -> str:
    return "the other text into this" if noise else "this into the other"


def _title(base: Scored, donor: Scored) -> str:
    return f"{name_pass(base.model, base.prepared)} ← {quote_text(donor.prepared)}"


def _estimate(passes: TwoPasses, calls: Calls) -> Swept:
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
    return Swept(found, None)


def _sweep_paths(passes: TwoPasses, to: Receiver, calls: Calls) -> Swept:
    """The effect of each head through one receiver alone, with all other heads frozen.

    One pass gives the receiver's new input, and another one its effect on the prediction.
    """
    scored, first, frozen = passes.scored, passes.here, passes.here.given
    end = to.call([each.site for each in first.record.sites])
    senders = {head: [call for call in mine if call < end] for head, mine in calls.items()}
    senders = {head: mine for head, mine in senders.items() if mine}
    if not senders:
        raise SelectionError(f"none of these heads comes before {to}")

    def send(sent: Calls) -> Tensor:
        changed, seen = first.changes(sent), _Calls()

        def freeze(number: int, output: Tensor) -> Tensor:
            mine = put_heads(changed, number, frozen[number])
            return frozen[number].clone() if mine is None else mine

        with first.edited_from(min(changed), freeze, [] if to.head is None else [seen]) as skipped:
            logits = scored.logits()
        if to.head is None:
            return logits
        theirs = {name: getattr(seen.calls[end - skipped], name) for name in to.parts}
        made = Made(_mixed(replace(passes.mine[end], **theirs)))
        put = partial(put_heads, {end: (made, [(slice(None), to.head.head)])})
        with first.edited_from(end, put):
            return scored.logits()

    return sweep(scored, first, senders, send)


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
            queries, others = (each.prepared.axes[kind][0] for each in (base, donor))
            expected = there if alone else None
            after = _patch_layer(scored, mine, theirs.ran[at], at, len(queries), before, expected)
            for position, logits in enumerate(after):
                effect, token = scored.effect(before, logits), _label(queries, others, position)
                found.append(
                    PatchedToken(**vars(effect), kind=kind, layer=layer, position=position, token=token)
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


def _patch_layer(
    scored: Scored,
    kept: KeptLayers,
    other: RanLayer,
    at: int,
    length: int,
    before: Tensor,
    there: Tensor | None,
) -> Iterator[Tensor]:
    """The prediction with each token's state after a layer taken from the other pass.

    With all of them it is the other pass's, ``there``, if the model has a single side.
    """
    name, ran, states, theirs = scored.model.name, kept.ran[at], kept.ran[at].states, other.states
    if states is None or theirs is None or {s[..., 0].numel() for s in (states, theirs)} != {length}:
        raise ModelError(f"the layers of {name} do not each give one state a token")

    def run(changed: Tensor) -> Tensor:
        with kept.giving([*kept.ran[:at], ran.with_states(changed)]):
            return scored.logits()

    all_, expected = (states, before) if there is None else (theirs, there)
    if not torch.allclose(run(all_), expected, atol=NEAR, rtol=0):
        raise ModelError(f"what a layer of {name} returns is not all that those behind it read: no stream")
    mine, theirs = states.reshape(length, -1), theirs.reshape(length, -1)
    for token in range(length):
        if torch.equal(mine[token], theirs[token]):
            yield before
            continue
        changed = mine.clone()
        changed[token] = theirs[token]
        yield run(changed.view_as(states))


def _label(mine: Axis, others: Axis, position: int) -> str:
    here, there = mine[position], others[position]
    if isinstance(here, int) or isinstance(there, int):
        return str(position)
    return here.text if here.text == there.text else f"{here.text}←{there.text}"


TRACED = "kind", "layer", "position", "token", "effect", "score", "divergence"  # columns of a CSV file


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
    columns: Columns = {
        "layer": lambda each: str(each.layer),
        **({"kind": lambda each: each.kind} if len(maps) > 1 else {}),
        "token": lambda each: each.label,
        "recovered": lambda each: f"{each.effect:+.3f}",
        "score": lambda each: f"{each.score:.3f}",
        "KL": lambda each: number(each.divergence),
    }
    table = tabulate_effects(result, result.changed, columns, sort_effects(result.tokens)[:LISTED])
    return Answer((table, *maps.values()), maps, lambda: result, lambda: csv_rows(result.tokens, TRACED))
