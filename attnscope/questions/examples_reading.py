"""What a pass over a corpus keeps of each head: its strongest rows, a sample of rows, and histograms of all.

Memory does not grow with the corpus. Rows are in a total order, so that the sums of parts of a corpus merge
in any order into those of the whole.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from attnscope.attention import Attention, Head, Kind, Site, Token
from attnscope.axes import Array
from attnscope.capture.observers import BLOCK
from attnscope.capture.record import FunctionObserver
from attnscope.measures import Measurement
from attnscope.measures.block import Block
from attnscope.measures.exact import ExactSum
from attnscope.measures.measurement import MeasuredBlock
from attnscope.models import Model, ModelInput
from attnscope.records import read
from attnscope.text import visible

MOST_ROWS = 100  # of a head that are kept: the strongest, and as many of the sample
MOST_KEYS = 8  # heaviest keys of a row that are kept
LEAST_KEPT = 0.005  # a key with less is not kept in a map
BINS = 20  # of the histograms of weights and of entropy, from 0 to 1
EDGES = (-32, -16, -8, -4, -2, -1, 0, 1, 2, 3, 5, 9, 17, 33)
"""The first distance of each bin but the first one: a key before its row has a negative distance."""

OCTAVE, LEAST, MOST = 64, -10, 17  # bins from each power of two to the next, and the powers from and to
SIDE = 1 + OCTAVE * (MOST - LEAST)  # bins of the scores from 0 on; the first one ends at 2 ** LEAST

EMPTY = 1 << 38  # the rank of a place without a row; that of any row is smaller
INDEX_BITS = 24  # of a row's number within a block, behind its rank
WORD = (1 << 32) - 1


def rank_scores(scores: Tensor) -> Tensor:
    """Whole numbers in the opposite order of scores in float32.  -> int64, of the same shape"""
    bits = scores.float().contiguous().view(torch.int32).long()
    return -torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def draw_ranks(texts: Tensor, rows: Tensor) -> Tensor:
    """A random rank of each row, the same in any run (lowbias32).  [text, 1], [row] -> int64, [text, row]"""
    mixed = (texts * 0x9E3779B1 + rows * 0x85EBCA77) & WORD
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        mixed = ((mixed ^ (mixed >> shift)) * factor) & WORD
    return mixed ^ (mixed >> 16)


def find_bins(scores: Tensor) -> Tensor:
    """The bin of each score among ``2 * SIDE``, from the lowest.  -> int64, of the same shape"""
    bits = scores.float().abs().contiguous().view(torch.int32).long()  # as ordered as the numbers
    place = ((bits >> 17) - OCTAVE * (127 + LEAST) + 1).clamp(0, SIDE - 1)
    return torch.where(scores < 0, SIDE - 1 - place, SIDE + place)


def bin_edges() -> Array:
    """Where each bin begins, and the last ends: 1/64 of a score apart, or 2 ** LEAST.  -> [2 * SIDE + 1]"""
    steps = np.arange(SIDE)
    ends = np.r_[0, 2.0 ** (LEAST + steps // OCTAVE) * (1 + steps % OCTAVE / OCTAVE)]
    edges: Array = np.r_[-ends[:0:-1], ends]
    return edges


@dataclass(eq=False)
class ExampleRows:
    """Some rows of each head by rank; equal ranks are in the order of the corpus.

    ``place`` holds the number of the text from 1, that of the row, the id of its token, and the id of its
    heaviest key outside itself and the first token, or -1.
    """

    rank: Tensor  # int64, [head, row], ``EMPTY`` at the end
    score: Tensor  # float32, [head, row]
    place: Tensor  # int32, [head, row, 4]
    keys: Tensor  # int32, [head, row, MOST_KEYS], heaviest first, -1 for none
    weights: Tensor  # float32, [head, row, MOST_KEYS]

    @classmethod
    def none(cls, heads: int) -> ExampleRows:
        """No rows."""
        return cls(*(torch.zeros(heads, 0, *shape, dtype=kind) for kind, shape in ROW_SHAPES))

    def merge(self, other: ExampleRows) -> None:
        """Add other rows in order; the first ``MOST_ROWS`` of both stay."""
        if not bool((other.rank <= self.last).any()):
            return
        if not self.rank.shape[1]:
            vars(self).update(vars(other))
            return
        both = {name: torch.cat([mine, getattr(other, name)], 1) for name, mine in vars(self).items()}
        rank, place = both["rank"], both["place"].long()
        order = ((place[..., 0] << 32) + place[..., 1]).argsort(dim=1, stable=True)
        order = order.gather(1, rank.gather(1, order).argsort(dim=1, stable=True))[:, :MOST_ROWS]
        for name, each in both.items():
            setattr(self, name, each[torch.arange(len(rank))[:, None], order])

    @property
    def last(self) -> Tensor:
        """The worst rank that a further row may have.  -> [head, 1]"""
        full = self.rank.shape[1] == MOST_ROWS
        return self.rank[:, -1:] if full else torch.full((len(self.rank), 1), EMPTY - 1)


ROW_SHAPES: tuple[tuple[torch.dtype, tuple[int, ...]], ...] = (
    (torch.int64, ()),
    (torch.float32, ()),
    (torch.int32, (4,)),
    (torch.int32, (MOST_KEYS,)),
    (torch.float32, (MOST_KEYS,)),
)
"""The type of each field of ``ExampleRows``, and its shape behind head and row."""


@dataclass(eq=False)
class SiteExamples:
    """What is kept of the heads of one site."""

    rows: ExampleRows  # of all heads by score, then of all by a random rank, the sample
    gaps: ExactSum  # [head, bin]: the weight on keys by their distance
    bins: Tensor  # float64, [head, bin]: rows by what ``WIDTHS`` lists

    @classmethod
    def none(cls, heads: int) -> SiteExamples:
        """Nothing, for so many heads."""
        gaps, bins = (
            torch.zeros(heads, count, dtype=torch.float64) for count in (len(EDGES) + 1, sum(WIDTHS))
        )
        return cls(ExampleRows.none(2 * heads), ExactSum(gaps), bins)

    @property
    def halves(self) -> tuple[ExampleRows, ExampleRows]:
        """The strongest rows of each head, and its sample."""
        top, sample = zip(*(each.chunk(2) for each in vars(self.rows).values()), strict=True)
        return ExampleRows(*top), ExampleRows(*sample)

    def merge(self, other: SiteExamples) -> None:
        """Add what is kept of other texts."""
        self.rows.merge(other.rows)
        self.gaps, self.bins = self.gaps + other.gaps, self.bins + other.bins

    def __reduce__(self) -> tuple[Any, ...]:  # sent by another process
        return SiteExamples.from_state, (self.state(),)

    def state(self) -> dict[str, Any]:
        """All of it as plain data; of the bins those that are not empty."""
        rows, places = vars(self.rows).values(), self.bins.flatten().nonzero()[:, 0]
        bins = places.int(), self.bins.flatten()[places].long()
        return {"rows": [*map(_encode, rows)], "gaps": self.gaps.state(), "bins": [*map(_encode, bins)]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> SiteExamples:
        """What ``state`` wrote down. Raises an error for anything else."""
        gaps = ExactSum.from_state(state["gaps"])
        made, heads = cls.none(gaps.shape[0]), 2 * gaps.shape[0]
        if gaps.shape != made.gaps.shape:
            raise ValueError("the histograms do not fit together")
        parts = zip(ROW_SHAPES, state["rows"], strict=True)
        made.rows = ExampleRows(*(_decode(text, kind, heads, *shape) for (kind, shape), text in parts))
        kinds = zip(state["bins"], (torch.int32, torch.int64), strict=True)
        places, counts = (_decode(text, kind, 1)[0] for text, kind in kinds)
        counted = torch.bincount(places, counts.double(), minlength=made.bins.numel())
        made.gaps, made.bins = gaps, counted.view_as(made.bins)
        return made


WIDTHS = 2 * SIDE, BINS, BINS
"""Bins of the score of a row (see ``find_bins``), of the largest weight outside its own and the first token,
and of the normalized entropy."""


def _encode(tensor: Tensor) -> str:
    return b64encode(tensor.numpy().tobytes()).decode()


def _decode(text: str, kind: torch.dtype, heads: int, *shape: int) -> Tensor:
    array = np.frombuffer(b64decode(text, validate=True), torch.empty(0, dtype=kind).numpy().dtype)
    return torch.from_numpy(array.copy()).view(heads, -1, *shape)


Counts: TypeAlias = tuple[Counter[int], Counter[int]]  # of the tokens of rows and of keys, by id


@dataclass(eq=False)
class ExampleTotals:
    """All sums over a corpus: the scores of the heads, what is kept of each, and the tokens of the texts."""

    measured: Measurement
    sites: dict[Site, SiteExamples] = field(default_factory=dict)
    counts: dict[Kind, Counts] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)  # of the tokens of the strongest rows, by id

    def merge(self, other: ExampleTotals) -> None:
        """Add the sums of other texts."""
        self.measured.merge(other.measured)
        for site, theirs in other.sites.items():
            self.sites.setdefault(site, SiteExamples.none(len(theirs.bins))).merge(theirs)
        for kind, both in other.counts.items():
            for mine, more in zip(self.counts.setdefault(kind, (Counter(), Counter())), both, strict=True):
                mine.update(more)
        self.names = other.names | self.names

    def count(self, labels: Labels) -> None:
        """Count the tokens of a batch, and name those of its strongest rows."""
        names = dict[int, str]()
        for kind, sides in labels.items():
            self.counts[kind] = _count(sides[0]), _count(sides[1])
            names |= {token.id: token.text for side in sides for text in side for token in text}
        kept = {
            id_
            for each in self.sites.values()
            for id_ in torch.unique(each.halves[0].place[..., 2:]).tolist()
        }
        self.names = {id_: names[id_] for id_ in sorted(kept & names.keys())}

    def __getstate__(self) -> dict[str, Any]:  # sent by another process
        return {**vars(self), "measured": self.measured.state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, measured=Measurement.from_state(state["measured"]))

    def state(self) -> dict[str, Any]:
        """All of it as plain data, which JSON keeps exactly."""
        sites = [{"site": asdict(site), **each.state()} for site, each in self.sites.items()]
        counts = {kind: [sorted(each.items()) for each in both] for kind, both in self.counts.items()}
        named = sorted(self.names.items())
        return {"measured": self.measured.state(), "sites": sites, "counts": counts, "names": named}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], names: Sequence[str]) -> ExampleTotals:
        """What ``state`` wrote down, of these measures. Raises ``ValueError`` for anything else."""
        total = cls(Measurement.from_state(state["measured"]))
        total.measured.merge(Measurement(names))  # refuses another set of measures
        total.sites = {read(Site, each["site"]): SiteExamples.from_state(each) for each in state["sites"]}
        for kind, both in state["counts"].items():
            rows, keys = (Counter(dict(read(tuple[tuple[int, int], ...], each))) for each in both)
            total.counts[read(Kind, kind)] = rows, keys
        total.names = dict(read(tuple[tuple[int, str], ...], state["names"]))
        return total


def _count(texts: Sequence[Sequence[Token]]) -> Counter[int]:
    return Counter(token.id for text in texts for token in text)


Labels: TypeAlias = Mapping[Kind, tuple[Sequence[Sequence[Token]], Sequence[Sequence[Token]]]]
Lasts: TypeAlias = dict[Site, Tensor]
"""The worst rank that may still be kept, as ``ExampleRows.last`` of all rows."""


@dataclass(eq=False)
class ExampleReading:
    """Reads the measured rows of a batch, whose texts have these ``numbers``.

    Rows are ordered ``by`` a measure, or by their largest weight outside their own and the
    first token.
    """

    numbers: Sequence[int]
    by: str | None
    lasts: Lasts  # known from earlier batches
    sites: dict[Site, SiteExamples] = field(default_factory=dict)

    @torch.no_grad()
    def add(self, measured: MeasuredBlock) -> None:
        """Read a block of rows."""
        site, block = measured.site, measured.block
        if not measured.labelled:
            return  # no tokens, or others than the text's
        kept = self.sites.setdefault(site, SiteExamples.none(block.rows.shape[1]))
        row = torch.arange(measured.start, measured.start + block.rows.shape[2])
        first = measured.start if block.start is None else block.start
        habit, distances = _columns(first, *block.rows.shape[2:], block.start is not None)
        rows, habit = block.rows, habit.to(block.rows.device)
        largest = (rows - torch.where(habit, inf, 0.0)).amax(-1).cpu()  # [text, head, row]
        beyond = (block.allowed & ~habit).any(-1).cpu()
        none = largest, torch.zeros_like(beyond)
        score, counts = measured.values.get(self.by, none) if self.by else (largest, beyond)
        counts = counts.expand(score.shape) & score.isfinite()
        entropy, known = measured.values.get("normalized_entropy", none)
        bins = find_bins(score), unit_bins(largest), unit_bins(entropy)
        kept.bins += count_rows(bins, (counts, beyond, known))
        kept.gaps += ExactSum(rows.nan_to_num().sum(0).flatten(1).cpu().double() @ distances)
        number = torch.tensor([self.numbers[text] for text in measured.texts])
        drawn = draw_ranks(number[:, None], row)[:, None].expand(score.shape)
        rank = _by_head(torch.stack((rank_scores(score), drawn)))
        counts = _by_head(counts.expand(2, *score.shape))
        last = torch.minimum(kept.rows.last, self.lasts.get(site, kept.rows.last))
        rank = rank.masked_fill(~counts | (rank > last), EMPTY)
        if most := int((rank < EMPTY).sum(1).max()):
            kept.rows.merge(pick_rows(block, habit, rank, most, score, number, row))


def _by_head(ways: Tensor) -> Tensor:
    """[way, text, head, row] -> [way * head, text * row]"""
    return ways.transpose(1, 2).flatten(2).flatten(0, 1)


class TextMap(NamedTuple):
    """A head's map of one text: of each row the heaviest keys, those with at least ``LEAST_KEPT``."""

    number: int  # of the text in the corpus, from 1
    tenth: int  # of the row for which it is kept, 10 for the strongest
    tokens: tuple[str, ...]
    cells: Array  # int32: row * len(tokens) + key
    weights: Array  # float32
    most: float  # the largest weight outside the first row and the first key


