"""What a short key cache costs: each key-value head limited to the first tokens and the last ones.

A limited head sees no other key: they are masked before its softmax. The heads whose limit costs most are
the ones that need the whole context (DuoAttention, Xiao et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Annotated, TypeAlias

import torch
from torch import Tensor

from attnscope.attention import Attention, AttentionCall, Head
from attnscope.capture import Record
from attnscope.capture.hooks.torch_functions import edited
from attnscope.capture.rows.scores import ScoredRows
from attnscope.errors import InputError, ModelError
from attnscope.measures import Measurement
from attnscope.measures.roles import RECALLED_SHARE, RETRIEVAL_SCORE, STREAMING_SHARE
from attnscope.models import Model, ModelInput
from attnscope.models.inputs import join_texts, text_axes
from attnscope.models.targets import BATCH_TOKENS, batch_predictions, note_repeats
from attnscope.progress import tell
from attnscope.questions.answer import Answer, csv_rows
from attnscope.questions.intervention import Change, Made, PlainPass, mix_rows, put_heads, running_layers
from attnscope.questions.loss import predicted_side
from attnscope.questions.selection import Selection
from attnscope.questions.stats import measuring_pass
from attnscope.records import Meaning, Notes, derived, record
from attnscope.views import Column, Curve, Curves, Drawable, Table, head_map

LISTED = 10  # heads that are listed; the map and the numbers have all of them

NEEDLE = 8
"""Random tokens of a needle: at the end of the text the first half is repeated, the rest is predicted."""

WAYS = ("loss", "mass", "even", "random")  # how unlimited heads are chosen

KeyHead: TypeAlias = tuple[int, int]  # a layer and a key-value head, which several query heads may share


@record("a key-value head, limited alone")
class LimitedHead:
    """The cost of limiting a head to the window."""

    layer: Annotated[int, Meaning("its layer")]
    head: Annotated[int, Meaning("its number among the key-value heads")]
    loss: Annotated[float, Meaning("the rise of the loss when this head alone is limited, in nats a token")]
    missed: Annotated[float, Meaning("the weight outside of the window, the mean of its query heads")]
    retrieval: Annotated[
        float | None,
        Meaning("how often a query head of it looks most at the token of a recalled needle; null without"),
    ]

    @derived("retrieval, streaming, or null")
    def role(self) -> str | None:
        if self.retrieval is not None and self.retrieval >= RETRIEVAL_SCORE:
            return "retrieval"
        return "streaming" if 1 - self.missed >= STREAMING_SHARE else None


@record("some heads unlimited")
class UnlimitedHeads:
    """The cost when some heads see everything, and all others the window alone."""

    share: Annotated[float, Meaning("the share of heads that see everything")]
    heads: Annotated[int, Meaning("how many they are")]
    memory: Annotated[float, Meaning("the share of the cache that is kept, of a text of mean length")]
    loss: Annotated[float, Meaning("the rise of the loss with the heads kept that cost most")]
    mass: Annotated[float, Meaning("the same with those that miss most weight")]
    even: Annotated[float, Meaning("the same with heads spread evenly over the layers")]
    random: Annotated[float, Meaning("the same with heads drawn at random (one draw)")]
    recall: Annotated[
        tuple[float, ...], Meaning("the share of each needle that is recalled, of those that cost most")
    ]


@record("the cost of a short cache", "cachecost")
class CacheCost:
    """Every key-value head, the most costly first, and the cost with some of them unlimited."""

    sink: Annotated[int, Meaning("the first tokens that a limited head sees")]
    recent: Annotated[int, Meaning("the last tokens that it sees, the query among them")]
    loss: Annotated[float, Meaning("the loss of the model as it is, in nats a token")]
    texts: Annotated[int, Meaning("the texts that are longer than the window")]
    tokens: Annotated[int, Meaning("the tokens that were predicted in them")]
    heads: Annotated[tuple[LimitedHead, ...], Meaning("every key-value head, the most costly first")]
    pattern: Annotated[
        tuple[tuple[float, ...], ...],
        Meaning("by layer and key-value head: its loss over the largest one, 0 to 1"),
    ]
    kept: Annotated[tuple[UnlimitedHeads, ...], Meaning("losses against memory, the least memory first")]
    depths: Annotated[tuple[float, ...], Meaning("where the needles stand: 0 is the beginning, 1 the end")]
    title: Annotated[str, Meaning("the model")]
    notes: Notes

    @property
    def tsv(self) -> str:
        """The pattern in the published format: one line per layer, tabs between heads."""
        return "".join("\t".join(f"{value:.6f}" for value in layer) + "\n" for layer in self.pattern)


def limit_windows(sink: int, recent: int) -> Change:
    """Mask every key of every head except the first ``sink`` and the last ``recent``, before the softmax."""

    def change(number: int, attention: Attention) -> Made | None:
        call: AttentionCall | None = getattr(attention.read, "call", None)
        count, keys, first = len(attention.queries), len(attention.keys), sink + recent
        if call is None or attention.offset != 0:
            raise ModelError(f"{attention.site.name} cannot be limited: its queries and keys are not known")
        if count <= first:
            return None

        def near(start: int, stop: int) -> Tensor:
            row, key = (torch.arange(*ends, device=call.key.device) for ends in ((start, stop), (0, keys)))
            return ((key < sink) | (row[:, None] - key < recent))[None, None]

        calls = replace(call, masks=(*call.masks, near)), call
        limited, before = (mix_rows(ScoredRows(each), call.value, first, count) for each in calls)
        return Made(limited, torch.arange(first, count), before)

    return change


Pass: TypeAlias = tuple[ModelInput, Callable[[], Tensor]]  # a model's inputs, and the function that runs it


def _predicting(model: Model, text: ModelInput, copies: int = 1, last: int = 0) -> Pass:
    """Copies of a text with predicted tokens: the loss of each, or whether the ``last`` are predicted right.

    -> [copy, target]
    """
    batch = join_texts([text] * copies)
    (made,) = batch_predictions(model, batch.prepared, predicted_side(batch.labels))

    def run() -> Tensor:
        if last:
            told = torch.cat([logits.argmax(-1) == ids for logits, ids in made.scored(model)])
        else:
            told = made.losses(model)
        return told.cpu().double().view(copies, -1)[:, -last:]

    return made.prepared, run


def _query_heads(seen: Record) -> dict[KeyHead, tuple[int, list[Head]]]:
    """Each key-value head's call, by number, and the query heads that share it."""
    found = dict[KeyHead, tuple[int, list[Head]]]()
    for call, site in enumerate(seen.sites):
        share = site.heads // site.key_heads
        heads = [Head(site.site.layer, head, site.site.kind) for head in range(site.heads)]
        for key in range(site.key_heads):
            found[site.site.layer, key] = call, heads[key * share : (key + 1) * share]
    return found


