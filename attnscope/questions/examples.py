"""What heads do over a corpus: strongest rows, rows of each decile, tokens, histograms, nearest heads."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import groupby, islice, pairwise, zip_longest
from math import ceil, inf, prod
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch

from attnscope.attention import Head
from attnscope.axes import Array, Place, continue_text, places
from attnscope.capture import Record
from attnscope.comparison import embed_in_plane
from attnscope.errors import InputError
from attnscope.measures import DEFAULT, MEASURES, Measurement, settle_roles
from attnscope.models import Model
from attnscope.models.inputs import Batch, Limit
from attnscope.questions.answer import Answer
from attnscope.questions.corpus import BatchResult, CorpusRun, CorpusWork, ReadText
from attnscope.questions.examples_reading import (
    BINS,
    EDGES,
    EMPTY,
    MOST_ROWS,
    WIDTHS,
    Counts,
    ExampleReading,
    ExampleRows,
    ExampleTotals,
    Lasts,
    SiteExamples,
    TextMap,
    bin_edges,
    find_bins,
    read_maps,
)
from attnscope.questions.parts import cut_text, spans_of
from attnscope.questions.rules import is_rule
from attnscope.questions.selection import Selection
from attnscope.questions.sentences import extent, require_selected
from attnscope.questions.stats import find_heads, measuring_pass
from attnscope.records import ADDRESS, Meaning, Notes, record
from attnscope.scores import Role
from attnscope.storage.corpus import Corpus
from attnscope.text import clean, per_cent, round_short, visible
from attnscope.views import SPACE, Bar, Cell, Column, Table, View

BY_WEIGHT = "largest weight outside the row's own token and the first"
NEIGHBOURS = 5  # nearest heads that are listed
LISTED_TOKENS = 8  # most frequent tokens, and pairs, that are listed
BEFORE, AFTER, AROUND = 12, 6, 2  # tokens of a context before and after its row, and around each key
LEAST_WEIGHT = 0.05  # a key with less is not marked in a context
DECILES, DECILE_ROWS = 10, 2  # parts of all rows, and how many rows of each are shown


@record("a row of a head in its context")
class Example:
    """One row of one text, its heaviest keys, and the tokens around both."""

    text: Annotated[str, Meaning("the place of its text in the corpus")]
    position: Annotated[int, Meaning("the number of its token")]
    token: Annotated[str, Meaning("its token")]
    score: Annotated[float, Meaning("what rows are ordered by")]
    keys: Annotated[tuple[Bar, ...], Meaning("its heaviest keys")]
    context: Annotated[
        tuple[Bar, ...],
        Meaning("the tokens around the row and its keys; only heavy keys have their weight"),
    ]
    crossed: bool = False  # whether the context is another sequence than the row's


@record("a tenth of all rows")
class Decile:
    """One tenth of the rows of a corpus by their score; its ends are at most 1/64, or 0.001, too far out."""

    lowest: Annotated[float, Meaning("its lowest score, at most 1/64 of it, or 0.001, too low")]
    highest: Annotated[float, Meaning("its highest score, at most 1/64 of it, or 0.001, too high")]
    rows: Annotated[tuple[Example, ...], Meaning("random rows of it")]


@record("how often a token, or a pair, is among the strongest rows")
class TokenShare:
    """A token, or the tokens of a row and its heaviest key, among the strongest rows of a head."""

    tokens: Annotated[tuple[str, ...], Meaning("the token, or the row's and the key's")]
    count: Annotated[int, Meaning("strongest rows that have it")]
    share: Annotated[float, Meaning("their share of these rows")]
    expected: Annotated[
        float, Meaning("the token's share of the corpus; of a pair, the product of both tokens' shares")
    ]


@record("a histogram")
class Histogram:
    """Shares of rows, or of attention, in bins; the first and the last bin of distances are open."""

    edges: Annotated[tuple[float, ...], Meaning("the edges between bins", shape=list[float])]
    shares: Annotated[tuple[float, ...], Meaning("the share of each bin")]


@record("another head of the same kind of attention")
class Neighbour:
    """How alike a head attends on the sampled rows."""

    head: Annotated[Head, ADDRESS]
    overlap: Annotated[
        float, Meaning("the mean weight that both give the same keys; keys after a row's eighth count as one")
    ]


@record("a head over a corpus")
class HeadExamples:
    """Everything that is kept of one head."""

    head: Annotated[Head, ADDRESS]
    role: Annotated[Role | None, Meaning("its role; null where no row counted")]
    top: Annotated[tuple[Example, ...], Meaning("its strongest rows")]
    deciles: Annotated[tuple[Decile, ...], Meaning("tenths of all its rows, the strongest first")]
    queries: Annotated[tuple[TokenShare, ...], Meaning("frequent tokens of its 100 strongest rows")]
    keys: Annotated[tuple[TokenShare, ...], Meaning("those of their heaviest keys, outside self and first")]
    pairs: Annotated[tuple[TokenShare, ...], Meaning("both")]
    distances: Annotated[Histogram, Meaning("its attention by how far the key is behind the row, in tokens")]
    weights: Annotated[Histogram, Meaning("its rows by their largest weight outside self and first token")]
    entropy: Annotated[Histogram, Meaning("its rows by their normalized entropy")]
    nearest: Annotated[tuple[Neighbour, ...], Meaning("the heads that attend most alike")]
    scores: Annotated[Mapping[str, float], Meaning("its mean scores over all rows, by measure")]
    place: Annotated[
        tuple[float, float] | None,
        Meaning("its place in a plane where near heads attend alike; null for one head alone"),
    ]
    maps: tuple[TextMap, ...] = ()  # of the texts of its examples, if they were asked for


@record("heads over a corpus, with examples", "examples")
class Examples:
    """Some heads, what their rows are ordered by, and notes."""

    by: Annotated[str, Meaning("what rows are ordered by, the largest first")]
    heads: Annotated[tuple[HeadExamples, ...], Meaning("the heads")]
    title: str
    notes: Notes
    read: tuple[Any, ...] = ()  # the model, and what it read


def parse_order(text: str | None) -> str | None:
    """The measure that rows are ordered by: one by name, or that of a question. Raises ``SelectionError``."""
    asked = text is not None and text not in MEASURES and ("->" in text or is_rule(text))
    return None if text is None else MEASURES[f"find({text})" if asked else text].name


def corpus_examples(
    model: Model,
    corpus: Corpus,
    head: Head | None = None,
    *,
    by: str | None = None,
    top: int = 10,
    maps: bool = False,
    sentences: bool = False,
    run: CorpusRun = CorpusRun(),  # noqa: B008
) -> Examples:
    """Read a corpus once, and keep the strongest rows of every head, a sample, and histograms of all rows.

    Rows are ordered ``by`` a measure, or by their largest weight outside their own and the first token. The
    answer is about one ``head``, or all. The texts of its ``top`` rows are read a second time, for their
    context, which may be whole ``sentences``, and for the ``maps`` of their heads if asked for. Raises
    ``SelectionError`` for an unknown head, ``InputError`` for a corpus that can be read only once.
    """
    if not corpus.repeatable:
        raise InputError(f"{corpus.name} cannot be read again for the context of rows: save it to a file")
    order = parse_order(by)
    names = tuple(dict.fromkeys((*DEFAULT, *([order] if order else []))))
    total = ExampleTotals(Measurement(names))
    work = _ExamplesWork(model, corpus, Selection(), run, total, order)
    settings = {
        "question": "examples",
        "corpus": corpus.fingerprint(),
        "set of measures": list(names),
        "order of rows": str(order),
    }
    work.walk(settings, lambda state: ExampleTotals.from_state(state, names))
    return replace(_summarize(work, head, top, maps, sentences), by=by or BY_WEIGHT)


@dataclass
class _ExamplesWork(CorpusWork):
    total: ExampleTotals
    by: str | None
    lasts: Lasts = field(default_factory=dict, init=False)

    def plan_batch(self, texts: Sequence[ReadText]) -> tuple[int, ...]:
        """The numbers of a batch's texts in the corpus."""
        return tuple(text.number for text in texts)

    def measure_batch(self, batch: Batch, numbers: tuple[int, ...]) -> BatchResult:
        """One forward pass of a batch: its scores, and its rows that may be kept."""
        self._learn(self.total)
        sides = batch.labels.get("encoder") or batch.labels.get("decoder") or ((), ())

        def measure() -> tuple[ExampleTotals, Record]:
            measured = Measurement(tuple(self.total.measured.measures))
            measured.label(batch.labels)
            reading = ExampleReading(numbers, self.by, self.lasts)
            measured.watch = reading.add
            arguments = (self.model, batch.prepared, measured, self.selection, sides[0])
            return ExampleTotals(measured, reading.sites), measuring_pass(*arguments, batched=True)

        sums, record = self.known_passes.run(measure)
        kinds = {site.kind for site in sums.sites}
        sums.count({kind: both for kind, both in batch.labels.items() if kind in kinds})
        self._learn(sums)
        if not self.progress.layout:
            require_selected(sums.measured.scores(), record, self.selection)
            self.progress.layout = extent(record.sites), ""
        return sums, 0, 0, record.notes

    def _learn(self, known: ExampleTotals) -> None:
        """ExampleRows that rank behind as many others as are kept need not be read."""
        for site, each in known.sites.items():
            self.lasts[site] = torch.minimum(self.lasts.get(site, each.rows.last), each.rows.last)


