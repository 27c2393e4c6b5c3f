"""How a file's questions are asked of every row of a call, and their sums."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from attnscope.attention import Attention, Kind, Site, Token
from attnscope.capture.observers.coarsen import rows_at_a_time
from attnscope.errors import InputError
from attnscope.measures.sums import read_site
from attnscope.questions.corpus import ReadText
from attnscope.questions.scene import locate_tokens
from attnscope.questions.selection import Selection
from attnscope.storage.gold import GoldFile, GoldPair, GoldText, Span

REACH = 100
"""Most words of a fixed offset that is tried as a baseline."""


class Ratio(NamedTuple):
    """A mean over questions and its standard error over texts, ``None`` for a single text."""

    value: float
    error: float | None


@dataclass(eq=False)
class SiteSums:
    """The sums of one site, all float64.

    ``asked`` counts questions, ``texts`` the texts with any; ``asked_squared`` sums the squares of the
    texts' counts. ``right`` and ``weight`` hold, by head, sums over texts of each text's sum, its square,
    and its product with the text's count; ``even`` sums the weight on even attention, ``offsets`` the
    answers at each distance.
    """

    asked: Tensor  # [slot]
    asked_squared: Tensor  # [slot]
    texts: Tensor  # [slot]
    even: Tensor  # [slot]
    offsets: Tensor  # [slot, distance]
    right: Tensor  # [slot, sum | square | product, head]
    weight: Tensor  # [slot, sum | square | product, head]

    @classmethod
    def zeros(cls, slots: int, heads: int) -> SiteSums:
        """No sums yet."""
        shapes = ((slots,),) * 4 + ((slots, 2 * REACH + 1),) + ((slots, 3, heads),) * 2
        return cls(*(torch.zeros(shape, dtype=torch.float64) for shape in shapes))

    def add(self, other: SiteSums) -> None:
        """Add the sums of other texts; the later one may have more slots."""
        for each in fields(self):
            mine, more = getattr(self, each.name), getattr(other, each.name)
            size = max(len(mine), len(more))
            setattr(self, each.name, _grown(mine, size) + _grown(more, size))

    def add_units(self, slot: Tensor, asked: Tensor, even: Tensor, right: Tensor, weight: Tensor) -> None:
        """Add a slot's values for each text: [unit] each, and by head [unit, head]."""
        self.asked.index_add_(0, slot, asked)
        self.asked_squared.index_add_(0, slot, asked.square())
        self.texts.index_add_(0, slot, (asked > 0).double())
        self.even.index_add_(0, slot, even)
        for sums, found in ((self.right, right), (self.weight, weight)):
            sums.index_add_(0, slot, torch.stack([found, found.square(), found * asked[:, None]], 1))

    def part(self, rows: list[int]) -> SiteSums:
        """The sums of some slots together, as one slot."""
        return SiteSums(*(getattr(self, each.name)[rows].sum(0, keepdim=True) for each in fields(self)))

    def ratios(self, sums: Tensor) -> list[Ratio]:
        """The means of a single slot, and their standard errors, by head.  [1, 3, head]

        The error is that of a ratio of sums over texts, as in ``measures.sums.Sums.figures``.
        """
        (total, squares, products), asked, texts = sums[0], self.asked[0], float(self.texts[0])
        means = total / asked
        spread = squares - 2 * means * products + means.square() * self.asked_squared[0]
        errors = (spread.clamp_min(0) * texts / max(texts - 1, 1)).sqrt() / asked
        return [
            Ratio(mean, error if texts > 1 else None)
            for mean, error in zip(means.tolist(), errors.tolist(), strict=True)
        ]


