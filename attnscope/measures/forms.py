"""What a measure is: forms turn one small function into a measure of rows and of the fused pass's statistics.

``measure_block`` measures rows of weights, ``measure_statistics`` the fused pass's statistics, each with the
baseline: for a block, by measuring a block with uniform attention; for statistics, in closed form, because
there the unmasked keys of a row are one run, and counts in a run are differences of running counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, TypeVar

from attnscope.attention import Token
from attnscope.fused.request import Request
from attnscope.lazy import torch
from attnscope.measures.block import Block, Patterns, TokenFacts
from attnscope.registry import Registry, docstring, load_plugins

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.fused.request import Pairs, Statistics


class PerRow(NamedTuple):
    """A measure's value of each row, and which rows count: a matter of masks, positions and tokens alone."""

    value: Tensor  # any where a row does not count, [batch, head, row]
    counts: Tensor  # bool; never of rows without an unmasked key, [batch or 1, head or 1, row]


class KeySum(NamedTuple):
    """A weighted sum over a row, ``Σ_j A[i, j] number[i, j]``, prepared once for all layers."""

    number: Tensor  # of any type, [text or 1, row or 1, key]
    counts: Tensor


class KeyWeight(NamedTuple):
    """The weight on one key of each row, found once for all layers."""

    key: Tensor  # -1 for none, [row] int64
    counts: Tensor


class Total(NamedTuple):
    """A measure summed over the rows that count, with the values of rows with one unmasked key apart."""

    value: Tensor  # [batch, head]
    counts: Tensor  # bool, [batch or 1, 1, row]
    baseline: Tensor  # [batch or 1, 1, row]
    lone: Tensor  # of rows with one unmasked key, arbitrary for others, [batch or 1, head or 1, row]


class RowStatistics(NamedTuple):
    """What the fused pass knows about rows, float64, each ``[batch or 1, head or 1, row]``."""

    entropy: Tensor
    largest: Tensor
    total: Tensor
    open_keys: Tensor
    top: Tensor


Row: TypeAlias = "Block | RowStatistics"


@dataclass(frozen=True)
class Form(ABC):
    """What a measure is a function of.

    ``needs`` says what it requires: queries and keys on one sequence (``positions``), tokens on an axis
    (``queries``, ``keys``), scores before the softmax (``scores``). ``rows`` says in words which rows
    count. ``fused`` says whether the fused pass can compute it, ``usual`` whether it is measured by
    default where that pass can, ``asks`` which of a request's sums the function is one of.
    """

    function: Callable[..., Any]
    patterns: Patterns = field(default_factory=dict)  # whose matches the function reads
    needs: ClassVar[tuple[str, ...]] = ()
    rows: ClassVar[str] = "all rows"
    fused: ClassVar[bool] = True
    usual: ClassVar[bool] = True
    asks: ClassVar[str] = ""

    @abstractmethod
    def measure_block(self, block: Block) -> PerRow | KeySum | KeyWeight:
        """Measure the rows of a block."""

    def ask(self, name: str, request: Request, facts: TokenFacts | None) -> bool:
        """Ask the fused pass for its sums; False if that is impossible. ``facts`` are those of the text."""
        if self.asks:
            getattr(request, self.asks)[name] = self.function
        return self.fused

    def measure_statistics(self, name: str, statistics: Statistics, facts: TokenFacts | None) -> Total | None:
        """Measure all rows at once; ``None`` if that was not requested. ``facts`` are those of the keys."""
        return None


class OfWeights(Form):
    """Any function of a block, -> [batch, head, row]. It needs every row."""

    rows = "rows with at least two unmasked keys"
    fused = False

    def measure_block(self, block: Block) -> PerRow:
        return PerRow(self.function(block), block.open_keys > 1)


class OfTwoRows(OfWeights):
    """A function of rows and of the rows before them, [batch, head, row, key] each, -> [batch, head, row]."""

    rows = "rows after the first"

    def measure_block(self, block: Block) -> PerRow:
        before = block.rows if block.before is None else torch.cat([block.before.rows, block.rows], -2)
        value = self.function(before[..., 1:, :], before[..., :-1, :])
        counts = block.every_row.clone()
        if block.before is None:
            value = torch.nn.functional.pad(value, (1, 0))
            counts[..., 0] = False
        return PerRow(value, counts)