def _summarize(work: _ExamplesWork, head: Head | None, top: int, maps: bool, sentences: bool) -> Examples:
    total, progress = work.total, work.progress
    measured = settle_roles(total.measured.scores())
    if head is not None:
        measured = tuple(find_heads(head, measured))
    measured = tuple(each for each in measured if each.site in total.sites)
    if not measured:
        raise InputError(f"the attention of {work.model.name} is not over the tokens: it has no examples")
    shown = {each.address: _Shown(total.sites[each.site], each.head, top) for each in measured}
    contexts = dict(_read_contexts(work, shown, maps, sentences))
    near, planes = dict[Head, Any](), dict[Head, Any]()
    for kind in dict.fromkeys(each.site.kind for each in measured):
        overlaps = _Overlaps(total, [each.address for each in measured if each.site.kind == kind])
        near |= overlaps.nearest()
        planes |= overlaps.places()
    heads = []
    for each in measured:
        kept = shown[each.address]
        examples = [contexts[each.address, number] for number in range(len(kept.shown))]
        ends = pairwise(np.cumsum([len(kept.top), *(len(rows) for *_, rows in kept.deciles)]).tolist())
        tenths = (
            Decile(low, high, tuple(examples[slice(*part)]))
            for (low, high, _), part in zip(kept.deciles, ends, strict=True)
        )
        parts: list[Any] = [tuple(examples[: len(kept.top)]), tuple(tenths)]
        parts += [*_token_shares(kept.ids, total.counts[each.site.kind], total.names), *kept.histograms]
        scores = {name: score.value for name, score in each.scores.items()}
        parts += [near[each.address], scores, planes[each.address], tuple(kept.maps)]
        heads.append(HeadExamples(each.address, each.role, *parts))
    title = work.model.title, *progress.layout[:1], progress.describe(getattr(work.source, "path", None))
    return Examples(
        "",
        tuple(heads),
        " · ".join(part for part in title if part),
        (*work.model.notes, *progress.left_out, *work.run.notes),
        (work.model, getattr(work.source, "path", None), (progress.texts, progress.tokens)),
    )


