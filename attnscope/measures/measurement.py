"""Measures every head by sums, which add up over blocks, texts, processes and machines.

Whatever depends on masks, positions and tokens alone is computed once and reused from layer to layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from attnscope.attention import Attention, Axis, HeldRows, Kind, Site, Token, tensor_of
from attnscope.axes import Place, Weights
from attnscope.capture.observers import RowObserver, rows_at_a_time
from attnscope.lazy import torch
from attnscope.measures.block import Block, Patterns, TokenFacts
from attnscope.measures.exact import ExactSum
from attnscope.measures.forms import MEASURES, KeySum, KeyWeight, Measure, PerRow
from attnscope.measures.roles import ROLE_MEASURES, role
from attnscope.measures.standard import TWO_AWAY
from attnscope.records import read
from attnscope.scores import HeadScores, Score

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.capture.rows.scores import ReadScores
    from attnscope.fused.request import Statistics


@dataclass(frozen=True)
class Sums:
    """The sums of one site, float64; counts are exact up to 2^53.  [sum, measure, head]

    First the number of rows, their values and baselines, of those with two unmasked keys or more, and the
    same of the rows that count with one unmasked key; then the number of texts with a row that counted, and
    sums over texts of the squared value, of value times rows, and of the squared number of rows, for errors.
    """

    exact: ExactSum
    top: Tensor | None = None  # [head], the largest score before the softmax, if it is measured

    @classmethod
    def from_texts(cls, choice: Tensor, lone: Tensor) -> Sums:
        """Sum over the texts of a batch, both ``[rows|value|baseline, measure, text, head]``."""
        rows, value, _baseline = choice + lone  # [measure, text, head]
        spread = torch.stack([(rows > 0).double(), value.square(), value * rows, rows.square()])
        return cls(ExactSum(torch.cat([choice, lone, spread]).sum(2)))

    def __add__(self, other: Sums) -> Sums:
        """The sum of both."""
        tops = [sums.top for sums in (self, other) if sums.top is not None]
        return Sums(self.exact + other.exact, torch.stack(tops).amax(0) if tops else None)

    def scores(self, lone: bool = True) -> list[list[Score | None]]:
        """Averages over all rows that counted, or over those with a choice.  -> [head][measure]

        ``None`` where no row counted. The standard error is that of a ratio of sums over texts: with sums
        ``s_t`` over ``n_t`` rows of ``T`` texts and the value ``f``, it is
        ``sqrt(T / (T - 1) Σ (s_t - f n_t)²) / Σ n_t`` (Cochran 1977, Sampling Techniques, 6.4).
        """
        sums = self.exact.value()
        rows, value, baseline = sums[:3] + sums[3:6] if lone else sums[:3]
        texts, squared, with_rows, rows_squared = sums[6:]
        value, baseline = value / rows, baseline / rows
        squares = squared - 2 * value * with_rows + value.square() * rows_squared
        error = (squares.clamp_min(0) * texts / (texts - 1)).sqrt() / rows
        numbers = torch.stack((value, baseline, rows, texts, error), -1).transpose(0, 1)  # [head, measure, 5]

        def score(v: float, b: float, n: float, t: float, e: float) -> Score | None:
            return Score(v, b, int(n), int(t), e if lone and t > 1 else None) if n else None

        return [[score(*each) for each in head] for head in numbers.tolist()]

    def state(self) -> dict[str, Any]:
        """The sums as plain lists, which JSON keeps exactly."""
        return {"numbers": self.exact.state(), "top": None if self.top is None else self.top.tolist()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Sums:
        """Restore sums from ``state``. Raises ``ValueError`` where they do not fit together."""
        exact, top = ExactSum.from_state(state["numbers"]), state["top"]
        if len(exact.shape) != 3 or exact.shape[0] != 10:
            raise ValueError("the sums are of several shapes")
        return cls(exact, None if top is None else torch.tensor(top, dtype=torch.float64))


def sums_of_statistics(
    measures: Sequence[Measure], statistics: Statistics, keys: TokenFacts | None
) -> Tensor | None:
    """The same as ``Setting.sums`` of all rows; ``None`` if the statistics lack what a measure needs."""
    totals = [measure.form.measure_statistics(measure.name, statistics, keys) for measure in measures]
    lone = (statistics.runs.count == 1)[:, None]  # [batch or 1, 1, row]
    sums = statistics.column.new_zeros(2, 3, len(measures), *statistics.column.shape[:2], dtype=torch.float64)
    for place, total in enumerate(totals):
        if total is None:
            return None
        alone = torch.where(total.counts & lone, total.lone, 0).sum(-1)
        groups = ((total.counts & ~lone, total.value - alone), (total.counts & lone, alone))
        for group, (counts, value) in enumerate(groups):
            sums[group, 0, place] = counts.sum(-1)
            sums[group, 1, place] = value
            sums[group, 2, place] = torch.where(counts, total.baseline, 0).sum(-1)
    return sums


@dataclass(frozen=True, eq=False)
class Setting:
    """What is known about a block besides its weights, ready to measure any weights in its place.

    Its rows fall into two groups: those with a choice between keys, and lone ones with one unmasked key.
    """

    even: Block  # with uniform attention
    measures: Sequence[Measure]
    factors: Tensor  # of sums over keys, see ``Block.sums``, as the next
    places: Tensor  # of the weights at one key of each row
    columns: Sequence[int | None]  # of each measure, which of the sums and places it is
    counts: Sequence[Tensor]  # of each group, which rows count, [measure, batch or 1, head or 1, row]
    rows: Tensor  # [group, measure, batch or 1, head or 1], rows that count
    baseline: Tensor  # likewise, float64: the sum over those rows with uniform attention

    @classmethod
    def from_block(cls, block: Block, measures: Sequence[Measure]) -> Setting:
        """Compute what the measures need to know about a block besides its weights."""
        even = replace(block, allowed=block.allowed.clone()).baseline()
        forms = [measure.form.measure_block(even) for measure in measures]
        numbers = [each.number for each in forms if isinstance(each, KeySum)]
        keys = [each.key for each in forms if isinstance(each, KeyWeight)]
        numbered = {KeySum: count(), KeyWeight: count(len(numbers))}  # as ``Block.sums`` returns them
        columns = [next(numbered[type(each)]) if type(each) in numbered else None for each in forms]
        rows, width = block.rows.shape[-2:]
        shape = max(map(len, numbers), default=1), rows, len(numbers), width
        factors = block.rows.new_empty(shape)
        for place, number in enumerate(numbers):
            factors[:, :, place] = number
        places = torch.stack(keys) if keys else torch.empty(0, rows, dtype=torch.int64, device=factors.device)
        counts, open_keys = _stack([each.counts for each in forms]), block.open_keys.cpu()
        groups = [counts & (open_keys > 1), counts & (open_keys == 1)]
        own = [each if isinstance(each, PerRow) else None for each in forms]  # neither sum nor weight
        baseline = _values(own, columns, even.sums(factors, places))
        counted = torch.stack([group.sum(-1) for group in groups])
        sums = torch.stack([torch.where(group, baseline, 0).double().sum(-1) for group in groups])
        return cls(even, measures, factors, places, columns, groups, counted, sums)

    def fits(self, block: Block, measures: Sequence[Measure]) -> bool:
        """Whether this setting belongs to that block and these measures."""
        own = self.even
        return (
            own.start == block.start
            and (self.factors.dtype, self.factors.device) == (block.rows.dtype, block.rows.device)
            and list(self.measures) == list(measures)
            and _same(*(each.queries and each.queries.tensors for each in (own, block)))
            and _same(*(each.keys and each.keys.tensors for each in (own, block)))
            and _same(*([each.columns] if each.columns is not None else None for each in (own, block)))
            and own.allowed.equal(block.allowed)
            and _same(*([each.before.allowed] if each.before else None for each in (own, block)))
        )

    def values(self, block: Block) -> Tensor:
        """Measure each row of a block.  -> [measure, text, head, row]"""
        sums = block.sums(self.factors, self.places)
        measured = zip(self.measures, self.columns, strict=True)
        own = [one.form.measure_block(block) if column is None else None for one, column in measured]
        return _values(own, self.columns, sums)

    def sums(self, values: Tensor) -> Tensor:
        """Add up the values of a block.  -> [choice|lone, rows|value|baseline, measure, text, head]"""
        value = torch.zeros(2, *values.shape[:-1], dtype=torch.float64)
        for group, counts in enumerate(self.counts):
            if bool(self.rows[group].any()):
                value[group] = torch.where(counts, values, 0).sum(-1, dtype=torch.float64)
        rows, baseline = (each.expand(value.shape) for each in (self.rows, self.baseline))
        return torch.stack([rows, value, baseline], 1)


def _values(own: Sequence[Any], columns: Sequence[int | None], sums: Sequence[Tensor]) -> Tensor:
    """The value of every measure in each row: its own, or one of the sums.

    -> [measure, batch or 1, head or 1, row]
    """
    both = zip(own, columns, strict=True)
    return _stack([each.value if column is None else sums[column] for each, column in both])


def _same(one: Sequence[Tensor] | None, other: Sequence[Tensor] | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(mine is theirs or mine.equal(theirs) for mine, theirs in zip(one, other, strict=True))


def _stack(rows: Sequence[Tensor]) -> Tensor:
    """Stack tensors that broadcast, on the CPU.  -> [measure, batch or 1, head or 1, row]"""
    return torch.stack(torch.broadcast_tensors(*rows)).cpu()  # type: ignore[no-untyped-call]


DEFAULT = (
    *(name for name, measure in MEASURES.items() if measure.form.fused and measure.form.usual),
    *TWO_AWAY,
)
"""Measured by default: every measure that neither needs every row nor is specialised."""

BLOCK_WEIGHTS = 1 << 21
"""Weights that a CPU takes at a time: 8 MB in float32. Memory stays a small multiple of it at any length."""

CACHED = 1 << 22  # numbers reused by the next layer, for the blocks of one text: 16 MB in float32

Texts: TypeAlias = "Sequence[Sequence[Token]]"


class MeasuredBlock(NamedTuple):
    """Rows of some texts of a batch from row ``start`` on, and each measure's value in each of them."""

    site: Site
    start: int
    block: Block
    texts: Sequence[int]
    values: Mapping[str, tuple[Tensor, Tensor]]  # of each row, and whether it counts, [text, head, row]
    labelled: bool  # whether its rows and keys are the tokens of ``Measurement.label``