class OfNextToken(OfWeights):
    """A function of rows and of the earlier keys that hold the next token, bool, -> [batch, head, row]."""

    needs = ("positions", "keys")
    rows = "rows whose next token occurred earlier"

    def measure_block(self, block: Block) -> PerRow:
        assert block.keys is not None
        size, row = block.rows.shape[-1], block.positions[:, None]
        ids = block.keys.ids
        next_ids = ids[:, (block.positions + 1).clamp(max=size - 1)]  # [text, row]
        earlier = (block.gaps <= 0) & (row + 1 < size)  # [row, key]
        match = ((ids[:, None] == next_ids[..., None]) & earlier)[:, None]  # [text, 1, row, key]
        return PerRow(self.function(block.rows, match), (match & block.allowed).any(-1))


class OnPatches(Form):
    """The weighted mean over the patches of the row's own picture of a function of two axes, -> number.

    Weight on other keys, such as [CLS], is left out; rows of patches count.
    """

    needs = ("queries", "keys")
    rows = "rows of patches"
    fused = False

    def measure_block(self, block: Block) -> PerRow:
        assert block.queries is not None
        assert block.keys is not None
        rows, keys = block.queries.patches[:, :, None], block.keys.patches[:, None]  # [text, row | key, 3]
        same_picture = (rows[..., 0] == keys[..., 0]) & (keys[..., 0] >= 0)  # [text, row, key]
        number = (self.function(rows[..., 1:], keys[..., 1:]) * same_picture)[:, None].to(block.rows.dtype)
        share = (block.rows * same_picture[:, None]).sum(-1)
        total = (block.rows * number).sum(-1)
        return PerRow(total / share.clamp_min(1e-30), (share > 0) & same_picture.any(-1)[:, None])


class OfRow(Form):
    """A function of the entropy, largest weight, total and number of unmasked keys of rows, elementwise."""

    rows = "rows with at least two unmasked keys"
    least: ClassVar[int] = 2

    def measure_block(self, block: Block) -> PerRow:
        return PerRow(self.function(block), block.open_keys >= self.least)

    def measure_statistics(self, name: str, statistics: Statistics, facts: TokenFacts | None) -> Total:
        open_keys = statistics.runs.count[:, None].double()  # [batch or 1, 1, row]
        entropy, largest, total, top = (
            getattr(statistics, name).double() for name in ("entropy", "largest", "total", "top")
        )
        value = self.function(RowStatistics(entropy.clamp_min(0), largest, total, open_keys, top))
        ones = open_keys / open_keys
        even = RowStatistics(open_keys.log(), 1 / open_keys, ones, open_keys, 0 * ones)
        return by_rows(value, open_keys >= self.least, self.function(even))


class OfEveryRow(OfRow):
    """The same, including rows with one unmasked key."""

    rows = "all rows"
    least = 1


class OfScores(OfEveryRow):
    """The same for the largest score of each row before the softmax: ``row.top``, 0 for uniform attention.

    A head's value is the maximum over its rows, not their mean: ``Sums.top`` has it.
    """

    needs = ("scores",)
    rows = "no rows: it is the largest value of all"
    usual = False


def by_rows(value: Tensor, counts: Tensor, baseline: Tensor) -> Total:
    """The total of values known per row."""
    return Total(value.where(counts, 0).sum(-1), counts, baseline, value)


class AtKey(Form):
    """The weight on one key of each row: a function of the rows' positions, [row] -> [row]."""

    needs = ("positions",)
    rows = "rows whose key exists"
    asks = "at"

    def measure_block(self, block: Block) -> PerRow | KeyWeight:
        key = self.function(block.positions)  # [row]
        there = (key >= 0) & (key < block.key_count)
        return KeyWeight(block.find_key(key.where(there, -1)), there.expand(block.open_keys.shape))

    def measure_statistics(self, name: str, statistics: Statistics, facts: TokenFacts | None) -> Total | None:
        if name not in statistics.at:
            return None
        runs, key = statistics.runs, self.function(statistics.positions)
        open_ = (runs.low <= key) & (key < runs.high)  # [batch or 1, row]
        counts = ((key >= 0) & (key < statistics.column.shape[-1])).expand(open_.shape)
        return by_rows(statistics.at[name].double(), counts[:, None], (open_.double() / runs.count)[:, None])