class ExampleRow(NamedTuple):
    """A row: its score, the numbers of its text and its token, its heaviest keys with their weights."""

    score: float
    text: int
    row: int
    keys: list[tuple[int, float]]


class _Shown:
    """One head of a site: which of its rows are shown, and its histograms."""

    def __init__(self, site: SiteExamples, head: int, top: int) -> None:
        best, sample = site.halves
        strongest = _rows_of(best, head)
        scores, *shares = site.bins[head].split_with_sizes(WIDTHS)
        self.top = strongest[:top]
        most = strongest[0].score if strongest else 0.0
        self.deciles = list(find_deciles(_rows_of(sample, head), scores.numpy(), most))
        self.shown = [*self.top, *(row for *_, rows in self.deciles for row in rows)]
        numbered = ((DECILES - number, row) for number, (*_, rows) in enumerate(self.deciles) for row in rows)
        tenths = reversed([*((DECILES, row) for row in self.top), *numbered])
        self.tenths = {row.text: tenth for tenth, row in tenths}  # of the strongest row of a text
        self.maps = list[TextMap]()
        self.ids: Array = best.place[head, : len(strongest), 2:].numpy()  # [row, row's | key's]
        bins = tuple(each / BINS for each in range(1, BINS))
        both = (EDGES, site.gaps.value()[head]), *((bins, each) for each in shares)
        self.histograms = [
            Histogram(tuple(map(float, edges)), tuple((sums / sums.sum().clamp_min(1e-30)).tolist()))
            for edges, sums in both
        ]


