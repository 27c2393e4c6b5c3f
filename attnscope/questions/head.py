"""One head of a text: its picture, its scores, and its call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, TypeAlias

import numpy as np

from attnscope.attention import Head, Site
from attnscope.axes import Array, Place, Weights
from attnscope.capture import Record, SiteRecord
from attnscope.capture.observers import CoarseMap, RowObserver, SharedRows
from attnscope.errors import SelectionError
from attnscope.measures import DEFAULT, MEASURES, HeadScores, Measurement
from attnscope.measures.measurement import measure_words
from attnscope.measures.roles import NONE
from attnscope.models import Model, ModelInput
from attnscope.models.inputs import SoundFrames
from attnscope.questions import sentences
from attnscope.questions.answer import Answer
from attnscope.questions.selection import Asked, Selection, selection_of
from attnscope.records import Meaning, derived, record
from attnscope.text import visible
from attnscope.views import Column, HeadRow, Heatmap, NamedScore, Table, head_row, heatmap, name_weight

if TYPE_CHECKING:
    from attnscope.questions.find import QuestionObserver


@record("a token and its loss")
class TokenLoss:
    """The loss of one token."""

    token: Annotated[str, Meaning("the token")]
    loss: Annotated[float | None, Meaning("its cross-entropy in nats; null where it is not predicted")]
    counts: Annotated[bool, Meaning("whether the mean counts it: of the same tokens twice, the second half")]


Losses: TypeAlias = Annotated[
    tuple[TokenLoss, ...] | None, Meaning("the loss of each token (--loss)", optional=True)
]


def token_losses_table(losses: Sequence[TokenLoss]) -> Table:
    """The tokens in order, each with its loss, coloured up to the largest."""
    known = [each.loss for each in losses if each.loss is not None]
    top = max(known, default=0.0) or 1.0
    pieces: list[tuple[str, str | float]] = []
    for each in losses:
        pieces += [(", ", "dim")] if pieces else []
        text = visible(each.token)
        pieces.append((text, "dim") if each.loss is None else (f"{text} {each.loss:.1f}", each.loss / top))
    counted = [each.loss for each in losses if each.loss is not None and each.counts]
    mean, of = sum(counted) / max(len(counted), 1), " of the second half" * (len(counted) < len(known))
    title = f"loss of each token, in nats (mean{of} {mean:.2f})"
    return Table((Column(""),), ((tuple(pieces),),), title=title)


def find_scores(prepared: ModelInput, names: Sequence[str]) -> tuple[HeadScores, ...] | None:
    """The scores of a trace, if exactly these measures were taken; ``None`` for any other input."""
    known = prepared.scores
    if known is None or any({*head.scores, *head.absent} != set(names) for head in known):
        return None
    return known


def pick_scores(scores: Sequence[HeadScores], record: Record, selection: Selection) -> tuple[HeadScores, ...]:
    """Those of the selected heads."""
    counts = {site.site: site.heads for site in record.sites}
    return tuple(
        head for head in scores if head.head in (selection.heads(head.site, counts[head.site]) or ())
    )


def own_numbers(heads: Sequence[HeadScores], record: Record, selection: Selection) -> tuple[HeadScores, ...]:
    """Heads under their own numbers: an observer counts the selected ones of each layer from 0."""
    numbers = {site.site: selection.heads(site.site, site.heads) for site in record.sites}
    return tuple(replace(head, head=numbers[head.site][head.head]) for head in heads)


MAX_TOKENS = 1024  # rows and columns of a head that is shown; a longer text is pooled

SHOWN_MEASURES = (
    "entropy", "effective_keys", "confidence",
    "distance", "previous", "self", "next", "first", "special", "no_key",
)  # fmt: skip
"""The measures shown under a head's picture."""


@record("one head (--head)", "show", eq=False)
class OneHead:
    """One head's picture, its scores, and its call."""

    heatmap: Heatmap
    scores: Annotated[HeadScores, Meaning("its scores", name="head")]
    site: Annotated[SiteRecord, Meaning("its attention call")]
    losses: Losses = None

    @derived("what to know about the model, the text and the answer")
    def notes(self) -> tuple[str, ...]:
        return self.heatmap.notes

    @derived("the rows' texts")
    def queries(self) -> list[str]:
        return [place.text for place in self.heatmap.weights.queries]

    @derived("the columns' texts")
    def keys(self) -> list[str]:
        return [place.text for place in self.heatmap.weights.keys]

    @derived("[query, key], rounded to 7 digits; null where masked or hidden")
    def weights(self) -> list[list[float | None]]:
        blank = self.heatmap.masked | self.heatmap.hidden
        return [
            [None if empty else round(float(value), 7) for value, empty in zip(*row, strict=True)]
            for row in zip(self.heatmap.values, blank, strict=True)
        ]

    @derived("[query, key], true where --min-weight hides a weight", optional=True)
    def hidden(self) -> list[list[bool]] | None:
        return self.heatmap.hidden.tolist() if self.heatmap.min_weight else None