def read_maps(
    model: Model, prepared: ModelInput, tenths: Mapping[Head, int], number: int
) -> Iterator[tuple[Head, TextMap]]:
    """The maps of some heads on a text, for the tenths in which their rows are; of self-attention alone."""
    found, tokens = list[tuple[Head, TextMap]](), tuple(visible(token.text) for token in prepared.tokens)

    def read_call(attention: Attention) -> None:
        site, size = attention.site, len(tokens)
        heads = [head for head in tenths if (head.layer, head.kind) == (site.layer, site.kind)]
        if not heads or (len(attention.queries), len(attention.keys)) != (size, size):
            return
        cells, weights = ([list[Tensor]() for _ in heads] for _ in range(2))
        most = torch.zeros(len(heads))
        for start in range(0, size, BLOCK):
            rows = attention.rows(start, min(start + BLOCK, size), [head.head for head in heads])[0].cpu()
            largest, keys = rows.topk(min(MOST_KEYS, size))
            flat = (start + torch.arange(rows.shape[1]))[:, None] * size + keys  # [head, row, key]
            for at, kept in enumerate(largest >= LEAST_KEPT):
                cells[at].append(flat[at][kept].int())
                weights[at].append(largest[at][kept].float())
            beyond = rows[:, int(not start) :, 1:].flatten(1)
            most = torch.maximum(most, beyond.amax(1) if beyond.shape[1] else most)
        for at, head in enumerate(heads):
            kept_cells, kept_weights = (torch.cat(each[at]).numpy() for each in (cells, weights))
            map_ = TextMap(number, tenths[head], tokens, kept_cells, kept_weights, float(most[at]))
            found.append((head, map_))

    model.run(prepared, [FunctionObserver(read_call)])
    yield from found