def _rows_of(rows: ExampleRows, head: int) -> list[ExampleRow]:
    """The rows of one head, best rank first."""
    count = int((rows.rank[head] < EMPTY).sum())
    parts = (each[head, :count].tolist() for each in (rows.score, rows.place, rows.keys, rows.weights))
    return [
        ExampleRow(score, text, row, [key for key in zip(keys, weights, strict=True) if key[0] >= 0])
        for score, (text, row, _, _), keys, weights in zip(*parts, strict=True)
    ]


def find_deciles(
    sample: list[ExampleRow], counts: Array, most: float
) -> Iterator[tuple[float, float, list[ExampleRow]]]:
    """Lowest and highest score of each tenth of all rows, and its first rows of a random sample.

    ``counts`` are those of ``find_bins``, and ``most`` is the largest score. The rows of the sample in a bin
    stand for all rows in it, at equal steps. Nothing for fewer rows than tenths.
    """
    total, edges = int(counts.sum()), bin_edges()
    if total < DECILES:
        return
    scores = np.array([each.score for each in sample])
    order = np.argsort(-scores, kind="stable")
    found, first, among = np.unique(
        -find_bins(torch.from_numpy(scores[order])).numpy(), return_index=True, return_counts=True
    )
    downward = counts[::-1].cumsum()  # rows down to each bin, from the highest
    ends = np.round(np.linspace(0, total, DECILES + 1))
    tenths = np.empty(len(sample), int)
    for bin_, begin, count in zip(-found, first, among, strict=True):
        places = downward[-1 - bin_] - counts[bin_] * (1 - (np.arange(count) + 0.5) / count)
        tenths[order[begin : begin + count]] = np.searchsorted(ends, places, side="right") - 1
    lowest = len(counts) - 1 - np.searchsorted(downward, ends - 1, side="right")  # the bin of each last row
    highest = len(counts) - 1 - np.searchsorted(downward, ends, side="right")
    for tenth in range(DECILES):
        rows = [sample[number] for number in np.flatnonzero(tenths == tenth)[:DECILE_ROWS]]
        yield float(edges[lowest[tenth + 1]]), min(float(edges[highest[tenth] + 1]), most), rows


def _read_contexts(
    work: _ExamplesWork, shown: Mapping[Head, _Shown], maps: bool, sentences: bool
) -> Iterator[tuple[tuple[Head, int], Example]]:
    """Each row that is shown as an example, from a second reading of its text, which also gives its maps."""
    wanted = defaultdict[int, list[tuple[Head, int]]](list)
    for head, kept in shown.items():
        for number, each in enumerate(kept.shown):
            wanted[each.text].append((head, number))
    limit = Limit(work.run.max_tokens, work.run.truncate)
    for text, entry in enumerate(islice(work.source.entries(), max(wanted, default=0)), 1):
        if text not in wanted:
            continue
        (prepared,) = work.model.prepare_all(work.inputs([entry]), limit, chat=work.run.chat)
        if isinstance(prepared, InputError):
            raise InputError(f"{work.source.name}, {entry.where}: the text changed while it was read")
        axes = {kind: tuple(map(places, both)) for kind, both in prepared.axes.items()}
        tenths = {head: shown[head].tenths[text] for head, _ in wanted[text]} if maps else {}
        for head, map_ in read_maps(work.model, prepared, tenths, text) if tenths else ():
            shown[head].maps.append(map_)
        begins = cut_text(entry.text, "sentence")
        spans = spans_of(prepared.tokens, entry.text, begins) if sentences else ()
        cut = [range(each.start, each.stop) for each in spans]
        parts = {kind: cut if sentences and kind != "cross" else _words(axes[kind][1]) for kind in axes}
        for head, number in wanted[text]:
            assert head.kind is not None  # its site has one
            own = axes[head.kind], parts[head.kind]
            example = _example(shown[head].shown[number], *own, crossed=head.kind == "cross")
            yield (head, number), replace(example, text=entry.where)