class GoldSums:
    """The sums of every site."""

    def __init__(self) -> None:
        self.sites: dict[Site, SiteSums] = {}
        self.heads: dict[Site, tuple[int, ...]] = {}

    def at(self, site: Site, heads: tuple[int, ...], slots: int) -> SiteSums:
        """The sums of a site, made on first use."""
        if site not in self.sites:
            self.sites[site], self.heads[site] = SiteSums.zeros(slots, len(heads)), heads
        return self.sites[site]

    def state(self) -> list[dict[str, Any]]:
        """The sums as plain lists, which JSON keeps exactly."""
        return [
            {"site": asdict(site), "heads": list(self.heads[site])}
            | {each.name: getattr(sums, each.name).tolist() for each in fields(sums)}
            for site, sums in self.sites.items()
        ]

    @classmethod
    def from_state(cls, state: Sequence[Mapping[str, Any]], slots: int) -> GoldSums:
        """What ``state`` saved, of at most ``most`` slots. Raises ``ValueError``."""
        made = cls()
        for entry in state:
            heads = tuple(entry["heads"])
            if not all(type(head) is int and head >= 0 for head in heads) or not heads:
                raise ValueError("these are no heads")
            sums = made.at(read_site(entry["site"]), heads, len(entry["asked"]))
            for each in fields(sums):
                read = torch.tensor(entry[each.name], dtype=torch.float64)
                if len(read) > slots or read.shape != getattr(sums, each.name).shape:
                    raise ValueError("the sums are of several shapes")
                setattr(sums, each.name, read)
        return made

    def merge(self, other: GoldSums) -> None:
        """Add the sums of other texts."""
        for site, sums in other.sites.items():
            self.at(site, other.heads[site], len(sums.asked)).add(sums)


def _grown(sums: Tensor, size: int) -> Tensor:
    return F.pad(sums, (0, 0) * (sums.ndim - 1) + (0, size - len(sums)))


MOST_LABELS = 1000
"""Most labels of a file; there are figures of every head for each."""

Slot: TypeAlias = "tuple[str, int] | None"
"""A label and a direction (0: left to right); ``None`` is the agreement with a full alignment."""


@dataclass
class Slots:
    """A number for each label and direction, and for each half of the corpus within it."""

    numbers: dict[Slot, int] = field(default_factory=dict)

    def number(self, slot: Slot, half: int) -> int:
        """The place of the sums. Raises ``InputError`` for too many labels."""
        if len(self.numbers) > 2 * MOST_LABELS:
            raise InputError(f"there are more than {MOST_LABELS:,} labels: ask for some with --relation")
        return 2 * self.numbers.setdefault(slot, len(self.numbers)) + half

    @property
    def count(self) -> int:
        """How many numbers there are."""
        return 2 * len(self.numbers)


@dataclass(frozen=True, eq=False)
class Grouping:
    """The tokens of one axis in groups: one for each word that has tokens, and one for each other token.

    ``of_token`` is the group of each token, numbered by their first tokens; ``of_word`` those of the
    words. ``special`` groups are not candidates.
    """

    of_token: tuple[int, ...]
    of_word: Mapping[int, int]
    special: frozenset[int]

    @property
    def count(self) -> int:
        """How many groups there are."""
        return max(self.of_token, default=-1) + 1


def group_tokens(tokens: Sequence[Token], text: str, words: Sequence[Span]) -> Grouping:
    """Which tokens make up each word of a text: those with most of their characters in it.

    A piece without characters, which the text spells otherwise or not at all, joins the piece of its word
    before it, or else after it.
    """
    starts = [start for start, _ in words]
    places = locate_tokens(tokens, text)
    found = [None if place is None else _word(place, words, starts) for place in places]
    for near in (-1, 1):
        order = range(len(tokens)) if near < 0 else reversed(range(len(tokens)))
        for number in order:
            other = number + near
            if found[number] is None and 0 <= other < len(tokens):
                one, two = tokens[number], tokens[other]
                joined = one.word is not None and not one.special and not two.special
                if joined and (one.segment, one.word) == (two.segment, two.word):
                    found[number] = found[other]
    groups: list[int] = []
    of_word: dict[int, int] = {}
    special = set()
    count = 0
    for token, word in zip(tokens, found, strict=True):
        if word is not None and word in of_word:
            groups.append(of_word[word])
            continue
        if word is not None:
            of_word[word] = count
        if token.special:
            special.add(count)
        groups.append(count)
        count += 1
    return Grouping(tuple(groups), of_word, frozenset(special))


def _word(place: Span, words: Sequence[Span], starts: Sequence[int]) -> int | None:
    """The word with most of a token's characters, the first of several."""
    best, most = None, 0
    first = max(0, bisect_right(starts, place[0]) - 1)
    for number in range(first, len(words)):
        start, stop = words[number]
        if start >= place[1]:
            break
        inside = min(stop, place[1]) - max(start, place[0])
        if inside > most:
            best, most = number, inside
    return best