@lru_cache(maxsize=2)
def _columns(first: int, rows: int, keys: int, own: bool) -> tuple[Tensor, Tensor]:
    """The keys that most heads attend to by habit: the row's own and the first token, bool, [row, key].

    Then the bin of each key's distance, float64, [row * key, bin]. Rows begin at ``first``; without their
    ``own`` key among the keys there is no habit.
    """
    gaps = torch.arange(keys) - torch.arange(first, first + rows)[:, None]
    bins = torch.bucketize(gaps.flatten(), torch.tensor(EDGES), right=True)
    habit = ((gaps == 0) | (torch.arange(keys) == 0)) & own
    return habit, one_hot(bins, len(EDGES) + 1).double()


def unit_bins(values: Tensor) -> Tensor:
    """The bin of each value from 0 to 1.  -> int64, of the same shape"""
    return (values.nan_to_num() * BINS).clamp(0, BINS - 1).long()


def count_rows(bins: Sequence[Tensor], counts: Sequence[Tensor]) -> Tensor:
    """The number of rows in each bin of ``WIDTHS``.  [text, head, row] each -> float64, [head, bin]"""
    heads, width = bins[0].shape[1], sum(WIDTHS)
    first = torch.arange(heads)[:, None] * width
    places = torch.stack([each + first + sum(WIDTHS[:number]) for number, each in enumerate(bins)])
    weights = torch.stack([each.expand(bins[0].shape) for each in counts]).double()
    return torch.bincount(places.flatten(), weights.flatten(), heads * width).view(heads, width)