def _words(axis: Sequence[Place]) -> list[range]:
    """The tokens of each word that is cut into several."""
    runs = (
        tuple(run) for word, run in groupby(range(len(axis)), lambda at: axis[at].word) if word is not None
    )
    return [range(run[0], run[-1] + 1) for run in runs if 1 < len(run) <= BEFORE]


def _example(
    kept: ExampleRow, axes: Sequence[Sequence[Place]], parts: Sequence[range], *, crossed: bool
) -> Example:
    """A row with what is around it and its keys, to the ends of the ``parts`` that this begins."""
    queries, columns = axes
    row, keys = kept.row, tuple(Bar(columns[key].label, key, weight) for key, weight in kept.keys)
    marked = {key.position: key.weight for key in keys if key.weight >= LEAST_WEIGHT or key is keys[0]}
    near = {at for key in marked for at in range(key - AROUND, key + AROUND + 1)}
    near |= set() if crossed else set(range(row - BEFORE, row + AFTER + 1))
    near = near.union(*(part for part in parts if not near.isdisjoint(part)))
    context = []
    for at in sorted(near & set(range(len(columns)))):
        text = continue_text(columns[at - 1], columns[at]) if at - 1 in near and at else columns[at].text
        context.append(Bar(clean(text), at, marked.get(at, 0.0)))
    return Example("", row, queries[row].label, kept.score, keys, tuple(context), crossed)


def _token_shares(ids: Array, counts: Counts, names: Mapping[int, str]) -> Iterator[tuple[TokenShare, ...]]:
    """The most frequent tokens of rows, of their heaviest keys, and of both.  [row, row's | key's]"""
    totals = [each.total() for each in counts]
    for sides in ((0,), (1,), (0, 1)):
        found = Counter(tuple(each) for each in ids[:, sides].tolist() if min(each) >= 0)
        best = sorted(found.items(), key=lambda one: (-one[1], one[0]))[:LISTED_TOKENS]
        shares = []
        for tokens, count in best:
            shared = (counts[side][id_] / totals[side] for side, id_ in zip(sides, tokens, strict=True))
            spelled = tuple(visible(names.get(id_, "")) for id_ in tokens)
            shares.append(TokenShare(spelled, count, count / len(ids), prod(shared)))
        yield tuple(shares)