class Measurement(RowObserver):
    """Measures every head that it observes, in blocks of rows, and adds up over texts, in float64.

    Heads have roles only if all of ``ROLE_MEASURES`` are among the ``names``.
    """

    rows: range | None = None  # limits each call to some rows
    watch: Callable[[MeasuredBlock], None] | None = (
        None  # gets every row with all its keys, from no fused pass
    )

    def __init__(self, names: Sequence[str] = DEFAULT, block_elements: int = BLOCK_WEIGHTS) -> None:
        self.measures = {name: MEASURES[name] for name in dict.fromkeys(names)}
        self.patterns: Patterns = {
            name: find for each in self.measures.values() for name, find in each.form.patterns.items()
        }
        self.block_elements = block_elements
        self._sums: dict[Site, Sums] = {}
        self._absent: dict[Site, dict[str, str]] = {}
        self._texts: Mapping[Kind, tuple[Texts, Texts]] = {}
        self._facts: list[tuple[object, TokenFacts]] = []  # the tokens of an axis, and the facts about them
        self._settings: dict[int | None, Setting] = {}  # by the position of the first row

    def label(self, texts: Mapping[Kind, tuple[Texts, Texts]]) -> None:
        """Set the tokens of the next batches: by kind, those of the queries and of the keys.

        One sequence of tokens for each text of the batch, or one for all. An attention with other lengths
        keeps its own axes. Without this, an attention's axes label every text of its batch.
        """
        self._texts = texts

    def begin(self, attention: Attention) -> _Reading | None:
        """Begin to measure a call; ``None`` if the fused pass has measured it."""
        if self.rows is not None and self.rows.start >= len(attention.queries):
            return None
        lengths = len(attention.queries), len(attention.keys)
        texts = self._texts.get(attention.site.kind, ())
        labelled = tuple(len(axis[0]) for axis in texts) == lengths
        queries, keys = map(self._facts_of, texts if labelled else (attention.queries, attention.keys))
        scores = None
        if "max_logit" in self.measures:
            from attnscope.capture.rows.scores import find_scores

            scores = find_scores(attention.read)
        parts = {"positions": attention.offset, "queries": queries, "keys": keys, "scores": scores}
        offered = [name for name, part in parts.items() if part is not None]
        missing = {name: measure.missing(offered) for name, measure in self.measures.items()}
        absent = {name: reason for name, reason in missing.items() if reason}
        present = [measure for name, measure in self.measures.items() if name not in absent]
        statistics = attention.statistics
        if statistics is not None and self.watch is None and attention.offset in (None, 0):
            with torch.no_grad():
                sums = sums_of_statistics(present, statistics, keys)
            if sums is not None:
                top = None if scores is None else statistics.top.double().amax((0, 2))
                self._add_sums(attention.site, sums, absent, top)
                return None
        reading = _Reading(self, attention, present, absent, queries, keys, scores, labelled)
        return None if self.watch is None and reading.add_windows() else reading

    def _add_sums(
        self, site: Site, sums: Tensor, absent: Mapping[str, str], top: Tensor | None = None
    ) -> None:
        """Add the sums of the measures that exist here.  [choice|lone, rows|value|baseline, measure, ...]"""
        everything = sums.new_zeros(2, 3, len(self.measures), *sums.shape[3:])
        everything[:, :, [place for place, name in enumerate(self.measures) if name not in absent]] = sums
        self._add(site, replace(Sums.from_texts(*everything), top=top), absent)

    def _setting(self, block: Block, measures: Sequence[Measure]) -> Setting:
        """The setting of a block: an earlier layer's if it is the same, else a new one."""
        cached = self._settings.get(block.start)
        if cached is not None and cached.fits(block, measures):
            return cached
        new = Setting.from_block(block, measures)
        numbers = sum(setting.factors.numel() for setting in (new, *self._settings.values()))
        if block.start in self._settings or numbers > CACHED:
            self._settings.clear()  # it belongs to another text
        if new.factors.numel() <= CACHED:
            self._settings[block.start] = new
        return new

    def _add(self, site: Site, sums: Sums, absent: Mapping[str, str]) -> None:
        if site in self._sums:
            sums = self._sums[site] + sums
            absent = {name: reason for name, reason in self._absent[site].items() if name in absent}
        self._sums[site], self._absent[site] = sums, dict(absent)

    def _facts_of(self, tokens: Texts | Axis) -> TokenFacts | None:
        """Facts about the tokens, cached for the next layers, which have the same axes."""
        if isinstance(tokens, range) or len(tokens) == 0:
            return None
        texts: Any = (tokens,) if isinstance(tokens[0], Token) else tokens
        texts = tuple(tuple(text) for text in texts)
        for texts_, facts in self._facts:
            if texts_ == texts:
                return facts
        self._facts = [*self._facts[-3:], (texts, TokenFacts.from_texts(texts, self.patterns))]
        return self._facts[-1][1]

    def merge(self, other: Measurement) -> None:
        """Add the sums of another measurement of the same measures, in any order."""
        if list(self.measures) != list(other.measures):
            raise ValueError(f"cannot merge {list(other.measures)} into {list(self.measures)}")
        for site, sums in other._sums.items():
            self._add(site, sums, other._absent[site])

    def scores(self) -> list[HeadScores]:
        """The scores of every head so far, sites in the order of their first calls."""
        return [head for site in self._sums for head in self._heads(site)]

    def _heads(self, site: Site) -> Iterator[HeadScores]:
        sums = self._sums[site]
        with_role = all(name in self.measures for name in ROLE_MEASURES)

        def by_measure(scores: Sequence[Score | None]) -> dict[str, Score]:
            return {name: one for name, one in zip(self.measures, scores, strict=True) if one is not None}

        for head, (every, chosen) in enumerate(zip(sums.scores(), sums.scores(False), strict=True)):
            scores = by_measure(every)
            if sums.top is not None and "max_logit" in scores:
                scores["max_logit"] = replace(scores["max_logit"], value=float(sums.top[head]), error=None)
            unknown = (measure for name, measure in self.measures.items() if name not in scores)
            absent = {
                one.name: f"{one.name} is averaged over {one.rows}, and there are none" for one in unknown
            }
            absent |= {name: reason for name, reason in self._absent[site].items() if name in absent}
            yield HeadScores(site, head, scores, absent, role(by_measure(chosen)) if with_role else None)

    def state(self) -> dict[str, Any]:
        """All sums as plain lists and dictionaries: JSON keeps them exactly."""
        sites = [
            {"site": asdict(site), "absent": self._absent[site], "sums": sums.state()}
            for site, sums in self._sums.items()
        ]
        return {"measures": list(self.measures), "sites": sites}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Measurement:
        """The measurement that ``state`` saved, ready to continue."""
        measurement = cls(state["measures"])
        for entry in state["sites"]:
            sums = Sums.from_state(entry["sums"])
            if sums.exact.shape[1] != len(measurement.measures):
                raise ValueError(f"there are sums of {sums.exact.shape[1]} measures")
            measurement._add(read(Site, entry["site"]), sums, entry["absent"])
        return measurement