def _limit_alone(model: Model, text: ModelInput, change: Change) -> tuple[Tensor, dict[KeyHead, float]]:
    """The losses of a text, [target], and the rise of their sum with each key-value head limited alone.

    Each copy of a text has one head of one layer limited; all copies share the layers before that one.
    """
    first = PlainPass.run(model, *_predicting(model, text), change)
    sites, query_heads = first.record.sites, _query_heads(first.record)
    copies = max(1, min(max(site.key_heads for site in sites), BATCH_TOKENS // len(text.tokens)))
    _, losses = _predicting(model, text, copies)
    with (
        edited(lambda number, output: None) as gates,
        running_layers(model.module, None, gates.heads) as kept,
    ):
        before = losses()
    rises = dict[KeyHead, float]()
    for call, (site, made) in enumerate(zip(sites, first.made.values(), strict=True)):
        tell("layer", call + 1, len(sites))
        for start in range(0, site.key_heads, copies):
            keys = [(site.site.layer, key) for key in range(start, min(start + copies, site.key_heads))]
            places = [(copy, head.head) for copy, key in enumerate(keys) for head in query_heads[key][1]]
            wide = None if made is None else made._replace(outputs=made.outputs.expand(copies, -1, -1, -1))
            with first.edited_from(call, partial(put_heads, {call: places}, {call: wide}), copies=kept):
                rose = (losses() - before).sum(1).tolist()
            rises |= zip(keys, rose, strict=False)
    return first.before[0], rises


def cachecost(
    model: Model,
    texts: Sequence[ModelInput],
    sink: int = 4,
    recent: int = 256,
    keep: Sequence[float] = (0.25, 0.5, 0.75),
    depths: Sequence[float] = (),
) -> CacheCost:
    """Limit each key-value head alone, and all except the best ones together."""
    if model.objective.mask is not None:
        raise ModelError(f"{model.name} predicts masked tokens and keeps no cache: choose a causal model")
    long = [text for text in texts if len(text.tokens) > sink + recent]
    if not long:
        most = max((len(text.tokens) for text in texts), default=0)
        raise InputError(
            f"a window of {sink + recent:,} tokens holds all of the longest text, {most:,} tokens: lower "
            "--recent or give longer texts"
        )
    window, change = f"window={sink}+{recent}", limit_windows(sink, recent)
    measured, sought = Measurement((window, "no_key")), Measurement(("retrieval",))
    asked, losses, rises = list[Pass](), list[Tensor](), dict[KeyHead, float]()
    for number, text in enumerate(long):
        tell("text", number, len(long))
        seen = measuring_pass(model, text, measured, Selection(), [text.tokens])
        if any(site.site.kind != "decoder" for site in seen.sites):
            raise ModelError(f"{model.name} is not causal: choose a causal model of text")
        asked.append(_predicting(model, text))
        with torch.no_grad(), model.threads(text):
            before, rose = _limit_alone(model, text, change)
        losses.append(before)
        rises = {head: rises.get(head, 0.0) + each for head, each in rose.items()}
    total = torch.cat(losses)
    query_heads = _query_heads(seen)
    outside = {
        each.address: 1 - each.figures[window].value - each.figures["no_key"].value
        for each in measured.figures()
    }
    missed = {key: fmean(outside[head] for head in heads) for key, (_, heads) in query_heads.items()}
    needles = [_plant(model, max(long, key=lambda text: len(text.tokens)), depth) for depth in depths]
    probes = [_predicting(model, each, last=NEEDLE // 2) for each in needles]
    for needle, (prepared, recalls) in zip(needles, probes, strict=True):
        with torch.no_grad(), model.threads(prepared):
            if float(recalls().mean()) < RECALLED_SHARE:  # whatever a head looks at, the model copies nothing
                continue
        end = max(place for place, token in enumerate(needle.tokens) if not token.special)
        sought.rows = range(end - NEEDLE // 2, end)
        measuring_pass(model, needle, sought, Selection(), [needle.tokens])
    found = {each.address: each.figures["retrieval"].value for each in sought.figures()}
    looked = {key: max(found[head] for head in heads) for key, (_, heads) in query_heads.items() if found}
    ranked = sorted(rises, key=lambda head: -rises[head])
    count, mean = len(ranked), fmean(len(text.tokens) for text in long)
    drawn = torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist()
    listed = sorted(rises)
    by_mass = sorted(listed, key=lambda head: -missed[head])

    def run(asked: Pass, chosen: Sequence[KeyHead]) -> Tensor:
        limited = [each for key, each in query_heads.items() if key not in chosen]
        calls = {head: [call] for call, heads in limited for head in heads}
        with torch.no_grad(), model.threads(asked[0]):
            return PlainPass.run(model, *asked, change, calls=calls).before[0]

    kept = []
    for number, share in enumerate(shares := sorted({0.0, *keep, 1.0})):
        tell("share", number, len(shares))
        some = round(share * count)
        chosen = {"loss": ranked[:some]}
        if 0 < some < count:
            chosen["mass"] = by_mass[:some]
            chosen["even"] = [listed[(2 * at + 1) * count // (2 * some)] for at in range(some)]
            chosen["random"] = [listed[at] for at in drawn[:some]]
        costs = {
            name: sum(float(run(each, heads).sum()) for each in asked) / len(total)
            for name, heads in chosen.items()
        }
        held = (some + (count - some) * (sink + recent) / mean) / count
        recall = tuple(float(run(each, ranked[:some]).mean()) for each in probes)
        lost = {name: costs.get(name, costs["loss"]) - float(total.mean()) for name in WAYS}
        kept.append(UnlimitedHeads(share, some, held, **lost, recall=recall))
    top = max(max(rises.values()), 0.0) or 1.0
    notes = [f"{len(long):,} of {len(texts):,} texts are longer than the window"] * (len(long) < len(texts))
    notes += note_repeats(model, [text.tokens for text in long])
    if needles and not found:
        notes.append("the whole cache recalls no needle, so no head is called a retrieval head")
    return CacheCost(
        sink=sink,
        recent=recent,
        loss=float(total.mean()),
        texts=len(long),
        tokens=len(total),
        heads=tuple(
            LimitedHead(*head, rises[head] / len(total), missed[head], looked.get(head)) for head in ranked
        ),
        pattern=tuple(
            tuple(max(rises[head], 0.0) / top for head in listed if head[0] == layer)
            for layer in sorted({layer for layer, _ in listed})
        ),
        kept=tuple(kept),
        depths=tuple(depths),
        title=model.title,
        notes=(*notes, *model.notes, *seen.notes),
    )


def _plant(model: Model, text: ModelInput, depth: float) -> ModelInput:
    """A text with random tokens written over it at a depth, and again at its end."""
    needle = [token for token in model.repeat_random(NEEDLE).tokens if not token.special][:NEEDLE]
    tokens = list(text.tokens)
    plain = [place for place, token in enumerate(tokens) if not token.special]
    begin, end = plain[0], plain[-1] + 1
    if end - begin < 2 * NEEDLE:
        raise InputError(f"a needle is {2 * NEEDLE} tokens, and the longest text has {end - begin}")
    copied = text.texts(torch.tensor([0], device=model.device))
    ids = model.objective.ids(copied)
    for at in (begin + round(depth * (end - begin - 2 * NEEDLE)), end - NEEDLE):
        tokens[at : at + NEEDLE] = needle
        ids[0, at : at + NEEDLE] = torch.tensor([token.id for token in needle])
    return replace(copied, tokens=tuple(tokens), axes=text_axes(tuple(tokens)))


def cachecost_answer(result: CacheCost) -> Answer:
    """The most costly heads, a map of all, and the loss against the share of the cache that is kept."""
    needle = bool(result.depths)
    columns = ["head", "loss", "missed", *["needle"] * needle, "role"]
    window = f"a window of {result.sink:,} + {result.recent:,} tokens"
    rows = (
        (
            f"L{each.layer}KV{each.head}",
            f"{each.loss:+.4f}",
            f"{each.missed:.3f}",
            *["–" if each.retrieval is None else f"{each.retrieval:.2f}"] * needle,
            each.role or "",
        )
        for each in result.heads[:LISTED]
    )
    heads = Table(
        tuple(Column(name, name not in ("head", "role"), "keep") for name in columns),
        tuple(rows),
        title=f"{window} · {result.title}",
        subtitle=f"{result.tokens:,} predictions, loss {result.loss:.3f} nats; of each head limited "
        "alone: how much the loss rises, and the weight that the head misses",
        notes=result.notes,
    )
    every = head_map(
        dict(enumerate(result.pattern)),
        "loss",
        limits=(0.0, 1.0),
        title="every key-value head: its loss over the largest one",
        marks=("L", "KV"),
    )
    depths = [f"{depth:g}" for depth in result.depths]
    names = ("kept", "memory", *WAYS, *(f"at {depth}" for depth in depths))
    kept = Table(
        tuple(Column(name, True, "keep") for name in names),
        tuple(
            (
                f"{each.heads:,}",
                f"{each.memory:.0%}",
                *(f"{getattr(each, way):+.4f}" for way in WAYS),
                *(f"{recall:.2f}" for recall in each.recall),
            )
            for each in result.kept
        ),
        title="heads that see everything, and the rise of the loss by how they are chosen"
        + f"; recall of needles at {', '.join(depths)}" * needle,
        subtitle="loss: the most costly; mass: those that miss most; even: over all layers; random: one draw",
    )
    losses = [tuple(getattr(each, way) for each in result.kept) for way in WAYS]
    chart = Curves(
        "rise of the loss",
        "nats a token",
        (*(round(100 * each.memory) for each in result.kept), 100),
        tuple(Curve(way, each, (None,) * len(each)) for way, each in zip(WAYS, losses, strict=True)),
        "what a shorter cache costs",
        f"{result.title} · {window}",
        ("kept by loss: the most costly; mass: those that miss most; even: over layers; random: one draw",),
        "% of the cache that is kept",
    )
    pictures: dict[str, Drawable] = {"heads": every, "memory": chart}
    return Answer((heads, every, kept), pictures, lambda: result, lambda: csv_rows(result.heads))