def pick_rows(
    block: Block, habit: Tensor, rank: Tensor, most: int, score: Tensor, number: Tensor, row: Tensor
) -> ExampleRows:
    """At most ``most`` first rows of each head by rank, [way * head, text * row], ``EMPTY`` for no row."""
    assert block.queries is not None
    assert block.keys is not None
    order = (rank << INDEX_BITS) + torch.arange(rank.shape[1])  # all differ
    best = order.topk(min(MOST_ROWS, most), largest=False).values
    index, head = best & ((1 << INDEX_BITS) - 1), torch.arange(len(rank))[:, None] % block.rows.shape[1]
    text, at = index // len(row), index % len(row)  # [way * head, row]
    weights, place = block.rows[text, head, at].topk(min(MOST_KEYS, block.rows.shape[-1]))
    beyond = ~habit[at.to(habit.device)].gather(-1, place) & (weights > 0)
    first = beyond.int().argmax(-1, keepdim=True)
    own, other = (facts.ids.cpu() for facts in (block.queries, block.keys))
    own = own[text.clamp(max=len(own) - 1), at][..., None]
    other = other[text.clamp(max=len(other) - 1)[..., None], place.gather(-1, first).cpu()]
    other = other.masked_fill(~beyond.any(-1, keepdim=True).cpu(), -1)
    where = number[text][..., None], row[at][..., None], own, other
    short = (0, MOST_KEYS - place.shape[-1])
    return ExampleRows(
        best >> INDEX_BITS,
        score[text, head, at].float(),
        torch.cat(where, -1).int(),
        pad(place.cpu().int(), short, value=-1),
        pad(weights.cpu().float(), short),
    )