@dataclass(eq=False)
class _Overlaps:
    """How alike the heads of a kind attend on the rows that are in the sample of each.

    ``shared`` is the mean weight that two heads give the same keys, of ``heads`` and of all.
    """

    total: ExampleTotals
    heads: Sequence[Head]

    def __post_init__(self) -> None:
        kind, every = self.heads[0].kind, list[Head]()
        codes, keys, weights = list[Array](), list[Array](), list[Array]()
        for site, each in self.total.sites.items():
            if site.kind == kind:
                every += (Head(site.layer, head, kind) for head in range(len(each.bins)))
                sample = each.halves[1]
                codes += list(((sample.place[..., 0].long() << 32) + sample.place[..., 1]).numpy())
                keys += list(sample.keys.numpy())
                weights += list(sample.weights.numpy())
        common = reduce(lambda one, other: one[np.isin(one, other)], codes)
        for number, mine in enumerate(codes):
            order = np.argsort(mine)
            at = order[np.searchsorted(mine, common, sorter=order)]
            keys[number], weights[number] = keys[number][at], weights[number][at]  # [row, key]
        every_key, every_weight = np.stack(keys), np.stack(weights)  # [head, row, key]
        self.every, self.rows, numbers = every, len(common), [every.index(head) for head in self.heads]
        self.shared = torch.zeros(len(numbers), len(every))
        for row in range(self.rows):
            columns = np.unique(every_key[:, row], return_inverse=True)[1].reshape(len(every), -1)
            dense = torch.zeros(len(every), int(columns.max()) + 2)
            dense.scatter_add_(1, torch.from_numpy(columns), torch.from_numpy(every_weight[:, row]))
            dense[:, -1] = (1 - dense.sum(1)).clamp_min(0)
            self.shared += (1 - torch.cdist(dense[numbers], dense, p=1) / 2) / self.rows

    def nearest(self) -> dict[Head, tuple[Neighbour, ...]]:
        """The heads with which each shares most."""
        nearest = dict[Head, tuple[Neighbour, ...]]()
        count = min(NEIGHBOURS, len(self.every) - 1) if self.rows else 0
        for head, shared in zip(self.heads, self.shared.clone(), strict=True):
            shared[self.every.index(head)] = -1
            best = zip(*(each.tolist() for each in shared.topk(count)), strict=True)
            nearest[head] = tuple(Neighbour(self.every[other], overlap) for overlap, other in best)
        return nearest

    def places(self) -> dict[Head, tuple[float, float] | None]:
        """The place of each head in the plane that shows most of the overlaps; ``None`` if not of all."""
        if len(self.heads) < len(self.every) or not self.rows:
            return dict.fromkeys(self.heads)
        points = embed_in_plane(1 - self.shared.double().numpy()).points.tolist()
        return dict(zip(self.heads, map(tuple, points), strict=True))


def examples_answer(result: Examples, *, one: bool) -> Answer:
    """One head in full, or a line for each of several."""
    views = head_views(result, result.heads[0]) if one else (_heads_table(result),)
    return Answer(views, {}, lambda: result, lambda: _csv_rows(result))


def head_views(result: Examples, head: HeadExamples) -> tuple[View, ...]:
    """The rows of a head in their contexts, its tokens, and its histograms."""
    several = len({each.head.kind for each in result.heads}) > 1
    title = f"{head.head if several else head.head.name} · {result.title}"
    role = f"over all texts: {head.role.sentence}" if head.role else "no row counted"
    context, score = Column("context", long="fold"), Column("score", True, "keep")
    scores = _spell_order([each.score for each in head.top])
    top = tuple((text, each.text, context_cell(each)) for text, each in zip(scores, head.top, strict=True))
    tenths = tuple(
        (
            f"{number}",
            f"{round_short(each.lowest)} to {round_short(each.highest)}",
            context_cell(each.rows[0]) if each.rows else "–",
        )
        for number, each in enumerate(head.deciles, 1)
    )
    lists = (tuple(map(_spell_share, each)) for each in (head.queries, head.keys, head.pairs))
    read = (f"»the token that attends«, [key and its weight]; score: {result.by}",)
    distance = f"{_describe_distances(head.distances)} of the attention"
    histograms = (
        ("distance", _bars(head.distances), f"keys from 33 tokens earlier to 33 later; most {distance}"),
        ("weight", _bars(head.weights), "rows by their largest weight outside self and first token, 0 to 1"),
        ("entropy", _bars(head.entropy), "rows by their normalized entropy, 0 to 1"),
    )
    nearest = ", ".join(f"{each.head.name} {each.overlap:.2f}" for each in head.nearest)
    notes = (
        *([f"nearest heads, by the weight that they give the same keys: {nearest}"] if nearest else []),
        *result.notes,
    )
    return (
        Table((score, Column("text", long="keep"), context), top, title=title, subtitle=role, notes=read),
        Table(
            (Column("tenth", True, "keep"), Column("scores", long="keep"), context),
            tenths,
            title="all rows by score in ten equal parts, and a random row of each" if tenths else "",
        ),
        Table(
            (Column("row's token"), Column("heaviest key"), Column("both")),
            tuple(zip_longest(*lists, fillvalue="")),
            title=f"tokens of the {MOST_ROWS} strongest rows (in parentheses: by chance)",
        ),
        Table((Column(""), Column("", long="keep"), Column("")), histograms, notes=notes),
    )