@dataclass(eq=False)
class GoldQuestions:
    """The questions of a batch about one kind of attention.

    A question is a row (a group of tokens of one text) and the keys (groups) that are right; an answer is
    one of these. A unit is one text's share of one slot.
    """

    rows: list[Grouping] = field(default_factory=list)  # by text
    keys: list[Grouping] = field(default_factory=list)
    one_sequence: bool = True  # whether rows and keys are the same groups
    questions: list[tuple[int, int, int]] = field(default_factory=list)  # text, row, unit
    answers: list[tuple[int, int, int]] = field(default_factory=list)  # question, key, offset in words
    units: list[tuple[int, int]] = field(default_factory=list)  # slot, what counts beside the questions
    lost: int = 0  # pairs without tokens of their own

    def ask(
        self,
        pairs: Sequence[GoldPair],
        rows: Grouping,
        keys: Grouping,
        slots: Slots,
        ways: int,
        half: int,
    ) -> None:
        """Add the questions of one more text."""
        self.rows.append(rows)
        self.keys.append(keys)
        for way in range(ways):
            found: dict[str, dict[int, dict[int, int]]] = {}
            for pair in pairs:
                self._collect(pair, way, rows, keys, found.setdefault(pair.label, {}))
            for label, questions in found.items():
                if questions:
                    self._add(questions, slots.number((label, way), half))

    def ask_alignment(self, pairs: Iterable[GoldPair], slots: Slots, half: int) -> None:
        """Add the agreement with an alignment, its sure links and all links: 1 - AER (Och and Ney 2003)."""
        rows, keys = self.rows[-1], self.keys[-1]
        possible: dict[int, dict[int, int]] = {}
        sure: dict[int, dict[int, int]] = {}
        for pair in pairs:
            self._collect(pair, 0, rows, keys, possible, count=False)
            if pair.sure:
                self._collect(pair, 0, rows, keys, sure, count=False)
        slot = slots.number(None, half)
        self._add(possible, slot)
        self._add(sure, slot, joined=True)
        counted = len(rows.of_word) + sum(map(len, sure.values()))
        self.units[-1] = slot, counted - len(possible) - len(sure)

    def _collect(
        self,
        pair: GoldPair,
        way: int,
        rows: Grouping,
        keys: Grouping,
        found: dict[int, dict[int, int]],
        count: bool = True,
    ) -> None:
        """The answers of a pair, with their distance in words, by row."""
        lefts, rights = (pair.left, pair.right) if way == 0 else (pair.right, pair.left)
        known = False
        for one in lefts:
            for other in rights:
                row, key = rows.of_word.get(one), keys.of_word.get(other)
                if row is not None and key is not None and not (self.one_sequence and row == key):
                    found.setdefault(row, {})[key] = other - one
                    known = True
        self.lost += count and not known and way == 0

    def _add(self, questions: Mapping[int, Mapping[int, int]], slot: int, joined: bool = False) -> None:
        if not joined:
            self.units.append((slot, 0))
        for row, answers in questions.items():
            self.answers += ((len(self.questions), key, offset) for key, offset in answers.items())
            self.questions.append((len(self.rows) - 1, row, len(self.units) - 1))


def ask_batch(texts: Sequence[ReadText[GoldText]], file: GoldFile, slots: Slots) -> dict[Kind, GoldQuestions]:
    """The questions about a batch, by kind of attention: within a text, or from a target to its text."""
    first = texts[0].prepared.axes
    kinds: dict[Kind, GoldQuestions] = {}
    for kind, axes in first.items():
        if (texts[0].entry.target is None) == (kind == "cross"):
            continue
        twin = next((other for other in kinds if first[other] == axes), None)  # the same tokens
        if twin is not None:
            kinds[kind] = kinds[twin]
        elif not any(isinstance(axis, range) for axis in axes):
            asked = kinds[kind] = GoldQuestions(one_sequence=kind != "cross")
            for gold, prepared, number in texts:
                rows, keys = prepared.axes[kind]
                assert not isinstance(rows, range)
                assert not isinstance(keys, range)
                columns = group_tokens(keys, gold.text, gold.words)
                lines = columns
                if gold.target is not None:
                    lines = group_tokens(rows, gold.target, gold.target_words)
                half = 1 - number % 2
                asked.ask(gold.pairs, lines, columns, slots, len(file.ways), half)
                if file.links:
                    asked.ask_alignment(gold.pairs, slots, half)
    return kinds