class ByGap(Form):
    """Weights summed, each times a factor: a function of how far its key lies ahead of its row."""

    needs = ("positions",)
    asks = "gaps"

    def measure_block(self, block: Block) -> KeySum:
        return KeySum(self.function(block.gaps)[None], block.every_row)

    def measure_statistics(self, name: str, statistics: Statistics, facts: TokenFacts | None) -> Total | None:
        if name not in statistics.gaps:
            return None
        position = statistics.positions
        first = -int(position[-1])
        number = self.function(torch.arange(first, statistics.column.shape[-1])).double()[None]
        return _of_runs(statistics, statistics.gaps[name], number, position + first)


LEAST_PEAK = 0.3  # a row's weight on an attention sink is larger than this
ROUNDING_SHARE = 1e-6  # the share of a weight, or of a row, that rounding may cost


class IsPeak(AtKey):
    """Whether the weight on that key is the row's largest, and above ``LEAST_PEAK``."""

    usual = False

    def measure_block(self, block: Block) -> PerRow:
        key, counts = super().measure_block(block)
        weight = block.rows.gather(-1, key.clamp_min(0)[:, None].expand(*block.rows.shape[:-1], 1))[..., 0]
        weight = weight.masked_fill(key < 0, 0)
        return PerRow(self._is_peak(weight, block.largest).to(weight.dtype), counts)

    def measure_statistics(self, name: str, statistics: Statistics, facts: TokenFacts | None) -> Total | None:
        at = super().measure_statistics(name, statistics, facts)
        if at is None:
            return None
        value = self._is_peak(at.lone, statistics.largest.double()).double()
        return by_rows(value, at.counts, self._is_peak(at.baseline, at.baseline).double())

    @staticmethod
    def _is_peak(weight: Tensor, largest: Tensor) -> Tensor:
        return (weight >= largest * (1 - ROUNDING_SHARE)) & (weight > LEAST_PEAK)


class InWindow(Form):
    """The weight on the first keys and on those near the row; the function gives how many, and how near."""

    needs = ("positions",)
    usual = False

    def measure_block(self, block: Block) -> KeySum:
        sink, recent = self.function()
        first = block.gaps + block.positions[:, None] < sink  # [row, key]
        return KeySum((first | (block.gaps.abs() < recent))[None], block.every_row)

    def ask(self, name: str, request: Request, facts: TokenFacts | None) -> bool:
        """Ask for the sum over keys outside the near window, and for each of the first keys there."""
        sink, recent = self.function()
        request.gaps[name] = lambda gap: gap.abs() >= recent

        def far_key(key: int) -> Callable[[Tensor], Tensor]:  # for the rows whose near window excludes it
            return lambda position: (0 * position + key).where((position - key).abs() >= recent, -1)

        request.at |= {f"{name} {key}": far_key(key) for key in range(sink)}
        return True

    def measure_statistics(self, name: str, statistics: Statistics, facts: TokenFacts | None) -> Total | None:
        sink, recent = self.function()
        if name not in statistics.gaps:
            return None
        runs, position, total = statistics.runs, statistics.positions, statistics.total.double()
        first = sum(statistics.at[f"{name} {key}"].double().sum(-1) for key in range(sink))

        def opened(low: Tensor | int, high: Tensor | int) -> Tensor:
            return (runs.high.clamp(max=high) - runs.low.clamp(min=low)).clamp(min=0)

        low, high = position - recent + 1, position + recent
        near = opened(0, sink) + opened(low, high) - opened(low, high.clamp(max=sink))
        near = near[:, None].double()  # [batch or 1, 1, row], unmasked keys of the window
        value = total.sum(-1) - statistics.gaps[name] + first
        return Total(value, near >= 0, near / runs.count[:, None], total * near)


LEAST_OPEN = 4  # unmasked keys of a row in which no key of uniform attention is a peak


