"""What a short KV cache costs: each key-value head is limited to the first and the last tokens.

A limited head sees no other key: they are masked before its softmax. The heads whose limit costs most are
the ones that need the whole context (DuoAttention, Xiao et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from statistics import fmean
from typing import Annotated, NamedTuple, TypeAlias

import torch
from torch import Tensor

from attnscope.attention import Attention, AttentionCall, Head
from attnscope.capture import Record
from attnscope.capture.hooks.torch_functions import head_edits
from attnscope.capture.rows.scores import ScoredRows
from attnscope.errors import InputError, ModelError
from attnscope.measures import Measurement
from attnscope.measures.roles import RECALLED_SHARE, RETRIEVAL_SCORE, STREAMING_SHARE
from attnscope.models import Model, ModelInput
from attnscope.models.inputs import join_texts, text_axes
from attnscope.models.targets import BATCH_TOKENS, batch_predictions, note_repeats
from attnscope.progress import report
from attnscope.questions.answer import Answer, csv_rows, format_table
from attnscope.questions.intervention import Change, Made, PlainPass, mix_rows, put_heads, running_layers
from attnscope.questions.loss import predicted_side
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import group_by
from attnscope.questions.stats import measuring_pass
from attnscope.records import Meaning, Notes, derived, record
from attnscope.views import Curve, Curves, Drawable, head_map

LISTED = 10  # heads that are listed; the map and the numbers have all of them

NEEDLE = 8
"""Random tokens of a needle: at the end of the text the first half is repeated, the rest is predicted."""

METHODS = {
    "loss": "costliest heads",
    "mass": "most missed weight",
    "even": "same number per layer",
    "random": "random (one draw)",
}
"""How unlimited heads are chosen."""

KeyHead: TypeAlias = tuple[int, int]  # a layer and a key-value head, which several query heads may share
QueryHeads: TypeAlias = Mapping[KeyHead, tuple[int, Sequence[Head]]]  # each one's call, and its query heads


@record("a key-value head, limited alone")
class LimitedHead:
    """The cost of limiting a head to the window."""

    layer: Annotated[int, Meaning("its layer")]
    head: Annotated[int, Meaning("its number among the key-value heads")]
    loss: Annotated[float, Meaning("the rise of the loss when this head alone is limited, in nats per token")]
    missed: Annotated[float, Meaning("the weight outside the window, averaged over its query heads")]
    retrieval: Annotated[
        float | None,
        Meaning("how often one of its query heads attends most to the next token of a recalled needle"),
    ]

    @derived("retrieval, streaming, or null")
    def role(self) -> str | None:
        if self.retrieval is not None and self.retrieval >= RETRIEVAL_SCORE:
            return "retrieval"
        return "streaming" if 1 - self.missed >= STREAMING_SHARE else None


@record("some heads unlimited")
class UnlimitedHeads:
    """The cost when some heads see everything, and all others only the window."""

    share: Annotated[float, Meaning("the share of heads that see everything")]
    heads: Annotated[int, Meaning("how many heads see everything")]
    memory: Annotated[float, Meaning("the share of the cache that remains, for a text of mean length")]
    loss: Annotated[float, Meaning("the rise of the loss with the costliest heads unlimited")]
    mass: Annotated[float, Meaning("the same with those that miss most weight")]
    even: Annotated[float, Meaning("the same with heads spread evenly over the layers")]
    random: Annotated[float, Meaning("the same with heads drawn at random (one draw)")]
    recall: Annotated[
        tuple[float, ...],
        Meaning("the share of each needle that is recalled with the costliest heads unlimited"),
    ]


@record("the cost of a short cache", "cachecost")
class CacheCost:
    """Every key-value head, the most costly first, and the cost with some of them unlimited."""

    sink: Annotated[int, Meaning("how many first tokens a limited head sees")]
    recent: Annotated[int, Meaning("how many last tokens it sees, the query among them")]
    loss: Annotated[float, Meaning("the loss of the unchanged model, in nats per token")]
    texts: Annotated[int, Meaning("how many texts are longer than the window")]
    tokens: Annotated[int, Meaning("how many tokens were predicted in them")]
    heads: Annotated[tuple[LimitedHead, ...], Meaning("every key-value head, the most costly first")]
    pattern: Annotated[
        tuple[tuple[float, ...], ...],
        Meaning("by layer and key-value head: its cost over the largest one, 0 to 1"),
    ]
    kept: Annotated[tuple[UnlimitedHeads, ...], Meaning("losses by memory, the least memory first")]
    depths: Annotated[
        tuple[float, ...], Meaning("where the needles are: 0 is the beginning of the text, 1 the end")
    ]
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
            raise ModelError(f"{attention.site.name} cannot be limited: its queries and keys are unknown")
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
    (predictions,) = batch_predictions(model, batch.prepared, predicted_side(batch.labels))

    def run() -> Tensor:
        if last:
            scores = torch.cat([logits.argmax(-1) == ids for logits, ids in predictions.scored(model)])
        else:
            scores = predictions.losses(model)
        return scores.cpu().double().view(copies, -1)[:, -last:]

    return predictions.prepared, run


def _query_heads(record: Record) -> QueryHeads:
    query_heads = dict[KeyHead, tuple[int, Sequence[Head]]]()
    for call, site in enumerate(record.sites):
        share = site.heads // site.key_heads
        heads = [Head(site.site.layer, head, site.site.kind) for head in range(site.heads)]
        for key in range(site.key_heads):
            query_heads[site.site.layer, key] = call, heads[key * share : (key + 1) * share]
    return query_heads


def _limit_alone(model: Model, text: ModelInput, change: Change) -> tuple[Tensor, dict[KeyHead, float]]:
    """The losses of a text, [target], and the rise of their sum with each key-value head limited alone.

    Each copy of a text has one head of one layer limited; all copies share the layers before that one.
    """
    first = PlainPass.run(model, *_predicting(model, text), change)
    sites, query_heads = first.record.sites, _query_heads(first.record)
    copies = max(1, min(max(site.key_heads for site in sites), BATCH_TOKENS // len(text.tokens)))
    _, losses = _predicting(model, text, copies)
    with (
        head_edits(lambda number, output: None) as gates,
        running_layers(model.module, None, gates.heads) as layers,
    ):
        before = losses()
    rises = dict[KeyHead, float]()
    for call, (site, made) in enumerate(zip(sites, first.made.values(), strict=True)):
        report("layer", call + 1, len(sites))
        for start in range(0, site.key_heads, copies):
            keys = [(site.site.layer, key) for key in range(start, min(start + copies, site.key_heads))]
            places = [(copy, head.head) for copy, key in enumerate(keys) for head in query_heads[key][1]]
            # the change was computed for one text: every copy gets the same outputs
            wide = None if made is None else made._replace(outputs=made.outputs.expand(copies, -1, -1, -1))
            with first.edited_from(call, partial(put_heads, {call: places}, {call: wide}), copies=layers):
                rose = (losses() - before).sum(1).tolist()
            rises |= zip(keys, rose, strict=False)
    return first.before[0], rises


class SingleLimits(NamedTuple):
    """What all texts show of key-value heads that are limited one at a time."""

    passes: Sequence[Pass]  # of each text
    losses: Tensor  # of every prediction of the model as it is
    rises: Mapping[KeyHead, float]  # of their sum
    missed: Mapping[KeyHead, float]  # the weight outside of the window
    query_heads: QueryHeads
    length: float  # mean tokens of a text
    notes: Sequence[str]

    def unlimited(self, count: int) -> dict[str, Sequence[KeyHead]]:
        """So many heads by every method of choosing; all and none have one choice alone."""
        heads, ranked = sorted(self.rises), sorted(self.rises, key=lambda head: -self.rises[head])
        if count in (0, len(heads)):
            return {"loss": ranked[:count]}
        shuffled = torch.randperm(len(heads), generator=torch.Generator().manual_seed(0)).tolist()
        return {
            "loss": ranked[:count],
            "mass": sorted(heads, key=lambda head: -self.missed[head])[:count],
            "even": [heads[(2 * at + 1) * len(heads) // (2 * count)] for at in range(count)],
            "random": [heads[at] for at in shuffled[:count]],
        }


def _limit_each(model: Model, texts: Sequence[ModelInput], window: str, change: Change) -> SingleLimits:
    measured = Measurement((window, "no_key"))
    passes, losses, rises = list[Pass](), list[Tensor](), dict[KeyHead, float]()
    for number, text in enumerate(texts):
        report("text", number, len(texts))
        record = measuring_pass(model, text, measured, Selection(), [text.tokens])
        if any(site.site.kind != "decoder" for site in record.sites):
            raise ModelError(f"{model.name} is not causal: choose a causal model of text")
        passes.append(_predicting(model, text))
        with torch.no_grad(), model.threads(text):
            before, rose = _limit_alone(model, text, change)
        losses.append(before)
        rises = {head: rises.get(head, 0.0) + each for head, each in rose.items()}
    query_heads = _query_heads(record)
    outside = {
        each.address: 1 - each.scores[window].value - each.scores["no_key"].value
        for each in measured.scores()
    }
    missed = {key: fmean(outside[head] for head in heads) for key, (_, heads) in query_heads.items()}
    length = fmean(len(text.tokens) for text in texts)
    return SingleLimits(passes, torch.cat(losses), rises, missed, query_heads, length, record.notes)


def _measure_retrieval(
    model: Model, needles: Sequence[ModelInput], probes: Sequence[Pass], query_heads: QueryHeads
) -> dict[KeyHead, float]:
    """How often a query head of each looks most at the needle's next token; empty if none is recalled."""
    measured = Measurement(("retrieval",))
    for needle, (prepared, recalls) in zip(needles, probes, strict=True):
        with torch.no_grad(), model.threads(prepared):
            if float(recalls().mean()) < RECALLED_SHARE:  # whatever a head looks at, the model copies nothing
                continue
        end = max(place for place, token in enumerate(needle.tokens) if not token.special)
        measured.rows = range(end - NEEDLE // 2, end)
        measuring_pass(model, needle, measured, Selection(), [needle.tokens])
    scores = {each.address: each.scores["retrieval"].value for each in measured.scores()}
    return {key: max(scores[head] for head in heads) for key, (_, heads) in query_heads.items() if scores}


def _measure_unlimited(
    model: Model,
    change: Change,
    single: SingleLimits,
    share: float,
    window: int,
    probes: Sequence[Pass],
) -> UnlimitedHeads:
    """The cost with a share of the heads unlimited, and what the costliest ones recall of the probes."""
    count = len(single.rises)
    unlimited = round(share * count)
    chosen = single.unlimited(unlimited)

    def run(prediction: Pass, heads: Sequence[KeyHead]) -> Tensor:
        limited = [each for key, each in single.query_heads.items() if key not in heads]
        calls = {head: [call] for call, query_heads in limited for head in query_heads}
        with torch.no_grad(), model.threads(prediction[0]):
            return PlainPass.run(model, *prediction, change, calls=calls).before[0]

    losses = {
        method: sum(float(run(each, heads).sum()) for each in single.passes) / len(single.losses)
        for method, heads in chosen.items()
    }
    costs = {method: losses.get(method, losses["loss"]) - float(single.losses.mean()) for method in METHODS}
    memory = (unlimited + (count - unlimited) * window / single.length) / count
    recall = tuple(float(run(each, chosen["loss"]).mean()) for each in probes)
    return UnlimitedHeads(share, unlimited, memory, **costs, recall=recall)


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
        raise ModelError(f"{model.name} predicts masked tokens and has no cache: choose a causal model")
    long = [text for text in texts if len(text.tokens) > sink + recent]
    if not long:
        most = max((len(text.tokens) for text in texts), default=0)
        raise InputError(
            f"no text is longer than the window of {sink + recent:,} tokens (the longest has {most:,}): "
            "lower --recent or give longer texts"
        )
    change = limit_windows(sink, recent)
    single = _limit_each(model, long, f"window={sink}+{recent}", change)
    needles = [_plant(model, max(long, key=lambda text: len(text.tokens)), depth) for depth in depths]
    probes = [_predicting(model, each, last=NEEDLE // 2) for each in needles]
    retrieval = _measure_retrieval(model, needles, probes, single.query_heads)
    kept = []
    for number, share in enumerate(shares := sorted({0.0, *keep, 1.0})):
        report("share", number, len(shares))
        kept.append(_measure_unlimited(model, change, single, share, sink + recent, probes))
    top = max(max(single.rises.values()), 0.0) or 1.0
    notes = [f"{len(long):,} of {len(texts):,} texts are longer than the window"] * (len(long) < len(texts))
    notes += note_repeats(model, [text.tokens for text in long])
    if needles and not retrieval:
        notes.append("no needle is recalled even with the whole cache, so no head counts as a retrieval head")
    return CacheCost(
        sink=sink,
        recent=recent,
        loss=float(single.losses.mean()),
        texts=len(long),
        tokens=len(single.losses),
        heads=tuple(
            LimitedHead(
                *head, single.rises[head] / len(single.losses), single.missed[head], retrieval.get(head)
            )
            for head in single.unlimited(len(single.rises))["loss"]
        ),
        pattern=tuple(
            tuple(max(single.rises[head], 0.0) / top for head in heads)
            for heads in group_by(sorted(single.rises), itemgetter(0)).values()
        ),
        kept=tuple(kept),
        depths=tuple(depths),
        title=model.title,
        notes=(*notes, *model.notes, *single.notes),
    )


def _plant(model: Model, text: ModelInput, depth: float) -> ModelInput:
    """A text with random tokens written over it at a depth, and again at its end."""
    needle = [token for token in model.repeat_random(NEEDLE).tokens if not token.special][:NEEDLE]
    tokens = list(text.tokens)
    plain = [place for place, token in enumerate(tokens) if not token.special]
    begin, end = plain[0], plain[-1] + 1
    if end - begin < 2 * NEEDLE:
        raise InputError(f"a needle takes {2 * NEEDLE} tokens, and the longest text has {end - begin}")
    copied = text.texts(torch.tensor([0], device=model.device))
    ids = model.objective.ids(copied)
    for at in (begin + round(depth * (end - begin - 2 * NEEDLE)), end - NEEDLE):
        tokens[at : at + NEEDLE] = needle
        ids[0, at : at + NEEDLE] = torch.tensor([token.id for token in needle])
    return replace(copied, tokens=tuple(tokens), axes=text_axes(tuple(tokens)))


def cachecost_answer(result: CacheCost) -> Answer:
    """The most costly heads, a map of all, and the loss against the share of the cache that is kept."""
    window = f"a window of {result.sink:,} + {result.recent:,} tokens"
    needle = {"needle": lambda each: "–" if each.retrieval is None else f"{each.retrieval:.2f}"}
    heads = format_table(
        {
            "head": "L{0.layer}KV{0.head}",
            "loss": "{0.loss:+.4f}",
            "missed": "{0.missed:.3f}",
            **(needle if result.depths else {}),
            "role": lambda each: each.role or "",
        },
        result.heads[:LISTED],
        left=("head", "role"),
        title=f"{window} · {result.title}",
        subtitle=f"{result.tokens:,} predictions, loss {result.loss:.3f} nats; of each head limited "
        "alone: the rise of the loss, and the attention weight outside the window",
        notes=result.notes,
    )
    every = head_map(
        dict(enumerate(result.pattern)),
        "loss",
        limits=(0.0, 1.0),
        title="cost of a short cache per key-value head (1 = the costliest)",
        marks=("L", "KV"),
    )
    depths = [f"{depth:g}" for depth in result.depths]
    recall = {f"at {depth}": f"{{0.recall[{at}]:.2f}}" for at, depth in enumerate(depths)}
    methods = {method: f"{{0.{method}:+.4f}}" for method in METHODS}
    kept = format_table(
        {"kept": "{0.heads:,}", "memory": "{0.memory:.0%}", **methods, **recall},
        result.kept,
        title="unlimited heads, and the rise of the loss by how they are chosen"
        + f"; recall of needles at {', '.join(depths)}" * bool(depths),
        subtitle="; ".join(f"{method}: {label}" for method, label in METHODS.items()),
    )
    chart = Curves(
        "rise of the loss",
        "nats per token",
        (*(round(100 * each.memory) for each in result.kept), 100),
        tuple(
            Curve(label, tuple(getattr(each, method) for each in result.kept), (None,) * len(result.kept))
            for method, label in METHODS.items()
        ),
        "cost of a shorter cache, by which heads keep all of it",
        f"{result.title} · {window}",
        along="% of the cache that is kept",
    )
    every_saved = replace(every, subtitle=chart.subtitle, notes=result.notes)
    pictures: dict[str, Drawable] = {"heads": every_saved, "memory": chart}
    return Answer((heads, every, kept), pictures, lambda: result, lambda: csv_rows(result.heads))