def _spell_order(scores: Sequence[float]) -> list[str]:
    """Scores with so many digits that unequal ones look so, at most six."""
    spelled = list(map(round_short, scores))
    for digits in range(3, 7):
        if len({*spelled}) == len({*scores}):
            break
        spelled = [f"{score:.{digits}f}" for score in scores]
    return spelled


def context_cell(example: Example) -> Cell:
    """The tokens around a row: the row between » «, a heavy key with its weight in brackets."""
    pieces: list[tuple[str, str | float]] = [(f"»{example.token}«", "bold"), SPACE] if example.crossed else []
    last = None
    for each in example.context:
        if last is not None and each.position > last + 1:
            pieces += [SPACE, ("…", "dim"), SPACE]
        elif each.label.startswith(" ") and pieces:
            pieces.append(SPACE)
        text, look, last = each.label.strip(" "), "", each.position
        if each.weight:
            text = f"[{text} {each.weight:.2f}]"
        if each.position == example.position and not example.crossed:
            text, look = f"»{text}«", "bold"
        pieces += [(text, look or each.weight or "")] if text else []
    return tuple(pieces)


def _spell_share(share: TokenShare) -> str:
    return f"{' → '.join(share.tokens)} {per_cent(share.share)} ({per_cent(share.expected)})"


LEVELS = " ▁▂▃▄▅▆▇█"


def _bars(histogram: Histogram) -> str:
    """A histogram as blocks: the largest bin in full, any other one that is not empty at least as a line."""
    top = max(histogram.shares) or 1.0
    return "".join(LEVELS[ceil(share / top * (len(LEVELS) - 1))] for share in histogram.shares)


def _describe_distances(histogram: Histogram) -> str:
    """The bin with most of the attention, and its share."""
    edges = [-inf, *histogram.edges, inf]
    share, low, high = max(zip(histogram.shares, edges, edges[1:], strict=False))
    near, far = sorted((abs(low), abs(high - 1)))
    to = "" if near == far else " or more" if far == inf else f" to {far:.0f}"
    where = f"{near:.0f}{to} {'earlier' if low < 0 else 'later'}" if far else "on the row itself"
    return f"{where}, {share:.2f}"


def _heads_table(result: Examples) -> Table:
    several = len({each.head.kind for each in result.heads}) > 1
    titles = ("head", *(("kind",) if several else ()), "role", "best", "strongest row → key", "nearest")
    rows = []
    for each in result.heads:
        pairs = ", ".join(" → ".join(pair.tokens) + f" {pair.count}" for pair in each.pairs[:3])
        best = round_short(each.top[0].score) if each.top else "–"
        near = each.nearest[0].head.name if each.nearest else "–"
        kind = (each.head.kind or "",) if several else ()
        rows.append((each.head.name, *kind, each.role.name if each.role else "–", best, pairs, near))
    columns = tuple(Column(name, name == "best", "rest" if "→" in name else "keep") for name in titles)
    notes = (
        f"best: its largest score, the {result.by}"
        if result.by == BY_WEIGHT
        else f"best: its largest {result.by}",
        f"row → key: frequent among its {MOST_ROWS} strongest rows; attnscope examples HEAD shows them",
        *result.notes,
    )
    return Table(columns, tuple(rows), title=result.title, notes=notes)


def _csv_rows(result: Examples) -> Iterator[tuple[object, ...]]:
    """A line for each row that is shown, with its heaviest key."""
    yield (
        *("kind", "layer", "head", "list", "text", "position", "token", "score"),
        *("key", "key_position", "weight"),
    )
    for head in result.heads:
        tenths = ((f"tenth {number}", tenth.rows) for number, tenth in enumerate(head.deciles, 1))
        for name, rows in (("top", head.top), *tenths):
            for row in rows:
                own = head.head.kind, head.head.layer, head.head.head, name, row.text, row.position, row.token
                yield *own, row.score, row.keys[0].label, row.keys[0].position, row.keys[0].weight
