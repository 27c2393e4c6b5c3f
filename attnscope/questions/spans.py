"""A text in named parts, and the attention between parts, in every head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Annotated

import numpy as np
import torch
from torch.nn.functional import pad

from attnscope.attention import Attention, Head, Site
from attnscope.axes import Array, Coarsening, Place, Weights
from attnscope.capture.observers import Axes, Coarsen, SharedRows
from attnscope.errors import InputError, SelectionError
from attnscope.fused.fused_pass import MOST_CELLS, FusedPass
from attnscope.fused.request import SHORTEST, Request
from attnscope.models import Model, ModelInput
from attnscope.questions.answer import Answer
from attnscope.questions.find import HeadScore, QuestionResult
from attnscope.questions.parts import Span, TextPart
from attnscope.questions.rules import Question
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import (
    group_by,
    kind_title,
    list_some,
    name_pass,
    provenance,
    selected_sites,
)
from attnscope.questions.stats import ALL_FUSED, OWN_KERNELS, what_ran
from attnscope.records import ADDRESS, MATRIX, Meaning, Notes, derived, record
from attnscope.text import visible
from attnscope.views import AxisNames, Heatmap, Stack, heatmap

SHORTEST_WIDENED = 128
"""Below this many tokens, rows are read beside the kernel even for parts that the fused pass could sum."""


@record("a head", eq=False)
class HeadSpans:
    """The attention between parts in one head, ``[part, part]``: rows averaged, columns summed."""

    head: Annotated[Head, ADDRESS]
    weights: Annotated[Array, Meaning("[part that attends, part that is attended to]", shape=MATRIX)]
    baseline: Annotated[Array, Meaning("the same for uniform attention", shape=MATRIX)]


@record("how much the parts of a text attend to each other", "spans", eq=False)
class SpanMaps:
    """The attention between parts, ``[head, part, part]``: rows averaged, columns summed."""

    spans: Annotated[tuple[Span, ...], Meaning("the parts of the text", name="parts")]
    heads: tuple[Head, ...]
    weights: Array
    baseline: Array
    title: str
    notes: Notes = ()

    @derived("every head", name="heads")
    def by_head(self) -> tuple[HeadSpans, ...]:
        return tuple(map(HeadSpans, self.heads, self.weights, self.baseline))

    def pair(self, question: Question) -> QuestionResult:
        """All heads by the attention from part to part. Raises ``SelectionError`` if there is none."""
        left, right = question.left, question.right
        if right.everything:
            raise SelectionError("to rank all parts, leave --pair out: a row of the map has their shares")
        row, key = self._number(left), self._number(right)
        ranks = 1 + (self.weights[:, row] > self.weights[:, row, key, None]).sum(-1)
        lines = zip(self.heads, self.weights[:, row, key], self.baseline[:, row, key], ranks, strict=True)
        rows = self.spans[row].stop - self.spans[row].start
        heads = [
            HeadScore(head, float(weight), float(baseline), float(rank), rows)
            for head, weight, baseline, rank in lines
            if baseline
        ]
        if not heads:
            raise SelectionError(f"{left.text!r} cannot attend to {right.text!r}: those keys are masked")
        return QuestionResult(question, tuple(sorted(heads, key=lambda each: each.place)))

    def _number(self, part: TextPart) -> int:
        """A part by its name, its number, or its beginning."""
        wanted = (part.quoted or part.text).casefold()
        names = [span.name.casefold() for span in self.spans]
        ways = (wanted.__eq__, lambda each: each.startswith(f"{wanted} "), lambda each: wanted in each)
        found = [place for fits in ways for place, each in enumerate(names) if fits(each)]
        if found:
            return found[0]
        listed = list_some([span.name for span in self.spans])
        raise SelectionError(f"no part {part.text!r}: the text has the parts {listed}")


def span_maps(
    model: Model,
    prepared: ModelInput,
    spans: Sequence[Span],
    selection: Selection | None = None,
    *,
    exact_kernel: bool = False,
) -> SpanMaps:
    """Run the model once, and measure the attention between parts in every selected head.

    Exact at any length: from 128 tokens on (512 for many parts) the parts are cells of the fused pass,
    below that rows are read beside the kernel. Only attention between the tokens of the text is measured.
    Raises ``InputError`` if there is none.
    """
    selection, size = selection or Selection(), spans[-1].stop
    edges = (*(span.start for span in spans), size)
    places = tuple(Place(span.name, span.start, span.stop, pooled=True) for span in spans)
    parts = tuple(tuple((token,) for token in range(span.start, span.stop)) for span in spans)
    axis, baseline = Coarsening(places, parts, (), (1,) * size), dict[Site, Array]()

    def axes(attention: Attention) -> Axes | None:
        if attention.site.kind == "cross" or (len(attention.queries), len(attention.keys)) != (size, size):
            return None
        baseline[attention.site] = _even(attention, edges)
        return axis, axis

    pool = Coarsen(axes)
    shortest = SHORTEST_WIDENED if len(spans) <= MOST_CELLS else SHORTEST
    fused = None if exact_kernel else FusedPass(Request(cells=edges, map_alone=True), shortest)
    record = model.run(prepared, [SharedRows([pool], selection.heads)], fused)
    chosen = selected_sites(record, selection)
    if not pool.maps:
        raise InputError("no attention of this model goes from the tokens of the text to these tokens")
    numbers = {site.site: selection.heads(site.site, site.heads) for site in chosen}
    heads = (Head(each.site.layer, head, each.site.kind) for each in pool.maps for head in numbers[each.site])
    even = [np.broadcast_to(baseline[each.site], each.mean.shape) for each in pool.maps]
    special = [all(token.special for token in prepared.tokens[span.start : span.stop]) for span in spans]
    one = ["the whole text is one part: choose other --parts, such as sentence"] * (special.count(False) == 1)
    return SpanMaps(
        tuple(spans),
        tuple(heads),
        np.concatenate([each.mean.astype(float) for each in pool.maps]),
        np.concatenate(even),
        f"{name_pass(model, prepared)} · {provenance(chosen)}",
        (
            *([] if (ran := what_ran(chosen)) in (OWN_KERNELS, ALL_FUSED) else [ran]),
            *one,
            *model.notes,
            *prepared.notes,
            *record.notes,
        ),
    )


def _name(heads: Sequence[Head]) -> str:
    return heads[0].name if len(heads) == 1 else f"average over {len(heads)} heads"


PARTS = AxisNames("part (attends)", "part (attended to)", "rows attend to columns")


def spans_answer(result: SpanMaps) -> Answer:
    """The parts as a map for each kind of attention: one head, or the mean of several."""
    views: dict[str, Heatmap] = {}
    places = tuple(Place(span.name, span.start, span.stop) for span in result.spans)
    for kind, some in group_by(range(len(result.heads)), lambda at: result.heads[at].kind or "").items():
        mean = Weights(result.weights[some].mean(0), result.baseline[some].mean(0) > 0, places, places)
        which = _name([result.heads[at] for at in some])
        title = f"{which} · {kind_title(kind)} · {len(places)} parts"
        views[kind] = heatmap(mean, title=title, subtitle=result.title, notes=result.notes, axes=PARTS)
    return Answer(tuple(views.values()), views, lambda: result, partial(_csv_rows, result))


def _csv_rows(result: SpanMaps) -> Iterator[tuple[object, ...]]:
    yield "kind", "layer", "head", "from", "to", "weight", "baseline"
    pairs = [(one.name, other.name) for one in result.spans for other in result.spans]
    for each in result.by_head:
        head = each.head.kind, each.head.layer, each.head.head
        for pair, weight, baseline in zip(pairs, each.weights.flat, each.baseline.flat, strict=True):
            yield *head, *pair, float(weight), float(baseline)


def _even(attention: Attention, edges: Sequence[int]) -> Array:
    """The share of uniform attention on each part, over unmasked keys.  -> [head or 1, part, part]"""
    ends, statistics, shares = torch.tensor(edges), attention.statistics, []
    for start, stop in pairwise((*range(0, edges[-1], 512), edges[-1])):
        if statistics is None:
            allowed = attention.allowed(start, stop).cpu()
            before = pad(allowed.cumsum(-1), (1, 0))[..., ends]  # unmasked keys before each edge
            count = allowed.sum(-1, keepdim=True)
        else:
            runs = statistics.runs
            low, high = (each[:, None, start:stop, None] for each in (runs.low, runs.high))
            before, count = torch.minimum(high, ends) - torch.minimum(low, ends), high - low
        shares.append((before.diff(dim=-1) / count.clamp(min=1)).sum(0) / (count > 0).sum(0).clamp(min=1))
    rows = torch.cat(shares, -2).double()  # [head or 1, row, part]
    able = (rows.sum(-1, keepdim=True) > 0).double()
    parts = [
        rows[..., start:stop, :].sum(-2) / able[..., start:stop, :].sum(-2).clamp(min=1)
        for start, stop in pairwise(edges)
    ]
    baseline: Array = torch.stack(parts, -2).numpy()
    return baseline


@record("a head", eq=False)
class HeadLookback:
    """What each generated token attends to in one head, and the head's lookback ratio."""

    head: Annotated[Head, ADDRESS]
    lookback: Annotated[float, Meaning("its lookback ratio (Chuang et al. 2024); 0.5 is uniform attention")]
    shares: Annotated[Array, Meaning("[written token, part]", shape=MATRIX)]