BLOCK = 1 << 22
"""Weights that are processed together: 16 MB in float32."""


@dataclass(eq=False)
class GoldReading:
    """Reads every row of a call in blocks that split no word, and keeps only sums.

    Of a word's pieces, rows are averaged and columns summed. A row is right if the word with its largest
    sum, except special tokens and itself, is one of the answers (Clark et al. 2019, section 4.2). A
    question with all answers masked is skipped.
    """

    asked: Mapping[Kind, GoldQuestions]
    slots: int
    selection: Selection
    sums: GoldSums = field(default_factory=GoldSums)
    skipped: set[Kind] = field(default_factory=set)
    tables: dict[Kind, _Tables] = field(default_factory=dict)

    @torch.no_grad()
    def observe(self, attention: Attention) -> None:
        """Read one call."""
        site = attention.site
        heads = self.selection.heads(site, attention.heads)
        asked = self.asked.get(site.kind)
        if not heads or asked is None or not asked.questions:
            return
        lengths = len(asked.rows), len(asked.rows[0].of_token), len(asked.keys[0].of_token)
        if lengths != (attention.batch, len(attention.queries), len(attention.keys)):
            self.skipped.add(site.kind)
            return
        attention = attention.only(heads)
        tables = self.tables.setdefault(site.kind, _Tables(asked))
        units = _Units(tables, len(heads))
        for start, stop in tables.blocks(rows_at_a_time(attention, BLOCK)):
            if len((block := tables.block(start, stop)).row):
                units.add(block, attention.rows(start, stop), attention.allowed(start, stop))
        sums = self.sums.at(site, tuple(heads), self.slots)
        sums.add_units(tables.slot, units.asked + tables.more, units.even, units.right, units.weight)
        sums.offsets += units.offsets(self.slots)


@dataclass(frozen=True, eq=False)
class _RowBlock:
    """The questions about some rows; texts, rows and questions are numbered within the block."""

    groups: Tensor  # [text, row] the group of each row, from 0
    text: Tensor  # [question]
    row: Tensor
    unit: Tensor
    question: Tensor  # [answer]
    key: Tensor
    offset: Tensor
    itself: tuple[Tensor, Tensor, Tensor]  # where a word looks at itself: text, row, key