@record("several heads (--head L0H2,L1H5)", "show", eq=False)
class SeveralHeads:
    """Heads side by side on one scale."""

    heads: Annotated[tuple[OneHead, ...], Meaning("each head, in the order of --head")]
    view: HeadRow

    @derived("what to know about the model, the text and the answer")
    def notes(self) -> tuple[str, ...]:
        return self.view.notes


def head_answer(result: OneHead) -> Answer:
    """The picture and the numbers of one head."""
    return Answer.from_view("head", result.heatmap, result)


def heads_answer(result: SeveralHeads) -> Answer:
    """Heads side by side."""
    return Answer.from_view("heads", result.view, result)


def one_head(model: Model, prepared: ModelInput, asked: Asked, losses: Losses = None) -> OneHead:
    """Run the model once, and keep and measure one head; the first of several kinds, as a note says."""
    selection = selection_of(asked)
    if selection.head is None:
        raise SelectionError("which head? name one, like L5H3")
    (shown,) = _show_heads(model, prepared, selection, [selection.head])
    if losses is None:
        return shown
    columns = prepared.axes[shown.site.site.kind][1]
    if [token.text for token in columns if not isinstance(token, int)] != [each.token for each in losses]:
        raise SelectionError("the losses belong to other tokens than these columns: add --kind decoder")
    under = replace(shown.heatmap, losses=tuple(each.loss for each in losses))
    return replace(shown, heatmap=under, losses=losses)


def several_heads(
    model: Model, prepared: ModelInput, selection: Selection, heads: Sequence[Head | str]
) -> SeveralHeads:
    """Likewise for several heads, side by side on one scale; they must have the same rows and columns."""
    named = [Head(head) for head in heads]
    shown = _show_heads(model, prepared, replace(selection, scale="fixed"), named)
    first = shown[0].heatmap.weights
    for each in shown[1:]:
        theirs = each.heatmap.weights
        if (theirs.queries, theirs.keys) != (first.queries, first.keys):
            both = f"{shown[0].scores.address} and {each.scores.address} have other rows or columns"
            raise SelectionError(f"{both}: show each by itself")
    kinds = dict.fromkeys(sentences.kind_title(each.site.site.kind) for each in shown)
    title = f"{sentences.name_pass(model, prepared)} · {' and '.join(kinds)}"
    roles = (each.scores.role.name if each.scores.role else NONE for each in shown)
    maps = [
        replace(each.heatmap, title=str(named), subtitle="" if role == NONE else role)
        for each, named, role in zip(shown, named, roles, strict=True)
    ]
    view = head_row(maps, scale=selection.scale, title=title)
    return SeveralHeads(tuple(shown), view)


def _show_heads(
    model: Model, prepared: ModelInput, selection: Selection, heads: Sequence[Head]
) -> list[OneHead]:
    """Some heads, each with its scores, in one run of the model."""
    selections = [selection.of(head) for head in heads]
    coarse, measurement = selection.coarsen(MAX_TOKENS), Measurement()
    scores = find_scores(prepared, DEFAULT)
    asked = ask_marks(selection)
    observers: list[RowObserver] = [coarse, *([measurement] if scores is None else []), *asked]

    among = replace(selection, head=None, among=tuple(heads))
    run = model.run if asked else model.observe  # a question reads tensors
    record = run(prepared, [SharedRows(observers, among.heads)])
    read = {each.site: among.heads(each.site, each.heads) for each in record.sites}
    if scores is None:
        scores = own_numbers(measurement.scores(), record, among)
    shown = _ShownPass(model, prepared, record, coarse.maps, read, scores, asked)
    return [shown.head(head, each) for head, each in zip(heads, selections, strict=True)]


def ask_marks(selection: Selection) -> list[QuestionObserver]:
    """Asks about the cells to mark."""
    if not selection.mark:
        return []
    from attnscope.questions.find import QuestionObserver, parse_questions  # loads torch

    return [QuestionObserver(each) for text in selection.mark for each in parse_questions(text)]