class OnRule(Form):
    """Whether a row's largest weight is above ``LEAST_PEAK`` and on a key that the function of a block names,
    -> bool, [text, row, key]. Equally large keys share the row.
    """

    needs = ("positions", "queries", "keys")
    rows = f"rows with such a key and at least {LEAST_OPEN} unmasked keys"
    fused = False

    def measure_block(self, block: Block) -> PerRow:
        named = self.function(block)[:, None] & block.allowed  # [text, head or 1, row, key]
        largest = block.largest[..., None]
        peak = (block.rows == largest) & (largest > LEAST_PEAK)
        value = (peak & named).sum(-1) / peak.sum(-1).clamp_min(1)
        return PerRow(value.to(block.rows.dtype), named.any(-1) & (block.open_keys >= LEAST_OPEN))


class OnQuestion(Form):
    """The weight on some keys of some rows: a function of a block, -> bool, [text, row], [text, row, key]."""

    needs: ClassVar[tuple[str, ...]] = ("queries", "keys")
    rows = "rows that it asks, with such a key"
    fused = False

    def measure_block(self, block: Block) -> KeySum:
        rows, keys = self.function(block)
        return KeySum(keys, (keys[:, None] & block.allowed).any(-1) & rows[:, None])


class OnRelation(OnQuestion):
    """The same for keys that depend on where their row stands."""

    needs = ("positions", "queries", "keys")


class OnKeys(Form):
    """Weights summed, each times a factor of its key: a function of the keys' tokens, -> [text, key]."""

    needs = ("keys",)

    def measure_block(self, block: Block) -> KeySum:
        return KeySum(block.of_keys(self.function(block.keys)), block.every_row)

    def measure_statistics(self, name: str, statistics: Statistics, facts: TokenFacts | None) -> Total:
        number = self.function(facts).double()  # [text, key]
        value = (statistics.column.double() * number[:, None]).sum(-1)
        return _of_runs(statistics, value, number, 0 * statistics.positions)


class OnTokens(OnKeys):
    """The weight on keys of one class: a function of the keys' tokens, -> bool, [text, key]."""

    rows = "rows of texts that have such a token"

    def measure_block(self, block: Block) -> KeySum:
        sums = super().measure_block(block)
        return KeySum(sums.number, sums.counts & self.function(block.keys).any(-1)[:, None, None])

    def measure_statistics(self, name: str, statistics: Statistics, facts: TokenFacts | None) -> Total:
        total = super().measure_statistics(name, statistics, facts)
        there = self.function(facts).any(-1)[:, None, None]  # [text, 1, 1]
        return total._replace(counts=total.counts & there)


class OnPairs(Form):
    """The weight on keys with their row's label: a function of queries' and keys' tokens, -> Pairs."""

    needs = ("positions", "queries", "keys")
    rows = "rows that have such a key"
    alike: ClassVar[bool] = True  # whether labels shall be equal

    def measure_block(self, block: Block) -> KeySum:
        pairs: Pairs = self.function(block.queries, block.keys)
        match = (pairs.rows[:, :, None] == block.of_keys(pairs.keys)) == self.alike  # [text, row, key]
        match = match & ((block.gaps != 0) | pairs.itself) & ((block.gaps <= 0) | pairs.ahead)
        return KeySum(match, (match[:, None] & block.allowed).any(-1))

    def ask(self, name: str, request: Request, facts: TokenFacts | None) -> bool:
        """Ask for the pairs of the text, if it is known."""
        if facts is not None:
            request.pairs[name] = self.function(facts, facts)
        return True

    def measure_statistics(self, name: str, statistics: Statistics, facts: TokenFacts | None) -> Total | None:
        sums, pairs = statistics.pairs.get(name), self.function(facts, facts)
        if sums is None or not (sums.pairs.rows.equal(pairs.rows) and sums.pairs.keys.equal(pairs.keys)):
            return None
        count = sums.count[:, None].double()  # [batch, 1, row]
        return Total(sums.total, count > 0, count / statistics.runs.count[:, None], statistics.total.double())