class _Tables:
    """The questions of a batch as tensors, shared by the layers of a kind."""

    def __init__(self, asked: GoldQuestions) -> None:
        self.asked = asked
        self.text, self.row, self.unit = torch.tensor(asked.questions).T.contiguous()
        self.question, self.key, self.offset = torch.tensor(asked.answers).T.contiguous()
        self.slot, self.more = torch.tensor(asked.units).T.contiguous()  # [unit]
        self.of_row = torch.tensor([each.of_token for each in asked.rows])  # [text, row]
        self.of_key = torch.tensor([each.of_token for each in asked.keys])  # [text, key]
        self.keys = max(each.count for each in asked.keys)
        self.excluded = torch.ones(len(asked.keys), self.keys, dtype=torch.bool)  # [text, group]
        for number, each in enumerate(asked.keys):
            self.excluded[number, : each.count] = False
            self.excluded[number, list(each.special)] = True
        before = self.of_row.cummax(1).values[:, :-1]
        after = self.of_row.flip(1).cummin(1).values.flip(1)[:, 1:]
        between = (before < after).all(0).nonzero()[:, 0] + 1  # rows before which no text splits a word
        self.cuts = [0, *between.tolist(), self.of_row.shape[1]]
        self._blocks: dict[tuple[int, int], _RowBlock] = {}

    def blocks(self, most: int) -> Iterator[tuple[int, int]]:
        """Where blocks of rows begin and end: at most ``most`` rows, unless a word is longer."""
        start = last = 0
        for cut in self.cuts[1:]:
            if cut - start > most and last > start:
                yield start, last
                start = last
            last = cut
        yield start, last

    def block(self, start: int, stop: int) -> _RowBlock:
        """The questions about these rows."""
        if (start, stop) not in self._blocks:
            self._blocks[start, stop] = self._block(start, stop)
        return self._blocks[start, stop]

    def _block(self, start: int, stop: int) -> _RowBlock:
        groups = self.of_row[:, start:stop]
        first, last = groups.amin(1), groups.amax(1)  # [text]
        mine = ((self.row >= first[self.text]) & (self.row <= last[self.text])).nonzero()[:, 0]
        numbers = torch.full((len(self.row),), -1)
        numbers[mine] = torch.arange(len(mine))
        answers = (numbers[self.question] >= 0).nonzero()[:, 0]
        text = self.text[mine]
        same = first[:, None] + torch.arange(int((last - first).max()) + 1)  # [text, row] its key
        texts, rows = torch.nonzero((same <= last[:, None]) & self.asked.one_sequence, as_tuple=True)
        return _RowBlock(
            groups - first[:, None],
            text,
            self.row[mine] - first[text],
            self.unit[mine],
            numbers[self.question[answers]],
            self.key[answers],
            self.offset[answers],
            (texts, rows, same[texts, rows]),
        )

    def words(self, rows: Tensor, block: _RowBlock) -> Tensor:
        """Columns summed and rows averaged by word.  [text, head, row, key] -> [text, row, key, head]"""
        texts, heads, size, length = rows.shape
        device = rows.device
        first = torch.arange(texts)[:, None]
        column = (self.of_key + first * self.keys).flatten().to(device)
        table = rows.permute(0, 3, 2, 1).reshape(texts * length, size * heads)
        table = table.new_zeros(texts * self.keys, size * heads).index_add_(0, column, table)
        table = table.view(texts, self.keys, size, heads).transpose(1, 2).reshape(texts * size, -1)
        across = int(block.groups.max()) + 1
        line = (block.groups + first * across).flatten().to(device)
        table = table.new_zeros(texts * across, table.shape[1]).index_add_(0, line, table)
        table /= torch.bincount(line, minlength=texts * across).clamp(min=1)[:, None]
        return table.view(texts, across, self.keys, heads)


class _Units:
    """Sums over the questions of one call, text by text: [unit], or [unit, head]."""

    def __init__(self, tables: _Tables, heads: int) -> None:
        self.tables = tables
        self.asked, self.even = torch.zeros(2, len(tables.slot), dtype=torch.float64)
        self.right, self.weight = torch.zeros(2, len(tables.slot), heads, dtype=torch.float64)
        self._offsets: list[tuple[Tensor, Tensor]] = []  # slots and distances of answers

    def add(self, block: _RowBlock, rows: Tensor, allowed: Tensor) -> None:
        """Add a block of whole words.  [text, head, row, key], and the keys left open"""
        tables = self.tables
        words = tables.words(rows.float(), block)
        even = allowed.float() / allowed.sum(-1, keepdim=True).clamp(min=1)
        even = tables.words(even.expand(len(rows), *even.shape[1:]), block)
        at = block.text[block.question], block.row[block.question], block.key
        weights, open_ = (
            words[at].cpu().double(),
            even[at].cpu().double().mean(-1),
        )  # [answer, head], [answer]
        words.masked_fill_(tables.excluded[:, None, :, None].to(words.device), -1)
        words[block.itself] = -1
        best = words.argmax(2)[block.text, block.row].cpu()  # [question, head]
        share = torch.zeros(len(block.row), dtype=torch.float64).index_add_(0, block.question, open_)
        asked = (share > 0).double()
        unit = block.unit[block.question]
        counts = asked[block.question, None]
        self.asked.index_add_(0, block.unit, asked)
        self.even.index_add_(0, block.unit, share)
        self.right.index_add_(0, unit, (best[block.question] == block.key[:, None]) * counts)
        self.weight.index_add_(0, unit, weights * counts)
        near = (block.offset.abs() <= REACH) & (open_ > 0)
        self._offsets.append((tables.slot[unit[near]], block.offset[near]))

    def offsets(self, slots: int) -> Tensor:
        """How many answers are at each distance.  -> [slot, distance]"""
        found = torch.zeros(slots, 2 * REACH + 1, dtype=torch.float64)
        for slot, offset in self._offsets:
            one = torch.ones(len(slot), dtype=torch.float64)
            found.index_put_((slot, offset + REACH), one, accumulate=True)
        return found