@record("what each written token attends to (--written)", "spans", eq=False)
class WrittenAttention:
    """The attention of each generated token to each part; the last part is the generated text.

    ``shares`` is ``[head, token, part]``; ``lookback`` is a head's mean over the generated tokens of ``c
    / (c + w)``, with the mean weight ``c`` on a token of the text and ``w`` on a generated one, including
    the token itself (Chuang et al. 2024, Lookback Lens). Uniform attention has 0.5.
    """

    parts: Annotated[tuple[str, ...], Meaning("the parts of the text, and last what was written")]
    tokens: Annotated[tuple[str, ...], Meaning("the written tokens")]
    heads: tuple[Head, ...]
    shares: Array
    lookback: Mapping[Head, float]
    title: str
    notes: Notes

    @derived("every head", name="heads")
    def by_head(self) -> tuple[HeadLookback, ...]:
        return tuple(map(HeadLookback, self.heads, self.lookback.values(), self.shares))


def written_attention(
    model: Model,
    prepared: ModelInput,
    spans: Sequence[Span],
    selection: Selection | None = None,
    *,
    exact_kernel: bool = False,
) -> WrittenAttention:
    """Measure what each generated token, of the last part, attends to. Raises ``InputError`` without one."""
    text, last = spans[:-1], spans[-1]
    if not text or prepared.written is None or last.start < prepared.written:
        raise InputError("the model wrote nothing: give it a text that does not end, or another model")
    singly = [Span(f"{number}", number, number + 1) for number in range(last.start, last.stop)]
    result = span_maps(model, prepared, (*text, *singly), selection, exact_kernel=exact_kernel)
    rows = result.weights[:, len(text) :]  # [head, token, part]
    new = rows[..., len(text) :].sum(-1, keepdims=True)
    shares = np.concatenate([rows[..., : len(text)], new], -1)
    may = np.arange(1, shares.shape[1] + 1)  # generated tokens that each row can attend to
    old, late = shares[..., :-1].sum(-1) / last.start, shares[..., -1] / may
    lookback = (old / np.maximum(old + late, np.finfo(float).tiny)).mean(-1)  # [head]
    return WrittenAttention(
        (*(span.name for span in text), last.name),
        tuple(visible(token.text.strip()) for token in prepared.tokens[last.start : last.stop]),
        result.heads,
        shares,
        dict(zip(result.heads, lookback.tolist(), strict=True)),
        result.title,
        result.notes,
    )


def written_answer(result: WrittenAttention) -> Answer:
    """What each generated token attends to, a line per token: one head, or the mean of several."""
    best = sorted(result.lookback, key=lambda head: -result.lookback[head])
    ends = [f"{head.name} {result.lookback[head]:.2f}" for head in (*best[:3], *best[-3:])]
    note = f"lookback ratio {fmean(result.lookback.values()):.2f} on average (uniform attention: 0.5)"
    if len(best) > 6:
        note += f"; highest {', '.join(ends[:3])}; lowest {', '.join(ends[3:])}"
    title, notes = f"{_name(result.heads)} · what each written token attends to", (note, *result.notes)
    shares = result.shares.mean(0)
    view = Stack(result.parts, result.tokens, shares, title=title, subtitle=result.title, notes=notes)
    return Answer.from_view("", view, result)