class OnOthers(OnPairs):
    """The weight on keys with another label than their row; fused where all labels are the same."""

    alike = False

    def _has_none(self, facts: TokenFacts | None) -> bool:
        pairs: Pairs = self.function(facts, facts)
        return all(bool((side == pairs.keys[:, :1]).all()) for side in (pairs.rows, pairs.keys))

    def ask(self, name: str, request: Request, facts: TokenFacts | None) -> bool:
        """Ask for nothing: the fused pass only handles texts without such keys."""
        return facts is None or self._has_none(facts)

    def measure_statistics(self, name: str, statistics: Statistics, facts: TokenFacts | None) -> Total | None:
        nothing = 0 * statistics.runs.count[:, None].double()
        value = statistics.column.new_zeros(statistics.column.shape[:2]).double()
        return Total(value, nothing > 0, nothing, nothing) if self._has_none(facts) else None


def _of_runs(statistics: Statistics, value: Tensor, number: Tensor, shift: Tensor) -> Total:
    """The total of a sum over keys in which all rows count.

    Row ``i`` and key ``j`` have the factor ``number[text, j - shift[i]]``, ``shift`` being [row].
    """
    runs = statistics.runs
    texts = max(len(number), len(runs.low))
    number = number.expand(texts, -1)
    low, high = ((each - shift).expand(texts, -1) for each in (runs.low, runs.high))
    before = torch.nn.functional.pad(number.cumsum(-1), (1, 0))  # running sums before each position
    baseline = (before.gather(1, high) - before.gather(1, low)) / runs.count
    lone = statistics.total.double() * number.gather(1, low)[:, None]
    return Total(value, (runs.count > 0)[:, None].expand_as(baseline[:, None]), baseline[:, None], lone)


REASONS = {
    "positions": "compares positions within one sequence, and here there are two",
    "queries": "needs tokens, and this axis has only positions",
    "keys": "needs tokens, and this axis has only positions",
    "scores": "needs scores before the softmax, and here only weights are known",
}
"""Why a measure does not exist, by missing requirement."""


@dataclass(frozen=True)
class Measure:
    """One number per row, with all that a reader needs to know."""

    name: str
    form: Form
    formula: str
    source: str
    unit: str = "share"
    bounds: str = "0 to 1"
    counted: str | None = None  # which rows count, if the form's own words are not plain enough

    @property
    def rows(self) -> str:
        """Which rows count, in words."""
        return self.counted or self.form.rows

    @property
    def summary(self) -> str:
        """The first sentence of the function's docstring."""
        return docstring(self.form.function).split("\n")[0].split("  ")[0].rstrip(".")  # without shapes

    def missing(self, offered: Iterable[str]) -> str | None:
        """Why this measure does not exist for an attention that offers only this; ``None`` if it does."""
        lacks = [need for need in self.form.needs if need not in offered]
        return f"{self.name} {REASONS[lacks[0]]}" if lacks else None


MEASURES: Registry[Measure] = Registry(
    "measure",
    more=lambda: load_plugins("measures"),  # each measure declares its own, under @measure
)

Function = TypeVar("Function", bound="Callable[..., Any]")


def measure(
    name: str, form: type[Form], *, formula: str, source: str, rows: str | None = None, **more: str
) -> Callable[[Function], Function]:
    """Return a decorator that registers a function as the measure ``name``; its form says what it is given.

    ``rows`` says in words which rows count, if the form's own words are not plain enough; ``more`` has
    ``unit`` and ``bounds`` if these are not a share from 0 to 1.
    """

    def file(function: Function) -> Function:
        MEASURES.register(name)(Measure(name, form(function), formula, source, **more, counted=rows))
        return function

    return file


def fused_request(
    names: Iterable[str], texts: Sequence[Sequence[Token]], cells: int | None = None
) -> Request | None:
    """What to ask the fused pass for to compute these measures; ``None`` if it cannot compute them all.

    ``texts`` are those of a batch, of equal length, or one for all of it; ``cells`` also asks for a map.
    """
    facts = TokenFacts.from_texts(texts, {}) if texts and texts[0] else None
    request = Request(cells=cells)
    able = [MEASURES[name].form.ask(name, request, facts) for name in names]
    return request if all(able) else None