@dataclass(frozen=True)
class _ShownPass:
    """A pass whose heads are shown: the numbers of the heads that were ``read``, their maps and scores."""

    model: Model
    prepared: ModelInput
    record: Record
    maps: Sequence[CoarseMap]
    read: Mapping[Site, Sequence[int]]
    scores: Sequence[HeadScores]
    asked: Sequence[QuestionObserver] = ()

    def head(self, head: Head, selection: Selection) -> OneHead:
        """One head, of the model's first kind of attention that has it."""
        record, prepared = self.record, self.prepared
        maps = [
            each for each in self.maps if selection.meets(each.site) and head.head in self.read[each.site]
        ]
        sentences.require_selected(maps, record, selection)
        kind, *others = sentences.kinds_of((each.site for each in maps), prepared.first_kind)
        found = next(each for each in maps if each.site.kind == kind)
        map_ = found.only(self.read[found.site].index(head.head))
        site = next(each for each in record.sites if each.site == found.site)
        weights, hidden = map_.label()
        scores, counted = self._scores(head, map_, weights, selection)
        notes = [*self.model.notes, *prepared.notes, *record.notes]
        notes += sentences.note_hidden([hidden], selection, "its attention", kind)
        notes += [*sentences.note_maps([map_], prepared), *sentences.note_differences([site])]
        notes += sentences.note_averaged(selection, counted)
        if others:
            also = " and ".join(others)
            notes.append(f"{head.name} exists in {also} attention too: --kind {others[0]} shows it")
        notes += sentences.note_pooling(map_, weights)
        title = sentences.name_pass(self.model, prepared)
        picture = head_picture(pick_head(weights, 0), scores, site, title, selection, tuple(notes))
        written = prepared.written if kind == "decoder" and selection.zoom is None else None
        bands = bands_of(weights.keys, prepared.sound) if kind == "cross" else None
        bar = name_weight(self.model.weighting, kind)
        picture = replace(picture, written=written, bands=bands, bar=bar)
        for each in self.asked:
            picture = each.mark(picture, prepared, site, self.read[found.site], head.head)
        return OneHead(picture, scores, site)

    def _scores(
        self, head: Head, map_: CoarseMap, weights: Weights, selection: Selection
    ) -> tuple[HeadScores, str]:
        """The scores of a head, and the rows that they average: of words where the picture merges them."""
        scores = next(each for each in self.scores if (each.site, each.head) == (map_.site, head.head))
        if selection.words and not (selection.hide_special or selection.zoom):
            cached = [each for each in self.prepared.words if each.address == scores.address]
            if by_words := cached or measure_words(weights, map_.site):
                return replace(by_words[0], head=head.head), "words, as in the picture"
        return scores, "all tokens"


def bands_of(keys: Sequence[Place], heard: SoundFrames | None) -> Array | None:
    """The loudness of the sound whose moments the keys are, 0 to 1.  -> [band, key]"""
    if heard is None or heard.bands is None or not all(key.heard for key in keys):
        return None
    columns = [heard.bands[:, key.start : key.stop].mean(-1) for key in keys]
    return loudness(np.stack(columns, -1))


def loudness(bands: Array) -> Array:
    """The loudness of a sound's bands from 0, the faintest, to 1, the loudest.  [band, frame] -> the same"""
    low, high = bands.min(), bands.max()
    levels: Array = (bands - low) / (high - low if high > low else 1)
    return levels


def head_picture(
    weights: Weights,
    scores: HeadScores,
    site: SiteRecord,
    title: str,
    selection: Selection,
    notes: tuple[str, ...],
    over: str = "on this input",  # on others a head may do something else
) -> Heatmap:
    """A head ``[query, key]`` with its scores; ``title`` names the model and the text."""
    return heatmap(
        weights,
        title=f"{scores.name} · {title} · {sentences.site_title(site, scores.head)}",
        subtitle=f"{over}: {scores.role.sentence}" if scores.role else sentences.provenance([site]),
        scale=selection.scale,
        signed=bool((weights.values < 0).any()),
        notes=notes,
        readings=tuple(readings_of(scores)),
        min_weight=selection.min_weight,
    )


def pick_head(weights: Weights, head: int) -> Weights:
    """One head of several.  [head, query, key] -> [query, key]"""
    allowed = np.broadcast_to(weights.allowed, weights.values.shape)[head]
    return replace(weights, values=weights.values[head], allowed=allowed)


def readings_of(head: HeadScores) -> Iterator[NamedScore]:
    """The scores next to a head's picture."""
    for name in SHOWN_MEASURES:
        score = head.scores.get(name)
        if score is not None and not (name == "no_key" and abs(score.value) < 1e-4):
            measure = MEASURES[name]
            yield NamedScore(name, score.value, score.baseline, measure.unit, measure.summary)