def real_spans(attention: Attention) -> Mapping[tuple[int, int], Sequence[int]]:
    """The texts of a batch by the first and the last row that is not of padding: it sees or is seen."""
    size, every = len(attention.queries), range(attention.batch)
    ends = (attention.allowed(row, row + 1).any(-1) for row in (0, size - 1) if size)
    if attention.offset != 0 or size != len(attention.keys) or all(bool(each.all()) for each in ends):
        return {(0, size): every}
    opened, spans = attention.allowed(0, size).any(1), dict[tuple[int, int], list[int]]()
    real = (opened.any(-1) | opened.any(-2)).expand(len(every), -1)
    for text in every:
        places = real[text].nonzero()
        if len(places):
            spans.setdefault((int(places[0]), int(places[-1]) + 1), []).append(text)
    return spans


@dataclass(eq=False)
class _Reading:
    """One call, measured one block of rows at a time."""

    measurement: Measurement
    attention: Attention
    measures: Sequence[Measure]
    absent: Mapping[str, str]
    queries: TokenFacts | None
    keys: TokenFacts | None
    scores: ReadScores | None
    labelled: bool

    def __post_init__(self) -> None:
        attention, count = self.attention, len(self.measures)
        self.spans, self.last = real_spans(attention), dict[tuple[int, int], Block]()
        self.top = None if self.scores is None else torch.tensor(-torch.inf)
        limits, length = self.measurement.rows, len(attention.queries)
        self.shown = range(length) if limits is None else range(limits.start, min(limits.stop, length))
        self.wanted = () if not count else None if limits is None else self.shown
        # a block's table has one column per measure besides its heads
        self.step = rows_at_a_time(attention, self.measurement.block_elements, count)
        # [choice | lone, rows | value | baseline, measure, text, head]
        self.sums = torch.zeros(2, 3, count, attention.batch, attention.heads, dtype=torch.float64)

    def add(self, rows: Tensor, allowed: Tensor, start: int) -> None:
        """Measure a block of rows."""
        for span, texts in self.spans.items() if self.measures else ():
            first, last = (
                max(start, self.shown.start, span[0]),
                min(start + rows.shape[2], self.shown.stop, span[1]),
            )
            if first < last:
                part = slice(first - start, last - start)
                self._measure(rows[:, :, part], allowed[:, :, part], first, span, texts)

    def add_windows(self) -> bool:
        """Measure all rows with the keys of their windows alone; False if that is impossible."""
        windows, count = getattr(self.attention.read, "windows", None), len(self.attention.queries)
        if windows is None or len(windows.order) != count or self.shown != range(count):
            return False
        able = all(measure.form.fused for measure in self.measures)  # others may read any key
        if not self.measures or not able or self.scores or list(self.spans) != [(0, count)]:
            return False
        rows, allowed, columns = windows.weights(), windows.allowed, windows.columns
        ((span, texts),) = self.spans.items()
        step = self.step * len(self.attention.keys) // columns.shape[-1]
        for start in range(0, count, step):
            block = slice(start, start + step)
            self._measure(rows[:, :, block], allowed[:, :, block], start, span, texts, columns[block])
        self.end()
        return True

    def _measure(
        self,
        rows: Tensor,
        allowed: Tensor,
        start: int,
        span: tuple[int, int],
        texts: Sequence[int],
        columns: Tensor | None = None,
    ) -> None:
        """Measure the rows of some texts, all within their span, as if it were all there is."""
        stop, offset, batch = start + rows.shape[2], self.attention.offset, self.attention.batch
        keys = span if self.attention.offset == 0 else (0, len(self.attention.keys))

        def of(part: Tensor, last: slice = slice(None)) -> Tensor:
            return (part if len(part) == 1 or len(texts) == batch else part[texts])[..., last]

        def facts(of_axis: TokenFacts | None, start: int, stop: int) -> TokenFacts | None:
            return of_axis and of_axis.map(of).part(start, stop, rows.device)

        rows, allowed = (of(each, slice(*keys)) for each in (rows, allowed))
        if rows.dtype in (torch.float16, torch.bfloat16):
            rows = rows.float()
        block = Block(
            rows=rows,
            allowed=allowed.to(rows.device),
            start=None if offset is None else offset + start - keys[0],
            queries=facts(self.queries, start, stop),
            keys=facts(self.keys, *keys),
            before=self.last.get(span),
            top=None if self.scores is None else of(self.scores(start, stop, None).amax(-1)),
            columns=columns,
            all_keys=None if columns is None else len(self.attention.keys),
        )
        with torch.no_grad():
            self.last[span] = block.last()
            setting = self.measurement._setting(block, self.measures)
            values = setting.values(block)
            self.sums[..., texts, :] += setting.sums(values)
            if self.measurement.watch is not None:
                counts = setting.counts[0] | setting.counts[1]
                names = (measure.name for measure in self.measures)
                by_name = dict(zip(names, zip(values, counts, strict=True), strict=True))
                self.measurement.watch(
                    MeasuredBlock(self.attention.site, start, block, texts, by_name, self.labelled)
                )
            if self.top is not None and block.top is not None:
                self.top = torch.maximum(self.top, block.top.double().amax((0, 2)).cpu())  # [head]

    def end(self) -> None:
        """Add the call to the sums of its site."""
        self.measurement._add_sums(self.attention.site, self.sums, self.absent, self.top)


def measure_words(weights: Weights, site: Site) -> tuple[HeadScores, ...] | None:
    """The scores of heads ``[head, query, key]`` between words; ``None`` if they were pooled further."""
    if any(place.pooled for place in (*weights.queries, *weights.keys)):
        return None
    numbers: dict[str, int] = {}

    def word(place: Place) -> Token:  # words are equal if their texts are
        number, segment = numbers.setdefault(place.text, len(numbers)), place.word[0] if place.word else 0
        return Token(place.text, number, special=place.special, segment=segment, word=number)

    queries, keys = (tuple(map(word, axis)) for axis in (weights.queries, weights.keys))
    heads = len(weights.values)
    allowed = np.broadcast_to(weights.allowed, weights.values.shape)
    held = HeldRows(tensor_of(weights.values)[None], tensor_of(allowed)[None])
    shape = 1, heads, heads, queries, keys, 0 if weights.square else None
    measured = Measurement()
    measured.observe(Attention(site, "recomputed", "words", *shape, torch.float32, held))
    return tuple(measured.scores())
